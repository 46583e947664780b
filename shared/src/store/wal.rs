//! SQLite's write-ahead log, kept from growing without end.
//!
//! SQLite copies the log into the file by itself, but begins it anew only at a moment at which nobody reads from it. Readers
//! that overlap, or one that stays, let it grow; afterwards it stays as long as it has become.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};

use super::StoreError;

/// How long a trim waits for readers. Writers wait as long at most.
const PATIENCE: Duration = Duration::from_millis(100);

/// Bytes of the log beside this file.
pub(super) fn size(file: &Path) -> u64 {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(log).map_or(0, |log| log.len())
}

/// Copies the log into the file and empties it. False: somebody still reads from it.
pub(super) async fn trim(options: &SqliteConnectOptions) -> Result<bool, StoreError> {
    let mut conn: SqliteConnection = options.clone().busy_timeout(PATIENCE).connect().await?;
    let trimmed = sqlx::query_as::<_, (i64, i64, i64)>("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut conn).await;
    conn.close().await?;
    match trimmed {
        Ok((busy, _, _)) => Ok(busy == 0),
        Err(error) => match StoreError::from(error) {
            StoreError::Busy(_) => Ok(false),
            error => Err(error),
        },
    }
}
