//! Opening a SQLite file: WAL, `synchronous=FULL`, a version with the WAL-reset fix, and a check on hosts' connections.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use super::StoreError;

/// Writers take the write lock at once: a transaction that reads first cannot be upgraded after another's commit.
pub(super) const BEGIN: &str = "BEGIN IMMEDIATE";

/// The first version in which a checkpoint cannot race a commit (WAL-reset fix).
const OLDEST_SAFE: i32 = 3_051_003;

/// How long a statement waits for a lock that another process holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn options(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .pragma("journal_size_limit", "67108864")
        .statement_cache_capacity(256)
}

pub(super) async fn pool(options: &SqliteConnectOptions, connections: u32) -> Result<SqlitePool, StoreError> {
    check_version()?;
    Ok(SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(BUSY_TIMEOUT)
        // The liveness check costs a round trip; a file does not go away like a server.
        .test_before_acquire(false)
        .connect_with(options.clone())
        .await?)
}

fn check_version() -> Result<(), StoreError> {
    // The linked library is the pinned one; the constant is what it was built from.
    if libsqlite3_sys::SQLITE_VERSION_NUMBER < OLDEST_SAFE {
        return Err(StoreError::refused(
            "the linked SQLite is older than 3.51.3, where a checkpoint can lose committed data; link a newer one",
        ));
    }
    Ok(())
}

/// Checks a host's connection, before we write through it, for what "accepted means durable" needs.
pub(super) async fn check_host(conn: &mut SqliteConnection) -> Result<(), StoreError> {
    let journal: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *conn).await?;
    let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *conn).await?;
    if !journal.eq_ignore_ascii_case("wal") {
        return Err(StoreError::refused("this SQLite connection is not in WAL mode; set `PRAGMA journal_mode=WAL`"));
    }
    if synchronous < 2 {
        return Err(StoreError::refused(
            "this SQLite connection may lose commits at power loss; set `PRAGMA synchronous=FULL` on it",
        ));
    }
    Ok(())
}
