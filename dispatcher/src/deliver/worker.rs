//! A worker's incarnation: its random id, its sign of life, and what it takes over from dead ones.
//!
//! Place in the path: started and ended with its dispatcher; the claims carry its id.
//! Invariants: an id is never used twice, so a lease tells which incarnation holds it. A worker that was taken for dead and
//! goes on does no harm: its tokens no longer match.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use twiceproof_shared::causes::chain;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::store::{Database, Store, StoreError};

use super::StartError;
use crate::store::waiting::{self, ParkedLane};
use crate::store::{ordering, workers};
use crate::worker_lock::WorkerLock;

/// How often a worker gives a sign of life on PostgreSQL.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// A worker without a sign of life for this long is dead.
const DEAD_AFTER: Duration = Duration::from_secs(15);
/// The most rows that one transaction takes over or moves.
const MOST_MOVED: i64 = 1_000;
/// The most transactions in which one look moves parked rows.
const MOST_BATCHES: u32 = 10;
/// SQLite's write-ahead log is emptied when it is longer than this.
const LONGEST_LOG: u64 = 64 * 1024 * 1024;
/// The most endpoints with parked rows that one look looks at.
const MOST_LANES: i64 = 1_000;

/// A worker that has started.
#[derive(Debug)]
pub(super) struct Worker {
    id: Id,
    /// Held on SQLite.
    _lock: Option<WorkerLock>,
    heart: Option<AbortHandle>,
    pulse: Arc<Pulse>,
    /// Tenant and endpoint of the last parked lane that was looked at.
    parked_after: Mutex<(String, String)>,
}

/// When this worker could last give a sign of life, and how long it does not judge others by theirs: after an outage of
/// the database all signs are old, also those of the living.
#[derive(Debug)]
struct Pulse {
    last: AtomicI64,
    judges_from: AtomicI64,
}

impl Pulse {
    fn new(now: Timestamp) -> Self {
        Self { last: AtomicI64::new(now.as_millis()), judges_from: AtomicI64::new(now.as_millis()) }
    }

    /// A sign of life was written.
    fn beat(&self, now: Timestamp) {
        let last = Timestamp::from_millis(self.last.swap(now.as_millis(), Ordering::AcqRel));
        if now.since(last) > HEARTBEAT * 2 {
            self.judges_from.store(now.plus(DEAD_AFTER).as_millis(), Ordering::Release);
        }
    }

    fn judges(&self, now: Timestamp) -> bool {
        let last = Timestamp::from_millis(self.last.load(Ordering::Acquire));
        now.since(last) <= HEARTBEAT * 2 && now.as_millis() >= self.judges_from.load(Ordering::Acquire)
    }
}

impl Worker {
    /// Takes the lock of a SQLite file and enters the worker.
    pub(super) async fn start(store: &Store) -> Result<Self, StartError> {
        let id = Id::mint(Prefix::Worker, store.now(), store.random());
        let lock = lock(store).await?;
        enter(store, id.clone(), lock.is_some()).await?;
        // On SQLite the lock is the sign of life, and a write every few seconds would only wake the disk.
        let pulse = Arc::new(Pulse::new(store.now()));
        let heart =
            lock.is_none().then(|| tokio::spawn(beat(store.clone(), id.clone(), Arc::clone(&pulse))).abort_handle());
        Ok(Self { id, _lock: lock, heart, pulse, parked_after: Mutex::default() })
    }

    pub(super) fn id(&self) -> &Id {
        &self.id
    }

    fn parked_after(&self) -> (String, String) {
        self.parked_after.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_parked_after(&self, lane: (String, String)) {
        *self.parked_after.lock().unwrap_or_else(PoisonError::into_inner) = lane;
    }

    /// Forgets the worker, which has recorded or given back all that it held.
    pub(super) async fn retire(&self, store: &Store) -> Result<(), StoreError> {
        let id = Arc::new(self.id.clone());
        store
            .run(move |conn| {
                let id = Arc::clone(&id);
                Box::pin(async move { workers::retire(conn, &id).await })
            })
            .await
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(heart) = &self.heart {
            heart.abort();
        }
    }
}

/// Moves on what no claim moves: leases of dead workers, and parked deliveries of endpoints that are enabled or gone. Returns
/// how many.
pub(super) async fn tidy(store: &Store, worker: &Worker) -> Result<u64, StoreError> {
    if !store.trim_log(LONGEST_LOG).await? {
        tracing::debug!("SQLite's write-ahead log is long and somebody reads from it; it is emptied later");
    }
    Ok(take_over(store, worker).await? + settle_parked(store, worker).await?)
}

pub(super) async fn take_over(store: &Store, worker: &Worker) -> Result<u64, StoreError> {
    if store.database() != Database::Postgres || !worker.pulse.judges(store.now()) {
        return Ok(0);
    }
    let since = store.now().minus(DEAD_AFTER);
    if !workers::any_dead(&mut store.read().await?.conn(), since).await? {
        return Ok(0);
    }
    store.run(move |conn| Box::pin(workers::take_over_dead(conn, since, MOST_MOVED))).await
}

/// Goes on where the last look ended, so that the cost of a look does not grow with the number of disabled endpoints.
async fn settle_parked(store: &Store, worker: &Worker) -> Result<u64, StoreError> {
    let (tenant, endpoint) = worker.parked_after();
    let lanes = waiting::parked_lanes(&mut store.read().await?.conn(), (&tenant, &endpoint), MOST_LANES).await?;
    let (mut moved, mut batches) = (0, 0);
    let is_end = (lanes.len() as i64) < MOST_LANES;
    for lane in lanes {
        if lane.state.as_deref() != Some("disabled") {
            let lane = Arc::new(lane.clone());
            loop {
                if batches == MOST_BATCHES {
                    // The next look begins with what is left of this lane.
                    return Ok(moved);
                }
                batches += 1;
                let batch = settle_lane(store, Arc::clone(&lane)).await?;
                moved += batch;
                if batch < MOST_MOVED as u64 {
                    break;
                }
            }
        }
        worker.set_parked_after((lane.tenant, lane.endpoint));
    }
    if is_end {
        worker.set_parked_after(<(String, String)>::default());
    }
    Ok(moved)
}

async fn settle_lane(store: &Store, lane: Arc<ParkedLane>) -> Result<u64, StoreError> {
    let clock = store.clone();
    store
        .run(move |conn| {
            let (lane, clock) = (Arc::clone(&lane), clock.clone());
            Box::pin(async move {
                let (tenant, endpoint) = (&lane.tenant, &lane.endpoint);
                match lane.state {
                    Some(_) => waiting::unpark(conn, tenant, endpoint, clock.now(), MOST_MOVED).await,
                    None => {
                        let now = clock.now();
                        let blocked = ordering::bury(conn, tenant, endpoint, now, MOST_MOVED).await?;
                        let left = MOST_MOVED - blocked as i64;
                        Ok(blocked + waiting::bury_parked(conn, tenant, endpoint, now, left).await?)
                    }
                }
            })
        })
        .await
}

async fn lock(store: &Store) -> Result<Option<WorkerLock>, StartError> {
    if store.database() != Database::Sqlite {
        return Ok(None);
    }
    let mut reader = store.read().await?;
    let file = workers::sqlite_file(&mut reader.conn()).await?;
    Ok(Some(WorkerLock::take(Path::new(&file))?))
}

/// Enters the worker, or notes that it is alive; takes all other leases over if it is alone.
async fn enter(store: &Store, id: Id, is_alone: bool) -> Result<(), StoreError> {
    let id = Arc::new(id);
    let clock = store.clone();
    let taken = store
        .run(move |conn| {
            let (id, clock) = (Arc::clone(&id), clock.clone());
            Box::pin(async move {
                workers::heartbeat(conn, &id, clock.now()).await?;
                if is_alone { workers::take_over_all(conn, &id).await } else { Ok(0) }
            })
        })
        .await?;
    if taken > 0 {
        tracing::info!(taken, "leases of an earlier worker were taken over");
    }
    Ok(())
}

async fn beat(store: Store, id: Id, pulse: Arc<Pulse>) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        match enter(&store, id.clone(), false).await {
            Ok(()) => pulse.beat(store.now()),
            Err(error) => tracing::warn!(error = %chain(&error), "a worker's sign of life was not written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DEAD_AFTER, HEARTBEAT, Pulse, Timestamp};

    #[test]
    fn after_an_outage_nobody_is_taken_for_dead_before_the_living_had_time_for_a_sign() {
        let start = Timestamp::from_secs(1_700_000_000);
        let pulse = Pulse::new(start);
        assert!(pulse.judges(start.plus(HEARTBEAT)));
        // The database is away: no sign is written, and none of the others can be relied on.
        let back = start.plus(DEAD_AFTER * 3);
        assert!(!pulse.judges(back));
        pulse.beat(back);
        assert!(!pulse.judges(back.plus(HEARTBEAT)));
        let later = (1..=5).fold(back, |now, _| {
            let next = now.plus(HEARTBEAT);
            pulse.beat(next);
            next
        });
        assert!(pulse.judges(later));
    }
}
