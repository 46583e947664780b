//! What a look at the whole installation asks for.
//!
//! Invariants: nothing is written; but for what is asked for deeply, each statement walks along an index of what waits, or is cut
//! off after a bounded number of rows.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Conn, StoreError};

/// How many rows of what waits are looked at.
const MOST: i64 = 10_000;

/// When the oldest pending delivery became due, among the first of those.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn oldest_pending(conn: &mut Conn<'_>) -> Result<Option<(i64, String, String)>, StoreError> {
    conn.fetch_optional(
        "SELECT due_at, event, endpoint FROM (
             SELECT due_at, event, endpoint FROM twiceproof_deliveries WHERE state = 'pending' ORDER BY endpoint, seq LIMIT $1) p
         ORDER BY due_at LIMIT 1",
        &[MOST.into()],
    )
    .await
}

/// Blocked deliveries that nobody is before, though somebody has looked: nothing would let them go. Event and endpoint.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn left_blocked(conn: &mut Conn<'_>) -> Result<Vec<(String, String)>, StoreError> {
    conn.fetch_all(
        "SELECT b.event, b.endpoint FROM (
             SELECT tenant, event, endpoint, ordering_key, state_reason FROM twiceproof_deliveries
             WHERE state = 'blocked' ORDER BY tenant, endpoint, ordering_key, seq LIMIT $1) b
         WHERE b.state_reason IS NOT NULL AND NOT EXISTS (
             SELECT 1 FROM twiceproof_deliveries h
             WHERE h.tenant = b.tenant AND h.endpoint = b.endpoint AND h.ordering_key = b.ordering_key
               AND h.ordering_key IS NOT NULL AND h.state IN ('pending', 'backoff', 'leased', 'parked'))
         LIMIT 20",
        &[MOST.into()],
    )
    .await
}

/// Endpoints that are enabled or gone, and where deliveries are parked all the same; with a due time before `before`.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn left_parked(conn: &mut Conn<'_>, before: Timestamp) -> Result<Vec<(String, String)>, StoreError> {
    conn.fetch_all(
        "SELECT DISTINCT p.tenant, p.endpoint FROM (
             SELECT tenant, endpoint, due_at FROM twiceproof_deliveries
             WHERE state = 'parked' ORDER BY tenant, endpoint, seq LIMIT $1) p
         LEFT JOIN twiceproof_endpoints e ON e.tenant = p.tenant AND e.id = p.endpoint
         WHERE p.due_at < $2 AND coalesce(e.state, 'gone') <> 'disabled' AND coalesce(e.updated_at, 0) < $2 LIMIT 20",
        &[MOST.into(), before.into()],
    )
    .await
}

/// Events that are on their way to many endpoints since before a time: tenant and event.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn slow_fan_outs(conn: &mut Conn<'_>, before: Timestamp) -> Result<Vec<(String, String)>, StoreError> {
    let sql = "SELECT tenant, event FROM twiceproof_fan_outs WHERE created_at < $1 ORDER BY tenant, seq LIMIT 20";
    conn.fetch_all(sql, &[before.into()]).await
}

/// Replays that run and have not moved since a time: endpoint and id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn slow_replays(conn: &mut Conn<'_>, before: Timestamp) -> Result<Vec<(String, String)>, StoreError> {
    let sql = "SELECT endpoint, id FROM twiceproof_replays
         WHERE state = 'running' AND updated_at < $1 AND due_at < $1 ORDER BY due_at LIMIT 20";
    conn.fetch_all(sql, &[before.into()]).await
}

/// Endpoints that were disabled because they only failed: tenant and id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn failing_endpoints(conn: &mut Conn<'_>) -> Result<Vec<(String, String)>, StoreError> {
    let sql = "SELECT tenant, id FROM twiceproof_endpoints
         WHERE state = 'disabled' AND state_reason = 'failing' ORDER BY tenant, id LIMIT 20";
    conn.fetch_all(sql, &[]).await
}

/// Workers without a sign of life since a time.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn silent_workers(conn: &mut Conn<'_>, before: Timestamp) -> Result<Vec<(String,)>, StoreError> {
    let sql = "SELECT id FROM twiceproof_workers WHERE heartbeat_at < $1 ORDER BY id LIMIT 20";
    conn.fetch_all(sql, &[before.into()]).await
}

/// How many workers there are.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn workers(conn: &mut Conn<'_>) -> Result<i64, StoreError> {
    let (count,): (i64,) = conn.fetch_one("SELECT count(*) FROM twiceproof_workers", &[]).await?;
    Ok(count)
}

/// Deliveries whose parts contradict each other, by what is wrong: reads the whole table.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn torn_deliveries(conn: &mut Conn<'_>) -> Result<[i64; 4], StoreError> {
    let (open_but_final, final_but_open, unowned, leased_twice): (i64, i64, i64, i64) = conn
        .fetch_one(
            "SELECT
                 coalesce(sum(CASE WHEN state IN ('delivered', 'dead') AND final_at IS NULL THEN 1 ELSE 0 END), 0),
                 coalesce(sum(CASE WHEN state NOT IN ('delivered', 'dead') AND final_at IS NOT NULL THEN 1 ELSE 0 END), 0),
                 coalesce(sum(CASE WHEN state = 'leased' AND lease_owner IS NULL AND at_most_once = 0 THEN 1 ELSE 0 END), 0),
                 coalesce(sum(CASE WHEN state <> 'leased' AND lease_owner IS NOT NULL THEN 1 ELSE 0 END), 0)
             FROM twiceproof_deliveries",
            &[],
        )
        .await?;
    Ok([open_but_final, final_but_open, unowned, leased_twice])
}

/// Deliveries that are still to be made of an event that is not there: reads all that is open.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn without_event(conn: &mut Conn<'_>) -> Result<Vec<(String, String)>, StoreError> {
    conn.fetch_all(
        "SELECT d.tenant, d.event FROM twiceproof_deliveries d
         WHERE d.state NOT IN ('delivered', 'dead')
           AND NOT EXISTS (SELECT 1 FROM twiceproof_events v WHERE v.tenant = d.tenant AND v.id = d.event)
         LIMIT 20",
        &[],
    )
    .await
}

/// Events that nobody has, of those that one of the endpoints of their time takes: accepted, not fanned out, and not on the way.
/// Reads all events that were accepted after `since`.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn not_fanned_out(conn: &mut Conn<'_>, since: Timestamp) -> Result<Vec<(String, String)>, StoreError> {
    conn.fetch_all(
        "SELECT v.tenant, v.id FROM twiceproof_events v
         WHERE v.created_at > $1 AND v.expunged_at IS NULL AND v.channels = '[]'
           AND NOT EXISTS (SELECT 1 FROM twiceproof_deliveries d WHERE d.tenant = v.tenant AND d.event = v.id)
           AND NOT EXISTS (SELECT 1 FROM twiceproof_fan_outs f WHERE f.tenant = v.tenant AND f.event = v.id)
           AND EXISTS (
               SELECT 1 FROM twiceproof_endpoints e
               WHERE e.tenant = v.tenant AND e.updated_at < v.created_at AND e.all_event_types = 1 AND e.channels = '[]')
         LIMIT 20",
        &[since.into()],
    )
    .await
}
