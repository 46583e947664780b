//! Asks a SQLite file whether another connection has committed.

use std::sync::Arc;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::causes::chain;
use crate::store::Waker;

/// Between two questions, which cost some microseconds each.
const ASK_EVERY: Duration = Duration::from_millis(20);

pub(super) async fn listen(options: Arc<SqliteConnectOptions>, waker: Waker) {
    let mut delays = super::delays();
    loop {
        if let Err(error) = ask(&options, &waker).await {
            tracing::debug!(error = %chain(&error), "commits of other processes are not noticed now; polling finds their work");
        }
        sleep(delays.next().unwrap_or_default()).await;
    }
}

/// Asks as long as the file answers.
async fn ask(options: &SqliteConnectOptions, waker: &Waker) -> Result<(), sqlx::Error> {
    let mut conn = options.connect().await?;
    let mut ticks = interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        ticks.tick().await;
        // While everybody works there is nobody to wake; what is missed shows at the next question.
        if !waker.is_awaited() {
            continue;
        }
        // It changes with every commit of another connection, also of this process: then the look that follows is in vain.
        let version: i64 = sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut conn).await?;
        if last.replace(version) != Some(version) {
            waker.wake();
        }
    }
}
