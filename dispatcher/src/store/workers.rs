//! Worker incarnations and the leases that dead ones leave behind.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::Id;
use twiceproof_shared::store::{Conn, Database, StoreError};

/// Enters a worker, or notes that it is alive.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn heartbeat(conn: &mut Conn<'_>, worker: &Id, now: Timestamp) -> Result<(), StoreError> {
    conn.execute(
        "INSERT INTO twiceproof_workers (id, started_at, heartbeat_at) VALUES ($1, $2, $2)
         ON CONFLICT (id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at",
        &[worker.into(), now.into()],
    )
    .await?;
    Ok(())
}

/// Takes all leases over that are not this worker's, and forgets the other workers. Only for SQLite, where the lock file
/// proves that no other worker lives. What is sent at most once may have been sent: its lease ends by
/// its time, and it with it. Returns how many leases.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn take_over_all(conn: &mut Conn<'_>, worker: &Id) -> Result<u64, StoreError> {
    conn.execute("DELETE FROM twiceproof_workers WHERE id <> $1", &[worker.into()]).await?;
    conn.execute(
        "UPDATE twiceproof_deliveries SET state = 'pending', lease_owner = NULL, lease_until = 0
         WHERE state = 'leased' AND coalesce(lease_owner, '') <> $1 AND at_most_once = 0",
        &[worker.into()],
    )
    .await
}

/// Whether the last sign of life of any worker is older than `since`: a look at the workers, before one at all leases.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn any_dead(conn: &mut Conn<'_>, since: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT count(*) FROM twiceproof_workers WHERE heartbeat_at < $1";
    let (count,): (i64,) = conn.fetch_one(sql, &[since.into()]).await?;
    Ok(count > 0)
}

/// Takes the leases over of workers whose last sign of life is older than `since`, at most `limit`, and forgets the
/// workers that hold none any more. Returns how many leases.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn take_over_dead(conn: &mut Conn<'_>, since: Timestamp, limit: i64) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => {
            "UPDATE twiceproof_deliveries SET state = 'pending', lease_owner = NULL, lease_until = 0 WHERE seq IN (
                 SELECT seq FROM twiceproof_deliveries WHERE state = 'leased' AND at_most_once = 0
                 AND lease_owner IN (SELECT id FROM twiceproof_workers WHERE heartbeat_at < $1) LIMIT $2)"
        }
        // Differs because other workers do the same: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH left_behind AS MATERIALIZED (
                 SELECT tenant, event, endpoint FROM twiceproof_deliveries WHERE state = 'leased' AND at_most_once = 0
                 AND lease_owner IN (SELECT id FROM twiceproof_workers WHERE heartbeat_at < $1)
                 LIMIT $2 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_deliveries d SET state = 'pending', lease_owner = NULL, lease_until = 0 FROM left_behind l
             WHERE d.tenant = l.tenant AND d.event = l.event AND d.endpoint = l.endpoint"
        }
    };
    let taken = conn.execute(sql, &[since.into(), limit.into()]).await?;
    conn.execute(
        "DELETE FROM twiceproof_workers WHERE heartbeat_at < $1 AND NOT EXISTS (
             SELECT 1 FROM twiceproof_deliveries d WHERE d.state = 'leased' AND d.lease_owner = twiceproof_workers.id)",
        &[since.into()],
    )
    .await?;
    Ok(taken)
}

/// Forgets a worker that has ended in order. A lease that it could not record or release ends by its time.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn retire(conn: &mut Conn<'_>, worker: &Id) -> Result<(), StoreError> {
    conn.execute("DELETE FROM twiceproof_workers WHERE id = $1", &[worker.into()]).await?;
    Ok(())
}

/// The file of a SQLite database, as the database knows it.
///
/// # Errors
/// As [`StoreError`] says; on PostgreSQL, which has no such file.
pub async fn sqlite_file(conn: &mut Conn<'_>) -> Result<String, StoreError> {
    let (file,): (String,) = conn.fetch_one("SELECT file FROM pragma_database_list WHERE name = 'main'", &[]).await?;
    Ok(file)
}
