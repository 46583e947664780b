//! Events, as they are published.

use std::collections::{BTreeSet, HashSet};

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
    /// From when on it is not sent any more.
    pub expires_at: Option<Timestamp>,
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
                 (tenant, id, uid, event_type, content_type, payload, digest, channels, ordering_key, created_at,
                  expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
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
                row.expires_at.map(Timestamp::as_millis).into(),
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
        expires_at: row.expires_at.map(Timestamp::as_millis),
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
                         (tenant, id, uid, event_type, content_type, payload, digest, channels, ordering_key, created_at,
                          expires_at)
                     SELECT value ->> 'tenant', value ->> 'id', value ->> 'uid', value ->> 'event_type',
                            value ->> 'content_type',
                            substr($3, value ->> 'payload_at', value ->> 'payload_len'),
                            substr($3, value ->> 'digest_at', 32),
                            value ->> 'channels', value ->> 'ordering_key', $2, value ->> 'expires_at'
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
                         (tenant, id, uid, event_type, content_type, payload, digest, channels, ordering_key, created_at,
                          expires_at)
                     SELECT r.tenant, r.id, r.uid, r.event_type, r.content_type,
                            substring($3::bytea from r.payload_at for r.payload_len),
                            substring($3::bytea from r.digest_at for 32), r.channels, r.ordering_key, $2, r.expires_at
                     FROM json_to_recordset($1::json) AS r
                         (n bigint, tenant text, id text, uid text, event_type text, content_type text, payload_at int,
                          payload_len int, digest_at int, channels text, ordering_key text, expires_at bigint)
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

/// Waits until nobody else's transaction publishes with these ordering keys, and has others wait until this one has ended: the
/// order of a key is that of the commits. `keys` are tenant and ordering key.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn hold_order(conn: &mut Conn<'_>, keys: &BTreeSet<(&str, &str)>) -> Result<(), StoreError> {
    if keys.is_empty() || conn.database() == Database::Sqlite {
        // SQLite has one writer: the order is there.
        return Ok(());
    }
    let sql = "SELECT count(pg_advisory_xact_lock(number)) FROM (
             SELECT DISTINCT hashtextextended(k.tenant || ' ' || k.ordering_key, 1)
                 # 'twiceproof_events'::regclass::oid::bigint AS number
             FROM json_to_recordset($1::json) AS k (tenant text, ordering_key text) ORDER BY 1) held";
    let keys: Vec<OrderingKey<'_>> =
        keys.iter().map(|(tenant, ordering_key)| OrderingKey { tenant, ordering_key }).collect();
    let (_,): (i64,) = conn.fetch_one(sql, &[Arg::from(&json(&keys)?)]).await?;
    Ok(())
}

#[derive(Serialize)]
struct OrderingKey<'a> {
    tenant: &'a str,
    ordering_key: &'a str,
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
    expires_at: Option<i64>,
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
