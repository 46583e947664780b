//! Backlog: so many events that all of them were never in memory, drained by the worker. What is to be seen is whether rate
//! and memory stay the same from the first tenth to the last; with a reader that keeps its snapshot open all the while, also
//! what that costs.
//!
//! The backlog is made by SQL alone, since publishing a million events would take longer than delivering them. Ten endpoints
//! get a tenth of the events each.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use twiceproof_dispatcher::Dispatcher;
use twiceproof_shared::store::{Reader, StoreError};

use super::bed::Bed;
use super::meter::{Latencies, Sum, Turn};
use super::report::{Counts, Result as Measured};
use super::sink::{Arrivals, body};
use super::{BenchError, Scenario, store as tables};

/// How many parts are measured apart.
const PARTS: usize = 10;
/// The most events that one statement makes.
const AT_ONCE: usize = 50_000;
/// The plain client needs no million to show what it can do.
const MOST_OF_LIMIT: usize = 20_000;

/// Measures it.
///
/// # Errors
/// As [`BenchError`] says.
pub async fn measure(bed: &Bed) -> Result<Measured, BenchError> {
    bed.add_endpoints().await?;
    let count = bed.events();
    let mut limit = Sum::default();
    bed.plain_client(count.min(MOST_OF_LIMIT), &mut limit).await?;
    for first in (0..count).step_by(AT_ONCE) {
        tables::fill(&bed.store, first, count.min(first + AT_ONCE), &body(first, bed.options.payload)).await?;
    }
    let held = match bed.scenario {
        Scenario::BacklogHeld => Some(hold(bed).await?),
        _ => None,
    };
    let arrivals = bed.sink.begin(0);
    let mut whole = Sum::default();
    let turn = Turn::begin(&bed.processes);
    let stop = CancellationToken::new();
    let dispatcher = Dispatcher::start(&bed.store, bed.dispatcher()).await?;
    let running = tokio::spawn(dispatcher.run(stop.clone().cancelled_owned()));
    let parts = bed.within(watch(bed, count, &arrivals)).await;
    // Also where it took too long: the tables are dropped next, and not under a worker.
    stop.cancel();
    running.await.map_err(|_| BenchError::Panicked)?;
    turn.end(&bed.processes, count, &Latencies::default(), &mut whole);
    if let Some(mut reader) = held {
        tables::let_go(&mut reader.conn()).await?;
    }
    let counts = Counts { arrivals: arrivals.count(), ..tables::count(&bed.store).await? };
    let limits = vec![limit.figures("plain client")];
    let mut measured = Measured::new(bed.scenario, bed.connections(), whole.figures("drain"), limits, counts);
    measured.parts = parts?;
    Ok(measured)
}

/// Watches the worker until nothing is left, and measures each part.
async fn watch(bed: &Bed, count: usize, arrivals: &Arrivals) -> Result<Vec<super::Figures>, BenchError> {
    let mut parts = Vec::with_capacity(PARTS);
    for (part, name) in NAMES.into_iter().enumerate() {
        let (from, to) = (count * part / PARTS, count * (part + 1) / PARTS);
        let (mut sum, turn) = (Sum::default(), Turn::begin(&bed.processes));
        while arrivals.count() < to as u64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            sum.note_memory();
        }
        turn.end(&bed.processes, to - from, &Latencies::default(), &mut sum);
        parts.push(sum.figures(name));
    }
    while tables::is_busy(&bed.store).await? {
        super::bed::moment().await;
    }
    Ok(parts)
}

const NAMES: [&str; PARTS] = ["0 %", "10 %", "20 %", "30 %", "40 %", "50 %", "60 %", "70 %", "80 %", "90 %"];

/// A reader that keeps its snapshot until it is let go.
async fn hold(bed: &Bed) -> Result<Reader, StoreError> {
    let mut reader = bed.store.read().await?;
    tables::hold(&mut reader.conn()).await?;
    Ok(reader)
}
