//! What retention looks for and deletes.
//!
//! Invariants: events and attempts are walked in the order of their ids, which begin with their time, tenant by tenant, so
//! that no index is needed that publish and record would have to write; nothing is deleted that an open delivery needs, also
//! where one is opened again meanwhile; a bounded number of rows is deleted at once, and what is left is found again.

use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::json;

/// What is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walked {
    /// Events, which go with their deliveries and attempts.
    Events,
    /// Attempts whose event has gone: recorded after it was deleted.
    Attempts,
}

/// A row that was found, and how much still needs it: its age, open deliveries of an event, or the event of an attempt.
pub type Found = (String, i64);

/// The next tenant that has rows.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn next_tenant(conn: &mut Conn<'_>, walked: Walked, after: &str) -> Result<Option<(String,)>, StoreError> {
    let sql = match walked {
        Walked::Events => "SELECT tenant FROM twiceproof_events WHERE tenant > $1 ORDER BY tenant LIMIT 1",
        Walked::Attempts => "SELECT tenant FROM twiceproof_attempts WHERE tenant > $1 ORDER BY tenant LIMIT 1",
    };
    conn.fetch_optional(sql, &[after.into()]).await
}

/// A stretch of a tenant's old rows, in the order of their ids.
#[derive(Debug, Clone, Copy)]
pub struct Stretch<'a> {
    /// Of what.
    pub walked: Walked,
    /// Whose.
    pub tenant: &'a str,
    /// Behind this id.
    pub after: &'a str,
    /// No younger than this. The ids lead there; the rows' own time decides.
    pub until: Timestamp,
    /// At most so many.
    pub limit: i64,
}

/// The rows of a stretch.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn look(conn: &mut Conn<'_>, stretch: Stretch<'_>) -> Result<Vec<Found>, StoreError> {
    let (prefix, sql) = match stretch.walked {
        Walked::Events => (
            Prefix::Event,
            "SELECT e.id, CASE WHEN e.created_at > $5 THEN CAST(1 AS BIGINT) ELSE
                 (SELECT count(*) FROM twiceproof_deliveries d
                  WHERE d.tenant = e.tenant AND d.event = e.id AND d.state NOT IN ('delivered', 'dead'))
                 + (SELECT count(*) FROM twiceproof_fan_outs f WHERE f.tenant = e.tenant AND f.event = e.id) END
             FROM twiceproof_events e WHERE e.tenant = $1 AND e.id > $2 AND e.id < $3 ORDER BY e.id LIMIT $4",
        ),
        Walked::Attempts => (
            Prefix::Attempt,
            "SELECT a.id, CASE WHEN a.started_at > $5 THEN CAST(1 AS BIGINT) ELSE
                 (SELECT count(*) FROM twiceproof_events e WHERE e.tenant = a.tenant AND e.id = a.event) END
             FROM twiceproof_attempts a WHERE a.tenant = $1 AND a.id > $2 AND a.id < $3 ORDER BY a.id LIMIT $4",
        ),
    };
    let Stretch { walked: _, tenant, after, until, limit } = stretch;
    let before = Id::lowest_at(prefix, until);
    let args: [Arg<'_>; 5] = [tenant.into(), after.into(), (&before).into(), limit.into(), until.into()];
    conn.fetch_all(sql, &args).await
}

/// How many rows were deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deleted {
    /// Events.
    pub events: u64,
    /// Deliveries.
    pub deliveries: u64,
    /// Attempts.
    pub attempts: u64,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    tenant: &'a str,
    id: &'a str,
}

fn rows(tenant: &str, ids: &[String]) -> Result<String, StoreError> {
    json(&ids.iter().map(|id| Row { tenant, id }).collect::<Vec<_>>())
}

/// Deletes events with their final deliveries and the attempts of those, at most `limit` of each. An event goes once nothing
/// of it is left.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn delete_events(
    conn: &mut Conn<'_>,
    tenant: &str,
    ids: &[String],
    limit: i64,
) -> Result<Deleted, StoreError> {
    let ids = free_events(conn, &rows(tenant, ids)?).await?;
    let rows = rows(tenant, &ids)?;
    let deliveries = delete_deliveries(conn, &rows, limit).await?;
    let attempts = delete_attempts(conn, &rows, limit).await?;
    let events = delete_empty(conn, &rows).await?;
    Ok(Deleted { events, deliveries, attempts })
}

/// Those of the events that no other worker is deleting just now.
async fn free_events(conn: &mut Conn<'_>, rows: &str) -> Result<Vec<String>, StoreError> {
    let sql = match conn.database() {
        // Differs because SQLite has one writer: there is nobody else.
        Database::Sqlite => "SELECT value ->> 'id' FROM json_each($1)",
        Database::Postgres => {
            "SELECT e.id FROM json_to_recordset($1::json) AS k (tenant text, id text)
             JOIN twiceproof_events e ON e.tenant = k.tenant AND e.id = k.id
             ORDER BY e.tenant, e.id FOR UPDATE OF e SKIP LOCKED"
        }
    };
    let ids: Vec<(String,)> = conn.fetch_all(sql, &[Arg::from(rows)]).await?;
    Ok(ids.into_iter().map(|(id,)| id).collect())
}

async fn delete_deliveries(conn: &mut Conn<'_>, rows: &str, limit: i64) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "DELETE FROM twiceproof_deliveries WHERE seq IN (
                 SELECT d.seq FROM json_each($1) k
                 CROSS JOIN twiceproof_deliveries d ON d.tenant = k.value ->> 'tenant' AND d.event = k.value ->> 'id'
                 WHERE d.state IN ('delivered', 'dead') LIMIT $2)"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "WITH picked AS MATERIALIZED (
                 SELECT d.tenant, d.event, d.endpoint
                 FROM json_to_recordset($1::json) AS k (tenant text, id text)
                 JOIN twiceproof_deliveries d ON d.tenant = k.tenant AND d.event = k.id
                 WHERE d.state IN ('delivered', 'dead') LIMIT $2)
             DELETE FROM twiceproof_deliveries d USING picked
             WHERE d.tenant = picked.tenant AND d.event = picked.event AND d.endpoint = picked.endpoint
               AND d.state IN ('delivered', 'dead')"
        }
    };
    conn.execute(sql, &[Arg::from(rows), limit.into()]).await
}

/// Attempts whose delivery has gone.
async fn delete_attempts(conn: &mut Conn<'_>, rows: &str, limit: i64) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "DELETE FROM twiceproof_attempts WHERE seq IN (
                 SELECT a.seq FROM json_each($1) k
                 CROSS JOIN twiceproof_attempts a ON a.tenant = k.value ->> 'tenant' AND a.event = k.value ->> 'id'
                 WHERE (SELECT count(*) FROM twiceproof_deliveries d
                        WHERE d.tenant = a.tenant AND d.event = a.event AND d.endpoint = a.endpoint) = 0 LIMIT $2)"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "WITH picked AS MATERIALIZED (
                 SELECT a.tenant, a.id FROM json_to_recordset($1::json) AS k (tenant text, id text)
                 JOIN twiceproof_attempts a ON a.tenant = k.tenant AND a.event = k.id
                 WHERE (SELECT count(*) FROM twiceproof_deliveries d
                        WHERE d.tenant = a.tenant AND d.event = a.event AND d.endpoint = a.endpoint) = 0 LIMIT $2)
             DELETE FROM twiceproof_attempts a USING picked WHERE a.tenant = picked.tenant AND a.id = picked.id"
        }
    };
    conn.execute(sql, &[Arg::from(rows), limit.into()]).await
}

/// Events of which nothing is left.
async fn delete_empty(conn: &mut Conn<'_>, rows: &str) -> Result<u64, StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "DELETE FROM twiceproof_events WHERE seq IN (
                 SELECT e.seq FROM json_each($1) k
                 CROSS JOIN twiceproof_events e ON e.tenant = k.value ->> 'tenant' AND e.id = k.value ->> 'id'
                 WHERE (SELECT count(*) FROM twiceproof_deliveries d WHERE d.tenant = e.tenant AND d.event = e.id) = 0
                   AND (SELECT count(*) FROM twiceproof_attempts a WHERE a.tenant = e.tenant AND a.event = e.id) = 0)"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "DELETE FROM twiceproof_events e USING json_to_recordset($1::json) AS k (tenant text, id text)
             WHERE e.tenant = k.tenant AND e.id = k.id
               AND (SELECT count(*) FROM twiceproof_deliveries d WHERE d.tenant = e.tenant AND d.event = e.id) = 0
               AND (SELECT count(*) FROM twiceproof_attempts a WHERE a.tenant = e.tenant AND a.event = e.id) = 0"
        }
    };
    conn.execute(sql, &[Arg::from(rows)]).await
}

/// Deletes attempts that belong to no event any more; how many.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn delete_orphans(conn: &mut Conn<'_>, tenant: &str, ids: &[String]) -> Result<u64, StoreError> {
    let rows = rows(tenant, ids)?;
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "DELETE FROM twiceproof_attempts WHERE seq IN (
                 SELECT a.seq FROM json_each($1) k
                 CROSS JOIN twiceproof_attempts a ON a.tenant = k.value ->> 'tenant' AND a.id = k.value ->> 'id'
                 WHERE (SELECT count(*) FROM twiceproof_events e WHERE e.tenant = a.tenant AND e.id = a.event) = 0)"
        }
        // Differs because other workers do the same: rows that one of them holds are skipped.
        Database::Postgres => {
            "WITH picked AS MATERIALIZED (
                 SELECT a.tenant, a.id FROM json_to_recordset($1::json) AS k (tenant text, id text)
                 JOIN twiceproof_attempts a ON a.tenant = k.tenant AND a.id = k.id
                 WHERE (SELECT count(*) FROM twiceproof_events e WHERE e.tenant = a.tenant AND e.id = a.event) = 0
                 FOR UPDATE OF a SKIP LOCKED)
             DELETE FROM twiceproof_attempts a USING picked WHERE a.tenant = picked.tenant AND a.id = picked.id"
        }
    };
    conn.execute(sql, &[Arg::from(&rows)]).await
}
