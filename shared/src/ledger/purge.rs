//! Retention of the ledger: what was answered is forgotten first, that it was answered much later.
//!
//! Place in the path: none; a slow task of whoever receives. A *done* row whose time is over is emptied of outcome, request
//! and parameters and becomes *expired*; it still recognises a late duplicate, which is ignored and reported. Later it is
//! deleted. Conflicts are deleted some time after they were last seen.
//! Invariants: small batches, each a transaction of its own that is found by an index, so that nothing waits for it and a
//! crash loses nothing; rows that another process holds are skipped; *claimed* is never touched: nobody knows what came of it.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::store::{Conn, Database, Store, StoreError};
use crate::worker::keep_house;

/// The most rows of each kind that one batch changes. It stands in the statements themselves, or PostgreSQL would plan for
/// a share of the table.
const MOST_ROWS: u64 = 250;
const DAY: Duration = Duration::from_secs(86_400);

/// How long keys and conflicts are remembered. How long an answer is kept is said by its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retention {
    /// How long an emptied row still recognises a late duplicate: 400 days.
    pub expired_rows: Duration,
    /// How long a request with another payload is kept for review since it was last seen: 90 days.
    pub conflicts: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { expired_rows: 400 * DAY, conflicts: 90 * DAY }
    }
}

/// What one batch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Purged {
    /// Rows whose answer was forgotten.
    pub emptied: u64,
    /// Emptied rows that were deleted.
    pub deleted: u64,
    /// Conflicts that were deleted.
    pub conflicts: u64,
    /// There may be more.
    pub more: bool,
}

/// Does one small batch.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn purge(store: &Store, retention: &Retention) -> Result<Purged, StoreError> {
    let retention = *retention;
    // A look that writes nothing: most batches would find nothing to do.
    if !due(&mut store.read().await?.conn(), &retention, store.now()).await? {
        return Ok(Purged::default());
    }
    let clock = store.clone();
    store
        .run(move |conn| {
            let clock = clock.clone();
            Box::pin(async move { batch(conn, &retention, clock.now()).await })
        })
        .await
}

/// Purges batch after batch until `shutdown` resolves: what a host that receives runs beside its server.
pub async fn keep(store: &Store, retention: Retention, shutdown: impl Future<Output = ()> + Send) {
    let step = || async move { purge(store, &retention).await.map(|purged| purged.more) };
    keep_house("the ledger's retention", step, shutdown).await;
}

async fn due(conn: &mut Conn<'_>, retention: &Retention, now: Timestamp) -> Result<bool, StoreError> {
    let (due,): (i64,) = conn
        .fetch_one(
            "SELECT CASE
                 WHEN (SELECT expires_at FROM twiceproof_ledger WHERE state = 'done' ORDER BY expires_at LIMIT 1) <= $1
                 OR (SELECT expires_at FROM twiceproof_ledger WHERE state = 'expired' ORDER BY expires_at LIMIT 1) <= $2
                 OR (SELECT min(last_seen_at) FROM twiceproof_conflicts) <= $3
                 THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END",
            &[now.into(), now.minus(retention.expired_rows).into(), now.minus(retention.conflicts).into()],
        )
        .await?;
    Ok(due == 1)
}

async fn batch(conn: &mut Conn<'_>, retention: &Retention, now: Timestamp) -> Result<Purged, StoreError> {
    let emptied = empty(conn, now).await?;
    let deleted = delete_expired(conn, now.minus(retention.expired_rows)).await?;
    let conflicts = delete_conflicts(conn, now.minus(retention.conflicts)).await?;
    let more = [emptied, deleted, conflicts].contains(&MOST_ROWS);
    Ok(Purged { emptied, deleted, conflicts, more })
}

async fn empty(conn: &mut Conn<'_>, now: Timestamp) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => {
            "UPDATE twiceproof_ledger SET state = 'expired', outcome_status = NULL, outcome_headers = NULL,
                 outcome_body = NULL, request_headers = NULL, request_body = NULL, parameters = NULL
             WHERE rowid IN (SELECT rowid FROM twiceproof_ledger
                 WHERE state = 'done' AND expires_at <= $1 ORDER BY expires_at LIMIT 250)"
        }
        // Differs because other processes do the same: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH over AS MATERIALIZED (
                 SELECT tenant, scope, key FROM twiceproof_ledger
                 WHERE state = 'done' AND expires_at <= $1 ORDER BY expires_at LIMIT 250 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_ledger l SET state = 'expired', outcome_status = NULL, outcome_headers = NULL,
                 outcome_body = NULL, request_headers = NULL, request_body = NULL, parameters = NULL
             FROM over WHERE l.tenant = over.tenant AND l.scope = over.scope AND l.key = over.key"
        }
    };
    conn.execute(sql, &[now.into()]).await
}

async fn delete_expired(conn: &mut Conn<'_>, before: Timestamp) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => {
            "DELETE FROM twiceproof_ledger WHERE rowid IN (SELECT rowid FROM twiceproof_ledger
                 WHERE state = 'expired' AND expires_at <= $1 ORDER BY expires_at LIMIT 250)"
        }
        // Differs because other processes do the same: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH over AS MATERIALIZED (
                 SELECT tenant, scope, key FROM twiceproof_ledger
                 WHERE state = 'expired' AND expires_at <= $1 ORDER BY expires_at LIMIT 250 FOR UPDATE SKIP LOCKED)
             DELETE FROM twiceproof_ledger l USING over
             WHERE l.tenant = over.tenant AND l.scope = over.scope AND l.key = over.key"
        }
    };
    conn.execute(sql, &[before.into()]).await
}

async fn delete_conflicts(conn: &mut Conn<'_>, before: Timestamp) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => {
            "DELETE FROM twiceproof_conflicts WHERE rowid IN (SELECT rowid FROM twiceproof_conflicts
                 WHERE last_seen_at <= $1 ORDER BY last_seen_at LIMIT 250)"
        }
        // Differs because other processes do the same: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH over AS MATERIALIZED (
                 SELECT tenant, scope, key, digest FROM twiceproof_conflicts
                 WHERE last_seen_at <= $1 ORDER BY last_seen_at LIMIT 250 FOR UPDATE SKIP LOCKED)
             DELETE FROM twiceproof_conflicts c USING over
             WHERE c.tenant = over.tenant AND c.scope = over.scope AND c.key = over.key AND c.digest = over.digest"
        }
    };
    conn.execute(sql, &[before.into()]).await
}
