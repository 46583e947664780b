//! Events for more endpoints than one transaction should write: in pages, each endpoint once, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use twiceproof::dispatcher::{AddressPolicy, Dispatcher, Manager, NewEndpoint, NewEvent, Policy, Publisher};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use crate::dispatch::{answer, endpoint, event, options, publish, sink, tenant, timed, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("fan_outs::an_event_for_1200_endpoints_is_made_in_pages_and_reaches_each_once", pages);
    suite.both("fan_outs::five_hundred_endpoints_are_fanned_out_by_the_publish_itself", five_hundred);
    suite.both("fan_outs::an_event_with_a_key_never_overtakes_a_fan_out_of_its_tenant", in_order);
    suite.both("fan_outs::many_wide_tenants_take_turns", turns);
    suite.both("fan_outs::an_event_on_its_way_is_not_forgotten_by_retention", retention);
}

/// `count` endpoints of a tenant at one URL, in few transactions.
async fn many(store: &Store, tenant: &Key, url: &str, count: usize) -> Vec<String> {
    let manager = Manager::new(store, AddressPolicy::AllowPrivate, &Policy::default());
    let mut ids = Vec::new();
    while ids.len() < count {
        let mut tx = store.begin().await.unwrap();
        for _ in 0..(count - ids.len()).min(200) {
            let new = NewEndpoint { timeout: Some(Duration::from_secs(60)), ..NewEndpoint::new(tenant.clone(), url) };
            ids.push(manager.create(&mut tx.conn(), new).await.unwrap().endpoint.id);
        }
        tx.commit().await.unwrap();
    }
    ids
}

async fn rows(store: &Store, table: &'static str) -> i64 {
    let sql = match table {
        "deliveries" => "SELECT count(*) FROM twiceproof_deliveries",
        _ => "SELECT count(*) FROM twiceproof_fan_outs",
    };
    let (count,): (i64,) = store.read().await.unwrap().conn().fetch_one(sql, &[]).await.unwrap();
    count
}

async fn pages(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|_, _| answer(200)).await;
    let ids = many(&store, &tenant(), &url(&front), 1_200).await;
    clock.advance(Duration::from_secs(1));
    let other = endpoint(&store, url(&front), |new| new.event_types = vec!["other".to_owned()]).await;
    clock.advance(Duration::from_secs(1));
    let id = publish(&store, event("{}")).await;
    assert_eq!((rows(&store, "deliveries").await, rows(&store, "fan_outs").await), (0, 1), "the publish leaves it");
    clock.advance(Duration::from_secs(1));
    let young = endpoint(&store, url(&front), |_| {}).await;
    let mut made = Vec::new();
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for _ in 0..60 {
        dispatcher.step().await.unwrap();
        made.push(rows(&store, "deliveries").await);
        // A worker that dies is followed by one that goes on where it was.
        dispatcher.stop().await;
        dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    }
    assert_eq!(made[..3], [500, 1_000, 1_200], "a page in each transaction");
    assert_eq!(rows(&store, "fan_outs").await, 0);
    let sql = "SELECT endpoint FROM twiceproof_deliveries WHERE state = 'delivered' AND event = $1";
    let reached: Vec<(String,)> =
        store.read().await.unwrap().conn().fetch_all(sql, &[id.as_str().into()]).await.unwrap();
    let reached: BTreeSet<String> = reached.into_iter().map(|(id,)| id).collect();
    assert_eq!(reached, ids.into_iter().collect());
    assert!(!reached.contains(&other) && !reached.contains(&young));
    assert_eq!(seen.lock().unwrap().len(), 1_200);
}

async fn five_hundred(bed: Bed) {
    let (_clock, store) = timed(&bed).await;
    many(&store, &tenant(), "http://127.0.0.1:9/", 500).await;
    publish(&store, event("{}")).await;
    assert_eq!((rows(&store, "deliveries").await, rows(&store, "fan_outs").await), (500, 0));
    many(&store, &tenant(), "http://127.0.0.1:9/", 1).await;
    publish(&store, event("{}")).await;
    assert_eq!((rows(&store, "deliveries").await, rows(&store, "fan_outs").await), (500, 1));
}

async fn in_order(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = sink(|_, _| answer(200)).await;
    let ids = many(&store, &tenant(), &url(&front), 501).await;
    clock.advance(Duration::from_secs(1));
    let ordered = |payload| NewEvent { ordering_key: Some(Key::new("a").unwrap()), ..event(payload) };
    publish(&store, ordered("1")).await;
    // From now on the publish itself could do it, and would be first.
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let mut tx = store.begin().await.unwrap();
    for id in &ids[10..] {
        manager.delete(&mut tx.conn(), &tenant(), id).await.unwrap();
    }
    tx.commit().await.unwrap();
    publish(&store, ordered("2")).await;
    publish(&store, event("free")).await;
    assert_eq!((rows(&store, "deliveries").await, rows(&store, "fan_outs").await), (10, 2));
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for _ in 0..12 {
        dispatcher.step().await.unwrap();
    }
    let mut by_body: BTreeMap<String, usize> = BTreeMap::new();
    let mut last_of_first = 0;
    let mut first_of_second = usize::MAX;
    for (place, message) in seen.lock().unwrap().iter().enumerate() {
        let body = String::from_utf8_lossy(&message.body).into_owned();
        match body.as_str() {
            "1" => last_of_first = place,
            "2" => first_of_second = first_of_second.min(place),
            _ => {}
        }
        *by_body.entry(body).or_default() += 1;
    }
    assert_eq!(by_body, [("1", 10), ("2", 10), ("free", 10)].map(|(body, n)| (body.to_owned(), n)).into());
    assert!(last_of_first < first_of_second, "at an endpoint the first is delivered before the second is claimed");
}

async fn turns(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let tenants: Vec<Key> = ["a", "b", "c"].map(|name| Key::new(name).unwrap()).into();
    for tenant in &tenants {
        many(&store, tenant, "http://127.0.0.1:9/", 1_001).await;
    }
    clock.advance(Duration::from_secs(1));
    let publisher = Publisher::new(&store, &Policy::default());
    for tenant in &tenants {
        for _ in 0..3 {
            publisher.publish_now(NewEvent { tenant: tenant.clone(), ..event("{}") }).await.unwrap();
        }
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    let mut after = Vec::new();
    for _ in 0..3 {
        dispatcher.step().await.unwrap();
        let sql = "SELECT tenant, count(*) FROM twiceproof_deliveries GROUP BY tenant ORDER BY tenant";
        let rows: Vec<(String, i64)> = store.read().await.unwrap().conn().fetch_all(sql, &[]).await.unwrap();
        after.push(rows);
    }
    let each = |count| tenants.iter().map(|tenant| (tenant.to_string(), count)).collect::<Vec<_>>();
    assert_eq!(after[2], each(500), "each had its page: {after:?}");
}

async fn retention(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    many(&store, &tenant(), "http://127.0.0.1:9/", 501).await;
    let id = publish(&store, event("{}")).await;
    clock.advance(Duration::from_secs(40 * 24 * 3600));
    let mut purge = twiceproof::dispatcher::Purge::new(&store, Duration::from_secs(30 * 24 * 3600));
    while purge.step().await.unwrap().more {}
    let sql = "SELECT count(*) FROM twiceproof_events WHERE id = $1";
    let (count,): (i64,) = store.read().await.unwrap().conn().fetch_one(sql, &[id.as_str().into()]).await.unwrap();
    assert_eq!(count, 1);
}
