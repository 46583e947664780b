//! What becomes of a delivery, attempt by attempt.

use std::time::Duration;

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{SignedHeaders, TOLERANCE, verify};

use crate::fixtures::bed::{Bed, Receiver, tenant};
use crate::store::fixtures::{delete_endpoint, delete_events};
use crate::{NewEndpoint, NewEvent, Policy, Schedule};

#[tokio::test]
async fn an_event_arrives_once_with_its_id_its_bytes_and_a_signature() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    let secret = Secret::from_bytes(vec![9; 32]).unwrap();
    let new = NewEndpoint { secret: Some(secret.clone().into()), ..NewEndpoint::new(tenant(), &receiver.url) };
    bed.manager().create_now(new).await.unwrap();
    let payload = "{\"b\":1,\"a\":2,\"n\":1.0,\"big\":12345678901234567890, \"x\":1e400}";
    let id = bed.publish(payload).await;
    let mut dispatcher = bed.dispatcher().await;
    let step = dispatcher.step().await.unwrap();
    assert_eq!((step.claimed, step.recorded.delivered), (1, 1));
    assert_eq!(receiver.bodies(), [payload]);
    assert_eq!(receiver.headers("webhook-id"), [id.as_str()]);
    let headers = SignedHeaders {
        id: &id,
        timestamp: &receiver.headers("webhook-timestamp")[0],
        signature: &receiver.headers("webhook-signature")[0],
    };
    let now = Timestamp::from_secs(1_700_000_000);
    assert!(verify(&headers, payload.as_bytes(), &[secret], now, TOLERANCE).is_ok());
    assert_eq!(bed.attempts().await, [(1, "delivered".to_owned(), 0, Some(200), None)]);
    assert_eq!((bed.counts().await.delivered, bed.counts().await.accepted()), (1, 1));
    assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
}

#[tokio::test]
async fn send_l17_what_a_caller_rolls_back_is_never_sent() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    bed.endpoint(&receiver.url).await;
    let mut tx = bed.store.begin().await.unwrap();
    let event = NewEvent::json(tenant(), "order.paid", "{}");
    let (published, wake) = bed.publisher().publish(&mut tx.conn(), event).await.unwrap();
    assert!(published.fresh);
    drop(wake);
    tx.rollback().await.unwrap();
    assert_eq!(bed.dispatcher().await.step().await.unwrap().claimed, 0);
    assert!(receiver.seen().is_empty());
    assert_eq!(bed.counts().await.accepted(), 0);
}

#[tokio::test]
async fn failures_are_tried_again_as_the_schedule_says_until_one_succeeds() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    bed.endpoint(&receiver.url).await;
    bed.publish("{}").await;
    receiver.answer(&["500 Oops", "302 Found\r\nlocation: /", "404 Not Found"]);
    let mut dispatcher = bed.dispatcher().await;
    let started = bed.store.now();
    for (attempts, base) in [(1, 5), (2, 15), (3, 45)] {
        assert_eq!(dispatcher.step().await.unwrap().recorded.retried, 1);
        let (state, _, made, due_at) = bed.delivery().await;
        assert_eq!((state.as_str(), made), ("backoff", attempts));
        let wait = Timestamp::from_millis(due_at).since(bed.store.now());
        let base = Duration::from_secs(base);
        assert!(wait >= base / 2 && wait <= base, "{wait:?}");
        // Not a millisecond early.
        bed.clock.set(Timestamp::from_millis(due_at - 1));
        assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
        bed.clock.set(Timestamp::from_millis(due_at));
    }
    assert_eq!(dispatcher.step().await.unwrap().recorded.delivered, 1);
    let ids = receiver.headers("webhook-id");
    assert_eq!(ids.len(), 4);
    assert!(ids.iter().all(|id| *id == ids[0]));
    let statuses: Vec<_> = bed.attempts().await.into_iter().map(|attempt| (attempt.0, attempt.3)).collect();
    assert_eq!(statuses, [(1, Some(500)), (2, Some(302)), (3, Some(404)), (4, Some(200))]);
    assert!(bed.store.now() > started);
}

#[tokio::test]
async fn retry_after_is_honoured_in_full() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    bed.endpoint(&receiver.url).await;
    bed.publish("{}").await;
    receiver.answer(&["503 Busy\r\nretry-after: 3600"]);
    let mut dispatcher = bed.dispatcher().await;
    dispatcher.step().await.unwrap();
    bed.pass(3_599);
    assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
    bed.pass(1);
    assert_eq!(dispatcher.step().await.unwrap().recorded.delivered, 1);
}

#[tokio::test]
async fn a_delivery_ends_as_dead_when_its_horizon_or_its_schedule_ends() {
    for (policy, answer, reason) in [
        (Policy { schedule: Schedule::once(), ..Policy::default() }, "500 Oops", "schedule_ended"),
        (Policy::default(), "503 Busy\r\nretry-after: 999999", "asked_past_horizon"),
    ] {
        let (bed, receiver) = (Bed::new().await, Receiver::start().await);
        bed.endpoint(&receiver.url).await;
        bed.publish("{}").await;
        receiver.answer(&[answer]);
        assert_eq!(bed.dispatcher_with(policy).await.step().await.unwrap().recorded.dead, 1);
        let (state, why, attempts, _) = bed.delivery().await;
        assert_eq!((state.as_str(), why.as_deref(), attempts), ("dead", Some(reason), 1));
    }
}

#[tokio::test]
async fn send_t14_an_endpoint_that_always_fails_ends_its_deliveries_at_the_horizon() {
    let bed = Bed::new().await;
    // Nothing listens there.
    bed.endpoint("http://127.0.0.1:9/").await;
    bed.publish("{}").await;
    let mut dispatcher = bed.dispatcher().await;
    let started = bed.store.now();
    while bed.counts().await.open() > 0 {
        dispatcher.step().await.unwrap();
        bed.pass(600);
        assert!(bed.store.now().since(started) < Duration::from_secs(80 * 3600));
    }
    let (state, reason, attempts, _) = bed.delivery().await;
    assert_eq!((state.as_str(), reason.as_deref()), ("dead", Some("horizon")));
    assert!((12..=22).contains(&attempts), "{attempts}");
    let (_, outcome, late, status, error) = bed.attempts().await.pop().unwrap();
    assert_eq!((outcome.as_str(), late, status), ("not_sent", 0, None));
    assert!(error.unwrap().starts_with("connect_error: "));
}

#[tokio::test]
async fn send_l4_an_event_that_is_no_longer_stored_ends_its_delivery_with_a_reason() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    bed.endpoint(&receiver.url).await;
    bed.publish("{}").await;
    delete_events(&bed.store).await;
    bed.dispatcher().await.step().await.unwrap();
    let (state, reason, ..) = bed.delivery().await;
    assert_eq!((state.as_str(), reason.as_deref()), ("dead", Some("event_missing")));
    assert!(receiver.seen().is_empty());
}

#[tokio::test]
async fn send_l3_deliveries_of_a_deleted_endpoint_end_and_the_others_go_on() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    let deleted = bed.endpoint("http://127.0.0.1:9/").await;
    bed.endpoint(&receiver.url).await;
    bed.publish("{}").await;
    delete_endpoint(&bed.store, &deleted).await;
    assert_eq!(bed.dispatcher().await.step().await.unwrap().recorded.delivered, 1);
    let counts = bed.counts().await;
    assert_eq!((counts.delivered, counts.dead, counts.open()), (1, 1, 0));
}

#[tokio::test]
async fn send_t03_a_private_address_that_was_stored_without_a_check_is_blocked() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    bed.endpoint(&receiver.url).await;
    bed.publish("{}").await;
    let options = crate::DispatcherOptions::default();
    let mut dispatcher = crate::Dispatcher::start(&bed.store, options).await.unwrap();
    assert_eq!(dispatcher.step().await.unwrap().recorded.retried, 1);
    let (_, outcome, _, _, error) = bed.attempts().await.pop().unwrap();
    assert_eq!(outcome, "not_sent");
    assert!(error.unwrap().starts_with("blocked: "));
    assert!(receiver.seen().is_empty());
}
