//! What a claim moves before it looks for what is pending: one question whether there is anything, and what has to end.
//!
//! Invariants: as of [`waiting`](super::waiting), whose part is what only waits longer or no longer. What has expired ends without
//! an attempt; what is sent at most once and whose lease is over may have been sent, and ends too. What is owed behind them with
//! the same ordering key goes on.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Conn, Database, StoreError};

use super::ordering::{self, Ended};

/// What a claim has to move before it looks for what is pending. Each is found by one seek.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct Due {
    /// 1: a retry is due.
    pub retries: i64,
    /// 1: a lease is over.
    pub leases: i64,
    /// 1: something has expired.
    pub expiry: i64,
    /// 1: something with an ordering key waits for its place.
    pub unplaced: i64,
    /// 1: an event is on its way to many endpoints.
    pub fan_outs: i64,
}

/// Asks for all of it at once, since mostly there is nothing; of what has a time, after `since`.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn due(conn: &mut Conn<'_>, since: Timestamp, now: Timestamp) -> Result<Due, StoreError> {
    conn.fetch_one(
        "SELECT
             CASE WHEN (SELECT due_at FROM twiceproof_deliveries WHERE state = 'backoff' AND due_at > $2
                 ORDER BY due_at LIMIT 1) <= $1 THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END AS retries,
             CASE WHEN (SELECT lease_until FROM twiceproof_deliveries WHERE state = 'leased' AND lease_until > $2
                 ORDER BY lease_until LIMIT 1) <= $1 THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END AS leases,
             CASE WHEN (SELECT expires_at FROM twiceproof_deliveries
                 WHERE expires_at IS NOT NULL AND state IN ('pending', 'backoff', 'parked') AND expires_at > $2
                 ORDER BY expires_at LIMIT 1) <= $1 THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END AS expiry,
             CASE WHEN (SELECT seq FROM twiceproof_deliveries WHERE state = 'blocked' AND state_reason IS NULL
                 ORDER BY seq LIMIT 1) IS NOT NULL THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END AS unplaced,
             CASE WHEN (SELECT tenant FROM twiceproof_fan_outs ORDER BY tenant LIMIT 1) IS NOT NULL
                 THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END AS fan_outs",
        &[now.into(), since.into()],
    )
    .await
}

/// What has expired after `since` ends as dead, and what is sent at most once and whose lease ended after it: it may have been sent. At
/// most `limit` of each; what is owed behind them goes on. True: that was all.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn end(conn: &mut Conn<'_>, since: Timestamp, now: Timestamp, limit: i64) -> Result<bool, StoreError> {
    let unknown = match conn.database() {
        Database::Sqlite => {
            "UPDATE twiceproof_deliveries
             SET state = CASE resume_state WHEN 'delivered' THEN 'delivered' ELSE 'dead' END,
                 state_reason = CASE resume_state WHEN 'delivered' THEN NULL ELSE 'unknown_outcome' END, final_at = $1,
                 attempts = attempts + 1, lease_owner = NULL, lease_until = 0,
                 resume_state = NULL, resume_reason = NULL, resume_due_at = NULL
             WHERE seq IN (
                 SELECT seq FROM twiceproof_deliveries WHERE state = 'leased' AND lease_until <= $1 AND lease_until > $3 AND at_most_once = 1
                 ORDER BY lease_until LIMIT $2)
             RETURNING tenant, endpoint, ordering_key, deadline_at"
        }
        // Differs because other workers do the same: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH over AS MATERIALIZED (
                 SELECT tenant, event, endpoint FROM twiceproof_deliveries
                 WHERE state = 'leased' AND lease_until <= $1 AND lease_until > $3 AND at_most_once = 1
                 ORDER BY lease_until LIMIT $2 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_deliveries d
             SET state = CASE resume_state WHEN 'delivered' THEN 'delivered' ELSE 'dead' END,
                 state_reason = CASE resume_state WHEN 'delivered' THEN NULL ELSE 'unknown_outcome' END, final_at = $1,
                 attempts = d.attempts + 1, lease_owner = NULL, lease_until = 0,
                 resume_state = NULL, resume_reason = NULL, resume_due_at = NULL
             FROM over WHERE d.tenant = over.tenant AND d.event = over.event AND d.endpoint = over.endpoint
             RETURNING d.tenant, d.endpoint, d.ordering_key, d.deadline_at"
        }
    };
    let expired = match conn.database() {
        Database::Sqlite => {
            "UPDATE twiceproof_deliveries
             SET state = CASE resume_state WHEN 'delivered' THEN 'delivered' ELSE 'dead' END,
                 state_reason = CASE resume_state WHEN 'delivered' THEN NULL ELSE 'expired' END, final_at = $1,
                 resume_state = NULL, resume_reason = NULL, resume_due_at = NULL
             WHERE seq IN (
                 SELECT seq FROM twiceproof_deliveries
                 WHERE expires_at IS NOT NULL AND state IN ('pending', 'backoff', 'parked') AND expires_at <= $1
                   AND expires_at > $3
                 ORDER BY expires_at LIMIT $2)
             RETURNING tenant, endpoint, ordering_key, deadline_at"
        }
        // Differs because other workers do the same: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH over AS MATERIALIZED (
                 SELECT tenant, event, endpoint FROM twiceproof_deliveries
                 WHERE expires_at IS NOT NULL AND state IN ('pending', 'backoff', 'parked') AND expires_at <= $1
                   AND expires_at > $3
                 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_deliveries d
             SET state = CASE resume_state WHEN 'delivered' THEN 'delivered' ELSE 'dead' END,
                 state_reason = CASE resume_state WHEN 'delivered' THEN NULL ELSE 'expired' END, final_at = $1,
                 resume_state = NULL, resume_reason = NULL, resume_due_at = NULL
             FROM over WHERE d.tenant = over.tenant AND d.event = over.event AND d.endpoint = over.endpoint
             RETURNING d.tenant, d.endpoint, d.ordering_key, d.deadline_at"
        }
    };
    let args = [now.into(), limit.into(), since.into()];
    let mut ended: Vec<Ended> = conn.fetch_all(unknown, &args).await?;
    let unknown = ended.len();
    ended.extend(conn.fetch_all::<Ended>(expired, &args).await?);
    let is_all = unknown < limit as usize && ended.len() - unknown < limit as usize;
    ordering::unblock(conn, ended, now).await?;
    Ok(is_all)
}
