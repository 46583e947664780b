//! Events, and the deliveries that they make.

use std::collections::HashSet;

use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::{Pool, json};

/// A row of the events table, before it is there.
#[derive(Debug)]
pub struct EventRow<'a> {
    /// Whose event it is.
    pub tenant: &'a str,
    /// The minted id.
    pub id: &'a str,
    /// The caller's own id.
    pub uid: Option<&'a str>,
    /// The event type.
    pub event_type: &'a str,
    /// The media type of the payload.
    pub content_type: &'a str,
    /// The bytes.
    pub payload: &'a [u8],
    /// SHA-256 of the bytes.
    pub digest: &'a [u8; 32],
    /// The channels as a sorted JSON array.
    pub channels: &'a str,
    /// The ordering key.
    pub ordering_key: Option<&'a str>,
}

/// What a stored event is compared by when its uid comes again.
#[derive(Debug, sqlx::FromRow)]
pub struct Twin {
    /// Its minted id.
    pub id: String,
    /// SHA-256 of its bytes.
    pub digest: Vec<u8>,
    /// Its event type.
    pub event_type: String,
    /// Its media type.
    pub content_type: String,
    /// Its channels as a sorted JSON array.
    pub channels: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
}

/// Inserts one event. False: its uid (or, when the unit runs again, its id) is there already. An uncommitted twin is
/// waited for on PostgreSQL; none of this is an error that would fail the host's transaction.
///
/// # Errors
/// As [`StoreError`] says; under REPEATABLE READ a twin that was committed meanwhile is [`StoreError::Busy`].
pub async fn insert(conn: &mut Conn<'_>, row: &EventRow<'_>, now: Timestamp) -> Result<bool, StoreError> {
    let inserted = conn
        .execute(
            "INSERT INTO twiceproof_events
                 (tenant, id, uid, event_type, content_type, payload, digest, channels, ordering_key, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
             ON CONFLICT DO NOTHING",
            &[
                row.tenant.into(),
                row.id.into(),
                row.uid.into(),
                row.event_type.into(),
                row.content_type.into(),
                row.payload.into(),
                row.digest.into(),
                row.channels.into(),
                row.ordering_key.into(),
                now.into(),
            ],
        )
        .await?;
    Ok(inserted == 1)
}

/// Inserts many events in their order; those that were not there already.
///
/// # Errors
/// As [`insert`].
pub async fn insert_many(conn: &mut Conn<'_>, rows: &[EventRow<'_>], now: Timestamp) -> Result<Inserted, StoreError> {
    let mut pool = Pool::default();
    let events = rows.iter().enumerate().map(|(n, row)| JsonEvent {
        n,
        tenant: row.tenant,
        id: row.id,
        uid: row.uid,
        event_type: row.event_type,
        content_type: row.content_type,
        payload_at: pool.add(row.payload),
        payload_len: row.payload.len(),
        digest_at: pool.add(row.digest),
        channels: row.channels,
        ordering_key: row.ordering_key,
    });
    let json = json(&events.collect::<Vec<_>>())?;
    let args = [Arg::from(&json), now.into(), pool.as_bytes().into()];
    match conn.database() {
        // Differs because a row that SQLite returns costs as much as it takes to insert it: they are asked for only where
        // some of them are missing.
        Database::Sqlite => {
            let inserted = conn
                .execute(
                    "INSERT INTO twiceproof_events
                         (tenant, id, uid, event_type, content_type, payload, digest, channels, ordering_key, created_at)
                     SELECT value ->> 'tenant', value ->> 'id', value ->> 'uid', value ->> 'event_type',
                            value ->> 'content_type',
                            substr($3, value ->> 'payload_at', value ->> 'payload_len'),
                            substr($3, value ->> 'digest_at', 32),
                            value ->> 'channels', value ->> 'ordering_key', $2
                     FROM jsonb_each($1) WHERE true
                     ON CONFLICT DO NOTHING",
                    &args,
                )
                .await?;
            match inserted {
                0 => Ok(Inserted::Some(HashSet::new())),
                all if all == rows.len() as u64 => Ok(Inserted::All),
                some => Ok(Inserted::Some(last(conn, some).await?)),
            }
        }
        // Differs because PostgreSQL returns what it inserted at no cost worth speaking of.
        Database::Postgres => {
            let ids: Vec<(String,)> = conn
                .fetch_all(
                    "INSERT INTO twiceproof_events
                         (tenant, id, uid, event_type, content_type, payload, digest, channels, ordering_key, created_at)
                     SELECT r.tenant, r.id, r.uid, r.event_type, r.content_type,
                            substring($3::bytea from r.payload_at for r.payload_len),
                            substring($3::bytea from r.digest_at for 32), r.channels, r.ordering_key, $2
                     FROM json_to_recordset($1::json) AS r
                         (n bigint, tenant text, id text, uid text, event_type text, content_type text, payload_at int,
                          payload_len int, digest_at int, channels text, ordering_key text)
                     ORDER BY r.n
                     ON CONFLICT DO NOTHING RETURNING id",
                    &args,
                )
                .await?;
            Ok(Inserted::Some(ids.into_iter().map(|(id,)| id).collect()))
        }
    }
}

/// Which of many events a statement inserted.
#[derive(Debug)]
pub enum Inserted {
    /// All of them.
    All,
    /// Those with these ids.
    Some(HashSet<String>),
}

impl Inserted {
    /// Whether this one was.
    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(ids) => ids.contains(id),
        }
    }
}

/// The ids of the last `count` events that this connection inserted with one statement: their numbers follow one another.
async fn last(conn: &mut Conn<'_>, count: u64) -> Result<HashSet<String>, StoreError> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let ids: Vec<(String,)> = conn
        .fetch_all(
            "SELECT id FROM twiceproof_events
             WHERE seq > last_insert_rowid() - $1 AND seq <= last_insert_rowid()",
            &[count.into()],
        )
        .await?;
    Ok(ids.into_iter().map(|(id,)| id).collect())
}

/// Bounds how long the statements of this transaction of ours wait for somebody else's; the wait's end is an error. It is
/// shorter than the time after which PostgreSQL looks for deadlocks, so that no host is chosen as the victim of one.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn give_way(conn: &mut Conn<'_>) -> Result<(), StoreError> {
    match conn.database() {
        // Differs because SQLite has one writer: there is nobody to wait for.
        Database::Sqlite => Ok(()),
        Database::Postgres => conn.execute_script("SET LOCAL lock_timeout = '100ms'").await,
    }
}

/// An event that is new and has to be fanned out.
#[derive(Debug, Serialize)]
pub struct FreshEvent<'a> {
    /// Whose event it is.
    pub tenant: &'a str,
    /// The minted id.
    pub id: &'a str,
    /// The event type, which the endpoints' filters are asked for.
    pub event_type: &'a str,
    /// The channels as a JSON array, of which an endpoint with channels has to have one.
    pub channels: &'a str,
}

/// Makes one delivery for each endpoint that takes the event: pending, or parked where the endpoint is disabled, so that
/// it can be delivered once it is enabled. An endpoint's own horizon goes before `deadline_at`. Returns how many.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn fan_out(
    conn: &mut Conn<'_>,
    events: &[FreshEvent<'_>],
    now: Timestamp,
    deadline_at: Timestamp,
) -> Result<u64, StoreError> {
    let rows = events.iter().enumerate().map(|(n, event)| Numbered { n, event });
    let rows = json(&rows.collect::<Vec<_>>())?;
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "INSERT INTO twiceproof_deliveries
                 (tenant, event, endpoint, state, state_reason, due_at, deadline_at, created_at)
             SELECT e.tenant, r.value ->> 'id', e.id,
                    CASE e.state WHEN 'enabled' THEN 'pending' ELSE 'parked' END,
                    CASE e.state WHEN 'enabled' THEN NULL ELSE 'endpoint_disabled' END, $2,
                    coalesce($2 + e.horizon_ms, $3), $2
             FROM jsonb_each($1) r JOIN twiceproof_endpoints e ON e.tenant = r.value ->> 'tenant'
             WHERE (e.all_event_types = 1 OR EXISTS (
                 SELECT 1 FROM twiceproof_endpoint_event_types t
                 WHERE t.tenant = e.tenant AND t.endpoint = e.id AND t.event_type = r.value ->> 'event_type'))
             AND (e.channels = '[]' OR EXISTS (
                 SELECT 1 FROM json_each(e.channels) c JOIN json_each(r.value ->> 'channels') v ON v.value = c.value))
             ORDER BY r.value ->> 'n', e.id"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "INSERT INTO twiceproof_deliveries
                 (tenant, event, endpoint, state, state_reason, due_at, deadline_at, created_at)
             SELECT e.tenant, r.id, e.id,
                    CASE e.state WHEN 'enabled' THEN 'pending' ELSE 'parked' END,
                    CASE e.state WHEN 'enabled' THEN NULL ELSE 'endpoint_disabled' END, $2,
                    coalesce($2 + e.horizon_ms, $3), $2
             FROM json_to_recordset($1::json) AS r (n bigint, tenant text, id text, event_type text, channels text)
             JOIN twiceproof_endpoints e ON e.tenant = r.tenant
             WHERE (e.all_event_types = 1 OR EXISTS (
                 SELECT 1 FROM twiceproof_endpoint_event_types t
                 WHERE t.tenant = e.tenant AND t.endpoint = e.id AND t.event_type = r.event_type))
             AND (e.channels = '[]' OR EXISTS (
                 SELECT 1 FROM json_array_elements_text(e.channels::json) c
                 JOIN json_array_elements_text(r.channels::json) v ON v.value = c.value))
             ORDER BY r.n, e.id"
        }
    };
    conn.execute(sql, &[Arg::from(&rows), now.into(), deadline_at.into()]).await
}

/// The event that has this uid.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn by_uid(conn: &mut Conn<'_>, tenant: &str, uid: &str) -> Result<Option<Twin>, StoreError> {
    conn.fetch_optional(
        "SELECT id, digest, event_type, content_type, channels, ordering_key
         FROM twiceproof_events WHERE tenant = $1 AND uid = $2",
        &[tenant.into(), uid.into()],
    )
    .await
}

/// Whether an event with this id is there.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn exists(conn: &mut Conn<'_>, tenant: &str, id: &str) -> Result<bool, StoreError> {
    let found: Option<(String,)> = conn
        .fetch_optional("SELECT id FROM twiceproof_events WHERE tenant = $1 AND id = $2", &[tenant.into(), id.into()])
        .await?;
    Ok(found.is_some())
}

#[derive(Serialize)]
struct JsonEvent<'a> {
    n: usize,
    tenant: &'a str,
    id: &'a str,
    uid: Option<&'a str>,
    event_type: &'a str,
    content_type: &'a str,
    payload_at: usize,
    payload_len: usize,
    digest_at: usize,
    channels: &'a str,
    ordering_key: Option<&'a str>,
}

#[derive(Serialize)]
struct Numbered<'a> {
    n: usize,
    #[serde(flatten)]
    event: &'a FreshEvent<'a>,
}

/// How many endpoints an event is or was owed to.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn owed(conn: &mut Conn<'_>, tenant: &str, id: &str) -> Result<i64, StoreError> {
    let sql = "SELECT count(*) FROM twiceproof_deliveries WHERE tenant = $1 AND event = $2";
    let (count,): (i64,) = conn.fetch_one(sql, &[tenant.into(), id.into()]).await?;
    Ok(count)
}
