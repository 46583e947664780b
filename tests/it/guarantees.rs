//! What is not sent any more: events that have expired, and what may have been sent once where that is the most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use twiceproof::dispatcher::manage::event_types::{self, EventTypeDetails, Guarantee};
use twiceproof::dispatcher::manage::tenants::default_organisation;
use twiceproof::dispatcher::store::claim::{ClaimRequest, claim};
use twiceproof::dispatcher::{AddressPolicy, Dispatcher, EndpointPolicy, Manager, NewEvent, Policy, Publisher};
use twiceproof::prove::Front;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use crate::dispatch::{answer, endpoint, event, options, publish, sink, states, tenant, timed, url};
use crate::harness::{Bed, Suite};
use crate::kill::Program;

pub fn register(suite: &mut Suite) {
    suite.both("guarantees::an_event_that_has_expired_is_sent_nowhere_wherever_it_waits", expired);
    suite.both("guarantees::an_event_that_expires_behind_others_of_its_key_lets_them_pass", expired_in_order);
    suite.both("guarantees::a_hundred_expired_events_cost_no_attempt_and_no_probe", expired_costs_nothing);
    suite.both("guarantees::at_most_once_ends_with_the_first_attempt_that_may_have_left", one_attempt);
    suite.both("guarantees::at_most_once_a_lease_that_is_over_ends_as_unknown", lease_over);
    suite.both("guarantees::at_most_once_nothing_is_sent_twice_across_kills_of_the_worker", kills);
}

async fn reasons(store: &Store) -> HashMap<(String, String), i64> {
    let sql = "SELECT state, coalesce(state_reason, ''), count(*) FROM twiceproof_deliveries GROUP BY 1, 2";
    let rows: Vec<(String, String, i64)> = store.read().await.unwrap().conn().fetch_all(sql, &[]).await.unwrap();
    rows.into_iter().map(|(state, reason, count)| ((state, reason), count)).collect()
}

fn because(state: &str, reason: &str, count: i64) -> HashMap<(String, String), i64> {
    HashMap::from([((state.to_owned(), reason.to_owned()), count)])
}

async fn expired(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|_, _| answer(500)).await;
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    // One waits for its retry, one for its endpoint to be enabled, one behind another of its key, one to be claimed.
    endpoint(&store, url(&front), |_| {}).await;
    let off = endpoint(&store, url(&front), |_| {}).await;
    let mut tx = store.begin().await.unwrap();
    manager.disable(&mut tx.conn(), &tenant(), &off).await.unwrap();
    tx.commit().await.unwrap();
    let expires_at = Some(store.now().plus(Duration::from_secs(60)));
    let key = Some(Key::new("a").unwrap());
    publish(&store, NewEvent { expires_at, ..event("{}") }).await;
    publish(&store, NewEvent { expires_at, ordering_key: key.clone(), ..event("{}") }).await;
    publish(&store, NewEvent { expires_at, ordering_key: key, ..event("{}") }).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 2);
    publish(&store, NewEvent { expires_at, ..event("late") }).await;
    clock.advance(Duration::from_millis(60_000));
    for _ in 0..3 {
        assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
    }
    assert_eq!(reasons(&store).await, because("dead", "expired", 8));
    assert_eq!(seen.lock().unwrap().len(), 2, "nothing was sent any more");
    // By hand neither: what has expired stays so.
    let sql = "SELECT event FROM twiceproof_deliveries WHERE endpoint = $1 LIMIT 1";
    let (id,): (String,) = store.read().await.unwrap().conn().fetch_one(sql, &[off.as_str().into()]).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    manager.enable(&mut tx.conn(), &tenant(), &off).await.unwrap().send();
    Publisher::new(&store, &Policy::default()).resend(&mut tx.conn(), &tenant(), &id, &off).await.unwrap().send();
    tx.commit().await.unwrap();
    for _ in 0..3 {
        dispatcher.step().await.unwrap();
    }
    assert_eq!(reasons(&store).await, because("dead", "expired", 8));
    assert_eq!(seen.lock().unwrap().len(), 2);
}

async fn expired_in_order(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|n, _| answer(if n == 0 { 500 } else { 200 })).await;
    endpoint(&store, url(&front), |_| {}).await;
    let key = Some(Key::new("a").unwrap());
    let ordered = |payload| NewEvent { ordering_key: key.clone(), ..event(payload) };
    publish(&store, ordered("1")).await;
    for _ in 0..100 {
        publish(&store, NewEvent { expires_at: Some(store.now().plus(Duration::from_secs(1))), ..ordered("2") }).await;
    }
    publish(&store, ordered("3")).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    clock.advance(Duration::from_secs(5));
    for _ in 0..8 {
        dispatcher.step().await.unwrap();
    }
    let bodies: Vec<_> = seen.lock().unwrap().iter().map(|message| message.body.clone()).collect();
    assert_eq!(bodies, ["1", "1", "3"]);
    assert_eq!(states(&store).await, HashMap::from([("dead".to_owned(), 100), ("delivered".to_owned(), 2)]));
}

async fn expired_costs_nothing(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    let expires_at = Some(store.now().plus(Duration::from_secs(1)));
    for _ in 0..100 {
        publish(&store, NewEvent { expires_at, ..event("{}") }).await;
    }
    clock.advance(Duration::from_secs(1));
    publish(&store, event("good")).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    assert_eq!(dispatcher.step().await.unwrap().claimed, 1);
    assert_eq!(reasons(&store).await.get(&("dead".into(), "expired".into())), Some(&100));
    let sql = "SELECT count(*) FROM twiceproof_attempts";
    let (attempts,): (i64,) = store.read().await.unwrap().conn().fetch_one(sql, &[]).await.unwrap();
    assert_eq!((attempts, seen.lock().unwrap().len()), (1, 1));
}

/// `otp.sent` is sent at most once.
async fn at_most_once(store: &Store) {
    let details = EventTypeDetails { guarantee: Guarantee::AtMostOnce, ..EventTypeDetails::default() };
    let mut tx = store.begin().await.unwrap();
    let conn = &mut tx.conn();
    event_types::create(conn, &default_organisation(), "otp.sent", details, store.now()).await.unwrap();
    tx.commit().await.unwrap();
}

fn otp(payload: &str) -> NewEvent {
    NewEvent::json(tenant(), "otp.sent", payload.to_owned())
}

async fn one_attempt(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    at_most_once(&store).await;
    // A port where nobody listens: no byte leaves.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (status, state, reason) in [
        (200, "delivered", ""),
        (500, "dead", "at_most_once"),
        (429, "dead", "at_most_once"),
        (410, "dead", "at_most_once"),
    ] {
        let own = Key::new(format!("t{status}")).unwrap();
        let (front, seen) = sink(move |_, _| answer(status)).await;
        endpoint(&store, url(&front), |new| new.tenant = own.clone()).await;
        publish(&store, NewEvent { tenant: own.clone(), ..otp("{}") }).await;
        let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
        dispatcher.step().await.unwrap();
        clock.advance(Duration::from_secs(4 * 24 * 3600));
        dispatcher.step().await.unwrap();
        dispatcher.stop().await;
        let sql = "SELECT state, coalesce(state_reason, '') FROM twiceproof_deliveries WHERE tenant = $1";
        let row: (String, String) =
            store.read().await.unwrap().conn().fetch_one(sql, &[own.as_str().into()]).await.unwrap();
        assert_eq!((row.0.as_str(), row.1.as_str()), (state, reason), "{status}");
        assert_eq!(seen.lock().unwrap().len(), 1, "{status}");
    }
    let own = Key::new("nobody").unwrap();
    endpoint(&store, format!("http://{nobody}/"), |new| new.tenant = own.clone()).await;
    publish(&store, NewEvent { tenant: own, ..otp("{}") }).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    assert_eq!(dispatcher.step().await.unwrap().recorded.retried, 1, "what surely did not leave is tried again");
}

async fn lease_over(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    at_most_once(&store).await;
    let (front, seen) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    let key = Some(Key::new("a").unwrap());
    publish(&store, NewEvent { ordering_key: key.clone(), ..otp("1") }).await;
    publish(&store, NewEvent { ordering_key: key, ..otp("2") }).await;
    publish(&store, event("3")).await;
    // A worker that claims and is never heard of again.
    let lost = Id::mint(Prefix::Worker, store.now(), store.random());
    let request = ClaimRequest::new(lost, 10, Duration::from_secs(15));
    let mut tx = store.begin().await.unwrap();
    assert_eq!(claim(&mut tx.conn(), &request, store.now()).await.unwrap().deliveries.len(), 2);
    tx.commit().await.unwrap();
    clock.advance(Duration::from_secs(31));
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for _ in 0..3 {
        dispatcher.step().await.unwrap();
    }
    let mut bodies: Vec<_> = seen.lock().unwrap().iter().map(|message| message.body.clone()).collect();
    bodies.sort();
    assert_eq!(bodies, ["2", "3"], "the others were sent, and what stood behind it goes on");
    let reasons = reasons(&store).await;
    assert_eq!(reasons.get(&("dead".into(), "unknown_outcome".into())), Some(&1), "{reasons:?}");
}

/// The real program is killed again and again with requests under way; the receiver counts what comes.
async fn kills(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    at_most_once(&store).await;
    let requests: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let log = Arc::clone(&requests);
    let front = Front::open(move |message| {
        let log = Arc::clone(&log);
        async move {
            let body = String::from_utf8_lossy(&message.body).into_owned();
            *log.lock().unwrap().entry(body).or_default() += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(answer(200))
        }
    });
    let front = front.await.unwrap();
    endpoint(&store, url(&front), |new| {
        new.timeout = Some(Duration::from_secs(2));
        new.policy = EndpointPolicy::without_breaker();
    })
    .await;
    let count = 1_500;
    let publisher = Publisher::new(&store, &Policy::default());
    let mut tx = store.begin().await.unwrap();
    let events = (0..count).map(|number| otp(&number.to_string())).collect();
    publisher.publish_many(&mut tx.conn(), events).await.unwrap().1.send();
    tx.commit().await.unwrap();
    let seen = || requests.lock().unwrap().len();
    for round in 1..=3 {
        let program = Program::start(bed.db.url(), None);
        let patience = Instant::now() + Duration::from_secs(60);
        let before = seen();
        while seen() < before + 100 {
            assert!(Instant::now() < patience, "round {round}: {} requests came", seen());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(program);
    }
    let _program = Program::start(bed.db.url(), None);
    let patience = Instant::now() + Duration::from_secs(90);
    let ended = loop {
        let reasons = reasons(&store).await;
        if reasons.keys().all(|(state, _)| state == "delivered" || state == "dead") {
            break reasons;
        }
        assert!(Instant::now() < patience, "{reasons:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    println!("{ended:?}, {} requests came", seen());
    let unknown = ended.get(&("dead".to_owned(), "unknown_outcome".to_owned())).copied().unwrap_or(0);
    assert!(unknown > 0, "no kill found a request under way: {ended:?}");
    assert_eq!(ended.get(&("delivered".to_owned(), String::new())).copied().unwrap_or(0) + unknown, count);
    assert!(requests.lock().unwrap().values().all(|times| *times == 1), "sent twice: {:?}", requests.lock().unwrap());
}
