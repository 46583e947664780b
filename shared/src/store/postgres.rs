//! Opening PostgreSQL, its durability settings, and schemas of its own.

use std::str::FromStr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};

use super::StoreError;
use crate::random::Random;

use crate::causes::chain;

/// How long work waits for a free connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that was used so recently is not asked whether it lives, which would cost a round trip each time. One that
/// has died all the same shows at its first statement, as one that dies a moment later does: for a transaction that is
/// BEGIN, which is tried again.
const FRESH: Duration = Duration::from_millis(500);

pub(super) async fn pool(url: &url::Url, connections: u32) -> Result<PgPool, StoreError> {
    // The pool would go on trying and then say that it is full. One connection of its own says what is wrong, at once.
    options(url)?.connect().await.map_err(unreachable)?.close().await?;
    pool_of(url, connections, |_| Box::pin(async { Ok(()) }))
}

/// A pool whose connections are made ready by `prepare`, beside what all need. It connects when it is asked to.
pub(super) fn pool_of(
    url: &url::Url,
    connections: u32,
    prepare: for<'a> fn(&'a mut PgConnection) -> BoxFuture<'a, Result<(), sqlx::Error>>,
) -> Result<PgPool, StoreError> {
    Ok(PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .after_connect(move |conn, _| {
            Box::pin(async move {
                end_when_abandoned(&mut *conn).await?;
                prepare(conn).await
            })
        })
        .test_before_acquire(false)
        .before_acquire(|conn, meta| {
            Box::pin(async move {
                if meta.idle_for >= FRESH {
                    conn.ping().await?;
                }
                Ok(true)
            })
        })
        .connect_lazy_with(options(url)?))
}

fn options(url: &url::Url) -> Result<PgConnectOptions, StoreError> {
    // sqlx's message may quote the address with its password, so the cause is not kept.
    let options = PgConnectOptions::from_str(url.as_str()).map_err(|_| {
        StoreError::refused("the PostgreSQL address cannot be read; see `postgres://USER@HOST/DATABASE`")
    })?;
    Ok(options.application_name("twiceproof"))
}

/// Why there is no connection at all. The server's own words name user and database, never a password.
fn unreachable(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(cause)
            if matches!(cause.code().as_deref(), Some("28000" | "28P01" | "3D000" | "42501")) =>
        {
            StoreError::refused(format!("the PostgreSQL server refused the login: {}", cause.message()))
        }
        _ => error.into(),
    }
}

/// A statement that we gave up (a handler over its deadline) keeps its backend, its locks and its place among the
/// server's connections until it ends, which may be never. From version 14 on the server can look whether we are still
/// there; older ones have no such setting, and some systems cannot, which is no reason not to work.
async fn end_when_abandoned(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let set = sqlx::query(
        "SELECT set_config(name, '1s', false) FROM pg_settings WHERE name = 'client_connection_check_interval'",
    );
    match set.execute(conn).await {
        Err(error @ sqlx::Error::Database(_)) => {
            tracing::debug!(error = %chain(&error), "the server does not end statements of connections that are gone");
            Ok(())
        }
        other => other.map(drop),
    }
}

/// Refuses a server that may forget an acknowledged commit.
pub(super) async fn check_durability(pool: &PgPool) -> Result<(), StoreError> {
    let off: Vec<String> = sqlx::query_scalar(
        "SELECT name FROM pg_settings
         WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off' ORDER BY name",
    )
    .fetch_all(pool)
    .await?;
    if off.is_empty() {
        return Ok(());
    }
    Err(StoreError::refused(format!(
        "PostgreSQL may lose acknowledged commits: {} off; switch on what is off, or allow it by name in the store's options",
        off.join(", ")
    )))
}

/// Makes a schema and returns the address in which all tables are looked up there.
///
/// # Errors
/// [`StoreError::Refused`] for a name that is not made of `a-z`, `0-9` and `_`; else as [`StoreError`] says.
pub async fn create_schema(url: &super::DatabaseUrl, name: &str) -> Result<super::DatabaseUrl, StoreError> {
    let inside = url.with_schema(name)?;
    let create = "DO $$ BEGIN EXECUTE format('CREATE SCHEMA %I', current_setting('twiceproof.schema')); END $$";
    with_schema_name(url, name, create).await?;
    Ok(inside)
}

/// Makes a schema whose name begins with `prefix` and ends by chance, so that it is nobody else's; its address and its name.
///
/// # Errors
/// As [`create_schema`].
pub async fn create_own_schema(
    url: &super::DatabaseUrl,
    prefix: &str,
) -> Result<(super::DatabaseUrl, String), StoreError> {
    let mut suffix = [0; 8];
    Random::from_system().fill(&mut suffix);
    let name = format!("{prefix}_{:016x}", u64::from_be_bytes(suffix));
    Ok((create_schema(url, &name).await?, name))
}

/// Drops a schema with everything in it, for throw-away schemas of [`create_schema`].
///
/// # Errors
/// As [`create_schema`].
pub async fn drop_schema(url: &super::DatabaseUrl, name: &str) -> Result<(), StoreError> {
    url.with_schema(name)?;
    let drop = "DO $$ BEGIN EXECUTE format('DROP SCHEMA %I CASCADE', current_setting('twiceproof.schema')); END $$";
    with_schema_name(url, name, drop).await
}

/// Runs a statement about a schema. Its name cannot be a parameter of such statements, so the server puts them together.
async fn with_schema_name(url: &super::DatabaseUrl, name: &str, statement: &'static str) -> Result<(), StoreError> {
    let mut conn = PgConnection::connect(&url.expose()).await?;
    sqlx::query("SELECT set_config('twiceproof.schema', $1, false)").bind(name).execute(&mut conn).await?;
    sqlx::raw_sql(statement).execute(&mut conn).await?;
    conn.close().await?;
    Ok(())
}
