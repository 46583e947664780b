//! Isolation: what a bad endpoint costs its neighbours, at default settings.
//!
//! Two scenarios. *Beside a slow one*: an endpoint that answers after ten seconds and is owed 100 events a second, and a
//! fast one at 50 a second. *Black hole*: an endpoint that never answers, or where already the connect hangs, with many
//! older deliveries, and 50 healthy endpoints that get 200 events a second together. The limit is the same healthy load in
//! the same run without the bad endpoint; what counts is the latency from publish to arrival, not the rate.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use twiceproof_dispatcher::{
    AddressPolicy, Dispatcher, DispatcherOptions, EndpointPolicy, NewEvent, Policy, SenderOptions,
};

use super::bed::{Bed, moment};
use super::meter::{Sum, Turn};
use super::report::{Counts, Result as Measured};
use super::sink::{SILENT_PATH, SLOW_PATH};
use super::trap::FullPort;
use super::{BenchError, Scenario, publish, store as tables};

/// Between two events to the fast endpoint, and to the slow one.
const FAST_PACE: Duration = Duration::from_millis(20);
const SLOW_PACE: Duration = Duration::from_millis(10);
/// The healthy endpoints, and the time between two of their events, whichever gets it.
const HEALTHY: usize = 50;
const HEALTHY_PACE: Duration = Duration::from_millis(5);
/// The type of the bad endpoint's events.
const BAD: &str = "bench.bad";

/// Measures a fast endpoint alone and beside a slow one, in turns.
///
/// # Errors
/// As [`BenchError`] says.
pub async fn beside_slow(bed: &Bed) -> Result<Measured, BenchError> {
    let load = Load::new(bed, 1, FAST_PACE, share(bed, 2)).await?;
    let slow = bed.add_endpoint(format!("{}{SLOW_PATH}", bed.sink.url()), BAD, &Policy::default()).await?;
    let (mut subject, mut limit) = (Sum::default(), Sum::default());
    let mut arrived = 0;
    for _ in 0..bed.options.rounds {
        arrived += turn(bed, &load, Beside::Nothing, &mut limit).await?;
        arrived += turn(bed, &load, Beside::Events(&slow), &mut subject).await?;
        tables::forget(&bed.store, &slow, BAD).await?;
    }
    finish(bed, subject.figures("beside slow"), limit.figures("alone"), arrived).await
}

/// Measures healthy endpoints alone, and then beside one that swallows everything.
///
/// # Errors
/// As [`BenchError`] says.
pub async fn black_hole(bed: &Bed) -> Result<Measured, BenchError> {
    // Alone for a quarter of the time: the black hole is what is asked about.
    let alone = Load::new(bed, HEALTHY, HEALTHY_PACE, share(bed, 4)).await?;
    let (mut subject, mut limit) = (Sum::default(), Sum::default());
    let mut arrived = 0;
    for _ in 0..bed.options.rounds {
        arrived += turn(bed, &alone, Beside::Nothing, &mut limit).await?;
    }
    let port = FullPort::open().await?;
    let url = match bed.scenario {
        Scenario::BlackHoleConnect => port.url(),
        _ => format!("{}{SILENT_PATH}", bed.sink.url()),
    };
    // Its breaker would make it harmless; what it costs without one is asked about.
    let hole = bed.add_endpoint_with(url, BAD, &Policy::default(), EndpointPolicy::without_breaker()).await?;
    let (tenant, rows) = (bed.tenant.as_str(), bed.options.backlog);
    let older = tables::Backlog { tenant, endpoint: &hole, event_type: BAD, rows };
    older.insert(&bed.store, &bed.event(0).payload).await?;
    let beside = Load { count: alone.count * 3, ..alone };
    for _ in 0..bed.options.rounds {
        arrived += turn(bed, &beside, Beside::Backlog(&hole), &mut subject).await?;
    }
    tables::forget(&bed.store, &hole, BAD).await?;
    finish(bed, subject.figures("beside hole"), limit.figures("alone"), arrived).await
}

/// How long one turn takes, if a round's part of it is one of `parts`.
fn share(bed: &Bed, parts: u32) -> Duration {
    bed.options.duration / u32::try_from(bed.options.rounds).unwrap_or(u32::MAX).max(1) / parts
}

/// Events at a pace, to healthy endpoints in turn.
struct Load {
    types: Vec<String>,
    pace: Duration,
    count: usize,
}

impl Load {
    async fn new(bed: &Bed, endpoints: usize, pace: Duration, lasts: Duration) -> Result<Self, BenchError> {
        let types: Vec<String> = (0..endpoints).map(|number| format!("bench.healthy.{number}")).collect();
        for (number, event_type) in types.iter().enumerate() {
            bed.add_endpoint(format!("{}/{number}", bed.sink.url()), event_type, &Policy::default()).await?;
        }
        Ok(Self { types, pace, count: events(lasts, pace) })
    }

    fn events(&self, bed: &Bed) -> Vec<NewEvent> {
        let types = self.types.iter().cycle();
        types.take(self.count).enumerate().map(|(number, name)| bed.event_of_type(name, number)).collect()
    }
}

/// How many events of this pace there are in this time.
fn events(lasts: Duration, pace: Duration) -> usize {
    (lasts.as_secs_f64() / pace.as_secs_f64()).ceil().max(1.0) as usize
}

/// What the bad endpoint, by its id, does meanwhile.
enum Beside<'a> {
    Nothing,
    /// It is owed new events all the time.
    Events(&'a str),
    /// It is owed old ones.
    Backlog(&'a str),
}

/// Delivers the load, and measures it until its last event has arrived. Returns how many arrived.
async fn turn(bed: &Bed, load: &Load, beside: Beside<'_>, sum: &mut Sum) -> Result<u64, BenchError> {
    let stop = CancellationToken::new();
    // Whatever ends this future ends the worker too.
    let _stopping = stop.clone().drop_guard();
    let dispatcher = Dispatcher::start(&bed.store, options()).await?;
    let running = tokio::spawn(dispatcher.run(stop.clone().cancelled_owned()));
    let noise = match beside {
        Beside::Events(_) => Some(Noise::start(bed, events(load.pace * count(load), SLOW_PACE))),
        Beside::Backlog(_) => {
            // From here on the hole has all that it can take.
            bed.within(tables::until_leased(&bed.store, slots().min(bed.options.backlog))).await?;
            None
        }
        Beside::Nothing => None,
    };
    let arrivals = bed.sink.begin(load.count);
    let measured = Turn::begin(&bed.processes);
    bed.within(async {
        publish::publish_all(bed, load.events(bed), Some(&arrivals), Some(load.pace)).await?;
        while arrivals.count() < load.count as u64 {
            moment().await;
        }
        Ok(())
    })
    .await?;
    measured.end(&bed.processes, load.count, arrivals.latencies(), sum);
    let bad = match beside {
        Beside::Nothing => "",
        Beside::Events(endpoint) | Beside::Backlog(endpoint) => endpoint,
    };
    bed.within(async {
        while tables::is_owed_but(&bed.store, bad).await? {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    })
    .await?;
    if let Some(noise) = noise {
        noise.stop().await?;
    }
    stop.cancel();
    running.await.map_err(|_| BenchError::Panicked)?;
    Ok(arrivals.count())
}

fn count(load: &Load) -> u32 {
    u32::try_from(load.count).unwrap_or(u32::MAX)
}

fn slots() -> usize {
    usize::try_from(Policy::default().slots_per_endpoint).unwrap_or(usize::MAX)
}

/// Everything as a user has it who sets nothing, but for the end, which does not wait for answers that never come.
fn options() -> DispatcherOptions {
    let sender = SenderOptions { addresses: AddressPolicy::AllowPrivate, ..SenderOptions::default() };
    DispatcherOptions { sender, grace: Duration::ZERO, ..DispatcherOptions::default() }
}

/// Events to the bad endpoint, beside the load.
struct Noise {
    stop: CancellationToken,
    publishing: JoinHandle<Result<(), BenchError>>,
}

impl Noise {
    fn start(bed: &Bed, count: usize) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let publisher = twiceproof_dispatcher::Publisher::new(&bed.store, &Policy::default());
        let event = bed.event_of_type(BAD, 0);
        let publishing = tokio::spawn(async move {
            let began = Instant::now();
            for number in 0..count {
                let due = began + SLOW_PACE * u32::try_from(number).unwrap_or(u32::MAX);
                tokio::select! {
                    () = stopped.cancelled() => break,
                    () = tokio::time::sleep_until(due.into()) => {}
                }
                publisher.publish_now(event.clone()).await?;
            }
            Ok(())
        });
        Self { stop, publishing }
    }

    async fn stop(self) -> Result<(), BenchError> {
        self.stop.cancel();
        self.publishing.await.map_err(|_| BenchError::Panicked)?
    }
}

async fn finish(
    bed: &Bed,
    subject: super::Figures,
    limit: super::Figures,
    arrivals: u64,
) -> Result<Measured, BenchError> {
    let counts = Counts { arrivals, ..tables::count(&bed.store).await? };
    Ok(Measured::new(bed.scenario, bed.connections(), subject, vec![limit], counts))
}
