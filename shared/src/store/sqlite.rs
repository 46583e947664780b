//! Opening a SQLite file: WAL, `synchronous=FULL`, a version with the WAL-reset fix, and a check on hosts' connections.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use super::StoreError;

/// Writers take the write lock at once: a transaction that reads first cannot be upgraded after another's commit.
pub(super) const BEGIN: &str = "BEGIN IMMEDIATE";

/// The first version in which a checkpoint cannot race a commit (WAL-reset fix), as SQLite numbers it.
const OLDEST_SAFE: i64 = 3_051_003;

/// How long a statement waits for a lock that another process holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn options(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .pragma("journal_size_limit", "67108864")
        // In pages of 4 KiB. A checkpoint is two waits for the disk within somebody's commit: four times as many commits share
        // one as by default.
        .pragma("wal_autocheckpoint", "4000")
        .statement_cache_capacity(256)
}

pub(super) async fn pool(options: &SqliteConnectOptions, connections: u32) -> Result<SqlitePool, StoreError> {
    let pool = SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(BUSY_TIMEOUT)
        // The liveness check costs a round trip; a file that goes away is noticed by the writer.
        .test_before_acquire(false)
        .connect_with(options.clone().create_if_missing(true))
        .await?;
    check_version(&pool).await?;
    // The file is made at the start or never: an empty one must not take the place of one that was deleted.
    pool.set_connect_options(options.clone());
    Ok(pool)
}

/// Which file a path led to, so that a deleted or replaced one is noticed: SQLite goes on writing into it.
#[derive(Debug)]
pub(super) struct FileId {
    file: PathBuf,
    id: Option<(u64, u64)>,
}

impl FileId {
    pub(super) fn of(file: &Path) -> Self {
        Self { file: file.to_owned(), id: Self::read(file) }
    }

    /// # Errors
    /// [`StoreError::Unavailable`] when another file, or none, is there now.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.id.is_some() && Self::read(&self.file) == self.id {
            return Ok(());
        }
        Err(StoreError::Unavailable(sqlx::Error::Io(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            "the database file was deleted or replaced",
        ))))
    }

    #[cfg(unix)]
    fn read(file: &Path) -> Option<(u64, u64)> {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(file).ok().map(|file| (file.dev(), file.ino()))
    }

    /// Where the system does not delete open files, it is enough that there is one.
    #[cfg(not(unix))]
    fn read(file: &Path) -> Option<(u64, u64)> {
        std::fs::metadata(file).ok().map(|_| (0, 0))
    }
}

/// Asks the library itself: what was linked in the end may be another one than the build meant.
async fn check_version(pool: &SqlitePool) -> Result<(), StoreError> {
    let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(pool).await?;
    let number =
        version.split('.').take(3).try_fold(0, |sum: i64, part| part.parse::<i64>().map(|part| sum * 1_000 + part));
    if number.is_ok_and(|number| number >= OLDEST_SAFE) {
        return Ok(());
    }
    Err(StoreError::refused(format!(
        "the linked SQLite is {version}; before 3.51.3 a checkpoint can lose committed data: link a newer one"
    )))
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
