//! Deliveries that wait: who moves them on.
//!
//! Invariants: every state that is not final has an owner. Backoff becomes pending when it is due, leased when its lease is
//! over, parked when its endpoint is enabled, dead when it is gone; pending is claimed, or parked by the claim where its
//! endpoint is disabled. A parked row's `due_at` is the time since which it is parked, and that time is not counted
//! towards its deadline.
//! Each move is bounded, so that no transaction grows with a backlog; what is left over is moved by the next one. Rows that
//! another transaction holds are skipped, never waited for.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

/// Whether there is anything to claim or to move: a look before a write transaction is begun.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn any(conn: &mut Conn<'_>, now: Timestamp) -> Result<bool, StoreError> {
    let (found,): (i64,) = conn
        .fetch_one(
            // Written as the first of an order, not as EXISTS: PostgreSQL would read the table for what it takes for common.
            "SELECT CASE
                 WHEN (SELECT endpoint FROM twiceproof_deliveries WHERE state = 'pending' ORDER BY endpoint, seq LIMIT 1)
                     IS NOT NULL
                 OR (SELECT due_at FROM twiceproof_deliveries WHERE state = 'backoff' ORDER BY due_at LIMIT 1) <= $1
                 OR (SELECT lease_until FROM twiceproof_deliveries WHERE state = 'leased' ORDER BY lease_until LIMIT 1)
                     <= $1
                 OR (SELECT expires_at FROM twiceproof_deliveries
                     WHERE expires_at IS NOT NULL AND state IN ('pending', 'backoff', 'parked')
                     ORDER BY expires_at LIMIT 1) <= $1
                 OR (SELECT seq FROM twiceproof_deliveries WHERE state = 'blocked' AND state_reason IS NULL
                     ORDER BY seq LIMIT 1) IS NOT NULL
                 OR (SELECT tenant FROM twiceproof_fan_outs ORDER BY tenant LIMIT 1) IS NOT NULL
                 THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END",
            &[now.into()],
        )
        .await?;
    Ok(found == 1)
}

/// Backoff that has become due after `since` becomes pending, at most `limit`; how many.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn promote_due(conn: &mut Conn<'_>, since: Timestamp, now: Timestamp, limit: i64) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => {
            "UPDATE twiceproof_deliveries SET state = 'pending' WHERE seq IN (
                 SELECT seq FROM twiceproof_deliveries WHERE state = 'backoff' AND due_at <= $1 AND due_at > $3
                 ORDER BY due_at LIMIT $2)"
        }
        // Differs because other workers promote too: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH due AS MATERIALIZED (
                 SELECT tenant, event, endpoint FROM twiceproof_deliveries
                 WHERE state = 'backoff' AND due_at <= $1 AND due_at > $3
                 ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_deliveries d SET state = 'pending' FROM due
             WHERE d.tenant = due.tenant AND d.event = due.event AND d.endpoint = due.endpoint"
        }
    };
    conn.execute(sql, &[now.into(), limit.into(), since.into()]).await
}

/// Leases that ended after `since` become pending again, at most `limit`; how many. The token stays, so that the next claim
/// raises it and the former holder's result is late.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn return_expired(
    conn: &mut Conn<'_>,
    since: Timestamp,
    now: Timestamp,
    limit: i64,
) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => {
            "UPDATE twiceproof_deliveries SET state = 'pending', lease_owner = NULL, lease_until = 0 WHERE seq IN (
                 SELECT seq FROM twiceproof_deliveries WHERE state = 'leased' AND lease_until <= $1 AND lease_until > $3 AND at_most_once = 0
                 ORDER BY lease_until LIMIT $2)"
        }
        // Differs because other workers do the same: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH over AS MATERIALIZED (
                 SELECT tenant, event, endpoint FROM twiceproof_deliveries
                 WHERE state = 'leased' AND lease_until <= $1 AND lease_until > $3 AND at_most_once = 0
                 ORDER BY lease_until LIMIT $2 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_deliveries d SET state = 'pending', lease_owner = NULL, lease_until = 0 FROM over
             WHERE d.tenant = over.tenant AND d.event = over.event AND d.endpoint = over.endpoint"
        }
    };
    conn.execute(sql, &[now.into(), limit.into(), since.into()]).await
}

/// Pending deliveries of a disabled endpoint are parked, at most `limit`; how many.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn park_pending(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    now: Timestamp,
    limit: i64,
) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => {
            "UPDATE twiceproof_deliveries SET state = 'parked', state_reason = 'endpoint_disabled', due_at = $4 WHERE seq IN (
                 SELECT seq FROM twiceproof_deliveries
                 WHERE state = 'pending' AND endpoint = $2 AND tenant = $1 ORDER BY seq LIMIT $3)"
        }
        // Differs because claims hold rows: what they hold is skipped, and parked when it comes back.
        Database::Postgres => {
            "WITH picked AS MATERIALIZED (
                 SELECT tenant, event, endpoint FROM twiceproof_deliveries
                 WHERE state = 'pending' AND endpoint = $2 AND tenant = $1 ORDER BY seq LIMIT $3 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_deliveries d SET state = 'parked', state_reason = 'endpoint_disabled', due_at = $4 FROM picked
             WHERE d.tenant = picked.tenant AND d.event = picked.event AND d.endpoint = picked.endpoint"
        }
    };
    conn.execute(sql, &[tenant.into(), endpoint.into(), limit.into(), now.into()]).await
}

/// Deliveries of a disabled endpoint in backoff are parked, at most `limit`; how many.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn park_backoff(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    now: Timestamp,
    limit: i64,
) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => {
            "UPDATE twiceproof_deliveries SET state = 'parked', state_reason = 'endpoint_disabled', due_at = $4 WHERE seq IN (
                 SELECT seq FROM twiceproof_deliveries INDEXED BY twiceproof_deliveries_backoff_lane
                 WHERE state = 'backoff' AND endpoint = $2 AND tenant = $1 LIMIT $3)"
        }
        // Differs because promotions hold rows: what they hold is skipped, and parked by the claim.
        Database::Postgres => {
            "WITH picked AS MATERIALIZED (
                 SELECT tenant, event, endpoint FROM twiceproof_deliveries
                 WHERE state = 'backoff' AND endpoint = $2 AND tenant = $1 LIMIT $3 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_deliveries d SET state = 'parked', state_reason = 'endpoint_disabled', due_at = $4 FROM picked
             WHERE d.tenant = picked.tenant AND d.event = picked.event AND d.endpoint = picked.endpoint"
        }
    };
    conn.execute(sql, &[tenant.into(), endpoint.into(), limit.into(), now.into()]).await
}

/// Parked deliveries of an enabled endpoint become pending, oldest first, at most `limit`; how many. Their deadline moves by
/// the time that they were parked.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn unpark(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    now: Timestamp,
    limit: i64,
) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => {
            "UPDATE twiceproof_deliveries SET state = 'pending', state_reason = NULL, due_at = $3,
                 deadline_at = deadline_at + max($3 - due_at, 0) WHERE seq IN (
                 SELECT seq FROM twiceproof_deliveries
                 WHERE state = 'parked' AND tenant = $1 AND endpoint = $2 ORDER BY seq LIMIT $4)"
        }
        // Differs because a publish or another worker may hold rows; they are found again by the next look.
        Database::Postgres => {
            "WITH picked AS MATERIALIZED (
                 SELECT tenant, event, endpoint FROM twiceproof_deliveries
                 WHERE state = 'parked' AND tenant = $1 AND endpoint = $2 ORDER BY seq LIMIT $4 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_deliveries d SET state = 'pending', state_reason = NULL, due_at = $3,
                 deadline_at = d.deadline_at + greatest($3 - d.due_at, 0) FROM picked
             WHERE d.tenant = picked.tenant AND d.event = picked.event AND d.endpoint = picked.endpoint"
        }
    };
    let args: [Arg<'_>; 4] = [tenant.into(), endpoint.into(), now.into(), limit.into()];
    conn.execute(sql, &args).await
}

/// Pending deliveries of an endpoint that is no longer there end as dead, at most `limit`; how many.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn bury(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    now: Timestamp,
    limit: i64,
) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => {
            "UPDATE twiceproof_deliveries SET state = 'dead', state_reason = 'endpoint_deleted', final_at = $3
             WHERE seq IN (SELECT seq FROM twiceproof_deliveries
                 WHERE state = 'pending' AND endpoint = $2 AND tenant = $1 ORDER BY seq LIMIT $4)"
        }
        // Differs because other workers claim: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH picked AS MATERIALIZED (
                 SELECT tenant, event, endpoint FROM twiceproof_deliveries
                 WHERE state = 'pending' AND endpoint = $2 AND tenant = $1 ORDER BY seq LIMIT $4 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_deliveries d SET state = 'dead', state_reason = 'endpoint_deleted', final_at = $3
             FROM picked
             WHERE d.tenant = picked.tenant AND d.event = picked.event AND d.endpoint = picked.endpoint"
        }
    };
    let args: [Arg<'_>; 4] = [tenant.into(), endpoint.into(), now.into(), limit.into()];
    conn.execute(sql, &args).await
}

/// Parked deliveries of an endpoint that is no longer there end as dead, at most `limit`; how many.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn bury_parked(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    now: Timestamp,
    limit: i64,
) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => {
            "UPDATE twiceproof_deliveries SET state = 'dead', state_reason = 'endpoint_deleted', final_at = $3
             WHERE seq IN (SELECT seq FROM twiceproof_deliveries
                 WHERE state = 'parked' AND tenant = $1 AND endpoint = $2 ORDER BY seq LIMIT $4)"
        }
        // Differs because other workers do the same: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH picked AS MATERIALIZED (
                 SELECT tenant, event, endpoint FROM twiceproof_deliveries
                 WHERE state = 'parked' AND tenant = $1 AND endpoint = $2 ORDER BY seq LIMIT $4 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_deliveries d SET state = 'dead', state_reason = 'endpoint_deleted', final_at = $3
             FROM picked
             WHERE d.tenant = picked.tenant AND d.event = picked.event AND d.endpoint = picked.endpoint"
        }
    };
    let args: [Arg<'_>; 4] = [tenant.into(), endpoint.into(), now.into(), limit.into()];
    conn.execute(sql, &args).await
}

/// An endpoint with parked deliveries.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct ParkedLane {
    /// Whose.
    pub tenant: String,
    /// The endpoint.
    pub endpoint: String,
    /// `enabled` or `disabled`; none where it is no longer there.
    pub state: Option<String>,
}

/// Endpoints with parked deliveries behind the lane `after` (tenant and endpoint), at most `limit`, each found by a seek from
/// the one before. What is parked at an enabled one was left over by a bounded move, or was published beside the enabling.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn parked_lanes(conn: &mut Conn<'_>, after: (&str, &str), limit: i64) -> Result<Vec<ParkedLane>, StoreError> {
    let sql = match conn.database() {
        // Differs because SQLite's recursive part cannot hold a LIMIT of its own but in a scalar subquery, and it seeks by the
        // first column alone where two are compared as one.
        Database::Sqlite => {
            "WITH RECURSIVE lane (seq) AS (
                 SELECT coalesce(
                     (SELECT seq FROM twiceproof_deliveries
                      WHERE state = 'parked' AND tenant = $1 AND endpoint > $2 ORDER BY endpoint, seq LIMIT 1),
                     (SELECT seq FROM twiceproof_deliveries
                      WHERE state = 'parked' AND tenant > $1 ORDER BY tenant, endpoint, seq LIMIT 1))
                 UNION ALL
                 SELECT coalesce(
                     (SELECT d.seq FROM twiceproof_deliveries d
                      WHERE d.state = 'parked' AND d.tenant = l.tenant AND d.endpoint > l.endpoint
                      ORDER BY d.endpoint, d.seq LIMIT 1),
                     (SELECT d.seq FROM twiceproof_deliveries d
                      WHERE d.state = 'parked' AND d.tenant > l.tenant ORDER BY d.tenant, d.endpoint, d.seq LIMIT 1))
                 FROM lane CROSS JOIN twiceproof_deliveries l ON l.seq = lane.seq LIMIT $3)
             SELECT d.tenant, d.endpoint, e.state
             FROM lane CROSS JOIN twiceproof_deliveries d ON d.seq = lane.seq
             LEFT JOIN twiceproof_endpoints e ON e.tenant = d.tenant AND e.id = d.endpoint"
        }
        // Differs because PostgreSQL finds the next lane with one LATERAL seek.
        Database::Postgres => {
            "WITH RECURSIVE lane AS (
                 (SELECT tenant, endpoint FROM twiceproof_deliveries
                  WHERE state = 'parked' AND (tenant, endpoint) > ($1, $2) ORDER BY tenant, endpoint, seq LIMIT 1)
                 UNION ALL
                 SELECT next.tenant, next.endpoint FROM lane CROSS JOIN LATERAL (
                     SELECT d.tenant, d.endpoint FROM twiceproof_deliveries d
                     WHERE d.state = 'parked' AND (d.tenant, d.endpoint) > (lane.tenant, lane.endpoint)
                     ORDER BY d.tenant, d.endpoint, d.seq LIMIT 1) next)
             SELECT l.tenant, l.endpoint, e.state
             FROM (SELECT tenant, endpoint FROM lane LIMIT $3) l
             LEFT JOIN twiceproof_endpoints e ON e.tenant = l.tenant AND e.id = l.endpoint
             ORDER BY l.tenant, l.endpoint"
        }
    };
    conn.fetch_all(sql, &[after.0.into(), after.1.into(), limit.into()]).await
}
