//! What is accepted, what is accepted already, and what is refused.

#![cfg(feature = "sqlite")]

use std::collections::HashSet;

use super::*;
use crate::fixtures::bed::{Bed, Receiver, tenant};

fn event(uid: &str, payload: &str) -> NewEvent {
    NewEvent::json(tenant(), "order.paid", payload.to_owned()).with_uid(Key::new(uid).unwrap())
}

fn conflict(result: Result<Published, PublishError>) -> Conflict {
    match result {
        Err(PublishError::Conflict(conflict)) => conflict,
        other => panic!("no conflict: {other:?}"),
    }
}

async fn stored(bed: &Bed) -> i64 {
    let mut reader = bed.store.read().await.unwrap();
    let (count,): (i64,) = reader.conn().fetch_one("SELECT count(*) FROM twiceproof_events", &[]).await.unwrap();
    count
}

#[tokio::test]
async fn the_same_uid_with_the_same_content_is_already_accepted() {
    let bed = Bed::new().await;
    bed.endpoint("http://127.0.0.1:9/").await;
    let publisher = bed.publisher();
    let first = publisher.publish_now(event("a", "{}")).await.unwrap();
    bed.pass(3_600);
    let again = publisher.publish_now(event("a", "{}")).await.unwrap();
    assert_eq!((first.fresh, again.fresh), (true, false));
    assert_eq!(first.id, again.id);
    assert_eq!((stored(&bed).await, bed.counts().await.accepted()), (1, 1));
}

#[tokio::test]
async fn the_same_uid_with_anything_else_is_a_conflict_that_names_what_differs() {
    let bed = Bed::new().await;
    let publisher = bed.publisher();
    let channels = |names: &[&str]| names.iter().map(|name| Key::new(*name).unwrap()).collect::<Vec<_>>();
    let base = || NewEvent {
        channels: channels(&["x", "y"]),
        ordering_key: Some(Key::new("order-1").unwrap()),
        ..event("a", "{\"secret\":1}")
    };
    let first = publisher.publish_now(base()).await.unwrap();
    for (other, differs) in [
        (NewEvent { payload: "{\"secret\": 1}".into(), ..base() }, "payload"),
        (NewEvent { event_type: "order.sent".to_owned(), ..base() }, "event type"),
        (NewEvent { content_type: "text/plain".to_owned(), ..base() }, "content type"),
        (NewEvent { channels: channels(&["x"]), ..base() }, "channels"),
        (NewEvent { ordering_key: None, ..base() }, "ordering key"),
    ] {
        let conflict = conflict(publisher.publish_now(other).await);
        assert_eq!(conflict.id, first.id);
        assert_eq!(conflict.differs, [differs]);
        assert!(!conflict.to_string().contains("secret"));
    }
    // Channels are a set.
    let same = NewEvent { channels: channels(&["y", "x", "y"]), ..base() };
    assert_eq!(publisher.publish_now(same).await.unwrap().id, first.id);
    assert_eq!(stored(&bed).await, 1);
}

#[tokio::test]
async fn uids_of_two_tenants_have_nothing_to_do_with_each_other() {
    let bed = Bed::new().await;
    let publisher = bed.publisher();
    let first = publisher.publish_now(event("a", "{}")).await.unwrap();
    let other = NewEvent { tenant: Key::new("other").unwrap(), ..event("a", "[]") };
    let second = publisher.publish_now(other).await.unwrap();
    assert!(first.fresh && second.fresh && first.id != second.id);
}

#[tokio::test]
async fn a_refused_publish_leaves_the_callers_transaction_usable() {
    let bed = Bed::new().await;
    let publisher = bed.publisher();
    publisher.publish_now(event("a", "{}")).await.unwrap();
    let mut tx = bed.store.begin().await.unwrap();
    let refused = publisher.publish(&mut tx.conn(), event("a", "[]")).await;
    assert!(matches!(refused, Err(PublishError::Conflict(_))));
    let invalid = NewEvent { event_type: "a\0b".to_owned(), ..event("b", "[]") };
    let refused = publisher.publish(&mut tx.conn(), invalid).await;
    assert!(matches!(refused, Err(PublishError::Invalid(InvalidEvent::EventType))));
    let (published, wake) = publisher.publish(&mut tx.conn(), event("b", "{}")).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
    assert!(published.fresh);
    assert_eq!(stored(&bed).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn send_d8_of_fifty_parallel_publishes_of_one_uid_one_is_fresh() {
    let bed = Bed::new().await;
    bed.endpoint("http://127.0.0.1:9/").await;
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let publisher = bed.publisher();
            tokio::spawn(async move { publisher.publish_now(event("a", "{}")).await.unwrap() })
        })
        .collect();
    let mut published = Vec::new();
    for task in tasks {
        published.push(task.await.unwrap());
    }
    assert_eq!(published.iter().filter(|one| one.fresh).count(), 1);
    assert_eq!(published.iter().map(|one| &one.id).collect::<HashSet<_>>().len(), 1);
    assert_eq!((stored(&bed).await, bed.counts().await.accepted()), (1, 1));
}

#[tokio::test]
async fn send_d12_one_duplicate_in_a_batch_does_not_keep_the_others_out() {
    let bed = Bed::new().await;
    bed.endpoint("http://127.0.0.1:9/").await;
    let publisher = bed.publisher();
    let first = publisher.publish_now(event("50", "{}")).await.unwrap();
    publisher.publish_now(event("60", "[]")).await.unwrap();
    let events = (0..100).map(|number| event(&number.to_string(), "{}")).collect();
    let mut tx = bed.store.begin().await.unwrap();
    let (answers, wake) = publisher.publish_many(&mut tx.conn(), events).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
    assert_eq!(answers.len(), 100);
    for (number, answer) in answers.into_iter().enumerate() {
        match number {
            50 => assert_eq!(answer, Ok(Published { id: first.id.clone(), fresh: false })),
            60 => assert_eq!(answer.unwrap_err().differs, ["payload"]),
            _ => assert!(answer.unwrap().fresh),
        }
    }
    assert_eq!((stored(&bed).await, bed.counts().await.accepted()), (100, 100));
}

#[tokio::test]
async fn a_uid_twice_in_one_batch_is_one_event() {
    let bed = Bed::new().await;
    bed.endpoint("http://127.0.0.1:9/").await;
    let mut tx = bed.store.begin().await.unwrap();
    let events = vec![event("a", "{}"), event("a", "{}"), event("a", "[]")];
    let (answers, wake) = bed.publisher().publish_many(&mut tx.conn(), events).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
    let first = answers[0].clone().unwrap();
    assert_eq!(answers[1], Ok(Published { id: first.id.clone(), fresh: false }));
    assert_eq!(answers[2], Err(Conflict { id: first.id, differs: vec!["payload"] }));
    assert_eq!(bed.counts().await.accepted(), 1);
}

#[tokio::test]
async fn a_large_batch_is_accepted_whole_and_in_order() {
    let bed = Bed::new().await;
    let events = (0..1_300)
        .map(|number| {
            let size = if number % 100 == 0 { 1_000_000 } else { 10 };
            NewEvent { payload: vec![b'x'; size].into(), ..event(&number.to_string(), "") }
        })
        .collect();
    let mut tx = bed.store.begin().await.unwrap();
    let (answers, wake) = bed.publisher().publish_many(&mut tx.conn(), events).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
    assert!(answers.iter().all(Result::is_ok));
    let mut reader = bed.store.read().await.unwrap();
    let uids: Vec<(String,)> =
        reader.conn().fetch_all("SELECT uid FROM twiceproof_events ORDER BY seq", &[]).await.unwrap();
    assert!(uids.iter().enumerate().all(|(number, (uid,))| *uid == number.to_string()));
    assert_eq!(uids.len(), 1_300);
}

#[tokio::test]
async fn a_unit_that_runs_again_finds_its_own_event() {
    let bed = Bed::new().await;
    bed.endpoint("http://127.0.0.1:9/").await;
    let publisher = bed.publisher();
    for (uid, number) in [(Some("a"), 1), (None, 2)] {
        let uid = uid.map(|uid| Key::new(uid).unwrap());
        let ready = publisher.ready(NewEvent { uid, ..event("x", "{}") }).unwrap();
        for _ in 0..2 {
            let mut tx = bed.store.begin().await.unwrap();
            let (published, wake) = publisher.insert(&mut tx.conn(), &ready).await.unwrap();
            tx.commit().await.unwrap();
            wake.send();
            assert_eq!(published, Published { id: ready.id.clone(), fresh: true });
        }
        assert_eq!(bed.counts().await.accepted(), number);
    }
}

#[tokio::test]
async fn send_b9_bytes_of_any_kind_are_stored_and_sent_as_they_are() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    bed.endpoint(&receiver.url).await;
    for payload in ["", "\"text\"", "null", "[]", "{\"a\":\"\\u0000\",\"a\":0.1000}", "\u{2028}\u{1f980}"] {
        bed.publish(payload).await;
        bed.dispatcher().await.step().await.unwrap();
        assert_eq!(receiver.bodies().pop().unwrap(), payload);
    }
    let mut tx = bed.store.begin().await.unwrap();
    let all: Vec<u8> = (0..=255).collect();
    let event = NewEvent { payload: all.clone().into(), ..event("bytes", "") };
    let (_, wake) = bed.publisher().publish_many(&mut tx.conn(), vec![event]).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
    let mut reader = bed.store.read().await.unwrap();
    let sql = "SELECT payload FROM twiceproof_events WHERE uid = 'bytes'";
    let (payload,): (Vec<u8>,) = reader.conn().fetch_one(sql, &[]).await.unwrap();
    assert_eq!(payload, all);
}
