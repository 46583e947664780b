//! What is old goes, in small batches, and nothing else does.

use std::sync::Arc;
use std::time::Duration;

use twiceproof::dispatcher::{
    AddressPolicy, Dispatcher, DispatcherOptions, Manager, NewEndpoint, NewEvent, Policy, Publisher, Purge, Retention,
    StartError,
};
use twiceproof_shared::clock::{Clock, ManualClock, Timestamp};
use twiceproof_shared::key::Key;
use twiceproof_shared::ledger;
use twiceproof_shared::store::Store;

use crate::harness::{Bed, Suite};
use crate::kit::{effects, receiving, signed};

pub fn register(suite: &mut Suite) {
    suite.both("retention::send_b6_an_event_with_an_open_delivery_is_kept_however_old_it_is", open_stays);
    suite.both("retention::an_event_of_many_endpoints_goes_in_small_batches", small_batches);
    suite.both("retention::send_b4_workers_that_purge_at_once_neither_wait_nor_fail", side_by_side);
    suite.both("retention::an_attempt_that_comes_after_its_event_has_gone_goes_too", orphans);
    suite.both("retention::events_are_not_forgotten_before_their_last_copy_can_come", too_short);
    suite.both("retention::a_late_duplicate_of_a_forgotten_answer_is_ignored", late_duplicate);
    suite.both("retention::emptied_keys_and_conflicts_are_forgotten_in_the_end", forgotten);
    suite.both("retention::the_time_an_endpoint_was_disabled_is_not_counted_towards_the_horizon", parked_time);
    suite.both("retention::parked_deliveries_of_an_endpoint_that_is_gone_come_to_an_end", parked_of_nobody);
}

const DAY: Duration = Duration::from_secs(86_400);

async fn timed(bed: &Bed) -> (ManualClock, Store) {
    let clock = ManualClock::new(Timestamp::from_secs(1_700_000_000));
    let store = bed.db.store(Some(Arc::new(clock.clone()))).await.unwrap();
    (clock, store)
}

fn tenant() -> Key {
    Key::new("default").unwrap()
}

fn manager(store: &Store) -> Manager {
    Manager::new(store, AddressPolicy::AllowPrivate, &Policy::default())
}

async fn endpoint(store: &Store) -> String {
    let new = NewEndpoint::new(tenant(), "http://127.0.0.1:9/hook");
    manager(store).create_now(new).await.unwrap().endpoint.id
}

async fn publish(store: &Store, count: usize) -> Vec<String> {
    let publisher = Publisher::new(store, &Policy::default());
    let mut tx = store.begin().await.unwrap();
    let events = (0..count).map(|n| NewEvent::json(tenant(), "order.placed", n.to_string())).collect();
    let (published, _) = publisher.publish_many(&mut tx.conn(), events).await.unwrap();
    tx.commit().await.unwrap();
    published.into_iter().map(|one| one.unwrap().id.to_string()).collect()
}

async fn sql(store: &Store, sql: &'static str) {
    let mut tx = store.begin().await.unwrap();
    tx.conn().execute(sql, &[]).await.unwrap();
    tx.commit().await.unwrap();
}

/// As if each had been delivered by its first attempt.
async fn deliver_all(store: &Store) {
    sql(
        store,
        "INSERT INTO twiceproof_attempts (tenant, id, event, endpoint, number, token, outcome, started_at, ended_at)
         SELECT tenant, 'atmpt_' || substr(event, 5, 20) || substr(endpoint, 24), event, endpoint, 1, 1, 'delivered', created_at, created_at
         FROM twiceproof_deliveries WHERE state <> 'delivered'",
    )
    .await;
    sql(store, "UPDATE twiceproof_deliveries SET state = 'delivered', final_at = created_at").await;
}

/// Events, deliveries and attempts that are there.
async fn left(store: &Store) -> (i64, i64, i64) {
    let sql = "SELECT (SELECT count(*) FROM twiceproof_events), (SELECT count(*) FROM twiceproof_deliveries),
                   (SELECT count(*) FROM twiceproof_attempts)";
    store.read().await.unwrap().conn().fetch_one(sql, &[]).await.unwrap()
}

/// Walks to the end; how many batches deleted something.
async fn purge_all(purge: &mut Purge) -> u32 {
    let mut batches = 0;
    loop {
        let purged = purge.step().await.unwrap();
        assert!(purged.events.max(purged.deliveries).max(purged.attempts) <= 250, "{purged:?}");
        if !purged.more {
            return batches;
        }
        batches += u32::from(purged.events + purged.deliveries + purged.attempts > 0);
    }
}

async fn open_stays(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let endpoint = endpoint(&store).await;
    publish(&store, 4).await;
    deliver_all(&store).await;
    let mut tx = store.begin().await.unwrap();
    manager(&store).disable(&mut tx.conn(), &tenant(), &endpoint).await.unwrap();
    tx.commit().await.unwrap();
    publish(&store, 3).await;
    let mut purge = Purge::new(&store, 30 * DAY);
    clock.advance(30 * DAY - Duration::from_secs(60));
    purge_all(&mut purge).await;
    assert_eq!(left(&store).await, (7, 7, 4), "none is old enough");
    clock.advance(Duration::from_secs(120));
    publish(&store, 2).await;
    assert_eq!(purge_all(&mut purge).await, 1);
    // What is parked waits for its endpoint, what is new for its time.
    assert_eq!(left(&store).await, (5, 5, 0));
    sql(&store, "UPDATE twiceproof_deliveries SET state = 'dead', final_at = 1 WHERE state = 'parked'").await;
    purge_all(&mut purge).await;
    clock.advance(31 * DAY);
    purge_all(&mut purge).await;
    assert_eq!(left(&store).await, (0, 0, 0));
}

async fn small_batches(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    for _ in 0..300 {
        endpoint(&store).await;
    }
    publish(&store, 3).await;
    deliver_all(&store).await;
    assert_eq!(left(&store).await, (3, 900, 900));
    clock.advance(31 * DAY);
    // Each worker that takes over begins anew; nothing depends on where the last one was.
    let mut batches = 0;
    while left(&store).await.0 > 0 {
        let purged = Purge::new(&store, 30 * DAY).step().await.unwrap();
        assert!(purged.deliveries <= 250 && purged.attempts <= 250, "{purged:?}");
        batches += 1;
        assert!(batches < 20, "{:?}", left(&store).await);
    }
    assert!(batches >= 4, "{batches}");
    assert_eq!(left(&store).await, (0, 0, 0));
}

async fn side_by_side(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    endpoint(&store).await;
    publish(&store, 1_500).await;
    deliver_all(&store).await;
    clock.advance(31 * DAY);
    let purge = async || purge_all(&mut Purge::new(&store, 30 * DAY)).await;
    let publishing = async {
        for _ in 0..20 {
            publish(&store, 5).await;
        }
    };
    let _ = futures_util::future::join4(purge(), purge(), purge(), publishing).await;
    // What one of them held at the moment was passed over by the others.
    purge().await;
    assert_eq!(left(&store).await, (100, 100, 0));
}

async fn orphans(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    endpoint(&store).await;
    publish(&store, 2).await;
    deliver_all(&store).await;
    sql(&store, "DELETE FROM twiceproof_deliveries WHERE seq = (SELECT min(seq) FROM twiceproof_deliveries)").await;
    sql(&store, "DELETE FROM twiceproof_events WHERE seq = (SELECT min(seq) FROM twiceproof_events)").await;
    let mut purge = Purge::new(&store, 30 * DAY);
    purge_all(&mut purge).await;
    assert_eq!(left(&store).await, (1, 1, 2), "an attempt is kept as long as an event");
    // The other event stays, and so does its attempt.
    sql(&store, "UPDATE twiceproof_deliveries SET state = 'backoff'").await;
    clock.advance(31 * DAY);
    purge_all(&mut purge).await;
    assert_eq!(left(&store).await, (1, 1, 1));
}

async fn too_short(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let mut options = DispatcherOptions { retention: Retention::of_events(3 * DAY), ..DispatcherOptions::default() };
    let refused = Dispatcher::start(&store, options.clone()).await;
    assert!(matches!(refused, Err(StartError::Retention(_))), "{refused:?}");
    options.retention.allow_short = true;
    Dispatcher::start(&store, options.clone()).await.unwrap().stop().await;
    // Without a word about it, the retention follows the horizon.
    options.retention = Retention::default();
    options.policy.horizon = 100 * DAY;
    assert_eq!(options.retention.under(&options.policy).unwrap(), 120 * DAY);
    Dispatcher::start(&store, options).await.unwrap().stop().await;
}

async fn late_duplicate(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (store, receiving) = receiving(store).await;
    let retention = ledger::Retention::default();
    let first = receiving.send(&signed("msg_1", "a", clock.now())).await;
    assert_eq!(first.status, 200);
    clock.advance(30 * DAY - Duration::from_secs(1));
    assert_eq!(ledger::purge(&store, &retention).await.unwrap(), ledger::Purged::default());
    assert_eq!(receiving.send(&signed("msg_1", "a", clock.now())).await.body, first.body, "the answer is still there");
    clock.advance(Duration::from_secs(2));
    let purged = ledger::purge(&store, &retention).await.unwrap();
    assert_eq!((purged.emptied, purged.deleted, purged.more), (1, 0, false));
    let kept: (String, Option<i64>, Option<String>, Option<Vec<u8>>) = store
        .read()
        .await
        .unwrap()
        .conn()
        .fetch_one("SELECT state, outcome_status, outcome_headers, outcome_body FROM twiceproof_ledger", &[])
        .await
        .unwrap();
    assert_eq!(kept, ("expired".to_owned(), None, None, None));
    // Ignored: nothing runs. Reported: by its marker, an empty body, and a warning in the log.
    for _ in 0..2 {
        let late = receiving.send(&signed("msg_1", "a", clock.now())).await;
        assert_eq!((late.status.as_u16(), late.body.as_ref()), (200, b"".as_slice()));
        assert_eq!(late.headers.get("idempotent-replayed").unwrap(), "true");
    }
    // Another payload under the old key is as much of a conflict as before.
    let other = receiving.send(&signed("msg_1", "b", clock.now())).await;
    assert!(other.status.is_success() && other.headers.get("idempotent-replayed").is_none());
    assert_eq!(effects(&store).await, [("msg_1".to_owned(), b"a".to_vec())]);
    assert_eq!(kept_rows(&store).await, (1, 1));
}

/// Keys and conflicts that are there.
async fn kept_rows(store: &Store) -> (i64, i64) {
    let sql = "SELECT (SELECT count(*) FROM twiceproof_ledger), (SELECT count(*) FROM twiceproof_conflicts)";
    store.read().await.unwrap().conn().fetch_one(sql, &[]).await.unwrap()
}

async fn forgotten(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (store, receiving) = receiving(store).await;
    let retention = ledger::Retention::default();
    for n in 0..3 {
        receiving.send(&signed(&format!("msg_{n}"), "a", clock.now())).await;
        receiving.send(&signed(&format!("msg_{n}"), "b", clock.now())).await;
    }
    // A claim that nobody finished is not touched: what came of it is not known.
    sql(&store, "UPDATE twiceproof_ledger SET state = 'claimed' WHERE key = 'msg_2'").await;
    clock.advance(31 * DAY);
    assert_eq!(ledger::purge(&store, &retention).await.unwrap().emptied, 2);
    clock.advance(58 * DAY);
    // Seen again, one of the conflicts stays for longer.
    receiving.send(&signed("msg_0", "b", clock.now())).await;
    clock.advance(2 * DAY);
    let purged = ledger::purge(&store, &retention).await.unwrap();
    assert_eq!((purged.deleted, purged.conflicts), (0, 2));
    clock.advance(338 * DAY);
    assert_eq!(ledger::purge(&store, &retention).await.unwrap().deleted, 0);
    clock.advance(2 * DAY);
    assert_eq!(ledger::purge(&store, &retention).await.unwrap().deleted, 2);
    assert_eq!(kept_rows(&store).await, (1, 0));
}

async fn parked_time(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let endpoint = endpoint(&store).await;
    publish(&store, 1).await;
    let change = async |enable: bool| {
        let mut tx = store.begin().await.unwrap();
        let manager = manager(&store);
        match enable {
            true => drop(manager.enable(&mut tx.conn(), &tenant(), &endpoint).await.unwrap()),
            false => manager.disable(&mut tx.conn(), &tenant(), &endpoint).await.unwrap(),
        }
        tx.commit().await.unwrap();
    };
    clock.advance(DAY);
    change(false).await;
    publish(&store, 1).await;
    clock.advance(20 * DAY);
    change(true).await;
    clock.advance(DAY);
    change(false).await;
    clock.advance(5 * DAY);
    change(true).await;
    let sql = "SELECT (deadline_at - created_at) / 86400000 FROM twiceproof_deliveries ORDER BY seq";
    let days: Vec<(i64,)> = store.read().await.unwrap().conn().fetch_all(sql, &[]).await.unwrap();
    assert_eq!(days, [(28,), (28,)], "three days, and the 25 for which it was disabled");
}

async fn parked_of_nobody(bed: Bed) {
    let (_, store) = timed(&bed).await;
    for _ in 0..3 {
        endpoint(&store).await;
    }
    publish(&store, 2).await;
    let enabled: (String,) = {
        let mut reader = store.read().await.unwrap();
        reader.conn().fetch_one("SELECT min(id) FROM twiceproof_endpoints", &[]).await.unwrap()
    };
    sql(&store, "UPDATE twiceproof_deliveries SET state = 'parked'").await;
    sql(&store, "DELETE FROM twiceproof_endpoints WHERE id = (SELECT max(id) FROM twiceproof_endpoints)").await;
    sql(
        &store,
        "UPDATE twiceproof_endpoints SET state = 'disabled' WHERE id <> (SELECT min(id) FROM twiceproof_endpoints)",
    )
    .await;
    let mut options = DispatcherOptions::default();
    options.sender.addresses = AddressPolicy::AllowPrivate;
    let mut dispatcher = Dispatcher::start(&store, options).await.unwrap();
    let step = dispatcher.step().await.unwrap();
    assert_eq!((step.claimed, step.recorded.retried), (2, 2), "what was left over at {enabled:?} is on its way");
    let counted: Vec<(String, i64)> = {
        let mut reader = store.read().await.unwrap();
        let sql = "SELECT state, count(*) FROM twiceproof_deliveries GROUP BY state ORDER BY state";
        reader.conn().fetch_all(sql, &[]).await.unwrap()
    };
    assert_eq!(counted, [("backoff".to_owned(), 2), ("dead".to_owned(), 2), ("parked".to_owned(), 2)]);
}
