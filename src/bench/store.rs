//! The SQL of the measuring kit: its own tables, and the counts at the end.

use twiceproof_shared::store::bulk::to_json;
use twiceproof_shared::store::{Arg, Conn, Database, Store, StoreError};

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

/// Drops the schema of a measurement, and nothing that is not one.
#[cfg(feature = "postgres")]
pub async fn drop_schema(store: &Store) -> Result<(), StoreError> {
    let sql = "DO $$ BEGIN
        IF current_schema() LIKE 'twiceproof\\_bench\\_%' THEN
            EXECUTE format('DROP SCHEMA %I CASCADE', current_schema());
        END IF;
    END $$";
    let mut reader = store.read().await?;
    reader.conn().execute_script(sql).await
}

async fn one(conn: &mut Conn<'_>, sql: &'static str) -> Result<u64, StoreError> {
    let (count,): (i64,) = conn.fetch_one(sql, &[]).await?;
    Ok(u64::try_from(count).unwrap_or(0))
}
