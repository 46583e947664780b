//! What the dispatcher does: a backlog drained, and events from publish to delivered. Their limit is the plain client.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use twiceproof_dispatcher::{Dispatcher, NewEvent, Publisher};

use super::bed::{Bed, moment};
use super::meter::{Latencies, Sum};
use super::report::Result as Measured;
use super::sink::Arrivals;
use super::{BenchError, publish, store as tables};

/// Measures how fast a backlog is delivered and recorded.
///
/// # Errors
/// As [`BenchError`] says.
pub async fn drain(bed: &Bed) -> Result<Measured, BenchError> {
    bed.add_endpoints().await?;
    let deliveries = bed.events() * bed.scenario.fan_out();
    let (mut subject, mut limit) = (Sum::default(), Sum::default());
    let mut arrived = 0;
    for _ in 0..bed.options.rounds {
        bed.plain_client(deliveries, &mut limit).await?;
        bed.within(fill(bed)).await?;
        let arrivals = bed.sink.begin(0);
        let work = async {
            // A delivery of a backlog has no latency of its own: it waited before.
            delivering(bed, deliveries, &arrivals, async { Ok(Arc::new(Latencies::default())) }).await
        };
        bed.turn(deliveries, work, &mut subject).await?;
        arrived += arrivals.count();
    }
    finish(bed, subject.figures("drain"), limit, arrived).await
}

/// Measures how fast events are published, delivered and recorded. The latency is that from publish to arrival.
///
/// # Errors
/// As [`BenchError`] says.
pub async fn end_to_end(bed: &Bed) -> Result<Measured, BenchError> {
    bed.add_endpoints().await?;
    let deliveries = bed.events() * bed.scenario.fan_out();
    let (mut subject, mut limit) = (Sum::default(), Sum::default());
    let mut arrived = 0;
    for _ in 0..bed.options.rounds {
        bed.plain_client(deliveries, &mut limit).await?;
        let arrivals = bed.sink.begin(bed.events());
        let turn = super::meter::Turn::begin(&bed.processes);
        bed.within(delivering(bed, deliveries, &arrivals, publish::publish(bed, &arrivals, None))).await?;
        turn.end(&bed.processes, deliveries, arrivals.latencies(), &mut subject);
        arrived += arrivals.count();
    }
    finish(bed, subject.figures("end to end"), limit, arrived).await
}

/// Runs a dispatcher beside `work` until all that is owed has arrived and is recorded.
///
/// # Errors
/// As [`BenchError`] says.
pub async fn delivering(
    bed: &Bed,
    deliveries: usize,
    arrivals: &Arrivals,
    work: impl Future<Output = Result<Arc<Latencies>, BenchError>>,
) -> Result<Arc<Latencies>, BenchError> {
    let stop = CancellationToken::new();
    // Whatever ends this future ends the worker too.
    let _stopping = stop.clone().drop_guard();
    let dispatcher = Dispatcher::start(&bed.store, bed.dispatcher()).await?;
    let running = tokio::spawn(dispatcher.run(stop.clone().cancelled_owned()));
    let latencies = work.await?;
    while arrivals.count() < deliveries as u64 {
        moment().await;
    }
    while tables::is_busy(&bed.store).await? {
        moment().await;
    }
    stop.cancel();
    running.await.map_err(|_| BenchError::Panicked)?;
    Ok(latencies)
}

/// Publishes a round's events, which nobody delivers yet.
async fn fill(bed: &Bed) -> Result<(), BenchError> {
    const AT_ONCE: usize = 1_000;
    let publisher = Publisher::new(&bed.store, &bed.dispatcher().policy);
    for first in (0..bed.events()).step_by(AT_ONCE) {
        let events: Vec<NewEvent> =
            (first..bed.events().min(first + AT_ONCE)).map(|number| bed.event(number)).collect();
        let mut tx = bed.store.begin().await?;
        let (_, wake) = publisher.publish_many(&mut tx.conn(), events).await?;
        tx.commit().await?;
        wake.send();
    }
    Ok(())
}

async fn finish(bed: &Bed, subject: super::Figures, limit: Sum, arrivals: u64) -> Result<Measured, BenchError> {
    let counts = super::report::Counts { arrivals, ..tables::count(&bed.store).await? };
    Ok(Measured::new(bed.scenario, bed.connections(), subject, vec![limit.figures("plain client")], counts))
}
