//! Resumption: a worker process is killed with requests under way, as by `kill -9`, and started again. How long until the
//! deliveries that it had claimed arrive again?
//!
//! The worker is the program itself, `serve` at default settings, so that its start counts too. All that is owed is under
//! way when it is killed. On SQLite the next worker takes the leases over at its start; on PostgreSQL, where others may
//! live, once the dead one has given no sign of life for 15 seconds.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use twiceproof_dispatcher::Policy;

use super::bed::{Bed, moment};
use super::meter::{Latencies, Sum, Turn};
use super::report::{Counts, Result as Measured};
use super::sink::HELD_PATH;
use super::{BenchError, publish, store as tables};

/// How many endpoints there are; each has as many requests under way as it may by default.
const ENDPOINTS: usize = 10;

/// Measures it.
///
/// # Errors
/// As [`BenchError`] says.
pub async fn measure(bed: &Bed) -> Result<Measured, BenchError> {
    let types: Vec<String> = (0..ENDPOINTS).map(|number| format!("bench.held.{number}")).collect();
    for (number, event_type) in types.iter().enumerate() {
        let url = format!("{}{HELD_PATH}/{number}", bed.sink.url());
        bed.add_endpoint(url, event_type, &Policy::default()).await?;
    }
    let owed = (ENDPOINTS * usize::try_from(Policy::default().slots_per_endpoint).unwrap_or(1)).min(bed.events());
    let (mut subject, mut first, mut start) = (Sum::default(), Sum::default(), Sum::default());
    let mut arrived = 0;
    for _ in 0..bed.options.rounds {
        let held = bed.sink.begin(0);
        bed.sink.hold(true);
        let events = types.iter().cycle().take(owed).enumerate();
        let events = events.map(|(number, event_type)| bed.event_of_type(event_type, number)).collect();
        publish::publish_all(bed, events, None, None).await?;
        let worker = Serving::start(bed).await?;
        bed.within(async {
            while held.count() < owed as u64 {
                moment().await;
            }
            Ok(())
        })
        .await?;
        drop(worker);

        let arrivals = bed.sink.begin(owed);
        bed.sink.hold(false);
        (0..owed).for_each(|number| arrivals.sent(number));
        let (turn, began) = (Turn::begin(&bed.processes), Instant::now());
        let worker = Serving::start(bed).await?;
        note(began.elapsed(), &mut start);
        bed.within(async {
            while arrivals.count() == 0 {
                moment().await;
            }
            note(began.elapsed(), &mut first);
            while arrivals.count() < owed as u64 {
                moment().await;
            }
            Ok(())
        })
        .await?;
        turn.end(&bed.processes, owed, arrivals.latencies(), &mut subject);
        bed.within(async {
            while tables::is_busy(&bed.store).await? {
                moment().await;
            }
            Ok(())
        })
        .await?;
        drop(worker);
        arrived += arrivals.count();
    }
    let limits = vec![start.figures("start"), first.figures("first arrival")];
    let counts = Counts { arrivals: arrived, ..tables::count(&bed.store).await? };
    Ok(Measured::new(bed.scenario, bed.connections(), subject.figures("arrives again"), limits, counts))
}

/// One latency as a turn of its own.
fn note(latency: Duration, sum: &mut Sum) {
    let latencies = Latencies::default();
    latencies.note(latency);
    sum.add(1, latency, &latencies);
}

/// `serve` in a process of its own. It is killed on drop, without a warning.
struct Serving(Child);

impl Serving {
    /// Starts it and waits until it answers.
    async fn start(bed: &Bed) -> Result<Self, BenchError> {
        let program = match &bed.options.program {
            Some(program) => program.clone(),
            None => std::env::current_exe()?,
        };
        let mut command = Command::new(program);
        // Nothing of this process's settings: neither its variables nor a file in its folder.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TWICEPROOF_") {
                command.env_remove(name);
            }
        }
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--allow-private-addresses", "--log-level", "error"])
            .env("TWICEPROOF_DATABASE", bed.database.expose())
            .current_dir(bed.folder())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut serving = Self(command.spawn()?);
        let stdout = serving.0.stdout.take();
        let said = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
            line
        });
        let line = said.await.map_err(|_| BenchError::Panicked)?;
        if !line.starts_with("listening") {
            return Err(BenchError::Setup("`serve` did not start; its own words are above".into()));
        }
        Ok(serving)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
