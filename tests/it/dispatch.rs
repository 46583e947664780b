//! An accepted event reaches its endpoints: at least once, under one id, whoever stalls, dies or repeats.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};
use twiceproof::dispatcher::decide::Decision;
use twiceproof::dispatcher::exchange::{Answer as SinkAnswer, Exchange};
use twiceproof::dispatcher::guard::AddressPolicy;
use twiceproof::dispatcher::store::claim::{ClaimRequest, Claimed, claim};
use twiceproof::dispatcher::store::record::{Recorded, Span, record};
use twiceproof::dispatcher::{
    Dispatcher, DispatcherOptions, Manager, NewEndpoint, NewEvent, Policy, PublishError, Publisher, Schedule, SecretKey,
};
use twiceproof::prove::{Answer, Front, Message};
use twiceproof_shared::clock::{Clock, ManualClock, Timestamp};
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::signature::{self, SignedHeaders};
use twiceproof_shared::store::{Store, StoreError, StoreOptions};

use crate::harness::{Bed, Suite};
use crate::kit::secret;

pub fn register(suite: &mut Suite) {
    suite.both("dispatch::one_event_reaches_every_matching_endpoint_to_the_byte", fan_out);
    suite.both("dispatch::retries_keep_id_and_bytes_and_renew_the_timestamp", retries);
    suite.both("dispatch::an_endpoint_that_is_gone_parks_and_loses_nothing", gone);
    suite.both("dispatch::retry_after_is_honoured_in_full", retry_after);
    suite.both("dispatch::the_horizon_ends_in_the_dead_letter", horizon);
    suite.both("dispatch::two_secrets_sign_side_by_side", two_secrets);
    suite.both("dispatch::the_same_uid_with_anything_else_is_a_conflict", uid_conflict);
    suite.both("dispatch::a_full_endpoint_leaves_the_slots_of_others_alone", fairness);
    suite.both("dispatch::send_l17_what_the_caller_rolls_back_is_never_sent", rolled_back);
    suite.both("dispatch::send_l20_a_hundred_publishes_without_a_wake_up_are_all_found", no_wake);
    suite.both("dispatch::send_d1_a_receiver_slower_than_the_lease_sees_one_request_at_a_time", slow_receiver);
    suite.both("dispatch::send_d8_fifty_publishes_of_one_uid_make_one_event", same_uid);
    suite.both("dispatch::send_d14_two_workers_never_claim_the_same_delivery", two_claims);
    suite.both("dispatch::send_d17_a_late_result_is_kept_as_late_and_changes_nothing", late_result);
    suite.both("dispatch::rel_b02_a_repeated_publish_never_suppresses_an_unfinished_delivery", repeated_publish);
    suite.sqlite("dispatch::a_second_worker_on_one_file_is_refused", second_worker);
}

/// What a sink saw, in order.
pub type Seen = Arc<Mutex<Vec<Message>>>;

/// A receiver that answers as `script` says to the n-th request.
pub async fn sink(script: impl Fn(usize, &Message) -> Answer + Send + Sync + 'static) -> (Front, Seen) {
    let seen: Seen = Arc::default();
    let (script, log, count) = (Arc::new(script), Arc::clone(&seen), Arc::new(AtomicUsize::new(0)));
    let front = Front::open(move |message| {
        let (script, log, count) = (Arc::clone(&script), Arc::clone(&log), Arc::clone(&count));
        async move {
            let answer = script(count.fetch_add(1, Ordering::SeqCst), &message);
            log.lock().unwrap().push(message);
            Ok(answer)
        }
    });
    (front.await.unwrap(), seen)
}

pub fn answer(status: u16) -> Answer {
    Answer::empty(StatusCode::from_u16(status).unwrap())
}

pub fn tenant() -> Key {
    Key::new("default").unwrap()
}

pub fn event(payload: &str) -> NewEvent {
    NewEvent::json(tenant(), "order.placed", payload.to_owned())
}

pub fn options() -> DispatcherOptions {
    let mut options = DispatcherOptions::default();
    options.sender.addresses = AddressPolicy::AllowPrivate;
    options
}

/// A clock that the test moves, and a store that runs by it.
pub async fn timed(bed: &Bed) -> (ManualClock, Store) {
    let clock = ManualClock::new(Timestamp::from_secs(1_700_000_000));
    let store = bed.db.store(Some(Arc::new(clock.clone()))).await.unwrap();
    (clock, store)
}

pub async fn endpoint(store: &Store, url: String, change: impl FnOnce(&mut NewEndpoint)) -> String {
    let mut endpoint = NewEndpoint::new(tenant(), url);
    endpoint.secret = Some(secret().into());
    change(&mut endpoint);
    let manager = Manager::new(store, AddressPolicy::AllowPrivate, &Policy::default());
    manager.create_now(endpoint).await.unwrap().endpoint.id
}

pub fn url(front: &Front) -> String {
    format!("http://{}/hook", front.address())
}

pub async fn publish(store: &Store, event: NewEvent) -> Id {
    Publisher::new(store, &Policy::default()).publish_now(event).await.unwrap().id
}

/// The states of all deliveries, counted.
pub async fn states(store: &Store) -> HashMap<String, i64> {
    let sql = "SELECT state, count(*) FROM twiceproof_deliveries GROUP BY state";
    let rows: Vec<(String, i64)> = store.read().await.unwrap().conn().fetch_all(sql, &[]).await.unwrap();
    rows.into_iter().collect()
}

pub fn only(state: &str, count: i64) -> HashMap<String, i64> {
    HashMap::from([(state.to_owned(), count)])
}

pub fn header<'m>(message: &'m Message, name: &str) -> &'m str {
    message.headers.get(name).unwrap().to_str().unwrap()
}

async fn fan_out(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (all, seen_all) = sink(|_, _| answer(204)).await;
    let (some, seen_some) = sink(|_, _| answer(200)).await;
    let (other, seen_other) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&all), |_| {}).await;
    endpoint(&store, url(&some), |e| e.event_types = vec!["order.placed".into(), "order.paid".into()]).await;
    endpoint(&store, url(&other), |e| e.event_types = vec!["invoice.sent".into()]).await;
    endpoint(&store, url(&other), |e| e.tenant = Key::new("somebody-else").unwrap()).await;
    let bodies =
        [r#"{"b":1,"a":2,"n":1.0,"big":12345678901234567890}"#, r#"{"a":1e400,"a":0.1000}"#, "\u{feff}not json", ""];
    let mut ids = BTreeSet::new();
    for body in bodies {
        ids.insert(publish(&store, event(body)).await.to_string());
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    let step = dispatcher.step().await.unwrap();
    assert_eq!((step.claimed, step.recorded.delivered), (8, 8));
    assert_eq!(states(&store).await, only("delivered", 8));
    assert!(seen_other.lock().unwrap().is_empty());
    for seen in [seen_all, seen_some] {
        let seen = seen.lock().unwrap();
        let bytes: BTreeSet<&[u8]> = seen.iter().map(|message| message.body.as_ref()).collect();
        assert_eq!(bytes, bodies.iter().map(|body| body.as_bytes()).collect());
        let sent: BTreeSet<String> = seen.iter().map(|message| header(message, signature::ID).to_owned()).collect();
        assert_eq!(sent, ids, "one id for all endpoints");
        seen.iter().for_each(|message| verify(message, store.now()));
    }
}

/// The receiver's own check of the signature.
pub fn verify(message: &Message, now: Timestamp) {
    let signed = SignedHeaders {
        id: header(message, signature::ID),
        timestamp: header(message, signature::TIMESTAMP),
        signature: header(message, signature::SIGNATURE),
    };
    signature::verify(&signed, &message.body, &[secret()], now, Duration::from_secs(300)).unwrap();
}

async fn retries(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|n, _| answer([500, 302, 404, 200][n])).await;
    endpoint(&store, url(&front), |_| {}).await;
    publish(&store, event("{}")).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for wait in [5, 15, 45] {
        assert_eq!(dispatcher.step().await.unwrap().recorded.retried, 1);
        assert_eq!(states(&store).await, only("backoff", 1));
        // Never before half of the wait is over, always when all of it is.
        clock.advance(Duration::from_millis(wait * 500 - 1));
        assert_eq!(dispatcher.step().await.unwrap().claimed, 0, "too early");
        clock.advance(Duration::from_millis(wait * 500 + 1));
    }
    assert_eq!(dispatcher.step().await.unwrap().recorded.delivered, 1);
    let seen = seen.lock().unwrap();
    let distinct = |of: fn(&Message) -> String| seen.iter().map(of).collect::<BTreeSet<_>>().len();
    assert_eq!(seen.len(), 4);
    assert_eq!(distinct(|message| header(message, signature::ID).to_owned()), 1);
    assert_eq!(distinct(|message| header(message, signature::TIMESTAMP).to_owned()), 4);
    verify(&seen[3], clock.now());
}

async fn gone(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|n, _| answer(if n == 0 { 410 } else { 200 })).await;
    let id = endpoint(&store, url(&front), |e| e.slots = Some(1)).await;
    for _ in 0..3 {
        publish(&store, event("{}")).await;
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    clock.advance(Duration::from_secs(3600));
    dispatcher.step().await.unwrap();
    publish(&store, event("{}")).await;
    dispatcher.step().await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 1, "after 410 nothing more is sent");
    assert_eq!(states(&store).await, only("parked", 4), "and nothing is lost");
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let mut tx = store.begin().await.unwrap();
    let wake = manager.enable(&mut tx.conn(), &tenant(), &id).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
    for _ in 0..4 {
        dispatcher.step().await.unwrap();
    }
    assert_eq!(states(&store).await, only("delivered", 4));
}

async fn retry_after(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|n, _| {
        let mut asked = answer(if n == 0 { 429 } else { 200 });
        asked.headers.insert(HeaderName::from_static("retry-after"), HeaderValue::from_static("7200"));
        asked
    })
    .await;
    endpoint(&store, url(&front), |_| {}).await;
    publish(&store, event("{}")).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    clock.advance(Duration::from_secs(7199));
    assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
    clock.advance(Duration::from_secs(1));
    assert_eq!(dispatcher.step().await.unwrap().recorded.delivered, 1);
    assert_eq!(seen.lock().unwrap().len(), 2);
}

async fn horizon(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|_, _| answer(500)).await;
    endpoint(&store, url(&front), |_| {}).await;
    publish(&store, event("{}")).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for _ in 0..1_000 {
        dispatcher.step().await.unwrap();
        if states(&store).await == only("dead", 1) {
            break;
        }
        clock.advance(Duration::from_secs(900));
    }
    assert_eq!(states(&store).await, only("dead", 1));
    let spent = clock.now().since(Timestamp::from_secs(1_700_000_000));
    assert!(spent <= Duration::from_secs(73 * 3600), "{spent:?}");
    // 5 s × 3, cap 12 h, over 72 h: about 14 attempts, whatever the jitter says.
    let attempts = seen.lock().unwrap().len();
    assert!((11..=20).contains(&attempts), "{attempts} attempts");
}

async fn two_secrets(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (front, seen) = sink(|_, _| answer(200)).await;
    let id = endpoint(&store, url(&front), |_| {}).await;
    let second = twiceproof_shared::secret::Secret::generate(store.random());
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let key_id = manager.mint_key_id().unwrap();
    let mut tx = store.begin().await.unwrap();
    let key = SecretKey { tenant: "default", endpoint: &id, key_id: &key_id };
    manager.add_secret(&mut tx.conn(), key, &second.clone().into()).await.unwrap();
    tx.commit().await.unwrap();
    publish(&store, event("{}")).await;
    Dispatcher::start(&store, options()).await.unwrap().step().await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(header(&seen[0], signature::SIGNATURE).split(' ').count(), 2);
    verify(&seen[0], store.now());
    let signed = SignedHeaders {
        id: header(&seen[0], signature::ID),
        timestamp: header(&seen[0], signature::TIMESTAMP),
        signature: header(&seen[0], signature::SIGNATURE),
    };
    signature::verify(&signed, &seen[0].body, &[second], store.now(), Duration::from_secs(300)).unwrap();
}

async fn uid_conflict(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let publisher = Publisher::new(&store, &Policy::default());
    let uid = Key::new("order-1041").unwrap();
    let first = publisher.publish_now(event("a").with_uid(uid.clone())).await.unwrap();
    let again = publisher.publish_now(event("a").with_uid(uid.clone())).await.unwrap();
    assert_eq!((&again.id, first.fresh, again.fresh), (&first.id, true, false));
    let others: [fn(&mut NewEvent); 4] = [
        |e| e.payload = "b".into(),
        |e| e.event_type = "order.paid".into(),
        |e| e.channels = vec![Key::new("x").unwrap()],
        |e| e.ordering_key = Some(Key::new("x").unwrap()),
    ];
    for change in others {
        let mut other = event("a").with_uid(uid.clone());
        change(&mut other);
        let result = publisher.publish_now(other).await;
        assert!(matches!(result, Err(PublishError::Conflict(_))), "{result:?}");
    }
    // Another tenant's uid is another uid.
    let mut foreign = event("b").with_uid(uid);
    foreign.tenant = Key::new("somebody-else").unwrap();
    assert!(publisher.publish_now(foreign).await.unwrap().fresh);
}

async fn fairness(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let mut lanes = Vec::new();
    for _ in 0..3 {
        lanes.push(endpoint(&store, "http://127.0.0.1:9/hook".to_owned(), |e| e.slots = Some(8)).await);
    }
    for _ in 0..20 {
        publish(&store, event("{}")).await;
    }
    let worker = worker(&store);
    let busy = HashMap::from([(lanes[0].clone(), 8), (lanes[1].clone(), 5)]);
    let claimed = claim_as(&store, &worker, 100, busy).await;
    let of = |lane: &str| claimed.deliveries.iter().filter(|delivery| delivery.key().endpoint == lane).count();
    assert_eq!((of(&lanes[0]), of(&lanes[1]), of(&lanes[2])), (0, 3, 8), "never more than the free slots");
}

pub fn worker(store: &Store) -> Id {
    Id::mint(Prefix::Worker, store.now(), store.random())
}

pub async fn claim_as(store: &Store, worker: &Id, free: u32, busy: HashMap<String, u32>) -> Claimed {
    let request = ClaimRequest { busy, ..ClaimRequest::new(worker.clone(), free, Duration::from_secs(15)) };
    let (request, now) = (Arc::new(request), store.now());
    let unit = store.run(move |conn| {
        let request = Arc::clone(&request);
        Box::pin(async move { claim(conn, &request, now).await })
    });
    unit.await.unwrap_or_else(|error: StoreError| panic!("{error}"))
}

pub async fn record_as(store: &Store, claimed: Claimed, exchange: Exchange, decision: Decision) -> Recorded {
    let now = store.now();
    let finished: Vec<_> = claimed
        .deliveries
        .into_iter()
        .map(|delivery| {
            let id = Id::mint(Prefix::Attempt, now, store.random());
            delivery.finish(id, exchange.clone(), decision, Span { started_at: now, ended_at: now })
        })
        .collect();
    let finished = Arc::new(finished);
    let unit = store.run(move |conn| {
        let finished = Arc::clone(&finished);
        Box::pin(async move { record(conn, &finished, now).await })
    });
    unit.await.unwrap_or_else(|error: StoreError| panic!("{error}"))
}

async fn rolled_back(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (front, seen) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    let publisher = Publisher::new(&store, &Policy::default());
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for _ in 0..3 {
        let mut tx = store.begin().await.unwrap();
        let (_, wake) = publisher.publish(&mut tx.conn(), event("{}")).await.unwrap();
        // Woken too early, the worker finds nothing.
        wake.send();
        tx.rollback().await.unwrap();
        assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
    }
    assert!(seen.lock().unwrap().is_empty());
    assert!(states(&store).await.is_empty());
}

async fn no_wake(bed: Bed) {
    bed.db.store(None).await.unwrap();
    let mut deaf = StoreOptions::default();
    deaf.no_listener = true;
    let store = Store::connect(bed.db.url(), deaf).await.unwrap();
    let (front, seen) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    let dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(dispatcher.run(async move {
        let _ = stopped.await;
    }));
    // Another store, as another process would be: nobody hears its wake-ups.
    let elsewhere = bed.db.store(None).await.unwrap();
    let publisher = Publisher::new(&elsewhere, &Policy::default());
    let publishes = (0..100).map(|_| publisher.publish_now(event("{}")));
    assert!(futures_util::future::join_all(publishes).await.iter().all(Result::is_ok));
    while seen.lock().unwrap().len() < 100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.send(()).unwrap();
    running.await.unwrap();
    assert_eq!(states(&store).await, only("delivered", 100));
}

async fn slow_receiver(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now_open, most_open) = (Arc::clone(&open), Arc::clone(&most));
    let front = Front::open(move |_| {
        let (open, most) = (Arc::clone(&now_open), Arc::clone(&most_open));
        async move {
            most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(900)).await;
            open.fetch_sub(1, Ordering::SeqCst);
            Ok(answer(200))
        }
    })
    .await
    .unwrap();
    endpoint(&store, url(&front), |e| e.timeout = Some(Duration::from_millis(200))).await;
    publish(&store, event("{}")).await;
    let mut options = options();
    options.policy.lease_margin = Duration::from_millis(200);
    options.policy.schedule = Schedule::list([Duration::from_secs(3600)]);
    let dispatcher = Dispatcher::start(&store, options).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(dispatcher.run(async move {
        let _ = stopped.await;
    }));
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    stop.send(()).unwrap();
    running.await.unwrap();
    assert_eq!(most.load(Ordering::SeqCst), 1, "one request at a time");
    assert_eq!(states(&store).await, only("backoff", 1), "it timed out once and waits for its retry");
}

async fn same_uid(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let publisher = Publisher::new(&store, &Policy::default());
    let publishes = (0..50).map(|_| publisher.publish_now(event("{}").with_uid(Key::new("order-1").unwrap())));
    let published: Vec<_> = futures_util::future::join_all(publishes).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(published.iter().filter(|published| published.fresh).count(), 1);
    assert!(published.iter().all(|one| one.id == published[0].id));
}

async fn two_claims(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    endpoint(&store, "http://127.0.0.1:9/hook".to_owned(), |e| e.slots = Some(100)).await;
    for _ in 0..200 {
        publish(&store, event("{}")).await;
    }
    let workers: Vec<Id> = (0..4).map(|_| worker(&store)).collect();
    let claims = workers.iter().map(|worker| claim_as(&store, worker, 60, HashMap::new()));
    let claimed = futures_util::future::join_all(claims).await;
    let keys: Vec<&str> =
        claimed.iter().flat_map(|claimed| &claimed.deliveries).map(|delivery| delivery.key().event.as_str()).collect();
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "no delivery is claimed twice");
    assert!(keys.len() >= 60, "{}", keys.len());
}

/// A worker stalls past its lease, another delivers, the first wakes and says "failed".
async fn late_result(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    endpoint(&store, "http://127.0.0.1:9/hook".to_owned(), |_| {}).await;
    publish(&store, event("{}")).await;
    let (stalled, other) = (worker(&store), worker(&store));
    let first = claim_as(&store, &stalled, 10, HashMap::new()).await;
    assert_eq!(first.deliveries.len(), 1);
    assert!(claim_as(&store, &other, 10, HashMap::new()).await.deliveries.is_empty(), "the lease holds");
    clock.advance(Duration::from_secs(31));
    let mut second = claim_as(&store, &other, 10, HashMap::new()).await;
    if second.deliveries.is_empty() {
        second = claim_as(&store, &other, 10, HashMap::new()).await;
    }
    assert_eq!(second.deliveries.len(), 1, "after the lease another worker takes it");
    let fine = Exchange::Answered(SinkAnswer::of_status(200));
    let recorded = record_as(&store, second, fine, Decision::Delivered).await;
    assert_eq!((recorded.delivered, recorded.late), (1, 0));
    let failed = Exchange::Answered(SinkAnswer::of_status(500));
    let retry = Decision::Retry { due_at: clock.now().plus(Duration::from_secs(5)) };
    let recorded = record_as(&store, first, failed, retry).await;
    assert_eq!((recorded.retried, recorded.late), (0, 1));
    assert_eq!(states(&store).await, only("delivered", 1), "the late result changed nothing");
    let sql = "SELECT late, status FROM twiceproof_attempts ORDER BY seq";
    let attempts: Vec<(i64, Option<i64>)> = store.read().await.unwrap().conn().fetch_all(sql, &[]).await.unwrap();
    assert_eq!(attempts, [(0, Some(200)), (1, Some(500))], "and is kept");
}

async fn repeated_publish(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|n, _| answer(if n == 0 { 500 } else { 200 })).await;
    endpoint(&store, url(&front), |_| {}).await;
    let uid = Key::new("order-1").unwrap();
    let id = publish(&store, event("{}").with_uid(uid.clone())).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    assert_eq!(publish(&store, event("{}").with_uid(uid.clone())).await, id);
    dispatcher.step().await.unwrap();
    assert_eq!(publish(&store, event("{}").with_uid(uid)).await, id);
    clock.advance(Duration::from_secs(10));
    dispatcher.step().await.unwrap();
    assert_eq!(states(&store).await, only("delivered", 1));
    assert_eq!(seen.lock().unwrap().len(), 2);
}

async fn second_worker(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let first = Dispatcher::start(&store, options()).await.unwrap();
    let second = Dispatcher::start(&bed.db.store(None).await.unwrap(), options()).await;
    assert!(second.is_err(), "a second worker on one file");
    drop(first);
    Dispatcher::start(&store, options()).await.unwrap();
}
