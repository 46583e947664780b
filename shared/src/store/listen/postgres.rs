//! Listens to what other processes announce on PostgreSQL.
//!
//! The channel is named by the oid of our schema: channels span a whole database, and two schemas must not wake each other.
//! Each listener holds a shared lock, by which `announce` knows that somebody listens; it ends with the connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::time::{sleep, timeout};

use crate::causes::chain;
use crate::store::Waker;

/// After so much silence the connection is asked whether it lives: a dead one would be silent for ever.
const SILENCE: Duration = Duration::from_secs(30);
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn listen(options: Arc<PgConnectOptions>, waker: Waker, name: Arc<str>) {
    let own = waker.own_session();
    let mut delays = super::delays();
    loop {
        let mut connected = false;
        let ended = session(&options, &waker, &name, &mut connected).await;
        own.store(0, Ordering::Release);
        if connected {
            delays = super::delays();
        }
        if let Err(error) = ended {
            tracing::debug!(error = %chain(&error), "announcements of other processes are not heard now; polling finds their work");
        }
        sleep(delays.next().unwrap_or_default()).await;
    }
}

/// Listens until the connection is lost.
async fn session(
    options: &PgConnectOptions,
    waker: &Waker,
    name: &str,
    connected: &mut bool,
) -> Result<(), sqlx::Error> {
    // Connections of the store's pool come and go; this one stays, and takes none of theirs.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(PATIENCE)
        .connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    let sql = "SELECT 'twiceproof_' || relnamespace, pg_backend_pid() FROM pg_class
         WHERE oid = to_regclass('twiceproof_deliveries')";
    let place: Option<(String, i32)> = sqlx::query_as(sql).fetch_optional(&mut listener).await?;
    // Without tables there is nothing to be told of; later there may be.
    let Some((channel, session)) = place else { return Ok(()) };
    listener.listen(&channel).await?;
    sqlx::query("SELECT pg_advisory_lock_shared(hashtextextended($1, 0))")
        .bind(&channel)
        .execute(&mut listener)
        .await?;
    waker.own_session().store(session, Ordering::Release);
    *connected = true;
    // For what was announced before anybody listened.
    waker.wake();
    loop {
        match timeout(SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(news))) => {
                // What this process said itself woke its sleepers before.
                if news.payload() != name {
                    waker.wake();
                }
            }
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let alive = timeout(PATIENCE, sqlx::query("SELECT 1").execute(&mut listener)).await;
                alive.map_err(|_| sqlx::Error::PoolTimedOut)??;
            }
        }
    }
}
