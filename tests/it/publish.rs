//! Events that are published at the same time share a transaction; no event feels it.

use std::collections::HashSet;
use std::time::Duration;

use twiceproof::dispatcher::{NewEvent, Policy, PublishError, Published, Publisher};
use twiceproof::key::Key;
use twiceproof_shared::store::{Store, StoreError};

use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("publish::each_of_many_at_once_gets_its_own_answer", many);
    suite.both("publish::a_call_from_inside_a_unit_is_refused", inside);
    suite.postgres("publish::an_event_that_waits_for_a_host_keeps_no_other_waiting", waiting);
}

fn event(uid: &str, payload: &str) -> NewEvent {
    let tenant = Key::new("acme").unwrap();
    NewEvent::json(tenant, "order.paid", payload.to_owned()).with_uid(Key::new(uid).unwrap())
}

/// Publishes all of them at once; the answers in their order.
async fn at_once(publisher: &Publisher, events: Vec<NewEvent>) -> Vec<Result<Published, PublishError>> {
    let tasks: Vec<_> = events
        .into_iter()
        .map(|event| {
            let publisher = publisher.clone();
            tokio::spawn(async move { publisher.publish_now(event).await })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}

async fn stored(store: &Store) -> i64 {
    let mut reader = store.read().await.unwrap();
    let (count,): (i64,) = reader.conn().fetch_one("SELECT count(*) FROM twiceproof_events", &[]).await.unwrap();
    count
}

/// 300 events of 100 uids: of each uid one is accepted, one is known, and one is a conflict.
async fn many(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let publisher = Publisher::new(&store, &Policy::default());
    for number in 0..100 {
        publisher.publish_now(event(&format!("conflict-{number}"), "{}")).await.unwrap();
    }
    let mut events = Vec::new();
    for number in 0..100 {
        events.push(event(&format!("twin-{number}"), "{}"));
        events.push(event(&format!("twin-{number}"), "{}"));
        events.push(event(&format!("conflict-{number}"), "[]"));
    }
    let answers = at_once(&publisher, events).await;
    for three in answers.chunks(3) {
        let [Ok(first), Ok(second), Err(PublishError::Conflict(_))] = three else { panic!("{three:?}") };
        assert_eq!(first.id, second.id);
        assert_ne!(first.fresh, second.fresh);
    }
    let ids: HashSet<String> = answers.iter().flatten().map(|published| published.id.to_string()).collect();
    assert_eq!(ids.len(), 100);
    assert_eq!(stored(&store).await, 200);
}

async fn inside(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let publisher = Publisher::new(&store, &Policy::default());
    let refused: Result<(), PublishError> = store
        .run(move |_| {
            let publisher = publisher.clone();
            Box::pin(async move { publisher.publish_now(event("a", "{}")).await.map(drop) })
        })
        .await;
    assert!(matches!(refused, Err(PublishError::Store(StoreError::Reentrant))), "{refused:?}");
}

/// A host holds a uid without committing it; its twin waits, and the others are accepted meanwhile.
async fn waiting(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let publisher = Publisher::new(&store, &Policy::default());
    let mut host = store.begin().await.unwrap();
    let (first, wake) = publisher.publish(&mut host.conn(), event("held", "{}")).await.unwrap();
    let twin = tokio::spawn({
        let publisher = publisher.clone();
        // The second comes with others while the first is under way.
        async move { at_once(&publisher, vec![event("before", "{}"), event("held", "{}"), event("beside", "{}")]).await }
    });
    let others = (0..20).map(|number| event(&format!("other-{number}"), "{}")).collect();
    let answers = tokio::time::timeout(Duration::from_secs(30), at_once(&publisher, others)).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(!twin.is_finished());
    host.commit().await.unwrap();
    wake.send();
    let twin = twin.await.unwrap();
    assert_eq!(twin[1].as_ref().unwrap(), &Published { id: first.id, fresh: false });
    assert_eq!(stored(&store).await, 23);
}
