//! Operational webhooks: who runs the service hears of endpoints and deliveries, by the same signed events as everybody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use twiceproof::dispatcher::manage::tenants;
use twiceproof::dispatcher::operational::TENANT;
use twiceproof::dispatcher::{AddressPolicy, Dispatcher, Manager, NewEndpoint, Policy};
use twiceproof_shared::clock::ManualClock;
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use crate::api_kit::{Client, Rest, text};
use crate::dispatch::{Seen, answer, endpoint, options, sink, states, tenant, timed, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("operational::each_of_eight_turns_is_told_once_with_a_signature_that_verifies", eight);
    suite.both("operational::what_is_rolled_back_is_not_told", rolled_back);
    suite.both("operational::nothing_is_told_of_the_listeners_own_endpoints", no_circles);
    suite.both("operational::without_a_listener_nothing_is_written", nobody);
    suite.both("operational::another_organisation_hears_nothing", strangers);
    suite.both("operational::tenants_that_nobody_entered_are_of_the_default_organisation", default_organisation);
}

/// A service with an application `a`, its endpoint `e`, and somebody who listens.
struct Stage {
    clock: ManualClock,
    store: Store,
    client: Client,
    dispatcher: Dispatcher,
    /// What `e` answers.
    status: Arc<AtomicU16>,
    e: String,
    told: Seen,
    _fronts: [twiceproof::prove::Front; 2],
}

impl Stage {
    async fn open(bed: &Bed) -> Self {
        let (clock, store) = timed(bed).await;
        let client = Rest::new(&store).organisation(1);
        let (listener, told) = sink(|_, _| answer(204)).await;
        client.application(TENANT).await;
        let secret = crate::kit::secret().to_text().to_string();
        let more = format!(r#","secret":"{secret}""#);
        client.endpoint(TENANT, "ops", &url(&listener), &more).await;
        client.application("a").await;
        let status = Arc::new(AtomicU16::new(500));
        let says = Arc::clone(&status);
        let (front, _) = sink(move |_, _| answer(says.load(Ordering::SeqCst))).await;
        let more = r#","policy":{"schedule":[60,60,60,60],"breaker":{"failures":0,"first":1,"cap":1}}"#;
        let e = client.endpoint("a", "e", &url(&front), more).await;
        let dispatcher = Dispatcher::start(&store, options()).await.unwrap();
        Self { clock, store, client, dispatcher, status, e, told, _fronts: [listener, front] }
    }

    async fn step(&mut self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        while self.dispatcher.step().await.unwrap().claimed > 0 {}
    }

    /// What was told since the last call: types and payloads.
    fn heard(&self) -> Vec<(String, Value)> {
        let mut told = self.told.lock().unwrap();
        let heard = told.drain(..).map(|message| {
            crate::dispatch::verify(&message, self.store.now());
            let payload: Value = serde_json::from_slice(&message.body).unwrap();
            (text(&payload["type"]), payload["data"].clone())
        });
        heard.collect()
    }

    fn types(&self) -> Vec<String> {
        self.heard().into_iter().map(|(name, _)| name).collect()
    }
}

async fn eight(bed: Bed) {
    let mut stage = Stage::open(&bed).await;
    stage.step(1).await;
    let heard = stage.heard();
    assert_eq!(heard.len(), 1, "{heard:?}");
    let app = text(&stage.client.get("/app/a").await.json(200)["id"]);
    let about = json!({ "appId": app, "appUid": "a", "endpointId": stage.e, "endpointUid": "e" });
    assert_eq!(heard[0], ("endpoint.created".to_owned(), about.clone()));

    stage.client.patch("/app/a/endpoint/e", r#"{"description":"new"}"#).await.json(200);
    stage.step(1).await;
    assert_eq!(stage.heard(), [("endpoint.updated".to_owned(), about)]);
    stage.client.patch("/app/a/endpoint/e", r#"{"disabled":true}"#).await.json(200);
    stage.client.patch("/app/a/endpoint/e", r#"{"disabled":true}"#).await.json(200);
    stage.step(1).await;
    let heard = stage.heard();
    assert_eq!((heard.len(), heard[0].0.as_str()), (1, "endpoint.disabled"), "once, though asked for twice: {heard:?}");
    assert_eq!(heard[0].1["reason"], "manual");
    assert!(text(&heard[0].1["failSince"]).starts_with("2023-11-14T"), "{heard:?}");
    stage.client.patch("/app/a/endpoint/e", r#"{"disabled":false}"#).await.json(200);
    stage.step(1).await;
    assert_eq!(stage.types(), ["endpoint.enabled"]);

    // The first four attempts fail; then it is well again.
    let message = stage.client.message("a", "order.paid", r#","eventId":"order-1""#).await;
    for _ in 0..3 {
        stage.step(60).await;
        assert!(stage.heard().is_empty(), "not before the fourth");
    }
    stage.step(60).await;
    let heard = stage.heard();
    assert_eq!((heard.len(), heard[0].0.as_str()), (1, "message.attempt.failing"), "{heard:?}");
    assert_eq!((&heard[0].1["msgId"], &heard[0].1["msgEventId"]), (&json!(message), &json!("order-1")));
    assert_eq!(heard[0].1["lastAttempt"]["responseStatusCode"], 500);
    let attempts = stage.client.get(&format!("/app/a/attempt/msg/{message}")).await.json(200);
    let ids: Vec<&Value> = attempts["data"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert!(ids.contains(&&heard[0].1["lastAttempt"]["id"]), "{ids:?}");
    stage.status.store(200, Ordering::SeqCst);
    stage.step(60).await;
    assert_eq!(stage.types(), ["message.attempt.recovered"]);

    // This one is never taken.
    stage.status.store(500, Ordering::SeqCst);
    stage.client.message("a", "order.paid", "").await;
    for _ in 0..6 {
        stage.step(60).await;
    }
    assert_eq!(stage.types(), ["message.attempt.failing", "message.attempt.exhausted"]);

    // And one that is gone, until somebody deletes it.
    stage.status.store(410, Ordering::SeqCst);
    stage.client.message("a", "order.paid", "").await;
    stage.step(1).await;
    let heard = stage.heard();
    assert_eq!((heard.len(), &heard[0].1["reason"]), (1, &json!("gone")), "{heard:?}");
    stage.client.delete("/app/a/endpoint/e").await.empty(204);
    stage.step(1).await;
    let heard = stage.heard();
    assert_eq!((heard[0].0.as_str(), &heard[0].1["endpointUid"]), ("endpoint.deleted", &json!("e")));
    stage.step(3600).await;
    assert!(stage.heard().is_empty());
}

async fn rolled_back(bed: Bed) {
    let mut stage = Stage::open(&bed).await;
    stage.step(1).await;
    stage.heard();
    let app = Key::new(text(&stage.client.get("/app/a").await.json(200)["id"])).unwrap();
    let manager = Manager::new(&stage.store, AddressPolicy::AllowPrivate, &Policy::default());
    for commits in [false, true] {
        let mut tx = stage.store.begin().await.unwrap();
        manager.disable(&mut tx.conn(), &app, &stage.e).await.unwrap();
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        stage.step(1).await;
        assert_eq!(stage.types().len(), usize::from(commits));
    }
}

async fn no_circles(bed: Bed) {
    let mut stage = Stage::open(&bed).await;
    stage.step(1).await;
    stage.heard();
    stage.client.endpoint(TENANT, "more", "http://127.0.0.1:9/", "").await;
    stage.client.patch(&format!("/app/{TENANT}/endpoint/more"), r#"{"disabled":true}"#).await.json(200);
    stage.client.delete(&format!("/app/{TENANT}/endpoint/more")).await.empty(204);
    for _ in 0..10 {
        stage.step(60).await;
    }
    assert!(stage.heard().is_empty(), "what is told is told of others");
}

async fn nobody(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let client = Rest::new(&store).organisation(1);
    client.application("a").await;
    let (front, _) = sink(|_, _| answer(410)).await;
    client.endpoint("a", "e", &url(&front), "").await;
    client.message("a", "order.paid", "").await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    clock.advance(Duration::from_secs(1));
    dispatcher.step().await.unwrap();
    let sql = "SELECT count(*) FROM twiceproof_events";
    let (events,): (i64,) = store.read().await.unwrap().conn().fetch_one(sql, &[]).await.unwrap();
    assert_eq!(events, 1, "the message alone");
}

async fn strangers(bed: Bed) {
    let mut stage = Stage::open(&bed).await;
    stage.step(1).await;
    stage.heard();
    let other = Rest::new(&stage.store).organisation(2);
    other.application("b").await;
    other.endpoint("b", "e", "http://127.0.0.1:9/", "").await;
    stage.step(1).await;
    assert!(stage.heard().is_empty());
}

async fn default_organisation(bed: Bed) {
    let (_clock, store) = timed(&bed).await;
    let (listener, told) = sink(|_, _| answer(204)).await;
    let home = Key::new(TENANT).unwrap();
    let mut tx = store.begin().await.unwrap();
    tenants::adopt(&mut tx.conn(), &home, store.now()).await.unwrap();
    tx.commit().await.unwrap();
    endpoint(&store, url(&listener), |new| {
        new.tenant = home.clone();
        new.event_types = vec!["endpoint.created".to_owned()];
    })
    .await;
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    manager.create_now(NewEndpoint::new(tenant(), "http://127.0.0.1:9/")).await.unwrap();
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    assert_eq!(told.lock().unwrap().len(), 1);
    assert_eq!(states(&store).await, BTreeMap::from([("delivered".to_owned(), 1)]).into_iter().collect());
}
