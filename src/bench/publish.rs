//! Publish: many callers at a time, each waits until its event is committed. Its limit is the plain client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use twiceproof_dispatcher::{NewEvent, Publisher};

use super::bed::Bed;
use super::client::join;
use super::meter::{Latencies, Sum};
use super::report::Result as Measured;
use super::sink::Arrivals;
use super::{BenchError, store as tables};

/// Measures it.
///
/// # Errors
/// As [`BenchError`] says.
pub async fn measure(bed: &Bed) -> Result<Measured, BenchError> {
    bed.add_endpoints().await?;
    let (mut subject, mut limit) = (Sum::default(), Sum::default());
    for _ in 0..bed.options.rounds {
        bed.plain_client(bed.events(), &mut limit).await?;
        let arrivals = bed.sink.begin(bed.events());
        bed.turn(bed.events(), publish(bed, &arrivals, None), &mut subject).await?;
    }
    let counts = tables::count(&bed.store).await?;
    let limits = vec![limit.figures("plain client")];
    Ok(Measured::new(bed.scenario, bed.connections(), subject.figures("publish"), limits, counts))
}

/// Publishes a round's events, as many at a time as there are connections; with a pace, one begins every `pace`.
///
/// # Errors
/// When one is not accepted.
pub async fn publish(
    bed: &Bed,
    arrivals: &Arc<Arrivals>,
    pace: Option<Duration>,
) -> Result<Arc<Latencies>, BenchError> {
    publish_all(bed, (0..bed.events()).map(|number| bed.event(number)).collect(), Some(arrivals), pace).await
}

/// Publishes these events in the same way, and notes where each is sent by its place among them.
///
/// # Errors
/// When one is not accepted.
pub async fn publish_all(
    bed: &Bed,
    events: Vec<NewEvent>,
    arrivals: Option<&Arc<Arrivals>>,
    pace: Option<Duration>,
) -> Result<Arc<Latencies>, BenchError> {
    let publisher = Publisher::new(&bed.store, &bed.dispatcher().policy);
    let (latencies, next) = (Arc::new(Latencies::default()), Arc::new(AtomicUsize::new(0)));
    let began = Instant::now();
    let events = Arc::new(events);
    let mut tasks = JoinSet::new();
    for _ in 0..bed.options.connections.clamp(1, events.len().max(1)) {
        let (publisher, events, next) = (publisher.clone(), Arc::clone(&events), Arc::clone(&next));
        let (latencies, arrivals) = (Arc::clone(&latencies), arrivals.map(Arc::clone));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(event) = events.get(number) else { return Ok(()) };
                if let Some(pace) = pace {
                    let due = began + pace * u32::try_from(number).unwrap_or(u32::MAX);
                    tokio::time::sleep_until(due.into()).await;
                }
                let asked = Instant::now();
                if let Some(arrivals) = &arrivals {
                    arrivals.sent(number);
                }
                publisher.publish_now(event.clone()).await?;
                latencies.note(asked.elapsed());
            }
        });
    }
    join(tasks).await?;
    Ok(latencies)
}
