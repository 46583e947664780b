//! Events with an ordering key: one after another at each endpoint, whatever fails, and nothing else held up.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use twiceproof::dispatcher::decide::Decision;
use twiceproof::dispatcher::exchange::{Answer, Exchange};
use twiceproof::dispatcher::store::claim::{ClaimRequest, claim};
use twiceproof::dispatcher::store::record::{Span, record};
use twiceproof::dispatcher::{
    AddressPolicy, Dispatcher, EndpointPolicy, Manager, NewEvent, Policy, Publisher, Schedule,
};
use twiceproof::prove::Front;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use crate::dispatch::{Seen, answer, endpoint, event, only, options, sink, states, tenant, timed, url};
use crate::harness::{Bed, Suite};
use crate::kill::Program;

pub fn register(suite: &mut Suite) {
    suite.both("ordering::each_key_is_delivered_in_its_order_though_a_fifth_of_all_attempts_fails", each_key);
    suite.both("ordering::a_failing_event_holds_up_its_own_key_until_it_is_given_up_and_no_other", failing_head);
    suite.both("ordering::an_event_that_was_refused_for_good_lets_the_next_one_go_at_once", refused_head);
    suite.both("ordering::an_endpoint_that_was_disabled_goes_on_in_order", disabled);
    suite.both("ordering::an_endpoint_that_is_deleted_leaves_nothing_behind_that_waits", deleted);
    suite.both("ordering::what_is_sent_again_by_hand_takes_its_place_in_the_order", again);
    suite.both("ordering::an_expunged_event_is_passed_over", expunged);
    suite.postgres("ordering::a_newcomer_beside_the_end_of_the_one_before_it_is_not_forgotten", newcomer);
    suite.postgres("ordering::the_order_holds_while_workers_are_killed", killed);
    suite.postgres("ordering::the_order_is_that_of_the_commits", commits);
}

fn ordered(key: &str, payload: &str) -> NewEvent {
    NewEvent { ordering_key: Some(Key::new(key).unwrap()), ..event(payload) }
}

async fn publish(store: &Store, event: NewEvent) -> Id {
    crate::dispatch::publish(store, event).await
}

fn bodies(seen: &Seen) -> Vec<String> {
    seen.lock().unwrap().iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()).collect()
}

/// What the receivers saw of each endpoint and key.
#[derive(Default)]
struct Log {
    /// How many requests of a key are under way; more than one is an overlap.
    open: HashMap<(usize, String), u32>,
    overlaps: usize,
    taken: BTreeMap<(usize, String), Vec<usize>>,
}

/// A receiver that fails every fifth request, by an order that only the seed knows.
async fn flaky(endpoint: usize, log: Arc<Mutex<Log>>, seed: u64) -> Front {
    let count = Arc::new(AtomicUsize::new(0));
    Front::open(move |message| {
        let (log, count) = (Arc::clone(&log), Arc::clone(&count));
        async move {
            let body = String::from_utf8_lossy(&message.body).into_owned();
            let (key, number) = body.split_once(' ').unwrap();
            let lane = (endpoint, key.to_owned());
            {
                let mut log = log.lock().unwrap();
                let open = log.open.entry(lane.clone()).or_default();
                *open += 1;
                log.overlaps += usize::from(*open > 1);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            let n = count.fetch_add(1, Ordering::SeqCst) as u64;
            let fails = (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed).is_multiple_of(5);
            let mut log = log.lock().unwrap();
            *log.open.get_mut(&lane).unwrap() -= 1;
            if fails {
                return Ok(answer(500));
            }
            log.taken.entry(lane).or_default().push(number.parse().unwrap());
            Ok(answer(200))
        }
    })
    .await
    .unwrap()
}

/// `TWICEPROOF_TEST_KEYS=1000` makes it a thousand keys of a hundred events each.
async fn each_key(bed: Bed) {
    let keys: usize = std::env::var("TWICEPROOF_TEST_KEYS").map_or(40, |keys| keys.parse().unwrap());
    let events = if keys >= 1_000 { 100 } else { 15 };
    let seed = u64::from(std::process::id());
    println!("seed {seed}, {keys} keys of {events} events");
    let store = bed.db.store(None).await.unwrap();
    let log: Arc<Mutex<Log>> = Arc::default();
    let mut fronts = Vec::new();
    for number in 0..2 {
        let front = flaky(number, Arc::clone(&log), seed).await;
        endpoint(&store, url(&front), |new| new.policy = EndpointPolicy::without_breaker()).await;
        fronts.push(front);
    }
    let mut options = options();
    options.policy.schedule = Schedule::list([Duration::from_millis(5); 40]);
    let dispatcher = Dispatcher::start(&store, options).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(dispatcher.run(async { drop(stopped.await) }));
    // Some alone, some together, from several callers, while the worker runs: each key from one caller, or there is no order.
    let publisher = Publisher::new(&store, &Policy::default());
    let callers = (0..4).map(|caller| {
        let (store, publisher) = (store.clone(), publisher.clone());
        tokio::spawn(async move {
            for number in 0..events {
                let ours = (0..keys).filter(|key| key % 4 == caller);
                let all: Vec<NewEvent> =
                    ours.map(|key| ordered(&format!("k{key}"), &format!("k{key} {number}"))).collect();
                if number % 2 == 0 {
                    let mut tx = store.begin().await.unwrap();
                    let (_, wake) = publisher.publish_many(&mut tx.conn(), all).await.unwrap();
                    tx.commit().await.unwrap();
                    wake.send();
                } else {
                    for event in all {
                        publisher.publish_now(event).await.unwrap();
                    }
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    let total = (2 * keys * events) as i64;
    let patience = Instant::now() + Duration::from_secs(60 + 2 * keys as u64);
    while states(&store).await.get("delivered") != Some(&total) {
        assert!(Instant::now() < patience, "{:?} of {total}", states(&store).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(stop);
    let totals = running.await.unwrap();
    assert!(totals.recorded.retried > 0, "nothing failed: {totals:?}");
    let log = log.lock().unwrap();
    assert_eq!(log.overlaps, 0, "two of a key were under way at once");
    assert_eq!(log.taken.len(), 2 * keys);
    for (lane, taken) in &log.taken {
        assert_eq!(*taken, (0..events).collect::<Vec<_>>(), "{lane:?}");
    }
}

async fn failing_head(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|_, message| answer(if message.body.starts_with(b"bad") { 500 } else { 200 })).await;
    endpoint(&store, url(&front), |new| new.policy = EndpointPolicy::without_breaker()).await;
    for (key, payload) in [("a", "bad 1"), ("a", "a2"), ("b", "b1"), ("a", "a3"), ("b", "b2")] {
        publish(&store, ordered(key, payload)).await;
    }
    publish(&store, event("free")).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for _ in 0..3 {
        dispatcher.step().await.unwrap();
    }
    let mut others = bodies(&seen);
    others.sort();
    assert_eq!(others, ["b1", "b2", "bad 1", "free"]);
    assert_eq!(states(&store).await["blocked"], 2, "what stands behind it waits");
    for _ in 0..2_000 {
        if states(&store).await.contains_key("dead") {
            break;
        }
        clock.advance(Duration::from_secs(600));
        dispatcher.step().await.unwrap();
    }
    dispatcher.step().await.unwrap();
    dispatcher.step().await.unwrap();
    assert_eq!(states(&store).await, HashMap::from([("dead".to_owned(), 1), ("delivered".to_owned(), 5)]));
    let seen = bodies(&seen);
    assert_eq!(seen[seen.len() - 2..], ["a2", "a3"], "in their order, though their own time was over as well");
}

async fn refused_head(bed: Bed) {
    let (_clock, store) = timed(&bed).await;
    let (front, seen) = sink(|n, _| answer(if n == 0 { 422 } else { 200 })).await;
    let policy: EndpointPolicy = serde_json::from_str(r#"{"statuses": {"422": "giveUp"}}"#).unwrap();
    endpoint(&store, url(&front), |new| new.policy = policy).await;
    for payload in ["1", "2", "3"] {
        publish(&store, ordered("a", payload)).await;
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    let first = dispatcher.step().await.unwrap();
    assert_eq!((first.claimed, first.recorded.dead, first.recorded.unblocked), (1, 1, 1));
    let second = dispatcher.step().await.unwrap();
    assert_eq!((second.recorded.delivered, second.recorded.unblocked), (1, 1));
    assert_eq!(dispatcher.step().await.unwrap().recorded.unblocked, 0);
    assert_eq!(bodies(&seen), ["1", "2", "3"]);
}

async fn disabled(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|n, _| answer(if n == 0 { 410 } else { 200 })).await;
    let id = endpoint(&store, url(&front), |_| {}).await;
    for payload in ["1", "2", "3"] {
        publish(&store, ordered("a", payload)).await;
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    assert_eq!(dispatcher.step().await.unwrap().recorded.parked, 1);
    publish(&store, ordered("a", "4")).await;
    publish(&store, ordered("b", "5")).await;
    // Longer than the horizon of all of them.
    clock.advance(Duration::from_secs(5 * 24 * 3600));
    dispatcher.step().await.unwrap();
    assert_eq!(bodies(&seen).len(), 1);
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let mut tx = store.begin().await.unwrap();
    let wake = manager.enable(&mut tx.conn(), &tenant(), &id).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
    for _ in 0..5 {
        dispatcher.step().await.unwrap();
    }
    assert_eq!(states(&store).await, only("delivered", 5));
    let of_a: Vec<String> = bodies(&seen).into_iter().filter(|body| body != "5").collect();
    assert_eq!(of_a, ["1", "1", "2", "3", "4"]);
    let mut reader = store.read().await.unwrap();
    let sql = "SELECT deadline_at FROM twiceproof_deliveries WHERE ordering_key = 'a' ORDER BY seq";
    let deadlines: Vec<(i64,)> = reader.conn().fetch_all(sql, &[]).await.unwrap();
    assert!(deadlines.is_sorted(), "the time that one was parked is not counted for those behind it: {deadlines:?}");
    assert!(deadlines[0].0 > store.now().as_millis());
}

async fn deleted(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, _) = sink(|_, _| answer(500)).await;
    for is_disabled in [false, true] {
        let id = endpoint(&store, url(&front), |_| {}).await;
        for payload in ["1", "2", "3"] {
            publish(&store, ordered("a", payload)).await;
        }
        let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
        let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
        dispatcher.step().await.unwrap();
        if is_disabled {
            let mut tx = store.begin().await.unwrap();
            manager.disable(&mut tx.conn(), &tenant(), &id).await.unwrap();
            tx.commit().await.unwrap();
        }
        let mut tx = store.begin().await.unwrap();
        manager.delete(&mut tx.conn(), &tenant(), &id).await.unwrap();
        tx.commit().await.unwrap();
        // The head waits for its retry, and then finds no endpoint any more.
        clock.advance(Duration::from_secs(5));
        for _ in 0..3 {
            dispatcher.step().await.unwrap();
        }
        dispatcher.stop().await;
    }
    assert_eq!(states(&store).await, only("dead", 6));
}

async fn again(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let fails = Arc::new(AtomicUsize::new(0));
    let failing = Arc::clone(&fails);
    let (front, seen) = sink(move |_, _| answer(if failing.load(Ordering::SeqCst) == 1 { 500 } else { 200 })).await;
    let id = endpoint(&store, url(&front), |new| new.policy = EndpointPolicy::without_breaker()).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    let first = publish(&store, ordered("a", "1")).await;
    dispatcher.step().await.unwrap();
    fails.store(1, Ordering::SeqCst);
    publish(&store, ordered("a", "2")).await;
    publish(&store, ordered("a", "3")).await;
    dispatcher.step().await.unwrap();
    // The second one waits for its retry: the first, sent again, waits for it, and goes before the third.
    let publisher = Publisher::new(&store, &Policy::default());
    let mut tx = store.begin().await.unwrap();
    publisher.resend(&mut tx.conn(), &tenant(), first.as_str(), &id).await.unwrap().send();
    tx.commit().await.unwrap();
    assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
    fails.store(0, Ordering::SeqCst);
    clock.advance(Duration::from_secs(5));
    for _ in 0..4 {
        assert!(dispatcher.step().await.unwrap().claimed <= 1);
    }
    assert_eq!(bodies(&seen), ["1", "2", "2", "1", "3"]);
    assert_eq!(states(&store).await, only("delivered", 3));
}

async fn expunged(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|n, _| answer(if n == 0 { 500 } else { 200 })).await;
    endpoint(&store, url(&front), |_| {}).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    let mut ids = Vec::new();
    for payload in ["1", "2", "3"] {
        ids.push(publish(&store, ordered("a", payload)).await);
    }
    dispatcher.step().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    for id in &ids[..2] {
        use twiceproof::dispatcher::store::history;
        assert!(history::expunge_event(&mut tx.conn(), tenant().as_str(), id.as_str(), store.now()).await.unwrap());
    }
    tx.commit().await.unwrap();
    clock.advance(Duration::from_secs(5));
    for _ in 0..4 {
        dispatcher.step().await.unwrap();
    }
    assert_eq!(bodies(&seen), ["1", "3"]);
    assert_eq!(states(&store).await, HashMap::from([("dead".to_owned(), 2), ("delivered".to_owned(), 1)]));
}

/// The transaction that publishes first commits last: the other one waits for it.
async fn commits(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (front, seen) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    let publisher = Publisher::new(&store, &Policy::default());
    let mut first = store.begin().await.unwrap();
    let (_, wake) = publisher.publish(&mut first.conn(), ordered("a", "first")).await.unwrap();
    let second = {
        let publisher = publisher.clone();
        tokio::spawn(async move { publisher.publish_now(ordered("a", "second")).await.unwrap() })
    };
    // Another key has nothing to wait for, and neither has the other caller of this desk.
    publisher.publish_now(ordered("b", "other")).await.unwrap();
    publisher.publish_now(event("none")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!second.is_finished(), "it has to wait for the end of the first");
    first.commit().await.unwrap();
    wake.send();
    second.await.unwrap();
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for _ in 0..3 {
        dispatcher.step().await.unwrap();
    }
    let of_a: Vec<String> =
        bodies(&seen).into_iter().filter(|body| ["first", "second"].contains(&body.as_str())).collect();
    assert_eq!(of_a, ["first", "second"]);
}

/// A record has ended the first and let nobody go, since there was nobody; before its commit a second is published and looked at.
async fn newcomer(bed: Bed) {
    let (_clock, store) = timed(&bed).await;
    endpoint(&store, "http://127.0.0.1:9/".to_owned(), |_| {}).await;
    publish(&store, ordered("a", "1")).await;
    let claimed = |free| {
        let store = store.clone();
        async move {
            let worker = Id::mint(Prefix::Worker, store.now(), store.random());
            let mut tx = store.begin().await.unwrap();
            let request = ClaimRequest::new(worker, free, Duration::from_secs(15));
            let claimed = claim(&mut tx.conn(), &request, store.now()).await.unwrap();
            tx.commit().await.unwrap();
            claimed.deliveries
        }
    };
    let first = claimed(1).await.pop().unwrap();
    let (now, span) = (store.now(), Span { started_at: store.now(), ended_at: store.now() });
    let attempt = Id::mint(Prefix::Attempt, now, store.random());
    let ended = first.finish(attempt, Exchange::Answered(Answer::of_status(200)), Decision::Delivered, span);
    let mut tx = store.begin().await.unwrap();
    let recorded = record(&mut tx.conn(), &[ended], now).await.unwrap();
    assert_eq!((recorded.delivered, recorded.unblocked), (1, 0));
    publish(&store, ordered("a", "2")).await;
    assert!(claimed(10).await.is_empty(), "the first is not known to have ended yet");
    tx.commit().await.unwrap();
    assert_eq!(claimed(10).await.len(), 1, "nobody else would move it");
}

/// Three workers share the keys, and one after another is killed: what it had under way comes again, before what is behind it.
async fn killed(bed: Bed) {
    let (keys, events) = (60, 12);
    let store = bed.db.store(None).await.unwrap();
    let seen: Arc<Mutex<BTreeMap<String, Vec<usize>>>> = Arc::default();
    let log = Arc::clone(&seen);
    let front = Front::open(move |message| {
        let log = Arc::clone(&log);
        async move {
            let body = String::from_utf8_lossy(&message.body).into_owned();
            let (key, number) = body.split_once(' ').unwrap();
            log.lock().unwrap().entry(key.to_owned()).or_default().push(number.parse().unwrap());
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(answer(200))
        }
    });
    let front = front.await.unwrap();
    endpoint(&store, url(&front), |new| {
        new.policy = EndpointPolicy::without_breaker();
        new.timeout = Some(Duration::from_secs(2));
        new.slots = Some(20);
    })
    .await;
    let publisher = Publisher::new(&store, &Policy::default());
    for number in 0..events {
        let all = (0..keys).map(|key| ordered(&format!("k{key}"), &format!("k{key} {number}"))).collect();
        let mut tx = store.begin().await.unwrap();
        let _polled = publisher.publish_many(&mut tx.conn(), all).await.unwrap();
        tx.commit().await.unwrap();
    }
    let total = keys * events;
    let came = || seen.lock().unwrap().values().map(Vec::len).sum::<usize>();
    let mut workers: Vec<Program> = (0..3).map(|_| Program::worker(bed.db.url())).collect();
    let patience = Instant::now() + Duration::from_secs(120);
    for kill in 1..=4 {
        while came() < total * kill / 6 {
            assert!(Instant::now() < patience, "{} of {total} came", came());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(workers.remove(0));
        workers.push(Program::worker(bed.db.url()));
    }
    while states(&store).await.get("delivered") != Some(&(total as i64)) {
        assert!(Instant::now() < patience, "{:?} of {total}", states(&store).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seen = seen.lock().unwrap();
    let repeats = seen.values().map(Vec::len).sum::<usize>() - total;
    println!("{total} deliveries, {repeats} came again after the kills");
    assert!(repeats > 0, "no kill found anything under way");
    for (key, numbers) in seen.iter() {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
        let mut distinct = numbers.clone();
        distinct.dedup();
        assert_eq!(distinct, (0..events).collect::<Vec<_>>(), "{key}");
    }
}
