//! The delivery policy of endpoints, on a clock that the test moves, over real sockets, on both databases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderValue;
use twiceproof::dispatcher::manage::change::EndpointChange;
use twiceproof::dispatcher::{
    AddressPolicy, Dispatcher, Endpoint, EndpointPolicy, Manager, NewEndpoint, NewEvent, Policy, Publisher,
};
use twiceproof::prove::Answer;
use twiceproof_shared::clock::{Clock, ManualClock};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use crate::dispatch::{answer, endpoint, event, only, options, publish, sink, states, tenant, timed, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("policy::send_r7_each_of_sixty_answers_has_its_next_action", sixty_answers);
    suite.both("policy::send_r6_statuses_that_an_endpoint_gives_up_at_are_final", gives_up);
    suite.both("policy::an_endpoints_own_horizon_and_schedule_go_before_the_workers", own_horizon);
    suite.both("policy::send_r8_an_endpoint_that_asks_for_patience_is_sent_little_more_than_it_takes", patience);
    suite.both("policy::send_r17_a_failing_batch_opens_the_breaker_once_and_waiting_costs_no_attempts", breaker);
    suite.both("policy::send_r18_an_outage_of_48_hours_is_probed_and_then_all_is_delivered", outage);
    suite.both("policy::an_open_breaker_outlives_its_worker", restart);
    suite.both("policy::an_endpoint_that_only_fails_for_five_days_is_disabled_and_loses_nothing", failing);
    suite.both("policy::send_c7_five_a_second_are_fifty_in_ten_seconds_until_the_limit_is_removed", rate_limit);
    suite.both("policy::a_tenants_limit_holds_for_all_its_endpoints_together", tenant_limit);
    suite.both("policy::two_workers_keep_to_one_limit", two_workers);
    suite.both("policy::send_h6_no_more_requests_at_once_than_the_endpoint_has_slots", slots);
    suite.both("policy::a_tenant_of_many_endpoints_leaves_half_of_the_slots_to_one_of_a_single", tenants);
}

fn manager(store: &Store) -> Manager {
    Manager::new(store, AddressPolicy::AllowPrivate, &Policy::default())
}

fn policy(json: &str) -> EndpointPolicy {
    serde_json::from_str(json).unwrap()
}

async fn stored(store: &Store, id: &str) -> Endpoint {
    let mut reader = store.read().await.unwrap();
    manager(store).get(&mut reader.conn(), &tenant(), id).await.unwrap()
}

async fn publish_many(store: &Store, tenant: &Key, count: usize) {
    let events = (0..count).map(|_| NewEvent::json(tenant.clone(), "order.placed", "{}".to_owned())).collect();
    let mut tx = store.begin().await.unwrap();
    let (_, wake) = Publisher::new(store, &Policy::default()).publish_many(&mut tx.conn(), events).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
}

async fn start(store: &Store) -> Dispatcher {
    Dispatcher::start(store, options()).await.unwrap()
}

/// An answer with a header or two.
fn with(status: u16, headers: &[(&'static str, &str)]) -> Answer {
    let mut answer = answer(status);
    for (name, value) in headers {
        answer.headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    answer
}

/// What is to come of an answer: the state of its delivery, in how many seconds at the latest it is tried again, and for how
/// many the endpoint is sent nothing.
type Expected = (&'static str, u64, u64);

const RETRY: Expected = ("backoff", 5, 0);
const DELIVERED: Expected = ("delivered", 0, 0);
const PARKED: Expected = ("parked", 0, 0);

/// A status, headers, and what becomes of the delivery.
type Row<'a> = (u16, Vec<(&'static str, &'a str)>, Expected);

async fn sixty_answers(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let mut table: Vec<Row<'_>> = Vec::new();
    table.extend([200, 201, 202, 203, 204, 205, 206, 226, 299].map(|status| (status, vec![], DELIVERED)));
    table.extend([300, 301, 302, 303, 304, 305, 307, 308, 399].map(|status| (status, vec![], RETRY)));
    table.extend([400, 401, 402, 403, 404, 405, 406, 407, 408, 409].map(|status| (status, vec![], RETRY)));
    table.extend(
        [411, 412, 413, 414, 415, 418, 421, 422, 423, 425, 426, 429, 431].map(|status| (status, vec![], RETRY)),
    );
    table.extend([500, 501, 502, 503, 504, 505, 507, 508, 511, 599].map(|status| (status, vec![], RETRY)));
    table.extend([600, 999].map(|status| (status, vec![], RETRY)));
    table.push((410, vec![], PARKED));
    table.push((410, vec![("retry-after", "60")], PARKED));
    for (value, seconds, closed) in [
        ("120", 120, 120),
        ("1.5", 5, 2),
        ("0", 5, 0),
        ("-1", 5, 0),
        ("soon", 5, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 5, 0),
        ("259200", 259_200, 259_200),
    ] {
        for status in [429, 503] {
            table.push((status, vec![("retry-after", value)], ("backoff", seconds, closed)));
        }
    }
    let (then, date) = ("Tue, 14 Nov 2023 22:14:20 GMT", "Tue, 14 Nov 2023 22:13:20 GMT");
    table.push((429, vec![("retry-after", then), ("date", date)], ("backoff", 60, 60)));
    table.push((429, vec![("retry-after", "60"), ("retry-after", "120")], ("backoff", 120, 120)));
    table.push((503, vec![("retry-after", "99999999999")], ("dead", 0, 259_200)));
    // Others are heeded for the event alone.
    table.push((404, vec![("retry-after", "120")], ("backoff", 120, 0)));
    table.push((500, vec![("retry-after", "120")], ("backoff", 120, 0)));
    table.push((200, vec![("retry-after", "120")], DELIVERED));
    assert!(table.len() >= 60, "{}", table.len());

    let mut by_tenant = BTreeMap::new();
    for (number, (status, headers, expected)) in table.into_iter().enumerate() {
        let own = Key::new(format!("t{number:03}")).unwrap();
        let said = with(status, &headers);
        let (front, _) = sink(move |_, _| said.clone()).await;
        let id = endpoint(&store, url(&front), |new| new.tenant = own.clone()).await;
        publish_many(&store, &own, 1).await;
        by_tenant.insert(own.to_string(), (id, format!("{status} {headers:?}"), expected, front));
    }
    let mut dispatcher = start(&store).await;
    while dispatcher.step().await.unwrap().claimed > 0 {}
    let mut reader = store.read().await.unwrap();
    let sql = "SELECT d.tenant, d.state, d.due_at, d.attempts, e.throttled_until FROM twiceproof_deliveries d
        JOIN twiceproof_endpoints e ON e.tenant = d.tenant AND e.id = d.endpoint";
    let rows: Vec<(String, String, i64, i64, Option<i64>)> = reader.conn().fetch_all(sql, &[]).await.unwrap();
    assert_eq!(rows.len(), by_tenant.len());
    let now = clock.now().as_millis();
    for (tenant, state, due_at, attempts, throttled_until) in rows {
        let (_, shown, (wanted, seconds, closed), _) = &by_tenant[&tenant];
        assert_eq!((state.as_str(), attempts), (*wanted, 1), "{shown}");
        let wait = if state == "backoff" { due_at - now } else { 0 };
        let most = i64::try_from(*seconds).unwrap() * 1_000;
        assert!((most / 2..=most).contains(&wait), "{shown}: {wait}");
        let shut = throttled_until.map_or(0, |until| until - now);
        let closed = i64::try_from(*closed).unwrap() * 1_000;
        assert!((closed - 500..=closed).contains(&shut), "{shown}: {shut}");
    }
}

async fn gives_up(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    for (status, json, state) in [
        (422, r#"{"statuses": {"4xx": "giveUp", "404": "retry", "401": "disable"}}"#, "dead"),
        (404, r#"{"statuses": {"4xx": "giveUp", "404": "retry", "401": "disable"}}"#, "backoff"),
        (401, r#"{"statuses": {"4xx": "giveUp", "404": "retry", "401": "disable"}}"#, "parked"),
        (410, r#"{"statuses": {"410": "giveUp"}}"#, "dead"),
        (410, r#"{"statuses": {"410": "retry"}}"#, "backoff"),
        (200, r#"{"statuses": {"3xx": "giveUp"}}"#, "delivered"),
        (500, r#"{"schedule": []}"#, "dead"),
        (500, r#"{"schedule": [1]}"#, "backoff"),
    ] {
        let own = Key::new(format!("t{status}{}", clock.now().as_millis())).unwrap();
        let (front, _) = sink(move |_, _| answer(status)).await;
        let id = endpoint(&store, url(&front), |new| {
            new.tenant = own.clone();
            new.policy = policy(json);
        })
        .await;
        publish_many(&store, &own, 1).await;
        let mut dispatcher = start(&store).await;
        dispatcher.step().await.unwrap();
        dispatcher.stop().await;
        let mut reader = store.read().await.unwrap();
        let sql = "SELECT state FROM twiceproof_deliveries WHERE endpoint = $1";
        let (seen,): (String,) = reader.conn().fetch_one(sql, &[id.as_str().into()]).await.unwrap();
        assert_eq!(seen, state, "{status} {json}");
        clock.advance(Duration::from_millis(1));
    }
    let refused = manager(&store)
        .create_now(NewEndpoint {
            policy: policy(r#"{"horizon": 0}"#),
            ..NewEndpoint::new(tenant(), "http://a.example/")
        })
        .await;
    assert!(refused.is_err());
}

async fn own_horizon(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|_, _| answer(500)).await;
    let id =
        endpoint(&store, url(&front), |new| new.policy = policy(r#"{"schedule": [60, 60, 60], "horizon": 130}"#)).await;
    endpoint(&store, url(&front), |new| new.enabled = false).await;
    publish(&store, event("{}")).await;
    assert_eq!(stored(&store, &id).await.policy.horizon(), Some(Duration::from_secs(130)));
    let mut reader = store.read().await.unwrap();
    let sql = "SELECT deadline_at - created_at FROM twiceproof_deliveries ORDER BY deadline_at";
    let lives: Vec<(i64,)> = reader.conn().fetch_all(sql, &[]).await.unwrap();
    assert_eq!(lives, [(130_000,), (259_200_000,)]);
    drop(reader);
    let mut dispatcher = start(&store).await;
    for _ in 0..10 {
        dispatcher.step().await.unwrap();
        clock.advance(Duration::from_secs(60));
    }
    assert!((3..=4).contains(&seen.lock().unwrap().len()));
    assert_eq!(states(&store).await["dead"], 1);
}

/// Takes five in a second and answers 429 to all others.
async fn patience(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (time, second) = (clock.clone(), Arc::new(AtomicUsize::new(0)));
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let (front, seen) = sink(move |_, _| {
        let now = usize::try_from(time.now().as_secs()).unwrap();
        if second.swap(now, Ordering::SeqCst) != now {
            counted.store(0, Ordering::SeqCst);
        }
        if counted.fetch_add(1, Ordering::SeqCst) < 5 { answer(200) } else { with(429, &[("retry-after", "2")]) }
    })
    .await;
    let id = endpoint(&store, url(&front), |_| {}).await;
    publish_many(&store, &tenant(), 200).await;
    let mut dispatcher = start(&store).await;
    dispatcher.step().await.unwrap();
    let burst = seen.lock().unwrap().len();
    assert_eq!(burst, 32, "the first ones find out, as many as it has slots");
    assert_eq!(dispatcher.step().await.unwrap().claimed, 0, "then nothing is sent before its time");
    clock.advance(Duration::from_millis(1_999));
    assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
    clock.advance(Duration::from_millis(1));
    let mut rounds = 0;
    while states(&store).await.get("delivered") != Some(&200) {
        let before = seen.lock().unwrap().len();
        // All that can be sent in this second.
        while dispatcher.step().await.unwrap().claimed > 0 {}
        let sent = seen.lock().unwrap().len() - before;
        assert!(sent <= 5 + 4, "{sent} in a second to one that takes five");
        clock.advance(Duration::from_secs(1));
        rounds += 1;
        assert!(rounds < 500, "{:?}", states(&store).await);
    }
    let more = seen.lock().unwrap().len() - burst - 200;
    assert!(more < 200, "{more} sent in vain");
    assert_eq!(stored(&store, &id).await.failures_in_row, 0);
}

async fn breaker(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let down = Arc::new(AtomicUsize::new(1));
    let is_down = Arc::clone(&down);
    let (front, seen) = sink(move |_, _| answer(if is_down.load(Ordering::SeqCst) == 1 { 500 } else { 200 })).await;
    let id = endpoint(&store, url(&front), |new| new.slots = Some(50)).await;
    publish_many(&store, &tenant(), 200).await;
    let mut dispatcher = start(&store).await;
    assert_eq!(dispatcher.step().await.unwrap().claimed, 50);
    let closed = stored(&store, &id).await.closed_until.unwrap();
    assert_eq!(closed.since(clock.now()), Duration::from_secs(10), "its first step only");
    clock.advance(Duration::from_millis(9_999));
    assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
    clock.advance(Duration::from_millis(1));
    assert_eq!(dispatcher.step().await.unwrap().claimed, 1, "one probe");
    let closed = stored(&store, &id).await.closed_until.unwrap();
    assert_eq!(closed.since(clock.now()), Duration::from_secs(20), "twice as long");
    let mut reader = store.read().await.unwrap();
    let (attempts,): (i64,) =
        reader.conn().fetch_one("SELECT CAST(sum(attempts) AS BIGINT) FROM twiceproof_deliveries", &[]).await.unwrap();
    assert_eq!((attempts, seen.lock().unwrap().len()), (51, 51), "waiting costs no attempts");
    drop(reader);
    down.store(0, Ordering::SeqCst);
    clock.advance(Duration::from_secs(20));
    let mut widths = Vec::new();
    loop {
        match dispatcher.step().await.unwrap().claimed {
            0 => break,
            width => widths.push(width),
        }
    }
    assert_eq!(widths[..6], [1, 2, 4, 8, 16, 32], "it comes back slowly");
    assert_eq!(states(&store).await, only("delivered", 200));
    assert_eq!(stored(&store, &id).await.failing_since, None);
}

async fn outage(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let end = clock.now().plus(Duration::from_secs(48 * 3600));
    let time = clock.clone();
    let (front, seen) = sink(move |_, _| answer(if time.now() < end { 503 } else { 200 })).await;
    endpoint(&store, url(&front), |_| {}).await;
    publish_many(&store, &tenant(), 1_000).await;
    let mut dispatcher = start(&store).await;
    while clock.now() < end {
        dispatcher.step().await.unwrap();
        clock.advance(Duration::from_secs(300));
    }
    // One batch, and a probe for each step: at most one in five minutes, as often as anybody looked.
    let probes = seen.lock().unwrap().len();
    assert!((48 * 3..=32 + 48 * 4 + 10).contains(&probes), "{probes}");
    for _ in 0..400 {
        while dispatcher.step().await.unwrap().claimed > 0 {}
        clock.advance(Duration::from_secs(300));
    }
    assert_eq!(states(&store).await, only("delivered", 1_000), "none of them died of waiting");
}

async fn restart(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|_, _| answer(500)).await;
    endpoint(&store, url(&front), |_| {}).await;
    publish_many(&store, &tenant(), 100).await;
    let mut dispatcher = start(&store).await;
    dispatcher.step().await.unwrap();
    dispatcher.stop().await;
    let before = seen.lock().unwrap().len();
    let mut dispatcher = start(&store).await;
    dispatcher.step().await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), before);
    clock.advance(Duration::from_secs(10));
    dispatcher.step().await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), before + 1);
}

async fn failing(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let down = Arc::new(AtomicUsize::new(1));
    let is_down = Arc::clone(&down);
    let (front, _) = sink(move |_, _| answer(if is_down.load(Ordering::SeqCst) == 1 { 500 } else { 200 })).await;
    let id = endpoint(&store, url(&front), |_| {}).await;
    let mut dispatcher = start(&store).await;
    // An event each six hours: the first ones die at their horizon before.
    for _ in 0..4 * 5 {
        publish(&store, event("{}")).await;
        dispatcher.step().await.unwrap();
        assert!(stored(&store, &id).await.enabled);
        clock.advance(Duration::from_secs(6 * 3600));
    }
    publish(&store, event("{}")).await;
    dispatcher.step().await.unwrap();
    let endpoint = stored(&store, &id).await;
    assert_eq!((endpoint.enabled, endpoint.state_reason.as_deref()), (false, Some("failing")));
    let states_then = states(&store).await;
    assert!(states_then["parked"] > 5, "{states_then:?}");
    assert!(states_then.keys().all(|state| ["parked", "dead"].contains(&state.as_str())), "{states_then:?}");
    down.store(0, Ordering::SeqCst);
    let mut tx = store.begin().await.unwrap();
    manager(&store).enable(&mut tx.conn(), &tenant(), &id).await.map(drop).unwrap();
    tx.commit().await.unwrap();
    while dispatcher.step().await.unwrap().claimed > 0 {}
    assert_eq!(states(&store).await["delivered"], states_then["parked"]);
}

/// How many are delivered in ten seconds in which somebody looks twenty times a second.
async fn in_ten_seconds(clock: &ManualClock, dispatchers: &mut [Dispatcher]) -> u64 {
    let mut delivered = 0;
    for _ in 0..200 {
        for dispatcher in &mut *dispatchers {
            delivered += dispatcher.step().await.unwrap().recorded.delivered;
        }
        clock.advance(Duration::from_millis(50));
    }
    delivered
}

async fn rate_limit(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, _) = sink(|_, _| answer(200)).await;
    let id = endpoint(&store, url(&front), |new| new.rate_limit = Some(5)).await;
    publish_many(&store, &tenant(), 300).await;
    let mut dispatchers = [start(&store).await];
    let delivered = in_ten_seconds(&clock, &mut dispatchers).await;
    assert!((49..=51).contains(&delivered), "{delivered}");
    let mut tx = store.begin().await.unwrap();
    let change = EndpointChange { rate_limit: Some(None), ..EndpointChange::default() };
    manager(&store).change(&mut tx.conn(), &tenant(), &id, change).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(dispatchers[0].step().await.unwrap().claimed, 32, "as many as it has slots");
}

async fn limited_tenant(store: &Store, id: &str, per_second: i64) {
    let mut tx = store.begin().await.unwrap();
    let sql = "INSERT INTO twiceproof_tenants (organisation, id, name, rate_limit, created_at) VALUES ('org_1', $1, '', $2, 0)";
    tx.conn().execute(sql, &[id.into(), per_second.into()]).await.unwrap();
    tx.commit().await.unwrap();
}

async fn tenant_limit(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, _) = sink(|_, _| answer(200)).await;
    for _ in 0..3 {
        endpoint(&store, url(&front), |_| {}).await;
    }
    limited_tenant(&store, tenant().as_str(), 5).await;
    publish_many(&store, &tenant(), 100).await;
    let other = Key::new("other").unwrap();
    endpoint(&store, url(&front), |new| new.tenant = other.clone()).await;
    publish_many(&store, &other, 20).await;
    let mut dispatchers = [start(&store).await];
    let delivered = in_ten_seconds(&clock, &mut dispatchers).await;
    assert!((49..=51).contains(&(delivered - 20)), "{delivered}");
}

/// On SQLite one process has one worker.
async fn two_workers(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, _) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |new| new.rate_limit = Some(20)).await;
    publish_many(&store, &tenant(), 400).await;
    let mut dispatchers = vec![start(&store).await];
    if store.database() == twiceproof_shared::store::Database::Postgres {
        dispatchers.push(start(&store).await);
    }
    let delivered = in_ten_seconds(&clock, &mut dispatchers).await;
    assert!((195..=205).contains(&delivered), "{delivered}");
}

async fn slots(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, _) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |new| new.slots = Some(5)).await;
    publish_many(&store, &tenant(), 20).await;
    let mut dispatcher = start(&store).await;
    let mut claimed = Vec::new();
    for _ in 0..4 {
        claimed.push(dispatcher.step().await.unwrap().claimed);
        clock.advance(Duration::from_millis(1));
    }
    assert_eq!(claimed, [5, 5, 5, 5]);
}

async fn tenants(bed: Bed) {
    let (_, store) = timed(&bed).await;
    let (front, _) = sink(|_, _| answer(200)).await;
    let (many, one) = (Key::new("many").unwrap(), Key::new("one").unwrap());
    for _ in 0..40 {
        endpoint(&store, url(&front), |new| new.tenant = many.clone()).await;
    }
    endpoint(&store, url(&front), |new| new.tenant = one.clone()).await;
    publish_many(&store, &many, 10).await;
    publish_many(&store, &one, 40).await;
    let mut options = options();
    options.policy.slots_per_worker = 20;
    let mut dispatcher = Dispatcher::start(&store, options).await.unwrap();
    for _ in 0..4 {
        assert_eq!(dispatcher.step().await.unwrap().claimed, 20);
    }
    let mut reader = store.read().await.unwrap();
    let sql = "SELECT tenant, count(*), count(DISTINCT endpoint) FROM twiceproof_deliveries WHERE state = 'delivered'
        GROUP BY tenant ORDER BY tenant";
    let rows: Vec<(String, i64, i64)> = reader.conn().fetch_all(sql, &[]).await.unwrap();
    assert_eq!(rows, [("many".to_owned(), 40, 40), ("one".to_owned(), 40, 1)], "and each of the many had its turn");
}
