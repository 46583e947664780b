//! The library's own transactions on PostgreSQL: connections and a thread of their own.
//!
//! Place in the path: publishes that share a commit, claims and records go through here; handlers of hosts only where they
//! share a transaction, which they do as long as they are quick.
//! A transaction is a dozen round trips, and in a host's runtime each of them would wait behind all the tasks that are ready
//! to run, which under load is longer than the statement takes; the server would stand idle meanwhile. The connections
//! know that every statement reaches its rows by a key: PostgreSQL keeps the plan that it made when a table was small, so
//! here it may not plan to read a whole table or index, however small it is now.

use std::future::Future;

use sqlx::{PgConnection, PgPool};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Plans, StoreError, postgres};

/// One writer beats several; the others are for those that wait for somebody else's locks.
const CONNECTIONS: u32 = 4;

/// The thread ends when this is dropped, and with it what runs on it.
#[derive(Debug)]
pub(super) struct Own {
    by_key: PgPool,
    /// For units in which handlers of hosts share a transaction: here PostgreSQL plans as it likes.
    free: PgPool,
    runtime: Handle,
    _stop: oneshot::Sender<()>,
}

impl Own {
    /// # Errors
    /// [`StoreError::Refused`] where the system gives no thread; else as [`StoreError`] says.
    pub(super) async fn start(url: &url::Url) -> Result<Self, StoreError> {
        let no_thread = |error| StoreError::refused(format!("the system gives no thread for the database: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        std::thread::Builder::new()
            .name("twiceproof-db".to_owned())
            .spawn(move || {
                // An error is the other end being dropped.
                let _ = runtime.block_on(stopped);
                // A connection that is being closed needs no more than it has got.
                runtime.shutdown_background();
            })
            .map_err(no_thread)?;
        let by_key = postgres::pool_of(url, CONNECTIONS, |conn| Box::pin(plan_by_key(conn)))?;
        let free = postgres::pool_of(url, CONNECTIONS, |_| Box::pin(async { Ok(()) }))?;
        Ok(Self { by_key, free, runtime: handle, _stop: stop })
    }

    pub(super) fn pool(&self, plans: Plans) -> &PgPool {
        match plans {
            Plans::ByKey => &self.by_key,
            Plans::Free => &self.free,
        }
    }

    pub(super) async fn close(&self) {
        self.by_key.close().await;
        self.free.close().await;
    }

    /// Runs it on the thread.
    pub(super) fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(feature = "testing")]
        let work = {
            let place = crate::testing::place();
            async move {
                crate::testing::follow(place);
                work.await
            }
        };
        self.runtime.spawn(work)
    }
}

async fn plan_by_key(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(
        "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
         SET jit = off",
    )
    .execute(conn)
    .await
    .map(drop)
}
