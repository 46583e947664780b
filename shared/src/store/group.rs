//! Group commit for SQLite: units of work run one after another inside one outer transaction and share its fsync.
//!
//! Each unit runs in a savepoint under `catch_unwind`; its answer leaves only after the outer COMMIT. When the outer
//! transaction ends behind our back (disk full, I/O error, `OR ROLLBACK`, a unit's own COMMIT) or its COMMIT fails, the
//! batch is *unknown*: the connection is dropped and every unit runs again, alone. That is why a unit must be
//! recognisable by its own key: running it again is how its outcome is looked up.
//!
//! Invariants: nothing but [`Watched::commit`] commits on this connection, neither a unit's own COMMIT nor a statement
//! behind a transaction that SQLite rolled back, which would commit by itself; a statement that outlives its unit is
//! interrupted; what was committed into a file that is gone is not answered as committed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection, Sqlite};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use super::unit::Job;
use super::{Conn, StoreError, raw, sqlite};
use crate::causes::chain;

/// A batch closes when this many units ran …
const MOST_UNITS: usize = 64;
/// … or when this much time has passed …
const MOST_TIME: Duration = Duration::from_millis(5);
/// … and a writer that has held the write lock for this long, with no pause between its batches, …
const MOST_HELD: Duration = Duration::from_millis(4);
/// … leaves it free for this long, so that other processes and host transactions get it.
const PAUSE: Duration = Duration::from_millis(1);
/// How many of SQLite's instructions run between two looks at whether the statement shall end.
const INTERRUPT_OPS: i32 = 10_000;
/// How often a unit of a broken batch is tried alone.
const TRIES_ALONE: usize = 3;

/// The writing end: units are queued here.
pub(super) fn start(options: SqliteConnectOptions, permit: Arc<Semaphore>) -> mpsc::Sender<Box<dyn Job>> {
    let (sender, jobs) = mpsc::channel(1024);
    let now = Instant::now();
    let writer = Writer { options, permit, conn: None, held_since: now, ended: now };
    tokio::spawn(writer.run(jobs));
    sender
}

struct Writer {
    options: SqliteConnectOptions,
    permit: Arc<Semaphore>,
    conn: Option<Watched>,
    /// When the first batch began since the lock was last left free for a pause.
    held_since: Instant,
    /// When the last batch ended.
    ended: Instant,
}

impl Writer {
    async fn run(mut self, mut jobs: mpsc::Receiver<Box<dyn Job>>) {
        while let Some(first) = jobs.recv().await {
            if self.ended.elapsed() < PAUSE && self.ended - self.held_since >= MOST_HELD {
                tokio::time::sleep_until(self.ended + PAUSE).await;
            }
            if self.ended.elapsed() >= PAUSE {
                self.held_since = Instant::now();
            }
            // The semaphore is fair: a host transaction that asked first writes first.
            let Ok(permit) = Arc::clone(&self.permit).acquire_owned().await else { return };
            self.batch(first, &mut jobs).await;
            drop(permit);
            self.ended = Instant::now();
        }
    }

    /// Runs queued units in one transaction and answers them.
    async fn batch(&mut self, first: Box<dyn Job>, jobs: &mut mpsc::Receiver<Box<dyn Job>>) {
        let conn = match self.begin().await {
            Ok(conn) => conn,
            Err(error) => return first.fail(error),
        };
        let started = Instant::now();
        let mut ran = Vec::new();
        let mut next = Some(first);
        let mut whole = true;
        while let Some(mut job) = next.take() {
            match conn.unit(&mut *job).await {
                Ended::WithUs => ran.push(job),
                Ended::RolledBack => {
                    whole = false;
                    ran.push(job);
                }
                // Nothing of it is committed; it would only try again.
                Ended::CommitRefused => {
                    whole = false;
                    job.fail(StoreError::EndedByUnit);
                }
            }
            if !whole || ran.len() >= MOST_UNITS || started.elapsed() >= MOST_TIME {
                break;
            }
            next = jobs.try_recv().ok();
        }
        let mut unknown = false;
        if whole {
            match conn.commit().await {
                Ok(()) => return ran.into_iter().for_each(Job::deliver),
                Err(error) => unknown = matches!(error, StoreError::Unknown(_)),
            }
        }
        tracing::warn!(units = ran.len(), "a group commit broke; its units run again one by one");
        self.close().await;
        for job in ran {
            self.alone(job, unknown).await;
        }
    }

    /// Runs one unit of a broken batch in a transaction of its own. `unknown`: the batch may have been committed.
    async fn alone(&mut self, mut job: Box<dyn Job>, mut unknown: bool) {
        let mut last = StoreError::EndedByUnit;
        for _ in 0..TRIES_ALONE {
            let conn = match self.begin().await {
                Ok(conn) => conn,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            let ended = conn.unit(&mut *job).await;
            if matches!(ended, Ended::WithUs) {
                match conn.commit().await {
                    Ok(()) => return job.deliver(),
                    Err(error) => {
                        unknown |= matches!(error, StoreError::Unknown(_));
                        last = error;
                    }
                }
            } else {
                last = StoreError::EndedByUnit;
            }
            self.close().await;
            if matches!(ended, Ended::CommitRefused) || !last.is_retryable() && job.failed() {
                break;
            }
        }
        // The unit's own error says more than ours.
        if job.failed() {
            job.deliver();
        } else {
            job.fail(if unknown { last.while_unknown() } else { last });
        }
    }

    /// The connection, inside a fresh outer transaction.
    async fn begin(&mut self) -> Result<&mut Watched, StoreError> {
        let opened = match self.conn.take() {
            Some(conn) => conn,
            None => Watched::open(&self.options).await?,
        };
        let conn = self.conn.insert(opened);
        match raw::begin::<Sqlite>(&mut conn.conn, sqlite::BEGIN).await {
            Ok(()) => {}
            Err(error) => {
                self.close().await;
                return Err(error.into());
            }
        }
        let conn = self.conn.as_mut().expect("it was put there above");
        conn.refused.store(0, Ordering::Release);
        conn.rollbacks.store(0, Ordering::Release);
        Ok(conn)
    }

    /// Closes the connection and waits for it, so that its locks are gone.
    async fn close(&mut self) {
        if let Some(conn) = self.conn.take()
            && let Err(error) = conn.conn.close_hard().await
        {
            tracing::warn!(error = %chain(&error), "a broken SQLite connection did not close cleanly");
        }
    }
}

/// The writer's connection, with hooks that see the outer transaction end.
struct Watched {
    conn: SqliteConnection,
    /// True while the writer itself commits.
    committing: Arc<AtomicBool>,
    /// Ends the statement that runs.
    interrupt: Arc<AtomicBool>,
    /// How often a commit of a unit's was refused, and a transaction rolled back, since the outer one began.
    refused: Arc<AtomicU64>,
    rollbacks: Arc<AtomicU64>,
    file: sqlite::FileId,
}

/// What became of the outer transaction while a unit ran in it.
enum Ended {
    /// It is still ours to end.
    WithUs,
    /// It was rolled back, or can no longer be relied on.
    RolledBack,
    /// The unit tried to commit it, which rolled it back.
    CommitRefused,
}

impl Watched {
    async fn open(options: &SqliteConnectOptions) -> Result<Self, StoreError> {
        let mut conn = options.connect().await?;
        let file = sqlite::FileId::of(options.get_filename());
        let (committing, interrupt) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (refused, rollbacks) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut handle = conn.lock_handle().await?;
        handle.set_commit_hook({
            let (committing, refused) = (Arc::clone(&committing), Arc::clone(&refused));
            move || {
                let ours = committing.load(Ordering::Acquire);
                if !ours {
                    refused.fetch_add(1, Ordering::AcqRel);
                }
                ours
            }
        });
        handle.set_rollback_hook({
            let rollbacks = Arc::clone(&rollbacks);
            move || {
                rollbacks.fetch_add(1, Ordering::AcqRel);
            }
        });
        handle.set_progress_handler(INTERRUPT_OPS, {
            let interrupt = Arc::clone(&interrupt);
            move || !interrupt.load(Ordering::Acquire)
        });
        drop(handle);
        Ok(Self { conn, committing, interrupt, refused, rollbacks, file })
    }

    /// Runs a unit in its savepoint, and tells whether the outer transaction is still the one we began.
    async fn unit(&mut self, job: &mut dyn Job) -> Ended {
        if !self.script("SAVEPOINT twiceproof_unit").await {
            return Ended::RolledBack;
        }
        let mut conn = Conn::from(&mut self.conn);
        let run = super::reentrancy::inside(job.run(&mut conn));
        let keep = AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|_| {
            job.panicked();
            false
        });
        let ended = if keep {
            self.script("RELEASE SAVEPOINT twiceproof_unit").await
        } else {
            self.end_statement().await;
            // What the unit left open in sqlx's count; if that fails, the depth tells below.
            let _ = raw::rollback_to::<Sqlite>(&mut self.conn, 1).await;
            self.script("ROLLBACK TO SAVEPOINT twiceproof_unit; RELEASE SAVEPOINT twiceproof_unit").await
        };
        let untouched = raw::depth::<Sqlite>(&self.conn) == 1 && self.rollbacks.load(Ordering::Acquire) == 0;
        match self.refused.load(Ordering::Acquire) {
            0 if ended && untouched => Ended::WithUs,
            0 => Ended::RolledBack,
            _ => Ended::CommitRefused,
        }
    }

    /// A unit that was given up (a handler over its deadline) can leave its statement running; SQLite has no other way
    /// to get the connection back than to interrupt it. An interrupted write rolls the outer transaction back.
    async fn end_statement(&mut self) {
        self.interrupt.store(true, Ordering::Release);
        // The lock is given once nothing runs.
        let idle = self.conn.lock_handle().await.map(drop);
        self.interrupt.store(false, Ordering::Release);
        if let Err(error) = idle {
            tracing::warn!(error = %chain(&error), "the SQLite connection did not answer");
        }
    }

    async fn script(&mut self, sql: &'static str) -> bool {
        sqlx::raw_sql(sql).execute(&mut self.conn).await.is_ok()
    }

    async fn commit(&mut self) -> Result<(), StoreError> {
        self.committing.store(true, Ordering::Release);
        let committed = raw::commit::<Sqlite>(&mut self.conn).await;
        self.committing.store(false, Ordering::Release);
        committed?;
        self.file.check()
    }
}
