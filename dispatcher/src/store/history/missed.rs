//! What one endpoint takes and has not got: a walk over the tenant's events, a stretch at a time.
//!
//! Invariants: one page looks at a bounded number of events, however few of them were missed, and says where it stopped.

use twiceproof_shared::store::{Conn, Database, StoreError};

use super::{StoredEvent, Window};
use crate::store::fan_outs::takes;

/// How many events one page looks at.
const STRETCH: i64 = 1_000;

/// An event that an endpoint has not got.
#[derive(Debug, sqlx::FromRow)]
pub struct MissedEvent {
    /// `parked` or `dead`; none: it never was to get it.
    pub state: Option<String>,
    /// Why.
    pub state_reason: Option<String>,
    /// The event.
    #[sqlx(flatten)]
    pub event: StoredEvent,
}

/// Reads what is missed, of events from $2 on and before $3.
macro_rules! missed {
    ($database:ident, $order:literal) => {
        concat!(
            "SELECT d.state, d.state_reason, v.id, v.uid, v.event_type, v.content_type,
                    CASE WHEN $6 = 1 THEN v.payload ELSE $7 END AS payload, v.channels, v.created_at, v.expunged_at
             FROM twiceproof_endpoints e JOIN twiceproof_events v ON v.tenant = e.tenant AND v.id >= $2 AND v.id < $3
             LEFT JOIN twiceproof_deliveries d ON d.tenant = v.tenant AND d.event = v.id AND d.endpoint = e.id
             WHERE e.tenant = $1 AND e.id = $9 AND (d.state IN ('parked', 'dead') OR (d.state IS NULL AND ",
            takes!($database),
            " AND NOT EXISTS (SELECT 1 FROM twiceproof_fan_outs f WHERE f.tenant = v.tenant AND f.event = v.id)))
               AND ($4 = '' OR replace(v.channels, $4, '') <> v.channels)
               AND ($5 = '' OR replace($5, '\"' || v.event_type || '\"', '') <> $5)
             ORDER BY v.id ",
            $order,
            " LIMIT $8"
        )
    };
}

/// A page of what an endpoint takes and has not got, by event; what waits for its next attempt is not missed. Beside it, where the
/// walk stopped before it had seen all.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn missed(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    window: &Window<'_>,
) -> Result<(Vec<MissedEvent>, Option<String>), StoreError> {
    let [low, high] = window.bounds();
    let ids = if window.down {
        "SELECT min(id), count(*) FROM (
             SELECT id FROM twiceproof_events WHERE tenant = $1 AND id > $2 AND id < $3 ORDER BY id DESC LIMIT $4) v"
    } else {
        "SELECT max(id), count(*) FROM (
             SELECT id FROM twiceproof_events WHERE tenant = $1 AND id > $2 AND id < $3 ORDER BY id LIMIT $4) v"
    };
    let (end, count): (Option<String>, i64) = conn.fetch_one(ids, &[tenant.into(), low, high, STRETCH.into()]).await?;
    let end = end.filter(|_| count == STRETCH);
    // An id with one character more is the next text behind it.
    let (low, high) = match (&end, window.down) {
        (Some(end), true) => (end.clone(), window.before.min(window.from).to_owned()),
        (None, true) => (window.after.to_owned(), window.before.min(window.from).to_owned()),
        (Some(end), false) => (format!("{}!", window.after.max(window.from)), format!("{end}!")),
        (None, false) => (format!("{}!", window.after.max(window.from)), window.before.to_owned()),
    };
    let sql = match (conn.database(), window.down) {
        // Differs because each database has its own way to read JSON.
        (Database::Sqlite, true) => missed!(sqlite, "DESC"),
        (Database::Sqlite, false) => missed!(sqlite, "ASC"),
        // Differs because each database has its own way to read JSON.
        (Database::Postgres, true) => missed!(postgres, "DESC"),
        (Database::Postgres, false) => missed!(postgres, "ASC"),
    };
    let args = [
        tenant.into(),
        (&low).into(),
        (&high).into(),
        window.channel.into(),
        window.event_types.into(),
        i64::from(window.with_content).into(),
        b"".as_slice().into(),
        window.limit.into(),
        endpoint.into(),
    ];
    let rows = conn.fetch_all(sql, &args).await?;
    Ok((rows, end))
}
