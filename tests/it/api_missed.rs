//! "What this endpoint missed", through the REST API.

use std::time::Duration;

use serde_json::Value;
use twiceproof::dispatcher::Dispatcher;

use crate::api_kit::{Client, Rest, text};
use crate::dispatch::{answer, options, sink, timed, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("api::what_an_endpoint_missed_is_listed_with_the_reason", reasons);
    suite.both("api::a_list_of_what_was_missed_goes_on_over_pages_with_nothing_on_them", empty_pages);
    suite.both("api::horizon_and_retention_can_be_read", policy);
    suite.both("api::attempts_say_where_their_time_went", timings);
}

async fn missed(client: &Client, path: &str) -> Vec<(String, String, String)> {
    let list = client.get(path).await.json(200);
    let entry = |one: &Value| {
        let reason = one["reason"].as_str().unwrap_or_default().to_owned();
        (text(&one["id"]), text(&one["missed"]), reason)
    };
    list["data"].as_array().unwrap().iter().map(entry).collect()
}

async fn reasons(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let client = Rest::new(&store).organisation(1);
    let (front, _) = sink(|_, message| answer(if message.body.as_ref() == b"{\"bad\":1}" { 422 } else { 200 })).await;
    client.application("a").await;
    let step = Duration::from_millis(10);
    let early = client.message("a", "order.paid", "").await;
    clock.advance(step);
    let other = client.message("a", "invoice.paid", "").await;
    clock.advance(step);
    let more = r#","eventTypes":["order.paid"],"policy":{"statuses":{"422":"giveUp"}}"#;
    client.endpoint("a", "e", &url(&front), more).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    let taken = client.message("a", "order.paid", "").await;
    clock.advance(step);
    let bad = r#"{"eventType":"order.paid","payload":{"bad":1}}"#;
    let dead = text(&client.post("/app/a/msg", bad).await.json(202)["id"]);
    dispatcher.step().await.unwrap();
    clock.advance(step);
    client.patch("/app/a/endpoint/e", r#"{"disabled":true}"#).await.json(200);
    let parked = client.message("a", "order.paid", "").await;
    let path = "/app/a/endpoint/e/missed";
    let all = missed(&client, path).await;
    let expected = [
        (parked.as_str(), "parked", "endpoint_disabled"),
        (dead.as_str(), "dead", "given_up"),
        (early.as_str(), "neverOwed", ""),
    ];
    let as_texts: Vec<_> =
        all.iter().map(|(id, missed, reason)| (id.as_str(), missed.as_str(), reason.as_str())).collect();
    assert_eq!(as_texts, expected, "neither what it has nor what it does not take");
    assert!(!all.iter().any(|(id, ..)| *id == taken || *id == other));
    // A wider filter takes more of the past.
    client.patch("/app/a/endpoint/e", r#"{"eventTypes":null}"#).await.json(200);
    assert_eq!(missed(&client, path).await.len(), 4);
    assert_eq!(missed(&client, &format!("{path}?event_types=invoice.paid")).await.len(), 1);
    assert_eq!(missed(&client, &format!("{path}?limit=1")).await.len(), 1);
    // What waits for its next attempt is not missed.
    client.patch("/app/a/endpoint/e", r#"{"disabled":false}"#).await.json(200);
    assert_eq!(missed(&client, path).await.len(), 3);
    // A replay of what is missing leaves nothing of it.
    let replay = r#"{"since":"2020-01-01T00:00:00Z","what":"missing"}"#;
    client.post("/app/a/endpoint/e/replay", replay).await.json(202);
    let policy = twiceproof::dispatcher::Policy::default();
    while twiceproof::dispatcher::replay::Replayer::new(&store, &policy).step().await.unwrap() {}
    assert_eq!(missed(&client, path).await.len(), 1);
    // Others see nothing of it.
    let stranger = Rest::new(&store).organisation(2);
    stranger.get(path).await.json(404);
    client.application("b").await;
    client.get("/app/b/endpoint/e/missed").await.json(404);
}

async fn empty_pages(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let client = Rest::new(&store).organisation(1);
    client.application("a").await;
    let first = client.message("a", "rare", "").await;
    clock.advance(Duration::from_millis(10));
    let tenant = text(&client.get("/app/a").await.json(200)["id"]);
    let tenant = twiceproof_shared::key::Key::new(tenant).unwrap();
    let publisher = twiceproof::dispatcher::Publisher::new(&store, &twiceproof::dispatcher::Policy::default());
    let mut seen = vec![first];
    for stretch in 0..5 {
        let event = twiceproof::dispatcher::NewEvent::json(tenant.clone(), "common", "{}".to_owned());
        let mut tx = store.begin().await.unwrap();
        publisher.publish_many(&mut tx.conn(), vec![event; 500]).await.unwrap().1.send();
        tx.commit().await.unwrap();
        clock.advance(Duration::from_millis(10));
        if stretch == 3 {
            seen.push(client.message("a", "rare", "").await);
            clock.advance(Duration::from_millis(10));
        }
    }
    client.endpoint("a", "e", "http://127.0.0.1:9/", r#","eventTypes":["rare"]"#).await;
    for order in ["", "-"] {
        let (mut found, mut pages, mut iterator) = (Vec::new(), 0, order.to_owned());
        loop {
            let page = client.get(&format!("/app/a/endpoint/e/missed?limit=1&iterator={iterator}")).await.json(200);
            let ids = page["data"].as_array().unwrap().iter().map(|one| text(&one["id"]));
            found.extend(ids);
            pages += 1;
            if page["done"] == true {
                break;
            }
            iterator = text(&page[if order.is_empty() { "iterator" } else { "prevIterator" }]);
            assert!(pages < 12, "it goes on for ever");
        }
        let mut expected = seen.clone();
        if order.is_empty() {
            expected.reverse();
        }
        assert_eq!(found, expected, "{order:?}");
        assert!(pages >= 3, "{pages} pages for 2,500 events");
    }
}

async fn timings(bed: Bed) {
    let (_clock, store) = timed(&bed).await;
    let client = Rest::new(&store).organisation(1);
    let (front, _) = sink(|_, _| answer(200)).await;
    client.application("a").await;
    client.endpoint("a", "e", &url(&front), "").await;
    client.message("a", "order.paid", "").await;
    Dispatcher::start(&store, options()).await.unwrap().step().await.unwrap();
    let list = client.get("/app/a/attempt/endpoint/e").await.json(200);
    let attempt = &list["data"][0];
    assert_eq!(attempt["resolvedMs"], Value::Null, "an address needs no look-up");
    let (connected, answered) = (attempt["connectedMs"].as_i64().unwrap(), attempt["answeredMs"].as_i64().unwrap());
    assert!(connected <= answered, "{attempt}");
}

async fn policy(bed: Bed) {
    let (_clock, store) = timed(&bed).await;
    let policy = Rest::new(&store).organisation(1).get("/policy").await.json(200);
    assert_eq!((&policy["horizon"], &policy["shortestReceiverRetention"]), (&259_200.into(), &311_040.into()));
    assert_eq!((&policy["schedule"][0], &policy["repeatsLast"]), (&5.0.into(), &true.into()));
    assert_eq!(policy["eventRetention"], Value::Null, "nobody said");
    Rest::new(&store).client("no token").get("/policy").await.json(401);
}
