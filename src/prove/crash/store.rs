//! The SQL of the crash runs: the tables of effects and of clients' rows, without any constraint, so that a double shows;
//! and what stands at the end.

use twiceproof_shared::store::{Conn, Store, StoreError};

use crate::prove::history::Fact;

const TABLES: &str = "
    CREATE TABLE prove_effects (event TEXT NOT NULL, answer TEXT NOT NULL);
    CREATE TABLE prove_rows (uid TEXT NOT NULL);";

/// Makes the tables.
pub(super) async fn create(store: &Store) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    tx.conn().execute_script(TABLES).await?;
    tx.commit().await
}

/// The receiver's effect, in the transaction of the event's key.
pub(super) async fn add_effect(conn: &mut Conn<'_>, event: &str, answer: &str) -> Result<(), StoreError> {
    let sql = "INSERT INTO prove_effects (event, answer) VALUES ($1, $2)";
    conn.execute(sql, &[event.into(), answer.into()]).await.map(drop)
}

/// A client's own row, in the transaction in which its event is published.
pub(super) async fn add_row(conn: &mut Conn<'_>, uid: &str) -> Result<(), StoreError> {
    conn.execute("INSERT INTO prove_rows (uid) VALUES ($1)", &[uid.into()]).await.map(drop)
}

/// Deliveries that are not at their end.
pub(super) async fn unfinished(store: &Store) -> Result<i64, StoreError> {
    let sql = "SELECT count(*) FROM twiceproof_deliveries WHERE state NOT IN ('delivered', 'dead')";
    let (count,): (i64,) = store.read().await?.conn().fetch_one(sql, &[]).await?;
    Ok(count)
}

/// Everything that stands.
pub(super) async fn standing(store: &Store) -> Result<Vec<Fact>, StoreError> {
    let mut reader = store.read().await?;
    let mut conn = reader.conn();
    let mut facts = Vec::new();
    let stored: Vec<(Option<String>, String)> =
        conn.fetch_all("SELECT uid, id FROM twiceproof_events ORDER BY seq", &[]).await?;
    facts.extend(stored.into_iter().map(|(uid, event)| Fact::Stored { uid: uid.unwrap_or_default(), event }));
    let rows: Vec<(String,)> = conn.fetch_all("SELECT uid FROM prove_rows ORDER BY uid", &[]).await?;
    facts.extend(rows.into_iter().map(|(uid,)| Fact::Row { uid }));
    let effects: Vec<(String, String)> =
        conn.fetch_all("SELECT event, answer FROM prove_effects ORDER BY event", &[]).await?;
    facts.extend(effects.into_iter().map(|(event, answer)| Fact::Effect { event, answer: Some(answer) }));
    let processed: Vec<(String, String, Option<Vec<u8>>)> =
        conn.fetch_all("SELECT key, state, outcome_body FROM twiceproof_ledger ORDER BY key", &[]).await?;
    facts.extend(processed.into_iter().map(|(event, state, answer)| Fact::Processed {
        event,
        done: state == "done",
        answer: answer.map(|answer| String::from_utf8_lossy(&answer).into_owned()),
    }));
    let deliveries: Vec<(String, String)> =
        conn.fetch_all("SELECT event, state FROM twiceproof_deliveries ORDER BY seq", &[]).await?;
    facts.extend(deliveries.into_iter().map(|(event, state)| Fact::Delivery { event, state }));
    let attempts: Vec<(String, i64, i64, String, i64)> =
        conn.fetch_all("SELECT event, number, token, outcome, late FROM twiceproof_attempts ORDER BY seq", &[]).await?;
    facts.extend(attempts.into_iter().map(|(event, number, token, outcome, late)| Fact::Attempt {
        event,
        number,
        token,
        delivered: outcome == "delivered",
        late: late == 1,
    }));
    Ok(facts)
}
