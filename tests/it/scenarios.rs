//! Faults that happened to others, each as a test of its own with the id of its report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use tokio::sync::Semaphore;
use twiceproof::dispatcher::guard::AddressPolicy;
use twiceproof::dispatcher::{Dispatcher, Manager, Policy, Publisher, SecretKey};
use twiceproof::prove::{Answer, Front};
use twiceproof::receiver::Receiver;
use twiceproof_shared::key::Key;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature;

use crate::dispatch::{
    answer, claim_as, endpoint, event, header, only, options, publish, sink, states, timed, url, verify, worker,
};
use crate::harness::{Bed, Suite};
use crate::kit::{self, Effect, Receiving, effects, signed, source};

pub fn register(suite: &mut Suite) {
    suite.both("scenarios::send_d4_two_failing_endpoints_of_one_event_have_a_full_schedule_each", own_schedules);
    suite.both("scenarios::send_d7_send_d9_a_publish_that_is_repeated_makes_one_event_and_one_retry", repeated);
    suite.both("scenarios::send_g5_of_three_rotations_in_a_row_every_live_secret_signs", rotations);
    suite.both("scenarios::send_b10_send_b12_send_g14_bodies_of_all_kinds_arrive_to_the_byte_and_verify", bodies);
    suite.both("scenarios::send_h3_an_endpoint_that_waits_for_the_others_does_not_keep_them_waiting", side_by_side);
    suite.both("scenarios::send_h6_of_five_slots_five_are_used_and_not_one_more", slots);
    suite.both("scenarios::send_l19_an_event_that_is_not_committed_is_neither_sent_nor_missed", uncommitted);
    suite.both("scenarios::send_l24_a_due_row_that_nobody_told_of_is_sent", untold);
    suite.both("scenarios::rel_b18_an_expired_lease_behind_a_thousand_long_ones_is_found", long_leases);
    suite.both("scenarios::rel_b43_the_same_key_of_two_tenants_is_two_keys", two_tenants);
    suite.both("scenarios::rel_b62_fifty_copies_over_thirty_hours_have_one_effect", fifty_copies);
    suite.both("scenarios::rel_b66_of_a_hundred_deliveries_only_the_one_that_failed_is_sent_again", per_item);
}

async fn own_schedules(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|_, _| answer(500)).await;
    for path in ["a", "b"] {
        endpoint(&store, format!("http://{}/{path}", front.address()), |_| {}).await;
    }
    publish(&store, event("{}")).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for wait in [5, 15, 45, 135] {
        assert_eq!(dispatcher.step().await.unwrap().recorded.retried, 2);
        clock.advance(Duration::from_secs(wait));
    }
    let mut attempts: BTreeMap<String, usize> = BTreeMap::new();
    for message in seen.lock().unwrap().iter() {
        *attempts.entry(message.path.clone()).or_default() += 1;
    }
    assert_eq!(attempts, BTreeMap::from([("/a".to_owned(), 4), ("/b".to_owned(), 4)]));
}

async fn repeated(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|n, _| answer(if n == 0 { 500 } else { 200 })).await;
    endpoint(&store, url(&front), |_| {}).await;
    let again = async || publish(&store, event("{}").with_uid(Key::new("order-1").unwrap())).await;
    let id = again().await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for (state, wait) in [("backoff", 5), ("delivered", 0), ("delivered", 3600)] {
        assert_eq!((again().await, again().await), (id.clone(), id.clone()));
        dispatcher.step().await.unwrap();
        assert_eq!(states(&store).await, only(state, 1));
        clock.advance(Duration::from_secs(wait));
    }
    assert_eq!(seen.lock().unwrap().len(), 2);
}

async fn rotations(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|_, _| answer(200)).await;
    let id = endpoint(&store, url(&front), |_| {}).await;
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let day = Duration::from_secs(24 * 3600);
    // Each new secret stands beside the one before, which has a day left.
    let mut last: Option<Key> = None;
    for _ in 0..3 {
        let key_id = manager.mint_key_id().unwrap();
        let mut tx = store.begin().await.unwrap();
        let at = |key_id| SecretKey { tenant: "default", endpoint: &id, key_id };
        if let Some(last) = &last {
            manager.expire_secret(&mut tx.conn(), at(last), store.now().plus(day)).await.unwrap();
        }
        let secret = Secret::generate(store.random());
        manager.add_secret(&mut tx.conn(), at(&key_id), &secret.into()).await.unwrap();
        tx.commit().await.unwrap();
        last = Some(key_id);
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for (number, live) in [(0, 4), (1, 2)] {
        publish(&store, event("{}")).await;
        dispatcher.step().await.unwrap();
        let seen = seen.lock().unwrap();
        verify(&seen[number], store.now());
        assert_eq!(header(&seen[number], signature::SIGNATURE).split(' ').count(), live);
        clock.advance(day + Duration::from_secs(1));
    }
}

async fn bodies(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (front, seen) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    let bodies = [
        r#"{"n":1e400,"m":0.1000,"z":-0,"a":1,"a":2}"#,
        r#"{"zero":"\u0000","half":"\ud83d","slash":"\/"}"#,
        "{\"party\":\"🎉\u{2028}\u{2029}zażółć\"}",
        " \r\n\t{ } \n",
        "\"text\"",
        "null",
        "[]",
        "<xml/>\0\u{1}",
    ];
    for body in bodies {
        publish(&store, event(body)).await;
    }
    Dispatcher::start(&store, options()).await.unwrap().step().await.unwrap();
    let seen = seen.lock().unwrap();
    let arrived: BTreeSet<&[u8]> = seen.iter().map(|message| message.body.as_ref()).collect();
    assert_eq!(arrived, bodies.iter().map(|body| body.as_bytes()).collect());
    seen.iter().for_each(|message| verify(message, store.now()));
}

/// The first endpoint answers once the nine others were called.
async fn side_by_side(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let called = Arc::new(Semaphore::new(0));
    let front = Front::open(move |message| {
        let called = Arc::clone(&called);
        async move {
            if message.path == "/0" {
                let _nine = called.acquire_many(9).await.unwrap();
            } else {
                called.add_permits(1);
            }
            Ok(answer(200))
        }
    })
    .await
    .unwrap();
    for number in 0..10 {
        endpoint(&store, format!("http://{}/{number}", front.address()), |_| {}).await;
    }
    publish(&store, event("{}")).await;
    Dispatcher::start(&store, options()).await.unwrap().step().await.unwrap();
    assert_eq!(states(&store).await, only("delivered", 10));
}

/// Requests are answered five at a time, once five are open.
async fn slots(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let gather = Arc::new(tokio::sync::Barrier::new(5));
    let (most_open, now_open) = (Arc::clone(&most), Arc::clone(&open));
    let front = Front::open(move |_| {
        let (open, most, gather) = (Arc::clone(&now_open), Arc::clone(&most_open), Arc::clone(&gather));
        async move {
            most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            gather.wait().await;
            open.fetch_sub(1, Ordering::SeqCst);
            Ok::<Answer, _>(answer(200))
        }
    })
    .await
    .unwrap();
    endpoint(&store, url(&front), |e| e.slots = Some(5)).await;
    for _ in 0..20 {
        publish(&store, event("{}")).await;
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for _ in 0..20 {
        dispatcher.step().await.unwrap();
    }
    assert_eq!(states(&store).await, only("delivered", 20));
    assert_eq!(most.load(Ordering::SeqCst), 5);
}

async fn uncommitted(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (front, seen) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    let publisher = Publisher::new(&store, &Policy::default());
    let mut tx = store.begin().await.unwrap();
    let (_, wake) = publisher.publish(&mut tx.conn(), event("{}")).await.unwrap();
    // On SQLite a worker's own writes wait for the transaction, so it is asked what it would see.
    assert!(states(&store).await.is_empty());
    if bed.database() == twiceproof_shared::store::Database::Postgres {
        let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
        assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
    }
    assert!(seen.lock().unwrap().is_empty());
    tx.commit().await.unwrap();
    wake.send();
    Dispatcher::start(&store, options()).await.unwrap().step().await.unwrap();
    assert_eq!(states(&store).await, only("delivered", 1));
    assert_eq!(seen.lock().unwrap().len(), 1);
}

/// The row stands in the table, as if it had been written by hand: no wake-up, no queue, no publisher in this process.
async fn untold(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (front, seen) = sink(|_, _| answer(200)).await;
    let lane = endpoint(&store, url(&front), |e| e.event_types = vec!["something.else".into()]).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    let id = publish(&store, event("{}")).await;
    assert!(states(&store).await.is_empty(), "nobody subscribes to it");
    let now = store.now().as_millis();
    let sql = "INSERT INTO twiceproof_deliveries (tenant, event, endpoint, state, due_at, deadline_at, created_at)
               VALUES ('default', $1, $2, 'pending', $3, $4, $3)";
    let mut tx = store.begin().await.unwrap();
    let args = [id.as_str().into(), lane.as_str().into(), now.into(), (now + 3_600_000).into()];
    tx.conn().execute(sql, &args).await.unwrap();
    tx.commit().await.unwrap();
    dispatcher.step().await.unwrap();
    assert_eq!(states(&store).await, only("delivered", 1));
    assert_eq!(seen.lock().unwrap().len(), 1);
}

async fn long_leases(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    for _ in 0..10 {
        endpoint(&store, "http://127.0.0.1:9/hook".to_owned(), |e| e.slots = Some(200)).await;
    }
    for _ in 0..101 {
        publish(&store, event("{}")).await;
    }
    let (first, other) = (worker(&store), worker(&store));
    let mut leased = 0;
    for _ in 0..20 {
        leased += claim_as(&store, &first, 200, HashMap::new()).await.deliveries.len();
    }
    assert_eq!(leased, 1_010);
    // All but the very last row are leased for a day.
    let day = store.now().as_millis() + 24 * 3_600_000;
    let sql = "UPDATE twiceproof_deliveries SET lease_until = $1
               WHERE seq < (SELECT max(seq) FROM twiceproof_deliveries)";
    let mut tx = store.begin().await.unwrap();
    tx.conn().execute(sql, &[day.into()]).await.unwrap();
    tx.commit().await.unwrap();
    clock.advance(Duration::from_secs(60));
    let mut found = 0;
    for _ in 0..3 {
        found += claim_as(&store, &other, 200, HashMap::new()).await.deliveries.len();
    }
    assert_eq!(found, 1);
}

async fn two_tenants(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    kit::make_effects(&store).await;
    let mut answers = Vec::new();
    for name in ["a", "b"] {
        let handler = Effect { store: store.clone(), takes: Duration::ZERO };
        let source = source().tenant(name).build().unwrap();
        let receiver = Receiver::new(store.clone()).source(source, handler).unwrap();
        let receiving = Receiving::serve(receiver.router()).await;
        let request = signed("1", format!("{{\"of\":\"{name}\"}}"), store.now());
        let first = receiving.send(&request).await;
        assert_eq!(first.status, StatusCode::OK, "neither a replay nor a conflict");
        assert_eq!(receiving.send(&request).await.body, first.body);
        answers.push(first.body);
    }
    assert_ne!(answers[0], answers[1]);
    assert_eq!(effects(&store).await.len(), 2);
    let publisher = Publisher::new(&store, &Policy::default());
    for name in ["a", "b"] {
        let mut event = event(name).with_uid(Key::new("1").unwrap());
        event.tenant = Key::new(name).unwrap();
        assert!(publisher.publish_now(event).await.unwrap().fresh);
    }
}

async fn fifty_copies(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (store, receiving) = kit::receiving(store).await;
    let mut answers = BTreeSet::new();
    for _ in 0..50 {
        // As a sender that signs each attempt afresh.
        let answer = receiving.send(&signed("evt-1", "{}", store.now())).await;
        assert_eq!(answer.status, StatusCode::OK);
        answers.insert(answer.body);
        clock.advance(Duration::from_secs(36 * 60));
    }
    assert_eq!((answers.len(), effects(&store).await.len()), (1, 1));
}

async fn per_item(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|n, _| answer(if n == 49 { 500 } else { 200 })).await;
    endpoint(&store, url(&front), |e| e.slots = Some(100)).await;
    for _ in 0..100 {
        publish(&store, event("{}")).await;
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for _ in 0..10 {
        dispatcher.step().await.unwrap();
    }
    assert_eq!(states(&store).await, HashMap::from([("delivered".to_owned(), 99), ("backoff".to_owned(), 1)]));
    clock.advance(Duration::from_secs(5));
    dispatcher.step().await.unwrap();
    assert_eq!(states(&store).await, only("delivered", 100));
    let seen = seen.lock().unwrap();
    let distinct: BTreeSet<&str> = seen.iter().map(|message| header(message, signature::ID)).collect();
    assert_eq!((seen.len(), distinct.len()), (101, 100));
}
