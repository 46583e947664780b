//! A worker's incarnation: its random id, its sign of life, and what it takes over from dead ones.
//!
//! Place in the path: started and ended with its dispatcher; the claims carry its id.
//! Invariants: an id is never used twice, so a lease tells which incarnation holds it. A worker that was taken for dead and
//! goes on does no harm: its tokens no longer match.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::store::{Database, Store, StoreError};

use super::StartError;
use crate::store::{waiting, workers};
use crate::worker_lock::WorkerLock;

/// How often a worker gives a sign of life on PostgreSQL.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// A worker without a sign of life for this long is dead.
const DEAD_AFTER: Duration = Duration::from_secs(15);
/// The most rows that one look takes over or moves.
const MOST_MOVED: i64 = 1_000;
/// The most endpoints that one look moves parked rows of.
const MOST_ENDPOINTS: i64 = 100;

/// A worker that has started.
#[derive(Debug)]
pub(super) struct Worker {
    id: Id,
    /// Held on SQLite.
    _lock: Option<WorkerLock>,
    heart: Option<AbortHandle>,
    pulse: Arc<Pulse>,
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
        Ok(Self { id, _lock: lock, heart, pulse })
    }

    pub(super) fn id(&self) -> &Id {
        &self.id
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

/// Moves on what no claim moves: leases of dead workers, and parked deliveries of endpoints that are enabled. Returns how
/// many.
pub(super) async fn tidy(store: &Store, worker: &Worker) -> Result<u64, StoreError> {
    let parked = {
        let mut reader = store.read().await?;
        waiting::enabled_with_parked(&mut reader.conn(), MOST_ENDPOINTS).await?
    };
    let has_peers = store.database() == Database::Postgres && worker.pulse.judges(store.now());
    if parked.is_empty() && !has_peers {
        return Ok(0);
    }
    let parked = Arc::new(parked);
    let clock = store.clone();
    store
        .run(move |conn| {
            let (parked, clock) = (Arc::clone(&parked), clock.clone());
            Box::pin(async move {
                let now = clock.now();
                let mut moved = 0;
                if has_peers {
                    moved += workers::take_over_dead(conn, now.minus(DEAD_AFTER), MOST_MOVED).await?;
                }
                for (tenant, endpoint) in parked.iter() {
                    moved += waiting::unpark(conn, tenant, endpoint, now, MOST_MOVED).await?;
                }
                Ok(moved)
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
            Err(error) => tracing::warn!(%error, "a worker's sign of life was not written"),
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
