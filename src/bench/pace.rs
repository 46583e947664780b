//! Pace: 100 events a second, which is no load, so that what is left is the latency of the path itself. Its limit is a
//! single commit at the same pace: two of them lie between a publish and its arrival.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bed::Bed;
use super::meter::{Latencies, Sum, Turn};
use super::report::{Counts, Result as Measured};
use super::{BenchError, deliver, publish, store as tables};

/// One event every 10 ms.
const PACE: Duration = Duration::from_millis(10);

/// Measures it.
///
/// # Errors
/// As [`BenchError`] says.
pub async fn measure(bed: &Bed) -> Result<Measured, BenchError> {
    bed.add_endpoints().await?;
    let (mut subject, mut limit) = (Sum::default(), Sum::default());
    let mut arrived = 0;
    for _ in 0..bed.options.rounds {
        bed.turn(bed.events(), commits(bed), &mut limit).await?;
        let arrivals = bed.sink.begin(bed.events());
        let turn = Turn::begin(&bed.processes);
        bed.within(deliver::delivering(bed, bed.events(), &arrivals, publish::publish(bed, &arrivals, Some(PACE))))
            .await?;
        turn.end(&bed.processes, bed.events(), arrivals.latencies(), &mut subject);
        arrived += arrivals.count();
    }
    tables::clear_effects(&bed.store).await?;
    let counts = Counts { arrivals: arrived, ..tables::count(&bed.store).await? };
    let limits = vec![limit.figures("one commit")];
    Ok(Measured::new(bed.scenario, bed.connections(), subject.figures("to arrival"), limits, counts))
}

/// Commits single rows at the same pace.
async fn commits(bed: &Bed) -> Result<Arc<Latencies>, BenchError> {
    let latencies = Arc::new(Latencies::default());
    let began = Instant::now();
    for number in 0..bed.events() {
        let due = began + PACE * u32::try_from(number).unwrap_or(u32::MAX);
        tokio::time::sleep_until(due.into()).await;
        let asked = Instant::now();
        let mut tx = bed.store.begin().await?;
        tables::add_effect(&mut tx.conn(), "commit", number as i64).await?;
        tx.commit().await?;
        latencies.note(asked.elapsed());
    }
    Ok(latencies)
}
