//! What was accepted, tried and reached: pages for whoever looks back.
//!
//! Invariants: each page is a walk along an index from a place, in one direction; filters thin it out on the way. Bodies are
//! read only where they are asked for.

use twiceproof_shared::store::{Arg, Conn, StoreError};

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

/// An event by its id, or else by its uid.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn event(conn: &mut Conn<'_>, tenant: &str, name: &str) -> Result<Option<StoredEvent>, StoreError> {
    conn.fetch_optional(
        "SELECT id, uid, event_type, content_type, payload, channels, created_at, expunged_at
         FROM twiceproof_events WHERE tenant = $1 AND (id = $2 OR uid = $2)
         ORDER BY CASE id WHEN $2 THEN 0 ELSE 1 END LIMIT 1",
        &[tenant.into(), name.into()],
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
    ($order:literal) => {
        concat!(
            "SELECT d.state, d.due_at, v.id, v.uid, v.event_type, v.content_type,
                    CASE WHEN $6 = 1 THEN v.payload ELSE $7 END AS payload, v.channels, v.created_at, v.expunged_at
             FROM twiceproof_deliveries d JOIN twiceproof_events v ON v.tenant = d.tenant AND v.id = d.event
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
    let sql = if window.down { owed!("DESC") } else { owed!("ASC") };
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

/// A stored attempt.
#[derive(Debug, sqlx::FromRow)]
pub struct StoredAttempt {
    /// Its id.
    pub id: String,
    /// The event.
    pub event: String,
    /// The endpoint.
    pub endpoint: String,
    /// What came of it.
    pub outcome: String,
    /// The status that was answered.
    pub status: Option<i64>,
    /// Why there was no answer.
    pub error: Option<String>,
    /// The first bytes of the answer's body, where they were asked for.
    pub response: Option<Vec<u8>>,
    /// 1: somebody asked for it.
    pub by_hand: i64,
    /// When it began.
    pub started_at: i64,
    /// When it ended.
    pub ended_at: i64,
}

/// Reads attempts, the ids of which lie between $2 and $3.
macro_rules! attempts {
    ($which:literal, $order:literal) => {
        concat!(
            "SELECT a.id, a.event, a.endpoint, a.outcome, a.status, a.error,
                    CASE WHEN $6 = 1 THEN a.response END AS response, a.by_hand, a.started_at, a.ended_at
             FROM twiceproof_attempts a
             WHERE a.tenant = $1 AND a.id > $2 AND a.id < $3 AND ",
            $which,
            " AND (($4 = '' AND $5 = '') OR EXISTS (
                   SELECT 1 FROM twiceproof_events v WHERE v.tenant = a.tenant AND v.id = a.event
                   AND ($4 = '' OR replace(v.channels, $4, '') <> v.channels)
                   AND ($5 = '' OR replace($5, '\"' || v.event_type || '\"', '') <> $5)))
               AND ($7 = '' OR replace($7, ',' || a.outcome || ',', '') <> $7)
               AND ($8 < 0 OR coalesce(a.status, 0) / 100 = $8)
             ORDER BY a.id ",
            $order,
            " LIMIT $9"
        )
    };
}

/// Whose attempts.
#[derive(Debug, Clone, Copy)]
pub enum AttemptsOf<'a> {
    /// Those at one endpoint.
    Endpoint(&'a str),
    /// Those for one event, at one endpoint if its id is not empty.
    Event(&'a str, &'a str),
}

/// A page of attempts, by id. `class` is the first digit of the status, 0 where there was no answer, below 0 for any.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn attempts(
    conn: &mut Conn<'_>,
    tenant: &str,
    of: AttemptsOf<'_>,
    class: i64,
    window: &Window<'_>,
) -> Result<Vec<StoredAttempt>, StoreError> {
    let [low, high] = window.bounds();
    let (sql, names) = match (of, window.down) {
        (AttemptsOf::Endpoint(id), true) => (attempts!("a.endpoint = $10 AND $11 = ''", "DESC"), [id, ""]),
        (AttemptsOf::Endpoint(id), false) => (attempts!("a.endpoint = $10 AND $11 = ''", "ASC"), [id, ""]),
        (AttemptsOf::Event(event, endpoint), true) => {
            (attempts!("a.event = $10 AND ($11 = '' OR a.endpoint = $11)", "DESC"), [event, endpoint])
        }
        (AttemptsOf::Event(event, endpoint), false) => {
            (attempts!("a.event = $10 AND ($11 = '' OR a.endpoint = $11)", "ASC"), [event, endpoint])
        }
    };
    let args = [
        tenant.into(),
        low,
        high,
        window.channel.into(),
        window.event_types.into(),
        i64::from(window.with_content).into(),
        window.states.into(),
        class.into(),
        window.limit.into(),
        names[0].into(),
        names[1].into(),
    ];
    conn.fetch_all(sql, &args).await
}

/// An attempt by its id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn attempt(
    conn: &mut Conn<'_>,
    tenant: &str,
    event: &str,
    id: &str,
) -> Result<Option<StoredAttempt>, StoreError> {
    conn.fetch_optional(
        "SELECT id, event, endpoint, outcome, status, error, response, by_hand, started_at, ended_at
         FROM twiceproof_attempts WHERE tenant = $1 AND id = $3 AND event = $2",
        &[tenant.into(), event.into(), id.into()],
    )
    .await
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
    // What waits has nothing to send any more; what is under way is recorded as it ends.
    let sql = "UPDATE twiceproof_deliveries SET state = 'dead', state_reason = 'expunged', final_at = $3
         WHERE tenant = $1 AND event = $2 AND state IN ('pending', 'backoff', 'parked')";
    conn.execute(sql, &[tenant.into(), id.into(), now.into()]).await?;
    Ok(true)
}

/// Takes the body of an attempt's answer away. False: there is no such attempt.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn expunge_attempt(conn: &mut Conn<'_>, tenant: &str, event: &str, id: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE twiceproof_attempts SET response = NULL WHERE tenant = $1 AND id = $3 AND event = $2";
    Ok(conn.execute(sql, &[tenant.into(), event.into(), id.into()]).await? == 1)
}
