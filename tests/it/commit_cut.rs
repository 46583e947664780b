//! A commit whose answer never comes: it may have happened or not, and the work's own key tells.

use std::time::Duration;

use twiceproof::dispatcher::{NewEvent, Policy, PublishError, Publisher};
use twiceproof::prove::{Fault, Proxy};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::{DatabaseUrl, Store, StoreError, StoreOptions};

use crate::harness::{Bed, Suite};
use crate::kit::{Effect, Receiving, effects, make_effects, signed, source};

pub fn register(suite: &mut Suite) {
    suite.postgres("commits::rel_b49_an_unknown_commit_that_happened_is_answered_from_the_ledger", happened);
    suite.postgres("commits::rel_b49_an_unknown_commit_that_did_not_happen_runs_again", did_not_happen);
    suite.postgres("commits::a_host_is_told_that_its_commit_is_unknown", host_told);
    suite.postgres("commits::an_unknown_commit_stays_unknown_while_the_database_is_away", away);
    suite.postgres("commits::an_unknown_commit_that_events_shared_stays_unknown_for_each", shared_away);
}

/// A proxy in front of the bed's PostgreSQL, and the database through it.
async fn proxy(database: &DatabaseUrl) -> (Proxy, DatabaseUrl) {
    let (host, port) = database.server().unwrap();
    let proxy = Proxy::open(format!("{host}:{port}")).await.unwrap();
    let url = database.through(proxy.address()).unwrap();
    (proxy, url)
}

async fn happened(bed: Bed) {
    cut_while_receiving(bed, Fault::CommitAnswerLost).await;
}

async fn did_not_happen(bed: Bed) {
    cut_while_receiving(bed, Fault::CommitNotSent).await;
}

async fn cut_while_receiving(bed: Bed, fault: Fault) {
    let direct = bed.db.store(None).await.unwrap();
    make_effects(&direct).await;
    let (proxy, url) = proxy(bed.db.url()).await;
    let store = Store::connect(&url, StoreOptions::default()).await.unwrap();
    let handler = Effect { store: store.clone(), takes: Duration::ZERO };
    let receiving = Receiving::start(&store, source(), handler).await;
    for round in 1..=5 {
        proxy.arm(fault);
        let message = signed(&format!("msg_{round}"), "a", store.now());
        let answer = receiving.send(&message).await;
        assert_eq!(proxy.bites(), round as u64, "the cut bit");
        assert_eq!(answer.status, 200);
        let again = receiving.send(&message).await;
        assert_eq!((again.status.as_u16(), &again.body), (200, &answer.body));
        assert_eq!(effects(&direct).await.len(), round, "one effect for each event");
    }
}

async fn host_told(bed: Bed) {
    let direct = bed.db.store(None).await.unwrap();
    make_effects(&direct).await;
    let (proxy, url) = proxy(bed.db.url()).await;
    let store = Store::connect(&url, StoreOptions::default()).await.unwrap();
    for (fault, expected) in [(Fault::CommitAnswerLost, 1), (Fault::CommitNotSent, 1)] {
        proxy.arm(fault);
        let mut tx = store.begin().await.unwrap();
        tx.conn().execute(crate::kit::ADD_EFFECT, &["msg".into(), b"x".as_slice().into()]).await.unwrap();
        let result = tx.commit().await;
        assert!(matches!(result, Err(StoreError::Unknown(_))), "{result:?}");
        assert_eq!(effects(&direct).await.len(), expected);
    }
}

async fn away(bed: Bed) {
    let direct = bed.db.store(None).await.unwrap();
    make_effects(&direct).await;
    let (proxy, url) = proxy(bed.db.url()).await;
    let mut options = StoreOptions::default();
    options.connections = Some(1);
    let store = Store::connect(&url, options).await.unwrap();
    proxy.arm(Fault::CommitAnswerLost);
    // The one connection that there is gets cut, and no other can be made to look the work up.
    proxy.set_away(true);
    let unit = store.run(|conn| {
        Box::pin(async move { conn.execute(crate::kit::ADD_EFFECT, &["msg".into(), b"x".as_slice().into()]).await })
    });
    let result: Result<u64, StoreError> = unit.await;
    assert_eq!(proxy.bites(), 1, "the cut bit");
    assert!(matches!(result, Err(StoreError::Unknown(_))), "it was committed, but the unit got {result:?}");
    assert_eq!(effects(&direct).await.len(), 1);
}

async fn shared_away(bed: Bed) {
    let direct = bed.db.store(None).await.unwrap();
    let (proxy, url) = proxy(bed.db.url()).await;
    let mut options = StoreOptions::default();
    options.connections = Some(1);
    let store = Store::connect(&url, options).await.unwrap();
    let publisher = Publisher::new(&store, &Policy::default());
    let event =
        |uid: &str| NewEvent::json(Key::new("default").unwrap(), "order.paid", "{}").with_uid(Key::new(uid).unwrap());
    publisher.publish_now(event("first")).await.unwrap();
    // An uncommitted twin keeps the first batch from its commit, and then the only other connection busy.
    let mut host = direct.begin().await.unwrap();
    let (_, wake) = Publisher::new(&direct, &Policy::default()).publish(&mut host.conn(), event("twin")).await.unwrap();
    proxy.arm(Fault::CommitAnswerLost);
    let gone = async {
        while proxy.bites() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Nobody is to look the work up, on a new connection or on another that there is.
        proxy.set_away(true);
        proxy.arm(Fault::CommitAnswerLost);
    };
    let late = async |uid: &'static str| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        publisher.publish_now(event(uid)).await
    };
    let twin = tokio::spawn({
        let (publisher, event) = (publisher.clone(), event("twin"));
        async move { publisher.publish_now(event).await }
    });
    let (a, b, c, ()) = tokio::join!(late("a"), late("b"), late("c"), gone);
    for answer in [a, b, c] {
        assert!(matches!(answer, Err(PublishError::Store(StoreError::Unknown(_)))), "it was committed: {answer:?}");
    }
    proxy.disarm();
    host.rollback().await.unwrap();
    drop(wake);
    twin.await.unwrap().unwrap();
    let sql = "SELECT count(*) FROM twiceproof_events";
    let (stored,): (i64,) = direct.read().await.unwrap().conn().fetch_one(sql, &[]).await.unwrap();
    assert_eq!(stored, 5);
}
