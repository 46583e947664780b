//! What was tried, by endpoint and by event.

use twiceproof_shared::store::{Conn, Database, StoreError};

use super::Window;

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
    /// So many milliseconds after its start the host's name was resolved; none where there was a connection.
    pub resolved_ms: Option<i64>,
    /// And the connection stood, with TLS.
    pub connected_ms: Option<i64>,
    /// And the head of the answer had come.
    pub answered_ms: Option<i64>,
}

/// Reads attempts, the ids of which lie between $2 and $3.
macro_rules! attempts {
    ($hint:literal, $which:literal, $order:literal) => {
        concat!(
            "SELECT a.id, a.event, a.endpoint, a.outcome, a.status, a.error,
                    CASE WHEN $6 = 1 THEN a.response END AS response, a.by_hand, a.started_at, a.ended_at,
                    a.resolved_ms, a.connected_ms, a.answered_ms
             FROM twiceproof_attempts a",
            $hint,
            " WHERE a.tenant = $1 AND a.id > $2 AND a.id < $3 AND ",
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

macro_rules! of_endpoint {
    ($hint:literal, $order:literal) => {
        attempts!($hint, "a.endpoint = $10 AND $11 = ''", $order)
    };
}

macro_rules! of_event {
    ($hint:literal, $order:literal) => {
        attempts!($hint, "a.event = $10 AND ($11 = '' OR a.endpoint = $11)", $order)
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
    let names = match of {
        AttemptsOf::Endpoint(id) => [id, ""],
        AttemptsOf::Event(event, endpoint) => [event, endpoint],
    };
    let sql = match (conn.database(), of, window.down) {
        // Differs because SQLite knows nothing of how many endpoints and events a tenant has, and would walk over all attempts
        // for any of them.
        (Database::Sqlite, AttemptsOf::Endpoint(_), true) => {
            of_endpoint!(" INDEXED BY twiceproof_attempts_endpoint", "DESC")
        }
        (Database::Sqlite, AttemptsOf::Endpoint(_), false) => {
            of_endpoint!(" INDEXED BY twiceproof_attempts_endpoint", "ASC")
        }
        (Database::Sqlite, AttemptsOf::Event(..), true) => {
            of_event!(" INDEXED BY twiceproof_attempts_delivery", "DESC")
        }
        (Database::Sqlite, AttemptsOf::Event(..), false) => {
            of_event!(" INDEXED BY twiceproof_attempts_delivery", "ASC")
        }
        (Database::Postgres, AttemptsOf::Endpoint(_), true) => of_endpoint!("", "DESC"),
        (Database::Postgres, AttemptsOf::Endpoint(_), false) => of_endpoint!("", "ASC"),
        (Database::Postgres, AttemptsOf::Event(..), true) => of_event!("", "DESC"),
        (Database::Postgres, AttemptsOf::Event(..), false) => of_event!("", "ASC"),
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
        "SELECT id, event, endpoint, outcome, status, error, response, by_hand, started_at, ended_at,
                resolved_ms, connected_ms, answered_ms
         FROM twiceproof_attempts WHERE tenant = $1 AND id = $3 AND event = $2",
        &[tenant.into(), event.into(), id.into()],
    )
    .await
}

/// Takes the body of an attempt's answer away. False: there is no such attempt.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn expunge_attempt(conn: &mut Conn<'_>, tenant: &str, event: &str, id: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE twiceproof_attempts SET response = NULL WHERE tenant = $1 AND id = $3 AND event = $2";
    Ok(conn.execute(sql, &[tenant.into(), event.into(), id.into()]).await? == 1)
}
