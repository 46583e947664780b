//! The storage seam: one concrete [`Store`] over SQLite or PostgreSQL, no storage trait.
//!
//! Three small types carry everything: [`Store`] (pools, clock, randomness; cheap to clone), [`Tx`] (an owned
//! transaction) and [`Conn`] (a borrowed connection, also a host's own). SQL stands in the `store` folders of the two
//! halves and in `ledger`, as static strings with `$1` placeholders; where the databases must differ, two bodies stand
//! side by side and say why.
//!
//! Invariants: a pooled connection is never lent inside a transaction; a failed COMMIT is *unknown*, never *failed*;
//! no answer leaves before the commit it reports.

#[cfg(feature = "postgres")]
mod announce;
mod arg;
pub mod bulk;
mod conn;
#[cfg(feature = "postgres")]
mod database_clock;
mod error;
#[cfg(feature = "sqlite")]
mod group;
mod host;
mod listen;
mod loan;
mod migrate;
#[cfg(feature = "postgres")]
mod own;
#[cfg(feature = "postgres")]
mod postgres;
mod raw;
mod reader;
mod reentrancy;
mod running;
mod savepoint;
pub mod settings;
#[cfg(feature = "sqlite")]
mod sqlite;
mod tx;
#[cfg(feature = "sqlite")]
mod unit;
mod url;
mod wake;
#[cfg(feature = "sqlite")]
mod wal;

#[cfg(feature = "postgres")]
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
#[cfg(feature = "postgres")]
use std::time::Duration;

#[cfg(feature = "postgres")]
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
#[cfg(feature = "sqlite")]
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;

pub use arg::Arg;
pub use conn::{Conn, Database, FromRows};
pub use error::StoreError;
pub use host::HostTx;
pub use listen::Listening;
pub use loan::Loan;
#[cfg(feature = "postgres")]
pub use postgres::{create_own_schema, create_schema, drop_schema};
pub use reader::Reader;
pub use running::{Running, RunningGuard, RunningKey};
pub use savepoint::{EffectMark, begin_effect, keep_effect, undo_effect};
pub use tx::Tx;
pub use url::DatabaseUrl;
pub use wake::{Sleeper, Wake, Waker};

#[cfg(feature = "postgres")]
use crate::causes::chain;
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::random::Random;
use crate::seal::Seal;

/// How long a rollback may take on PostgreSQL before its connection is closed instead.
#[cfg(feature = "postgres")]
const ROLLBACK_WAIT: Duration = Duration::from_secs(1);
/// How often a unit of work is run on PostgreSQL before its error is handed on.
#[cfg(feature = "postgres")]
const TRIES: u32 = 3;

/// A database, its clock and its randomness. Cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    pools: Pools,
    clock: Arc<dyn Clock>,
    random: Random,
    seal: Seal,
    waker: Waker,
    listener: listen::Listener,
    no_listener: bool,
    running: Running,
    /// One writer of this process at a time on SQLite; fair.
    permit: Arc<Semaphore>,
}

enum Pools {
    #[cfg(feature = "sqlite")]
    Sqlite {
        /// Connections for reads and for single transactions.
        pool: sqlx::SqlitePool,
        units: tokio::sync::mpsc::Sender<Box<dyn unit::Job>>,
    },
    #[cfg(feature = "postgres")]
    Postgres {
        pool: sqlx::PgPool,
        own: own::Own,
        time: Option<Arc<database_clock::DatabaseClock>>,
        announcer: announce::Announcer,
        /// What this process announces is said in this name.
        name: Arc<str>,
    },
}

/// How PostgreSQL may plan the statements of a transaction of ours.
#[derive(Debug, Clone, Copy)]
enum Plans {
    /// By indexes only.
    ByKey,
    /// As it likes.
    Free,
}

/// What a [`Store`] is opened with.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The clock. Default: this machine's on SQLite, the database's on PostgreSQL.
    pub clock: Option<Arc<dyn Clock>>,
    /// The randomness. Default: seeded by the operating system.
    pub random: Option<Random>,
    /// The most connections; default 8 on SQLite, 16 on PostgreSQL, where the library's own transactions have 4 more.
    pub connections: Option<u32>,
    /// The master keys that secrets are sealed under. Default: none, and secrets are stored as they are.
    pub seal: Seal,
    /// Accept a PostgreSQL server that may lose acknowledged commits. For throw-away databases of tests.
    pub allow_unsafe_durability: bool,
    /// Do not listen for work of other processes; polling finds it. For poolers that lend another server connection to each
    /// transaction, where a connection cannot listen.
    pub no_listener: bool,
}

impl Store {
    /// Opens the database. It does not migrate: see [`Store::migrate`].
    ///
    /// # Errors
    /// [`StoreError::Refused`] where the database or its settings cannot keep what was accepted, or where the cargo
    /// feature of this database is off; [`StoreError::Unavailable`] where it cannot be reached.
    pub async fn connect(url: &DatabaseUrl, options: StoreOptions) -> Result<Self, StoreError> {
        let permit = Arc::new(Semaphore::new(1));
        let waker = Waker::new();
        let given = options.clock;
        let (pools, sampled): (_, Option<Arc<dyn Clock>>) = match url.database() {
            #[cfg(feature = "sqlite")]
            Database::Sqlite => {
                let connect = sqlite::options(url.file().unwrap_or(std::path::Path::new("")));
                let pool = sqlite::pool(&connect, options.connections.unwrap_or(8)).await?;
                (Pools::Sqlite { pool, units: group::start(connect, Arc::clone(&permit)) }, None)
            }
            #[cfg(feature = "postgres")]
            Database::Postgres => {
                let address = url.postgres().ok_or_else(|| StoreError::refused("not a PostgreSQL address"))?;
                let pool = postgres::pool(address, options.connections.unwrap_or(16)).await?;
                if !options.allow_unsafe_durability {
                    postgres::check_durability(&pool).await?;
                }
                let own = own::Own::start(address).await?;
                let time = match given {
                    Some(_) => None,
                    None => Some(database_clock::DatabaseClock::start(&pool).await?),
                };
                let sampled = time.clone().map(|time| -> Arc<dyn Clock> { time });
                let name = announce::name();
                let announcer = announce::Announcer::start(&pool, &waker, Arc::clone(&name));
                (Pools::Postgres { pool, own, time, announcer, name }, sampled)
            }
            #[cfg(not(all(feature = "sqlite", feature = "postgres")))]
            other => {
                return Err(StoreError::refused(format!(
                    "this program was built without {other}; build it with the cargo feature of that database"
                )));
            }
        };
        Ok(Self(Arc::new(Inner {
            pools,
            clock: given.or(sampled).unwrap_or_else(|| Arc::new(SystemClock)),
            seal: options.seal,
            random: options.random.unwrap_or_else(Random::from_system),
            waker,
            listener: listen::Listener::default(),
            no_listener: options.no_listener,
            running: Running::default(),
            permit,
        })))
    }

    /// Runs a unit of work in one transaction and answers after its commit.
    ///
    /// On SQLite units of all callers share one fsync (group commit); on PostgreSQL each has a transaction of its own.
    /// A unit **may run again**, after an unknown commit or beside a unit that broke its batch. So what it writes must
    /// be recognisable by its own key (a ledger key, an event id, an attempt id): running it again is how an unknown
    /// outcome is looked up. Its last statement must have succeeded when it returns `Ok`.
    ///
    /// The work goes on when the caller's future is dropped.
    ///
    /// # Errors
    /// The unit's own error, with everything it wrote rolled back, or the store's, as [`StoreError`] says.
    pub async fn run<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: for<'a, 'c> Fn(&'a mut Conn<'c>) -> BoxFuture<'a, Result<T, E>> + Send + Sync + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        reentrancy::refuse()?;
        match &self.0.pools {
            // Differs because SQLite has one writer: queueing units for it lets them share a commit.
            #[cfg(feature = "sqlite")]
            Pools::Sqlite { units, .. } => {
                let (job, answer) = unit::Unit::new(work);
                units.send(Box::new(job)).await.map_err(|_| StoreError::Closed)?;
                answer.await.map_err(|_| StoreError::Closed)?
            }
            // Differs because PostgreSQL's writers run side by side, and a host's handler may be slow.
            #[cfg(feature = "postgres")]
            Pools::Postgres { pool, .. } => {
                let pool = pool.clone();
                let task = tokio::spawn(async move { run_alone(&pool, &work).await });
                task.await.unwrap_or_else(|_| Err(StoreError::Panicked.into()))
            }
        }
    }

    /// As [`Store::run`], for units of the library's own: whose statements all reach their rows by a key, and which run no
    /// code of a host's. On PostgreSQL they have connections and a thread of their own.
    ///
    /// # Errors
    /// As [`Store::run`].
    pub async fn run_own<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: for<'a, 'c> Fn(&'a mut Conn<'c>) -> BoxFuture<'a, Result<T, E>> + Send + Sync + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.run_beside(Plans::ByKey, work).await
    }

    /// As [`Store::run`], for units in which several callers share a transaction, each with little to do. On PostgreSQL they
    /// run on the thread of the library's own transactions.
    ///
    /// # Errors
    /// As [`Store::run`].
    pub async fn run_shared<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: for<'a, 'c> Fn(&'a mut Conn<'c>) -> BoxFuture<'a, Result<T, E>> + Send + Sync + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.run_beside(Plans::Free, work).await
    }

    #[cfg_attr(not(feature = "postgres"), expect(unused_variables, reason = "SQLite has no plans to restrict"))]
    async fn run_beside<T, E, F>(&self, plans: Plans, work: F) -> Result<T, E>
    where
        F: for<'a, 'c> Fn(&'a mut Conn<'c>) -> BoxFuture<'a, Result<T, E>> + Send + Sync + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        match &self.0.pools {
            #[cfg(feature = "sqlite")]
            Pools::Sqlite { .. } => self.run(work).await,
            #[cfg(feature = "postgres")]
            Pools::Postgres { own, .. } => {
                reentrancy::refuse()?;
                let pool = own.pool(plans).clone();
                let task = own.spawn(async move { run_alone(&pool, &work).await });
                task.await.unwrap_or_else(|_| Err(StoreError::Panicked.into()))
            }
        }
    }

    /// Refuses a call from inside a unit of work, for callers that would wait for a unit in another task.
    ///
    /// # Errors
    /// [`StoreError::Reentrant`].
    pub fn refuse_inside_unit(&self) -> Result<(), StoreError> {
        reentrancy::refuse()
    }

    /// Begins an owned write transaction.
    ///
    /// # Errors
    /// As [`StoreError`] says; [`StoreError::Reentrant`] from inside a unit of work.
    pub async fn begin(&self) -> Result<Tx, StoreError> {
        match &self.0.pools {
            #[cfg(feature = "sqlite")]
            Pools::Sqlite { pool, .. } => Tx::sqlite(pool, self.permit().await?).await,
            #[cfg(feature = "postgres")]
            Pools::Postgres { pool, .. } => {
                reentrancy::refuse()?;
                Tx::postgres(pool).await
            }
        }
    }

    /// Which database this is.
    #[must_use]
    pub fn database(&self) -> Database {
        match self.0.pools {
            #[cfg(feature = "sqlite")]
            Pools::Sqlite { .. } => Database::Sqlite,
            #[cfg(feature = "postgres")]
            Pools::Postgres { .. } => Database::Postgres,
        }
    }

    /// The clock that every query takes its time from.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &*self.0.clock
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// The randomness for ids, tokens and jitter.
    #[must_use]
    pub fn random(&self) -> &Random {
        &self.0.random
    }

    /// What seals secrets before they are stored.
    #[must_use]
    pub fn seal(&self) -> &Seal {
        &self.0.seal
    }

    /// Wakes the workers of this process.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.0.waker
    }

    /// The keys that run in this process.
    #[must_use]
    pub fn running(&self) -> &Running {
        &self.0.running
    }

    /// Database time minus this machine's, in milliseconds, at the last sample; `None` where the clocks are one.
    #[must_use]
    pub fn clock_skew_ms(&self) -> Option<i64> {
        match &self.0.pools {
            #[cfg(feature = "sqlite")]
            Pools::Sqlite { .. } => None,
            #[cfg(feature = "postgres")]
            Pools::Postgres { time, .. } => time.as_ref().map(|time| time.skew_ms()),
        }
    }

    /// Empties SQLite's write-ahead log where it is longer than `limit` bytes. Writers wait for it 100 ms at most. False:
    /// it is still longer, because somebody reads from it. PostgreSQL looks after its own log.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    pub async fn trim_log(&self, limit: u64) -> Result<bool, StoreError> {
        match &self.0.pools {
            #[cfg(feature = "sqlite")]
            Pools::Sqlite { pool, .. } => {
                let options = pool.connect_options();
                if wal::size(options.get_filename()) <= limit {
                    return Ok(true);
                }
                // Our own writers would only be in the way.
                let _permit = self.permit().await?;
                wal::trim(&options).await
            }
            #[cfg(feature = "postgres")]
            Pools::Postgres { .. } => {
                let _ = limit;
                Ok(true)
            }
        }
    }

    /// Closes the pools; work that waits for a connection ends with an error. Wake-ups that were sent go out before.
    pub async fn close(&self) {
        self.0.permit.close();
        match &self.0.pools {
            #[cfg(feature = "sqlite")]
            Pools::Sqlite { pool, .. } => pool.close().await,
            #[cfg(feature = "postgres")]
            Pools::Postgres { pool, own, announcer, .. } => {
                announcer.finish().await;
                pool.close().await;
                own.close().await;
            }
        }
    }

    /// This process's turn to write on SQLite.
    #[cfg(feature = "sqlite")]
    async fn permit(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        reentrancy::refuse()?;
        Arc::clone(&self.0.permit).acquire_owned().await.map_err(|_| StoreError::Closed)
    }
}

/// Runs a unit of work in a transaction of its own, and again where its commit is unknown.
#[cfg(feature = "postgres")]
async fn run_alone<T, E, F>(pool: &sqlx::PgPool, work: &F) -> Result<T, E>
where
    F: for<'a, 'c> Fn(&'a mut Conn<'c>) -> BoxFuture<'a, Result<T, E>> + Sync,
    E: From<StoreError>,
{
    let mut tries = 0;
    // A commit that is unknown stays so until a later run has looked: not to reach the database is no answer.
    let mut unknown: Option<StoreError> = None;
    loop {
        tries += 1;
        let mut tx = match Tx::postgres(pool).await {
            Ok(tx) => tx,
            Err(error) => return Err(unknown.unwrap_or(error).into()),
        };
        let mut conn = tx.conn();
        let run = AssertUnwindSafe(reentrancy::inside(work(&mut conn))).catch_unwind();
        let result = run.await.unwrap_or_else(|_| Err(StoreError::Panicked.into()));
        let value = match result {
            Ok(value) => value,
            Err(error) => {
                // A rollback that is not acknowledged closes the connection, which rolls back too. It waits behind
                // a statement that the unit left running, and the caller shall not wait with it.
                let reached = match tokio::time::timeout(ROLLBACK_WAIT, tx.rollback()).await {
                    Ok(Ok(())) => true,
                    Ok(Err(rollback)) => {
                        tracing::warn!(%rollback, "a rollback failed; the connection was closed");
                        matches!(rollback, StoreError::EndedByUnit)
                    }
                    Err(_) => {
                        tracing::warn!("a rollback was not acknowledged in time; the connection was closed");
                        false
                    }
                };
                return Err(match unknown {
                    Some(unknown) if !reached => unknown.into(),
                    _ => error,
                });
            }
        };
        match tx.commit_last_write().await {
            Ok(()) => return Ok(value),
            Err(error) if error.is_retryable() && tries < TRIES => {
                tracing::warn!(error = %chain(&error), tries, "running a unit of work again, which looks its key up");
                if matches!(error, StoreError::Unknown(_)) {
                    unknown = Some(error);
                }
                tokio::time::sleep(Duration::from_millis(50) * tries).await;
            }
            Err(error) => return Err(unknown.unwrap_or(error).into()),
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("database", &self.database()).finish_non_exhaustive()
    }
}
