//! PostgreSQL's time: its offset is sampled, and the process's monotonic clock carries it on between two samples.
//!
//! Leases and due times of several processes are compared with one clock, the database's. It is sampled again every
//! minute, because a monotonic clock stands still while a machine is suspended.

use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use sqlx::PgPool;

use super::StoreError;
use crate::causes::chain;
use crate::clock::{Clock, SystemClock, Timestamp};

/// How long a sample is relied on.
const SAMPLE_EVERY: Duration = Duration::from_secs(60);
/// A difference to this machine's clock that is worth a warning, in milliseconds.
const NOTABLE_SKEW: i64 = 1_000;

/// The database's clock.
#[derive(Debug)]
pub(super) struct DatabaseClock(RwLock<Sample>);

#[derive(Debug, Clone, Copy)]
struct Sample {
    database: Timestamp,
    taken: Instant,
    /// Database time minus this machine's.
    skew_ms: i64,
}

impl DatabaseClock {
    /// Asks the database for its time, now and every minute as long as the clock is in use.
    pub(super) async fn start(pool: &PgPool) -> Result<Arc<Self>, StoreError> {
        let clock = Arc::new(Self(RwLock::new(Sample::take(pool).await?)));
        tokio::spawn(keep(Arc::downgrade(&clock), pool.clone()));
        Ok(clock)
    }

    /// Database time minus this machine's, in milliseconds, at the last sample.
    pub(super) fn skew_ms(&self) -> i64 {
        self.sample().skew_ms
    }

    fn sample(&self) -> Sample {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for DatabaseClock {
    fn now(&self) -> Timestamp {
        let sample = self.sample();
        sample.database.plus(sample.taken.elapsed())
    }
}

async fn keep(clock: Weak<DatabaseClock>, pool: PgPool) {
    loop {
        tokio::time::sleep(SAMPLE_EVERY).await;
        let Some(clock) = clock.upgrade() else { return };
        match Sample::take(&pool).await {
            Ok(sample) => *clock.0.write().unwrap_or_else(PoisonError::into_inner) = sample,
            // The last sample goes on; work meets the same trouble and says so.
            Err(error) => tracing::debug!(error = %chain(&error), "the database's clock was not read"),
        }
    }
}

impl Sample {
    async fn take(pool: &PgPool) -> Result<Self, StoreError> {
        let mut conn = pool.acquire().await?;
        let asked = Instant::now();
        let millis: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
            .fetch_one(&mut *conn)
            .await?;
        // The answer was made about half a round trip ago.
        let database = Timestamp::from_millis(millis).plus(asked.elapsed() / 2);
        let skew_ms = database.as_millis() - SystemClock.now().as_millis();
        if skew_ms.abs() > NOTABLE_SKEW {
            tracing::warn!(skew_ms, "the database's clock and this machine's differ; the database's is used");
        }
        Ok(Self { database, taken: Instant::now(), skew_ms })
    }
}
