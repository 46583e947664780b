//! Replays: how far each has come, and its next piece.
//!
//! Invariants: a piece and the mark behind it are one transaction, so that a replay that is cut off goes on where it was; it sends
//! as by hand ([`resend`](super::resend)), so schedules stay as they are; a piece looks at a bounded number of rows.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::fan_outs::{delivery, takes};

/// A row of the replays table.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct ReplayRow {
    /// Whose endpoint it is.
    pub tenant: String,
    /// The id.
    pub id: String,
    /// The endpoint.
    pub endpoint: String,
    /// `failed`, `missing` or `everything`.
    pub what: String,
    /// `running`, `done` or `cancelled`.
    pub state: String,
    /// Events with ids above this are left.
    pub from_event: String,
    /// And below this.
    pub until_event: String,
    /// The most per second.
    pub rate_limit: Option<i64>,
    /// How many were sent.
    pub sent: i64,
    /// When the next piece may be sent.
    pub due_at: i64,
    /// When it was asked for.
    pub created_at: i64,
    /// When it last moved.
    pub updated_at: i64,
}

/// Reads whole rows of replays.
macro_rules! select {
    ($which:literal) => {
        concat!(
            "SELECT tenant, id, endpoint, what, state, from_event, until_event, rate_limit, sent, due_at, created_at, updated_at
             FROM twiceproof_replays ",
            $which
        )
    };
}

/// Enters a replay, unless it is there.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn insert(conn: &mut Conn<'_>, row: &ReplayRow) -> Result<(), StoreError> {
    conn.execute(
        "INSERT INTO twiceproof_replays (tenant, id, endpoint, what, state, from_event, until_event, rate_limit, due_at,
             created_at, updated_at)
         VALUES ($1, $2, $3, $4, 'running', $5, $6, $7, $8, $8, $8) ON CONFLICT DO NOTHING",
        &[
            Arg::from(&row.tenant),
            Arg::from(&row.id),
            Arg::from(&row.endpoint),
            Arg::from(&row.what),
            Arg::from(&row.from_event),
            Arg::from(&row.until_event),
            row.rate_limit.into(),
            row.created_at.into(),
        ],
    )
    .await?;
    Ok(())
}

/// A replay of an endpoint by its id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn find(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    id: &str,
) -> Result<Option<ReplayRow>, StoreError> {
    conn.fetch_optional(
        select!("WHERE tenant = $1 AND endpoint = $2 AND id = $3"),
        &[tenant.into(), endpoint.into(), id.into()],
    )
    .await
}

/// Ends a replay that runs. False: it does not run.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn cancel(conn: &mut Conn<'_>, tenant: &str, id: &str, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE twiceproof_replays SET state = 'cancelled', updated_at = $3
         WHERE tenant = $1 AND id = $2 AND state = 'running'";
    Ok(conn.execute(sql, &[tenant.into(), id.into(), now.into()]).await? == 1)
}

/// Whether a replay may send its next piece: a look that writes nothing.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn any_due(conn: &mut Conn<'_>, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT due_at FROM twiceproof_replays WHERE state = 'running' ORDER BY due_at LIMIT 1";
    let first: Option<(i64,)> = conn.fetch_optional(sql, &[]).await?;
    Ok(first.is_some_and(|(due_at,)| due_at <= now.as_millis()))
}

/// The replay whose next piece is due first, held until the end of the transaction.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn next_due(conn: &mut Conn<'_>, now: Timestamp) -> Result<Option<ReplayRow>, StoreError> {
    let sql = match conn.database() {
        Database::Sqlite => select!("WHERE state = 'running' AND due_at <= $1 ORDER BY due_at LIMIT 1"),
        // Differs because several workers look at once: what one of them holds is skipped by the others.
        Database::Postgres => {
            select!("WHERE state = 'running' AND due_at <= $1 ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED")
        }
    };
    conn.fetch_optional(sql, &[now.into()]).await
}

/// Marks how far a replay has come.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn advance(conn: &mut Conn<'_>, row: &ReplayRow) -> Result<(), StoreError> {
    conn.execute(
        "UPDATE twiceproof_replays SET state = $3, from_event = $4, sent = $5, due_at = $6, updated_at = $7
         WHERE tenant = $1 AND id = $2",
        &[
            Arg::from(&row.tenant),
            Arg::from(&row.id),
            Arg::from(&row.state),
            Arg::from(&row.from_event),
            row.sent.into(),
            row.due_at.into(),
            row.updated_at.into(),
        ],
    )
    .await?;
    Ok(())
}

/// How many deliveries wait at an endpoint, counted up to `most`.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn waiting(conn: &mut Conn<'_>, endpoint: &str, most: i64) -> Result<i64, StoreError> {
    let sql = "SELECT count(*) FROM (
             SELECT seq FROM twiceproof_deliveries WHERE state = 'pending' AND endpoint = $1 ORDER BY seq LIMIT $2) w";
    let (count,): (i64,) = conn.fetch_one(sql, &[endpoint.into(), most.into()]).await?;
    Ok(count)
}

/// The ids of the tenant's next events above `from` and below `until`, at most `limit`.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn events_after(
    conn: &mut Conn<'_>,
    tenant: &str,
    (from, until): (&str, &str),
    limit: i64,
) -> Result<Vec<(String,)>, StoreError> {
    conn.fetch_all(
        "SELECT id FROM twiceproof_events WHERE tenant = $1 AND id > $2 AND id < $3 ORDER BY id LIMIT $4",
        &[tenant.into(), from.into(), until.into(), limit.into()],
    )
    .await
}

/// Has the deliveries of events above `from` and up to `to` sent again; how many. `delivered`: also those that reached their
/// end well.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn send_again(
    conn: &mut Conn<'_>,
    (tenant, endpoint): (&str, &str),
    (from, to): (&str, &str),
    delivered: bool,
    now: Timestamp,
) -> Result<u64, StoreError> {
    conn.execute(
        "UPDATE twiceproof_deliveries
         SET state = CASE WHEN ordering_key IS NULL THEN 'pending' ELSE 'blocked' END, state_reason = NULL, due_at = $5, final_at = NULL,
             resume_state = state, resume_reason = state_reason, resume_due_at = due_at
         WHERE tenant = $1 AND endpoint = $2 AND event > $3 AND event <= $4
           AND (state = 'dead' OR (state = 'delivered' AND $6 = 1))
           AND coalesce(state_reason, '') <> 'expunged'",
        &[tenant.into(), endpoint.into(), from.into(), to.into(), now.into(), i64::from(delivered).into()],
    )
    .await
}

/// The part of a statement that finds the events which an endpoint takes and has no delivery of: above `$3` and up to `$4`. What is
/// still on its way to it is not missing.
macro_rules! missing {
    ($database:ident, $($select:tt)*) => {
        concat!(
            $($select)*,
            " FROM twiceproof_endpoints e JOIN twiceproof_events v ON v.tenant = e.tenant AND v.id > $3 AND v.id <= $4
             WHERE e.tenant = $1 AND e.id = $2 AND v.expunged_at IS NULL AND ",
            takes!($database),
            " AND NOT EXISTS (
                 SELECT 1 FROM twiceproof_deliveries d
                 WHERE d.tenant = e.tenant AND d.event = v.id AND d.endpoint = e.id)"
        )
    };
}

/// Makes deliveries of events above `from` and up to `to` that the endpoint takes and has none of; how many.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn owe_missing(
    conn: &mut Conn<'_>,
    (tenant, endpoint): (&str, &str),
    (from, to): (&str, &str),
    (now, deadline_at): (Timestamp, Timestamp),
) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read JSON.
        Database::Sqlite => {
            concat!(missing!(sqlite, delivery!("$5", "$6")), " ORDER BY v.id ON CONFLICT DO NOTHING")
        }
        // Differs because each database has its own way to read JSON.
        Database::Postgres => {
            concat!(missing!(postgres, delivery!("$5", "$6")), " ORDER BY v.id ON CONFLICT DO NOTHING")
        }
    };
    let args = [tenant.into(), endpoint.into(), from.into(), to.into(), now.into(), deadline_at.into()];
    conn.execute(sql, &args).await
}

/// How many deliveries of events above `from` and up to `to` would be sent again.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn count_again(
    conn: &mut Conn<'_>,
    (tenant, endpoint): (&str, &str),
    (from, to): (&str, &str),
    delivered: bool,
) -> Result<i64, StoreError> {
    let (count,): (i64,) = conn
        .fetch_one(
            "SELECT count(*) FROM twiceproof_deliveries
             WHERE tenant = $1 AND endpoint = $2 AND event > $3 AND event <= $4
               AND (state = 'dead' OR (state = 'delivered' AND $5 = 1)) AND coalesce(state_reason, '') <> 'expunged'",
            &[tenant.into(), endpoint.into(), from.into(), to.into(), i64::from(delivered).into()],
        )
        .await?;
    Ok(count)
}

/// How many events above `from` and up to `to` the endpoint takes and has no delivery of.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn count_missing(
    conn: &mut Conn<'_>,
    (tenant, endpoint): (&str, &str),
    (from, to): (&str, &str),
) -> Result<i64, StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read JSON.
        Database::Sqlite => missing!(sqlite, "SELECT count(*)"),
        // Differs because each database has its own way to read JSON.
        Database::Postgres => missing!(postgres, "SELECT count(*)"),
    };
    let (count,): (i64,) = conn.fetch_one(sql, &[tenant.into(), endpoint.into(), from.into(), to.into()]).await?;
    Ok(count)
}
