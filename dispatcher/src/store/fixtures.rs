//! What tests look up and break in the tables.

#![cfg(feature = "sqlite")]

use twiceproof_shared::store::{Arg, Store};

/// State, reason, attempts and due time of a delivery.
pub(crate) type DeliveryView = (String, Option<String>, i64, i64);
/// Number, outcome, late, status and error of an attempt.
pub(crate) type AttemptView = (i64, String, i64, Option<i64>, Option<String>);

/// The only delivery.
pub(crate) async fn delivery(store: &Store) -> DeliveryView {
    let mut reader = store.read().await.unwrap();
    let sql = "SELECT state, state_reason, attempts, due_at FROM twiceproof_deliveries";
    reader.conn().fetch_one(sql, &[]).await.unwrap()
}

/// All attempts in their order.
pub(crate) async fn attempts(store: &Store) -> Vec<AttemptView> {
    let mut reader = store.read().await.unwrap();
    let sql = "SELECT number, outcome, late, status, error FROM twiceproof_attempts ORDER BY seq";
    reader.conn().fetch_all(sql, &[]).await.unwrap()
}

/// As retention would leave it that did not look for open deliveries.
pub(crate) async fn delete_events(store: &Store) {
    execute(store, "DELETE FROM twiceproof_events", &[]).await;
}

/// As a deletion of the endpoint alone would leave it.
pub(crate) async fn delete_endpoint(store: &Store, id: &str) {
    execute(store, "DELETE FROM twiceproof_endpoints WHERE id = $1", &[id.into()]).await;
}

/// As a publish leaves it that saw the endpoint disabled and committed after it was enabled.
pub(crate) async fn park_all(store: &Store) {
    execute(store, "UPDATE twiceproof_deliveries SET state = 'parked'", &[]).await;
}

async fn execute(store: &Store, sql: &'static str, args: &[Arg<'_>]) {
    let mut tx = store.begin().await.unwrap();
    tx.conn().execute(sql, args).await.unwrap();
    tx.commit().await.unwrap();
}
