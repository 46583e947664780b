//! Hears of work that other processes committed, and wakes this process's sleepers.
//!
//! Place in the path: beside a running worker. Invariants: a hint and no more; where it does not hear, polling finds the
//! work; a listener that has lost its connection comes back by itself.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::task::AbortHandle;

use super::{Pools, Store};

/// Listens as long as it is held.
#[derive(Debug)]
pub struct Listening(Option<AbortHandle>);

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// The one listener of a store, as long as somebody holds it.
#[derive(Debug, Default)]
pub(super) struct Listener(Mutex<Weak<Listening>>);

impl Store {
    /// Wakes this process's sleepers for work that other processes commit, as long as the returned value is held. On
    /// PostgreSQL that is a connection of its own, which listens; on SQLite one that asks the file every 20 ms, while
    /// anybody sleeps, whether another connection has committed. All workers of a store share it.
    #[must_use]
    pub fn listen(&self) -> Arc<Listening> {
        let mut shared = self.0.listener.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listening) = shared.upgrade() {
            return listening;
        }
        let waker = self.0.waker.clone();
        let task = (!self.0.no_listener).then(|| match &self.0.pools {
            // Differs because SQLite cannot tell of a commit; it can only be asked, at little cost.
            #[cfg(feature = "sqlite")]
            Pools::Sqlite { pool, .. } => tokio::spawn(sqlite::listen(pool.connect_options(), waker)),
            // Differs because PostgreSQL tells whoever listens.
            #[cfg(feature = "postgres")]
            Pools::Postgres { pool, name, .. } => {
                tokio::spawn(postgres::listen(pool.connect_options(), waker, Arc::clone(name)))
            }
        });
        let listening = Arc::new(Listening(task.map(|task| task.abort_handle())));
        *shared = Arc::downgrade(&listening);
        listening
    }
}

/// Between two tries to come back.
fn delays() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(10))
        .without_max_times()
        .build()
}
