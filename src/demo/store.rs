//! The demo's own tables and the counts of its report. No unique constraint stands on the effects: a double shows.

use twiceproof_shared::store::{Conn, Store, StoreError};

use super::deck::Fault;
use super::report::Counts;

const TABLES: &str = "
    CREATE TABLE demo_orders (number BIGINT NOT NULL, event TEXT NOT NULL);
    CREATE TABLE demo_invoices (number BIGINT NOT NULL, order_number BIGINT NOT NULL, event TEXT NOT NULL);
    CREATE INDEX demo_invoices_order ON demo_invoices (order_number);
    CREATE INDEX demo_invoices_event ON demo_invoices (event);
    CREATE TABLE demo_series (last BIGINT NOT NULL);
    INSERT INTO demo_series (last) VALUES (0);
    CREATE TABLE demo_faults (fault TEXT NOT NULL, event TEXT NOT NULL);
    CREATE TABLE demo_exchanges (event TEXT NOT NULL, status BIGINT NOT NULL, replayed BIGINT NOT NULL);";

/// Makes the demo's tables.
pub async fn create(store: &Store) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    tx.conn().execute_script(TABLES).await?;
    tx.commit().await
}

/// Writes an order, in the transaction in which its event is published.
pub async fn add_order(conn: &mut Conn<'_>, number: i64, event: &str) -> Result<(), StoreError> {
    let sql = "INSERT INTO demo_orders (number, event) VALUES ($1, $2)";
    conn.execute(sql, &[number.into(), event.into()]).await.map(drop)
}

/// The effect: takes the next number of the gapless series and writes an invoice under it. The number.
pub async fn add_invoice(conn: &mut Conn<'_>, order: i64, event: &str) -> Result<i64, StoreError> {
    // The row of the series is locked until the end of the transaction, and a rollback gives the number back.
    let (number,): (i64,) = conn.fetch_one("UPDATE demo_series SET last = last + 1 RETURNING last", &[]).await?;
    let sql = "INSERT INTO demo_invoices (number, order_number, event) VALUES ($1, $2, $3)";
    conn.execute(sql, &[number.into(), order.into(), event.into()]).await?;
    Ok(number)
}

/// Notes that a fault bit.
pub async fn note_fault(store: &Store, fault: Fault, event: String) -> Result<(), StoreError> {
    store
        .run(move |conn| {
            let event = event.clone();
            Box::pin(async move {
                let sql = "INSERT INTO demo_faults (fault, event) VALUES ($1, $2)";
                conn.execute(sql, &[fault.name().into(), (&event).into()]).await.map(drop)
            })
        })
        .await
}

/// Notes what the receiver answered to one request.
pub async fn note_exchange(store: &Store, event: String, status: u16, replayed: bool) -> Result<(), StoreError> {
    store
        .run(move |conn| {
            let event = event.clone();
            Box::pin(async move {
                let sql = "INSERT INTO demo_exchanges (event, status, replayed) VALUES ($1, $2, $3)";
                conn.execute(sql, &[(&event).into(), i64::from(status).into(), i64::from(replayed).into()])
                    .await
                    .map(drop)
            })
        })
        .await
}

/// Deliveries that are not at their end yet.
pub async fn unfinished(store: &Store) -> Result<i64, StoreError> {
    one(
        &mut store.read().await?.conn(),
        "SELECT count(*) FROM twiceproof_deliveries WHERE state NOT IN ('delivered', 'dead')",
    )
    .await
}

/// Everything the report tells, counted in the database.
pub async fn count(store: &Store) -> Result<Counts, StoreError> {
    let mut reader = store.read().await?;
    let mut conn = reader.conn();
    let faults: Vec<(String, i64)> =
        conn.fetch_all("SELECT fault, count(*) FROM demo_faults GROUP BY fault", &[]).await?;
    Ok(Counts {
        faults: Fault::ALL
            .iter()
            .map(|fault| {
                let found = faults.iter().find(|(name, _)| name == fault.name());
                (*fault, found.map_or(0, |(_, count)| *count))
            })
            .collect(),
        orders: one(&mut conn, "SELECT count(*) FROM demo_orders").await?,
        events: one(&mut conn, "SELECT count(*) FROM twiceproof_events").await?,
        deliveries: one(&mut conn, "SELECT count(*) FROM twiceproof_deliveries").await?,
        delivered: one(&mut conn, "SELECT count(*) FROM twiceproof_deliveries WHERE state = 'delivered'").await?,
        dead: one(&mut conn, "SELECT count(*) FROM twiceproof_deliveries WHERE state = 'dead'").await?,
        dead_with_effect: one(
            &mut conn,
            "SELECT count(*) FROM twiceproof_deliveries d WHERE d.state = 'dead'
             AND EXISTS (SELECT 1 FROM demo_invoices i WHERE i.event = d.event)",
        )
        .await?,
        attempts: one(&mut conn, "SELECT count(*) FROM twiceproof_attempts").await?,
        requests: one(&mut conn, "SELECT count(*) FROM demo_exchanges").await?,
        ignored: one(&mut conn, "SELECT count(*) FROM demo_exchanges WHERE replayed = 1").await?,
        in_flight: one(&mut conn, "SELECT count(*) FROM demo_exchanges WHERE status = 503").await?,
        unauthorized: one(&mut conn, "SELECT count(*) FROM demo_exchanges WHERE status = 401").await?,
        conflicts: one(&mut conn, "SELECT count(*) FROM twiceproof_conflicts").await?,
        effects: one(&mut conn, "SELECT count(*) FROM demo_invoices").await?,
        lost: one(
            &mut conn,
            "SELECT count(*) FROM demo_orders o
             WHERE NOT EXISTS (SELECT 1 FROM demo_invoices i WHERE i.order_number = o.number)",
        )
        .await?,
        double: one(&mut conn, "SELECT count(*) - count(DISTINCT order_number) FROM demo_invoices").await?,
        phantom: one(
            &mut conn,
            "SELECT count(*) FROM demo_invoices i
             WHERE NOT EXISTS (SELECT 1 FROM demo_orders o WHERE o.number = i.order_number)",
        )
        .await?,
        gaps: one(
            &mut conn,
            "SELECT coalesce(max(number), 0) - count(DISTINCT number) + count(*) - count(DISTINCT number) FROM demo_invoices",
        )
        .await?,
    })
}

async fn one(conn: &mut Conn<'_>, sql: &'static str) -> Result<i64, StoreError> {
    let (count,): (i64,) = conn.fetch_one(sql, &[]).await?;
    Ok(count)
}
