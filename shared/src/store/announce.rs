//! Tells the workers of other processes that there is work, by PostgreSQL's NOTIFY.
//!
//! Place in the path: after [`Wake::send`](super::Wake::send), in a task of its own. Never inside the transaction that made
//! the work: NOTIFY makes commits of a whole database wait for each other.
//! Invariants: a hint, whose loss costs the time until the next poll; however many are owed, one at a time is on its way
//! and at most one in [`GAP`]; where nobody but this process listens, none is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::Waker;
use crate::causes::chain;
use crate::random::Random;

/// Between two announcements: who is woken more often finds no more.
const GAP: Duration = Duration::from_millis(10);
/// How long it is believed whether anybody listens. Who begins to listen looks for work first, so little is missed.
const BELIEVED: Duration = Duration::from_secs(1);
/// How long the end of a store waits for its last announcement.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// A name of its own for what one store says, by which it knows its own words.
pub(super) fn name() -> Arc<str> {
    let mut bytes = [0; 8];
    // Not from the store's randomness, which two stores of a test may have in common.
    Random::from_system().fill(&mut bytes);
    format!("{:016x}", u64::from_be_bytes(bytes)).into()
}

/// What other processes are told, and how far that has come.
#[derive(Debug)]
pub(super) struct Announcer {
    owed: watch::Receiver<u64>,
    told: watch::Receiver<u64>,
}

impl Announcer {
    /// Announces under this name, as long as there is a waker.
    pub(super) fn start(pool: &PgPool, waker: &Waker, name: Arc<str>) -> Self {
        let (tell, told) = watch::channel(0);
        let work =
            Work { pool: pool.clone(), owed: waker.announcements(), own: waker.own_session(), name, heard: None };
        tokio::spawn(work.run(tell));
        Self { owed: waker.announcements(), told }
    }

    /// Waits, not for long, until what is owed has been told: a program that publishes and ends would take it along.
    pub(super) async fn finish(&self) {
        let owed = *self.owed.borrow();
        let mut told = self.told.clone();
        // It is only a hint: neither a late one nor a lost one is an error.
        let _ = timeout(LAST_WAIT, told.wait_for(|told| *told >= owed)).await;
    }
}

struct Work {
    pool: PgPool,
    owed: watch::Receiver<u64>,
    own: Arc<AtomicI32>,
    name: Arc<str>,
    /// Whether somebody else listens, and when that was asked.
    heard: Option<(bool, Instant)>,
}

impl Work {
    async fn run(mut self, tell: watch::Sender<u64>) {
        while self.owed.changed().await.is_ok() {
            let owed = *self.owed.borrow_and_update();
            let sent = self.announce().await;
            tell.send_replace(owed);
            match sent {
                Ok(false) => {}
                Ok(true) => sleep(GAP).await,
                Err(error) => {
                    // Work meets the same trouble and says so.
                    tracing::debug!(error = %chain(&error), "other processes were not told of new work; they find it by polling");
                    sleep(BELIEVED).await;
                }
            }
        }
    }

    /// True where it was sent.
    async fn announce(&mut self) -> Result<bool, sqlx::Error> {
        let is_heard = match self.heard {
            Some((is_heard, asked)) if asked.elapsed() < BELIEVED => is_heard,
            _ => {
                let is_heard = self.is_heard().await?;
                self.heard = Some((is_heard, Instant::now()));
                is_heard
            }
        };
        if !is_heard {
            return Ok(false);
        }
        // Nothing is written, so there is nothing that the disk would have to keep.
        let sql = "SELECT set_config('synchronous_commit', 'off', true), pg_notify('twiceproof_' || relnamespace, $1)
             FROM pg_class WHERE oid = to_regclass('twiceproof_deliveries')";
        sqlx::query(sql).bind(&*self.name).execute(&self.pool).await?;
        Ok(true)
    }

    /// Every listener holds a shared lock, so the locks tell whether there is another one.
    async fn is_heard(&self) -> Result<bool, sqlx::Error> {
        let sql = "SELECT EXISTS (
                 SELECT 1 FROM pg_locks l
                 WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid <> $1
                 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 AND (l.classid::bigint << 32) | l.objid::bigint = (
                     SELECT hashtextextended('twiceproof_' || relnamespace, 0)
                     FROM pg_class WHERE oid = to_regclass('twiceproof_deliveries')))";
        sqlx::query_scalar(sql).bind(self.own.load(Ordering::Acquire)).fetch_one(&self.pool).await
    }
}
