//! The SQL of the measuring kit: its own tables, and the counts at the end.

use std::time::Duration;

use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::store::bulk::to_json;
use twiceproof_shared::store::{Arg, Conn, Database, Store, StoreError};

use super::BenchError;
use super::bed::moment;
use super::report::Counts;

const TABLES: &str = "CREATE TABLE bench_effects (event TEXT NOT NULL, number BIGINT NOT NULL)";

/// Makes the tables.
pub async fn create(store: &Store) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    tx.conn().execute_script(TABLES).await?;
    tx.commit().await
}

/// The effect of a request.
pub async fn add_effect(conn: &mut Conn<'_>, event: &str, number: i64) -> Result<(), StoreError> {
    let sql = "INSERT INTO bench_effects (event, number) VALUES ($1, $2)";
    conn.execute(sql, &[event.into(), number.into()]).await.map(drop)
}

/// Many effects with one statement.
pub async fn add_effects(conn: &mut Conn<'_>, rows: &[(String, i64)]) -> Result<(), StoreError> {
    let rows = to_json(rows)?;
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "INSERT INTO bench_effects (event, number) SELECT value ->> 0, value ->> 1 FROM jsonb_each($1)"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "INSERT INTO bench_effects (event, number)
             SELECT r ->> 0, (r ->> 1)::bigint FROM json_array_elements($1::json) AS r"
        }
    };
    conn.execute(sql, &[Arg::from(&rows)]).await.map(drop)
}

/// Forgets the effects so far.
pub async fn clear_effects(store: &Store) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    tx.conn().execute("DELETE FROM bench_effects", &[]).await?;
    tx.commit().await
}

/// How many effects there are.
pub async fn effects(store: &Store) -> Result<u64, StoreError> {
    one(&mut store.read().await?.conn(), "SELECT count(*) FROM bench_effects").await
}

/// Whether a delivery is not at its end yet.
pub async fn is_busy(store: &Store) -> Result<bool, StoreError> {
    // One question for each partial index, so that the look costs nothing beside what is measured.
    let sql = "SELECT (CASE WHEN
            (SELECT endpoint FROM twiceproof_deliveries WHERE state = 'pending' ORDER BY endpoint, seq LIMIT 1) IS NOT NULL
            OR (SELECT lease_until FROM twiceproof_deliveries WHERE state = 'leased' ORDER BY lease_until LIMIT 1) IS NOT NULL
            OR (SELECT due_at FROM twiceproof_deliveries WHERE state = 'backoff' ORDER BY due_at LIMIT 1) IS NOT NULL
        THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END)";
    Ok(one(&mut store.read().await?.conn(), sql).await? > 0)
}

/// Makes the events of these numbers with this payload, each owed to one of the endpoints.
pub async fn fill(store: &Store, first: usize, end: usize, payload: &[u8]) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    let mut conn = tx.conn();
    let now = store.now();
    // As if they had been minted now.
    let lowest = Id::lowest_at(Prefix::Event, now);
    let head = &lowest.as_str()[..13];
    let deadline = now.plus(Duration::from_secs(72 * 3600));
    let (events, deliveries) = match conn.database() {
        Database::Sqlite => (
            "INSERT INTO twiceproof_events (tenant, id, event_type, content_type, payload, digest, created_at)
             WITH RECURSIVE g (n) AS (SELECT $1 UNION ALL SELECT n + 1 FROM g WHERE n + 1 < $2)
             SELECT 'bench', $5 || printf('%018d', n), 'bench.made', 'application/json', $3, zeroblob(32), $4 FROM g",
            "INSERT INTO twiceproof_deliveries (tenant, event, endpoint, state, due_at, deadline_at, created_at)
             WITH RECURSIVE g (n) AS (SELECT $1 UNION ALL SELECT n + 1 FROM g WHERE n + 1 < $2),
                 e (id, k) AS MATERIALIZED (SELECT id, row_number() OVER (ORDER BY id) FROM twiceproof_endpoints)
             SELECT 'bench', $5 || printf('%018d', n), (SELECT id FROM e WHERE k = 1 + n % 10), 'pending', $3, $4, $3 FROM g",
        ),
        // Differs because each database has its own way to make numbers.
        Database::Postgres => (
            "INSERT INTO twiceproof_events (tenant, id, event_type, content_type, payload, digest, created_at)
             SELECT 'bench', $5 || lpad(n::text, 18, '0'), 'bench.made', 'application/json', $3, sha256($3), $4
             FROM generate_series($1::bigint, $2::bigint - 1) AS g (n)",
            "INSERT INTO twiceproof_deliveries (tenant, event, endpoint, state, due_at, deadline_at, created_at)
             SELECT 'bench', $5 || lpad(n::text, 18, '0'), e.id, 'pending', $3, $4, $3
             FROM generate_series($1::bigint, $2::bigint - 1) AS g (n)
             JOIN (SELECT id, row_number() OVER (ORDER BY id) AS k FROM twiceproof_endpoints) e ON e.k = 1 + n % 10
             ORDER BY n",
        ),
    };
    let (first, end) = (first as i64, end as i64);
    conn.execute(events, &[first.into(), end.into(), payload.into(), now.into(), head.into()]).await?;
    conn.execute(deliveries, &[first.into(), end.into(), now.into(), deadline.into(), head.into()]).await?;
    tx.commit().await
}

/// Begins to read: what is seen now is seen until [`let_go`].
pub async fn hold(conn: &mut Conn<'_>) -> Result<(), StoreError> {
    let sql = match conn.database() {
        // Differs because SQLite's readers always keep their snapshot.
        Database::Sqlite => "BEGIN; SELECT count(*) FROM twiceproof_endpoints",
        Database::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM twiceproof_endpoints",
    };
    conn.execute_script(sql).await
}

/// Ends what [`hold`] began.
pub async fn let_go(conn: &mut Conn<'_>) -> Result<(), StoreError> {
    conn.execute_script("ROLLBACK").await
}

/// Whether another endpoint than `bad` is owed something.
pub async fn is_owed_but(store: &Store, bad: &str) -> Result<bool, StoreError> {
    let sql = "SELECT count(*) FROM twiceproof_deliveries WHERE state IN ('pending', 'leased', 'backoff', 'blocked') AND endpoint <> $1";
    let (count,): (i64,) = store.read().await?.conn().fetch_one(sql, &[bad.into()]).await?;
    Ok(count > 0)
}

/// Waits until so many deliveries are under way.
pub async fn until_leased(store: &Store, count: usize) -> Result<(), BenchError> {
    while one(&mut store.read().await?.conn(), "SELECT count(*) FROM twiceproof_deliveries WHERE state = 'leased'")
        .await?
        < count as u64
    {
        moment().await;
    }
    Ok(())
}

/// Old deliveries that an endpoint is owed, made by one statement each for events and deliveries.
#[derive(Debug)]
pub struct Backlog<'a> {
    pub tenant: &'a str,
    pub endpoint: &'a str,
    pub event_type: &'a str,
    pub rows: usize,
}

impl Backlog<'_> {
    /// Inserts it.
    pub async fn insert(&self, store: &Store, payload: &[u8]) -> Result<(), StoreError> {
        let (now, rows) = (store.now(), self.rows as i64);
        let mut tx = store.begin().await?;
        let mut conn = tx.conn();
        let (events, deliveries) = match conn.database() {
            // Differs because each database has its own way to make a series and to fill a text up.
            Database::Sqlite => (
                "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < $5)
                 INSERT INTO twiceproof_events (tenant, id, event_type, content_type, payload, digest, created_at)
                 SELECT $1, 'msg_' || printf('%027d', n), $2, 'application/json', $3, $3, $4 FROM n",
                "INSERT INTO twiceproof_deliveries (tenant, event, endpoint, state, due_at, deadline_at, created_at)
                 SELECT tenant, id, $3, 'pending', $4, $5, $4 FROM twiceproof_events
                 WHERE tenant = $1 AND event_type = $2 ORDER BY seq",
            ),
            // Differs because each database has its own way to make a series and to fill a text up.
            Database::Postgres => (
                "INSERT INTO twiceproof_events (tenant, id, event_type, content_type, payload, digest, created_at)
                 SELECT $1, 'msg_' || lpad(n::text, 27, '0'), $2, 'application/json', $3, $3, $4
                 FROM generate_series(1, $5) n",
                "INSERT INTO twiceproof_deliveries (tenant, event, endpoint, state, due_at, deadline_at, created_at)
                 SELECT tenant, id, $3, 'pending', $4, $5, $4 FROM twiceproof_events
                 WHERE tenant = $1 AND event_type = $2 ORDER BY seq",
            ),
        };
        conn.execute(events, &[self.tenant.into(), self.event_type.into(), payload.into(), now.into(), rows.into()])
            .await?;
        let until = now.plus(Duration::from_secs(72 * 3600));
        let args = [self.tenant.into(), self.event_type.into(), self.endpoint.into(), now.into(), until.into()];
        conn.execute(deliveries, &args).await?;
        tx.commit().await
    }
}

/// Forgets what an endpoint is or was owed, and the events of its type.
pub async fn forget(store: &Store, endpoint: &str, event_type: &str) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    let mut conn = tx.conn();
    conn.execute("DELETE FROM twiceproof_deliveries WHERE endpoint = $1", &[endpoint.into()]).await?;
    conn.execute("DELETE FROM twiceproof_events WHERE event_type = $1", &[event_type.into()]).await?;
    tx.commit().await
}

/// Counts what is there.
pub async fn count(store: &Store) -> Result<Counts, StoreError> {
    let mut reader = store.read().await?;
    let mut conn = reader.conn();
    Ok(Counts {
        events: one(&mut conn, "SELECT count(*) FROM twiceproof_events").await?,
        deliveries: one(&mut conn, "SELECT count(*) FROM twiceproof_deliveries").await?,
        delivered: one(&mut conn, "SELECT count(*) FROM twiceproof_deliveries WHERE state = 'delivered'").await?,
        arrivals: 0,
        effects: one(&mut conn, "SELECT count(*) FROM bench_effects").await?,
    })
}

/// The process that serves our connection on PostgreSQL.
#[cfg(feature = "postgres")]
pub async fn backend(store: &Store) -> Result<Option<u32>, StoreError> {
    if store.database() != Database::Postgres {
        return Ok(None);
    }
    let pid = one(&mut store.read().await?.conn(), "SELECT pg_backend_pid()::bigint").await?;
    Ok(u32::try_from(pid).ok())
}

async fn one(conn: &mut Conn<'_>, sql: &'static str) -> Result<u64, StoreError> {
    let (count,): (i64,) = conn.fetch_one(sql, &[]).await?;
    Ok(u64::try_from(count).unwrap_or(0))
}
