//! Filters, disabled endpoints, secrets, and the order within a transaction.

use std::time::Duration;

use twiceproof_shared::key::Key;
use twiceproof_shared::secret::Secret;

use crate::fixtures::bed::{Bed, Receiver, tenant};
use crate::store::fixtures::park_all;
use crate::store::record::Recorded;
use crate::{NewEndpoint, NewEvent, SecretKey};

#[tokio::test]
async fn an_endpoint_gets_the_event_types_that_it_asked_for() {
    let bed = Bed::new().await;
    let (all, paid) = (Receiver::start().await, Receiver::start().await);
    bed.endpoint(&all.url).await;
    let types = vec!["order.paid".to_owned(), "order.sent".to_owned()];
    let new = NewEndpoint { event_types: types.clone(), ..NewEndpoint::new(tenant(), &paid.url) };
    let created = bed.manager().create_now(new).await.unwrap();
    assert_eq!(created.endpoint.event_types, types);
    let other = NewEndpoint::new(Key::new("other").unwrap(), &paid.url);
    bed.manager().create_now(other).await.unwrap();
    for event_type in ["order.paid", "order.opened", "order", "order.paid.twice"] {
        let event = NewEvent::json(tenant(), event_type, event_type.to_owned());
        bed.publisher().publish_now(event).await.unwrap();
    }
    bed.dispatcher().await.step().await.unwrap();
    assert_eq!(all.bodies().len(), 4);
    assert_eq!(paid.bodies(), ["order.paid"]);
}

#[tokio::test]
async fn send_c8_a_disabled_endpoint_keeps_its_events_and_gets_them_when_it_is_enabled() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    let id = bed.endpoint(&receiver.url).await;
    bed.publish("before").await;
    let mut tx = bed.store.begin().await.unwrap();
    bed.manager().disable(&mut tx.conn(), &tenant(), &id).await.unwrap();
    tx.commit().await.unwrap();
    bed.publish("while").await;
    assert_eq!(bed.counts().await.parked, 2);
    let mut dispatcher = bed.dispatcher().await;
    assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
    let mut tx = bed.store.begin().await.unwrap();
    let wake = bed.manager().enable(&mut tx.conn(), &tenant(), &id).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
    bed.publish("after").await;
    assert_eq!(dispatcher.step().await.unwrap().recorded.delivered, 3);
    assert_eq!(receiver.bodies().len(), 3);
}

#[tokio::test]
async fn a_410_disables_the_endpoint_and_parks_what_waits_for_it() {
    let (bed, gone, other) = (Bed::new().await, Receiver::start().await, Receiver::start().await);
    let id = bed.endpoint(&gone.url).await;
    bed.endpoint(&other.url).await;
    let mut dispatcher = bed.dispatcher().await;
    // One in backoff, one that will be answered 410, one that is published after the claim.
    gone.answer(&["500 Oops"]);
    bed.publish("first").await;
    dispatcher.step().await.unwrap();
    gone.answer(&["410 Gone"]);
    bed.publish("second").await;
    let recorded = dispatcher.step().await.unwrap().recorded;
    assert_eq!(recorded, Recorded { delivered: 1, parked: 2, ..Recorded::default() });
    bed.publish("third").await;
    dispatcher.step().await.unwrap();
    let counts = bed.counts().await;
    assert_eq!((counts.parked, counts.delivered, counts.accepted()), (3, 3, 6));
    let mut reader = bed.store.read().await.unwrap();
    let endpoint = bed.manager().get(&mut reader.conn(), &tenant(), &id).await.unwrap();
    assert!(!endpoint.enabled);
    assert_eq!(endpoint.state_reason.as_deref(), Some("gone"));
    assert_eq!(endpoint.failures_in_row, 2);
    // Enabled again, it gets all three.
    let mut tx = bed.store.begin().await.unwrap();
    let wake = bed.manager().enable(&mut tx.conn(), &tenant(), &id).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
    assert_eq!(dispatcher.step().await.unwrap().recorded.delivered, 3);
    assert_eq!((bed.counts().await.open(), gone.seen().len()), (0, 5));
}

#[tokio::test]
async fn send_d10_a_result_does_not_undo_what_was_changed_while_its_request_was_under_way() {
    let bed = Bed::new().await;
    let receiver = Receiver::start_slow(Duration::from_millis(300)).await;
    let id = bed.endpoint(&receiver.url).await;
    bed.publish("{}").await;
    receiver.answer(&["500 Oops"]);
    let mut dispatcher = bed.dispatcher().await;
    let disabling = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let mut tx = bed.store.begin().await.unwrap();
        bed.manager().disable(&mut tx.conn(), &tenant(), &id).await.unwrap();
        tx.commit().await.unwrap();
    };
    let (step, ()) = tokio::join!(dispatcher.step(), disabling);
    assert_eq!(step.unwrap().recorded.retried, 1);
    bed.pass(60);
    assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
    assert_eq!((bed.counts().await.parked, receiver.seen().len()), (1, 1));
    let mut reader = bed.store.read().await.unwrap();
    let endpoint = bed.manager().get(&mut reader.conn(), &tenant(), &id).await.unwrap();
    assert!(!endpoint.enabled);
}

#[tokio::test]
async fn parked_deliveries_of_an_enabled_endpoint_are_found() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    bed.endpoint(&receiver.url).await;
    bed.publish("{}").await;
    park_all(&bed.store).await;
    assert_eq!(bed.dispatcher().await.step().await.unwrap().recorded.delivered, 1);
}

#[tokio::test]
async fn send_g2_an_expired_secret_no_longer_signs() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    let created = bed.manager().create_now(NewEndpoint::new(tenant(), &receiver.url)).await.unwrap();
    let (manager, tenant) = (bed.manager(), tenant());
    let (old, new) = (created.key_id, manager.mint_key_id().unwrap());
    let key = |key_id| SecretKey { tenant: tenant.as_str(), endpoint: &created.endpoint.id, key_id };
    let secret = Secret::from_bytes(vec![5; 24]).unwrap().into();
    let mut tx = bed.store.begin().await.unwrap();
    manager.add_secret(&mut tx.conn(), key(&new), &secret).await.unwrap();
    let end = bed.store.now().plus(Duration::from_secs(3_600));
    manager.expire_secret(&mut tx.conn(), key(&old), end).await.unwrap();
    tx.commit().await.unwrap();
    let mut dispatcher = bed.dispatcher().await;
    for minutes in [0, 59, 2] {
        bed.pass(minutes * 60);
        bed.publish("{}").await;
        dispatcher.step().await.unwrap();
    }
    let signatures: Vec<_> = receiver.headers("webhook-signature").iter().map(|list| list.split(' ').count()).collect();
    assert_eq!(signatures, [2, 2, 1]);
}

#[tokio::test]
async fn an_endpoint_without_a_live_secret_is_sent_nothing() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    let created = bed.manager().create_now(NewEndpoint::new(tenant(), &receiver.url)).await.unwrap();
    bed.publish("{}").await;
    let (tenant, key_id) = (tenant(), created.key_id);
    let key = SecretKey { tenant: tenant.as_str(), endpoint: &created.endpoint.id, key_id: &key_id };
    let mut tx = bed.store.begin().await.unwrap();
    bed.manager().expire_secret(&mut tx.conn(), key, bed.store.now()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(bed.dispatcher().await.step().await.unwrap().recorded.retried, 1);
    assert!(receiver.seen().is_empty());
    let (_, outcome, _, _, error) = bed.attempts().await.pop().unwrap();
    assert_eq!((outcome.as_str(), error.unwrap().starts_with("not_signed: ")), ("not_sent", true));
}

#[tokio::test]
async fn send_o5_events_of_one_transaction_are_claimed_in_the_order_of_their_publishing() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    let new = NewEndpoint { slots: Some(1), ..NewEndpoint::new(tenant(), &receiver.url) };
    bed.manager().create_now(new).await.unwrap();
    let mut tx = bed.store.begin().await.unwrap();
    for number in 0..3 {
        let event = NewEvent::json(tenant(), "order.paid", number.to_string());
        let (_, wake) = bed.publisher().publish(&mut tx.conn(), event).await.unwrap();
        drop(wake);
    }
    let more = (3..8).map(|number| NewEvent::json(tenant(), "order.paid", number.to_string())).collect();
    let (_, wake) = bed.publisher().publish_many(&mut tx.conn(), more).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
    let mut dispatcher = bed.dispatcher().await;
    while dispatcher.step().await.unwrap().claimed > 0 {}
    assert_eq!(receiver.bodies(), ["0", "1", "2", "3", "4", "5", "6", "7"]);
}
