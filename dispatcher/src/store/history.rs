//! What was accepted, tried and reached: pages for whoever looks back.
//!
//! Invariants: each page is a walk along an index from a place, in one direction; filters thin it out on the way. Bodies are
//! read only where they are asked for.

mod attempts;
mod missed;

use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

pub use self::attempts::{AttemptsOf, StoredAttempt, attempt, attempts, expunge_attempt};
pub use self::missed::{MissedEvent, missed};

/// A stored event.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredEvent {
    /// Its minted id.
    pub id: String,
    /// The caller's own id.
    pub uid: Option<String>,
    /// Its event type.
    pub event_type: String,
    /// The media type of the payload.
    pub content_type: String,
    /// The bytes; empty where they were not asked for.
    pub payload: Vec<u8>,
    /// Its channels as a JSON array.
    pub channels: String,
    /// When it was accepted.
    pub created_at: i64,
    /// When its payload was taken away.
    pub expunged_at: Option<i64>,
}

/// Which part of a list, and which of its entries. Texts that are empty leave their filter out.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    /// Behind this id upwards, or before it downwards.
    pub from: &'a str,
    /// Towards lower ids.
    pub down: bool,
    /// Ids above this.
    pub after: &'a str,
    /// Ids below this.
    pub before: &'a str,
    /// The channel that an event must have, as JSON.
    pub channel: &'a str,
    /// The event types, as a JSON array.
    pub event_types: &'a str,
    /// The states of deliveries, or outcomes of attempts, each between commas.
    pub states: &'a str,
    /// With payloads and bodies.
    pub with_content: bool,
    /// The most rows.
    pub limit: i64,
}

impl<'a> Window<'a> {
    /// The bounds of the ids in the direction of the read: above the first, below the second.
    fn bounds(&self) -> [Arg<'a>; 2] {
        let (low, high) =
            if self.down { (self.after, self.before.min(self.from)) } else { (self.after.max(self.from), self.before) };
        [low.into(), high.into()]
    }
}

/// Reads events of a tenant, the ids of which lie between $2 and $3.
macro_rules! events {
    ($order:literal) => {
        concat!(
            "SELECT v.id, v.uid, v.event_type, v.content_type, CASE WHEN $6 = 1 THEN v.payload ELSE $7 END AS payload,
                    v.channels, v.created_at, v.expunged_at
             FROM twiceproof_events v
             WHERE v.tenant = $1 AND v.id > $2 AND v.id < $3
               AND ($4 = '' OR replace(v.channels, $4, '') <> v.channels)
               AND ($5 = '' OR replace($5, '\"' || v.event_type || '\"', '') <> $5)
             ORDER BY v.id ",
            $order,
            " LIMIT $8"
        )
    };
}

/// A page of a tenant's events, by id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn events(conn: &mut Conn<'_>, tenant: &str, window: &Window<'_>) -> Result<Vec<StoredEvent>, StoreError> {
    let [low, high] = window.bounds();
    let sql = if window.down { events!("DESC") } else { events!("ASC") };
    let args = [
        tenant.into(),
        low,
        high,
        window.channel.into(),
        window.event_types.into(),
        i64::from(window.with_content).into(),
        Arg::Bytes(b""),
        window.limit.into(),
    ];
    conn.fetch_all(sql, &args).await
}

/// An event by its id, or else by its uid, with its payload or without.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn event(
    conn: &mut Conn<'_>,
    tenant: &str,
    name: &str,
    with_content: bool,
) -> Result<Option<StoredEvent>, StoreError> {
    conn.fetch_optional(
        "SELECT id, uid, event_type, content_type, CASE WHEN $3 = 1 THEN payload ELSE $4 END AS payload, channels,
                created_at, expunged_at
         FROM twiceproof_events WHERE tenant = $1 AND (id = $2 OR uid = $2)
         ORDER BY CASE id WHEN $2 THEN 0 ELSE 1 END LIMIT 1",
        &[tenant.into(), name.into(), i64::from(with_content).into(), Arg::Bytes(b"")],
    )
    .await
}

/// What one endpoint was or is owed, with the event.
#[derive(Debug, sqlx::FromRow)]
pub struct OwedEvent {
    /// The state of the delivery.
    pub state: String,
    /// When it is due.
    pub due_at: i64,
    /// The event.
    #[sqlx(flatten)]
    pub event: StoredEvent,
}

/// Reads the deliveries of an endpoint with their events, the ids of which lie between $2 and $3.
macro_rules! owed {
    ($hint:literal, $order:literal) => {
        concat!(
            "SELECT d.state, d.due_at, v.id, v.uid, v.event_type, v.content_type,
                    CASE WHEN $6 = 1 THEN v.payload ELSE $7 END AS payload, v.channels, v.created_at, v.expunged_at
             FROM twiceproof_deliveries d",
            $hint,
            " JOIN twiceproof_events v ON v.tenant = d.tenant AND v.id = d.event
             WHERE d.tenant = $1 AND d.endpoint = $9 AND d.event > $2 AND d.event < $3
               AND ($4 = '' OR replace(v.channels, $4, '') <> v.channels)
               AND ($5 = '' OR replace($5, '\"' || v.event_type || '\"', '') <> $5)
               AND ($10 = '' OR replace($10, ',' || d.state || ',', '') <> $10)
             ORDER BY d.event ",
            $order,
            " LIMIT $8"
        )
    };
}

/// A page of what an endpoint was or is owed, by event.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn owed(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    window: &Window<'_>,
) -> Result<Vec<OwedEvent>, StoreError> {
    let [low, high] = window.bounds();
    let sql = match (conn.database(), window.down) {
        // Differs because SQLite knows nothing of how many endpoints a tenant has, and would walk over all that it owes to any.
        (Database::Sqlite, true) => owed!(" INDEXED BY twiceproof_deliveries_endpoint CROSS", "DESC"),
        (Database::Sqlite, false) => owed!(" INDEXED BY twiceproof_deliveries_endpoint CROSS", "ASC"),
        (Database::Postgres, true) => owed!("", "DESC"),
        (Database::Postgres, false) => owed!("", "ASC"),
    };
    let args = [
        tenant.into(),
        low,
        high,
        window.channel.into(),
        window.event_types.into(),
        i64::from(window.with_content).into(),
        Arg::Bytes(b""),
        window.limit.into(),
        endpoint.into(),
        window.states.into(),
    ];
    conn.fetch_all(sql, &args).await
}

/// State, and when it is due, of the deliveries of an event, by endpoint.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn destinations(
    conn: &mut Conn<'_>,
    tenant: &str,
    event: &str,
    (from, down): (&str, bool),
    limit: i64,
) -> Result<Vec<(String, String, i64)>, StoreError> {
    let sql = if down {
        "SELECT endpoint, state, due_at FROM twiceproof_deliveries
         WHERE tenant = $1 AND event = $2 AND endpoint < $3 ORDER BY endpoint DESC LIMIT $4"
    } else {
        "SELECT endpoint, state, due_at FROM twiceproof_deliveries
         WHERE tenant = $1 AND event = $2 AND endpoint > $3 ORDER BY endpoint LIMIT $4"
    };
    conn.fetch_all(sql, &[tenant.into(), event.into(), from.into(), limit.into()]).await
}

/// Takes an event's payload away. False: there is no such event. Its digest stays, so that its uid still tells a repeat.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn expunge_event(
    conn: &mut Conn<'_>,
    tenant: &str,
    id: &str,
    now: twiceproof_shared::clock::Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE twiceproof_events SET payload = $3, expunged_at = coalesce(expunged_at, $4) WHERE tenant = $1 AND id = $2";
    let empty: &[u8] = b"";
    if conn.execute(sql, &[tenant.into(), id.into(), empty.into(), now.into()]).await? == 0 {
        return Ok(false);
    }
    // What waits has nothing to send any more, but what was delivered and only asked for again was delivered; what is under
    // way is recorded as it ends. What others wait for, and those, end at their turn.
    let sql = "UPDATE twiceproof_deliveries
         SET state = CASE resume_state WHEN 'delivered' THEN 'delivered' ELSE 'dead' END,
             state_reason = CASE resume_state WHEN 'delivered' THEN NULL ELSE 'expunged' END, final_at = $3,
             resume_state = NULL, resume_reason = NULL, resume_due_at = NULL
         WHERE tenant = $1 AND event = $2 AND state IN ('pending', 'backoff', 'parked')
           AND ordering_key IS NULL";
    conn.execute(sql, &[tenant.into(), id.into(), now.into()]).await?;
    Ok(true)
}
