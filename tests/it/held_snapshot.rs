//! A reader that keeps an old snapshot: what was delivered stays in the indexes of what waits, and must not be walked over
//! again and again.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use twiceproof::dispatcher::store::claim::{ClaimRequest, Known, claim};
use twiceproof::dispatcher::{AddressPolicy, Manager, NewEndpoint, NewEvent, Policy, Publisher};
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.postgres("growth::a_claim_does_not_walk_over_what_was_delivered_under_a_held_snapshot", held);
}

const DELIVERED: i64 = 5_000;

async fn held(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let tenant = Key::new("default").unwrap();
    let new = NewEndpoint::new(tenant.clone(), "http://127.0.0.1:9/hook");
    let endpoint = manager.create_now(new).await.unwrap().endpoint.id;
    let mut reader = PgConnection::connect(&bed.db.url().expose()).await.unwrap();
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM twiceproof_deliveries")
        .execute(&mut reader)
        .await
        .unwrap();
    let publisher = Publisher::new(&store, &Policy::default());
    let event = || NewEvent::json(tenant.clone(), "order.placed", "{}".to_owned());
    let publish = async |count: i64| {
        let mut tx = store.begin().await.unwrap();
        let events = (0..count).map(|_| event()).collect();
        let _ = publisher.publish_many(&mut tx.conn(), events).await.unwrap();
        tx.commit().await.unwrap();
    };
    publish(DELIVERED).await;
    // Through all states, as a worker would, with leases that would be over by now.
    for sql in [
        "UPDATE twiceproof_deliveries SET state = 'leased', lease_until = 1",
        "UPDATE twiceproof_deliveries SET state = 'backoff', due_at = 1",
        "UPDATE twiceproof_deliveries SET state = 'delivered'",
    ] {
        let mut tx = store.begin().await.unwrap();
        tx.conn().execute(sql, &[]).await.unwrap();
        tx.commit().await.unwrap();
    }
    publish(20).await;
    assert!(walked(&store, None).await >= 4 * DELIVERED, "a full look walks over all of it");
    let known =
        Known { lanes: BTreeMap::from([(endpoint, DELIVERED + 1)]), since: store.now().minus(Duration::from_secs(5)) };
    let walked = walked(&store, Some(known)).await;
    assert!(walked < 200, "{walked}");
    reader.close().await.unwrap();
}

/// How many entries of the deliveries' indexes a claim of all that waits reads.
async fn walked(store: &Store, known: Option<Known>) -> i64 {
    let (worker, margin) = (Id::mint(Prefix::Worker, store.now(), store.random()), Duration::from_secs(15));
    let request = ClaimRequest { known, ..ClaimRequest::new(worker, 32, margin) };
    let mut tx = store.begin().await.unwrap();
    let sql = "SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint FROM pg_index
               WHERE indrelid = 'twiceproof_deliveries'::regclass";
    let claimed = claim(&mut tx.conn(), &request, store.now()).await.unwrap();
    assert_eq!(claimed.deliveries.len(), 20);
    let (walked,): (i64,) = tx.conn().fetch_one(sql, &[]).await.unwrap();
    tx.rollback().await.unwrap();
    walked
}
