//! Deliveries with an ordering key: one after another at each endpoint.
//!
//! Place in the path: publish leaves them blocked; the claim looks whether one is before them, and the record of one lets the
//! next go.
//! Invariants: of each tenant, endpoint and key at most one delivery is pending, in backoff, leased or parked, its *head*, and
//! no other is under way; the rest is blocked behind it, in the order of their numbers. A blocked row has an owner: while
//! its `state_reason` is empty, [`place`]; after that the end of its head, by [`unblock`]. So that neither misses what the
//! other does, both hold the key for their transaction on PostgreSQL; a host's publish holds nothing that they want.
//! A predecessor's deadline is the least that a successor gets, so that the time in which the head was parked counts for
//! nobody.

use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::{DeliveryKey, json};

/// An ordering key of an endpoint, and the deadline of the delivery that was its head.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, sqlx::FromRow)]
pub struct Ended {
    /// Whose.
    pub tenant: String,
    /// The endpoint.
    pub endpoint: String,
    /// The key; none: nothing waits behind it.
    pub ordering_key: Option<String>,
    /// Until when it was tried.
    pub deadline_at: i64,
}

/// The most rows that one [`place`] looks at: each may hold a lock of its own until the commit.
const MOST_PLACED: i64 = 256;
/// How many deliveries of one key expire in a row before the next look goes on with it.
const MOST_EXPIRED: u32 = 64;

/// Whether the key of a blocked row `b` has no head.
macro_rules! is_free {
    () => {
        "NOT EXISTS (
             SELECT 1 FROM twiceproof_deliveries h
             WHERE h.tenant = b.tenant AND h.endpoint = b.endpoint AND h.ordering_key = b.ordering_key
               AND h.ordering_key IS NOT NULL AND h.state IN ('pending', 'backoff', 'leased', 'parked'))"
    };
}

/// Looks at blocked rows that nobody has looked at: the first of a key that has no head becomes pending, the others stay behind it.
/// True: those were all.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn place(conn: &mut Conn<'_>) -> Result<bool, StoreError> {
    let placed = match conn.database() {
        // Differs because SQLite has one writer: nothing changes between the look and the commit.
        Database::Sqlite => {
            conn.execute(
                concat!(
                    "UPDATE twiceproof_deliveries AS d
                     SET state = CASE WHEN p.is_next THEN 'pending' ELSE 'blocked' END,
                         state_reason = CASE WHEN p.is_next THEN NULL ELSE 'ordering_key' END
                     FROM (
                         SELECT b.seq, ",
                    is_free!(),
                    " AND b.seq = (
                             SELECT min(o.seq) FROM twiceproof_deliveries o
                             WHERE o.state = 'blocked' AND o.tenant = b.tenant AND o.endpoint = b.endpoint
                               AND o.ordering_key = b.ordering_key) AS is_next
                         FROM twiceproof_deliveries b
                         WHERE b.state = 'blocked' AND b.state_reason IS NULL ORDER BY b.seq LIMIT $1) p
                     WHERE d.seq = p.seq"
                ),
                &[MOST_PLACED.into()],
            )
            .await?
        }
        // Differs because other workers place and record: the key is held first, without waiting for it, and only then looked
        // at, by a statement that sees what its former holder has committed.
        Database::Postgres => {
            let held: Vec<DeliveryKey> = conn
                .fetch_all(
                    "WITH picked AS MATERIALIZED (
                         SELECT tenant, event, endpoint, ordering_key FROM twiceproof_deliveries
                         WHERE state = 'blocked' AND state_reason IS NULL ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED)
                     SELECT tenant, event, endpoint FROM picked
                     WHERE pg_try_advisory_xact_lock(
                         hashtextextended(tenant || ' ' || endpoint || ' ' || ordering_key, 2)
                             # 'twiceproof_deliveries'::regclass::oid::bigint)",
                    &[MOST_PLACED.into()],
                )
                .await?;
            if held.is_empty() {
                return Ok(true);
            }
            conn.execute(
                concat!(
                    "UPDATE twiceproof_deliveries d
                     SET state = CASE WHEN p.is_next THEN 'pending' ELSE 'blocked' END,
                         state_reason = CASE WHEN p.is_next THEN NULL ELSE 'ordering_key' END
                     FROM (
                         SELECT b.tenant, b.event, b.endpoint, ",
                    is_free!(),
                    " AND b.seq = (
                             SELECT o.seq FROM twiceproof_deliveries o
                             WHERE o.state = 'blocked' AND o.tenant = b.tenant AND o.endpoint = b.endpoint
                               AND o.ordering_key = b.ordering_key ORDER BY o.seq LIMIT 1) AS is_next
                         FROM json_to_recordset($1::json) AS k (tenant text, event text, endpoint text)
                         JOIN twiceproof_deliveries b
                             ON b.tenant = k.tenant AND b.event = k.event AND b.endpoint = k.endpoint
                         OFFSET 0) p
                     WHERE d.tenant = p.tenant AND d.event = p.event AND d.endpoint = p.endpoint"
                ),
                &[Arg::from(&json(&held)?)],
            )
            .await?
        }
    };
    Ok(placed < MOST_PLACED as u64)
}

/// Lets the next delivery of each key go whose head has come to its end; what has expired meanwhile ends on the way. How many
/// became pending.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn unblock(conn: &mut Conn<'_>, ended: Vec<Ended>, now: Timestamp) -> Result<u64, StoreError> {
    let mut ended: Vec<Ended> = ended.into_iter().filter(|one| one.ordering_key.is_some()).collect();
    if ended.is_empty() {
        return Ok(0);
    }
    ended.sort_unstable();
    hold(conn, &ended).await?;
    let mut pending = 0;
    for round in 1..=MOST_EXPIRED {
        let moved = next(conn, &ended, now, round < MOST_EXPIRED).await?;
        let (expired, moved): (Vec<Moved>, Vec<Moved>) = moved.into_iter().partition(|one| one.state == "dead");
        pending += moved.len() as u64;
        if expired.is_empty() {
            break;
        }
        ended = expired.into_iter().map(Moved::ended).collect();
    }
    Ok(pending)
}

/// Holds keys until the end of the transaction, in the order of their numbers.
async fn hold(conn: &mut Conn<'_>, ended: &[Ended]) -> Result<(), StoreError> {
    if conn.database() == Database::Sqlite {
        // It has one writer.
        return Ok(());
    }
    let sql = "SELECT count(pg_advisory_xact_lock(number)) FROM (
             SELECT DISTINCT hashtextextended(k.tenant || ' ' || k.endpoint || ' ' || k.ordering_key, 2)
                 # 'twiceproof_deliveries'::regclass::oid::bigint AS number
             FROM json_to_recordset($1::json) AS k (tenant text, endpoint text, ordering_key text) ORDER BY 1) held";
    let (_,): (i64,) = conn.fetch_one(sql, &[Arg::from(&json(ended)?)]).await?;
    Ok(())
}

#[derive(Debug, sqlx::FromRow)]
struct Moved {
    tenant: String,
    endpoint: String,
    ordering_key: Option<String>,
    deadline_at: i64,
    state: String,
}

impl Moved {
    fn ended(self) -> Ended {
        let Self { tenant, endpoint, ordering_key, deadline_at, state: _ } = self;
        Ended { tenant, endpoint, ordering_key, deadline_at }
    }
}

/// Moves the first blocked delivery of each key that has no head. `expires`: what has expired ends; else it becomes pending like
/// any other, and ends at its attempt.
async fn next(conn: &mut Conn<'_>, ended: &[Ended], now: Timestamp, expires: bool) -> Result<Vec<Moved>, StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => concat!(
            "UPDATE twiceproof_deliveries AS d
             SET state = CASE WHEN p.is_over THEN 'dead' ELSE 'pending' END,
                 state_reason = CASE WHEN p.is_over THEN 'expired' END,
                 final_at = CASE WHEN p.is_over THEN $2 END, deadline_at = max(d.deadline_at, p.deadline_at)
             FROM (
                 SELECT b.seq, max(r.value ->> 'deadline_at') AS deadline_at,
                     $3 = 1 AND b.expires_at IS NOT NULL AND b.expires_at <= $2 AS is_over
                 FROM jsonb_each($1) r CROSS JOIN twiceproof_deliveries b ON b.seq = (
                     SELECT min(o.seq) FROM twiceproof_deliveries o
                     WHERE o.state = 'blocked' AND o.tenant = r.value ->> 'tenant' AND o.endpoint = r.value ->> 'endpoint'
                       AND o.ordering_key = r.value ->> 'ordering_key')
                 WHERE ",
            is_free!(),
            " GROUP BY b.seq) p
             WHERE d.seq = p.seq RETURNING tenant, endpoint, ordering_key, deadline_at, state"
        ),
        // Differs because each database has its own way to read rows out of JSON, and what somebody else has ended meanwhile
        // stays as it is.
        Database::Postgres => concat!(
            "UPDATE twiceproof_deliveries d
             SET state = CASE WHEN p.is_over THEN 'dead' ELSE 'pending' END,
                 state_reason = CASE WHEN p.is_over THEN 'expired' END,
                 final_at = CASE WHEN p.is_over THEN $2 END, deadline_at = greatest(d.deadline_at, p.deadline_at)
             FROM (
                 SELECT b.tenant, b.event, b.endpoint, max(r.deadline_at) AS deadline_at,
                     $3 = 1 AND bool_and(coalesce(b.expires_at <= $2, false)) AS is_over
                 FROM json_to_recordset($1::json) AS r
                     (tenant text, endpoint text, ordering_key text, deadline_at bigint)
                 CROSS JOIN LATERAL (
                     SELECT o.tenant, o.event, o.endpoint, o.ordering_key, o.expires_at FROM twiceproof_deliveries o
                     WHERE o.state = 'blocked' AND o.tenant = r.tenant AND o.endpoint = r.endpoint
                       AND o.ordering_key = r.ordering_key ORDER BY o.seq LIMIT 1) b
                 WHERE ",
            is_free!(),
            " GROUP BY b.tenant, b.event, b.endpoint) p
             WHERE d.tenant = p.tenant AND d.event = p.event AND d.endpoint = p.endpoint AND d.state || '' = 'blocked'
             RETURNING d.tenant, d.endpoint, d.ordering_key, d.deadline_at, d.state"
        ),
    };
    conn.fetch_all(sql, &[Arg::from(&json(ended)?), now.into(), i64::from(expires).into()]).await
}

/// Blocked deliveries of an endpoint that is no longer there end as dead, at most `limit`; how many. To be called before their
/// heads are ended, by which they are found.
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
                 WHERE state = 'blocked' AND tenant = $1 AND endpoint = $2 LIMIT $4)"
        }
        // Differs because other workers do the same: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH picked AS MATERIALIZED (
                 SELECT tenant, event, endpoint FROM twiceproof_deliveries
                 WHERE state = 'blocked' AND tenant = $1 AND endpoint = $2 LIMIT $4 FOR UPDATE SKIP LOCKED)
             UPDATE twiceproof_deliveries d SET state = 'dead', state_reason = 'endpoint_deleted', final_at = $3
             FROM picked
             WHERE d.tenant = picked.tenant AND d.event = picked.event AND d.endpoint = picked.endpoint"
        }
    };
    conn.execute(sql, &[tenant.into(), endpoint.into(), now.into(), limit.into()]).await
}
