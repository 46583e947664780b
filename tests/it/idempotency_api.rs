//! The REST API behind the layer: its mutating routes take an `Idempotency-Key`.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};
use twiceproof::api;
use twiceproof::dispatcher::api::Api;
use twiceproof::dispatcher::api::token::{Keys, Subject};
use twiceproof::dispatcher::manage::tenants::default_organisation;
use twiceproof::dispatcher::{AddressPolicy, Manager, Policy, Publisher};
use twiceproof::prove::Answer;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use crate::harness::{Bed, Suite};
use crate::idempotency::{is_replay, send};

pub fn register(suite: &mut Suite) {
    suite.both("idempotency::b1_mutating_routes_of_the_api_take_keys", mutating);
    suite.both("idempotency::b5_a_repeated_message_has_the_id_and_the_deliveries_of_the_first", message);
    suite.both("idempotency::b3_callers_of_the_api_have_keys_of_their_own", callers);
    suite.both("idempotency::an_api_that_nobody_may_ask_keeps_nothing", refused);
}

struct Ready {
    store: Store,
    keys: Keys,
    app: Router,
}

impl Ready {
    async fn new(bed: &Bed) -> Self {
        let store = bed.db.store(None).await.unwrap();
        let (policy, keys) = (Policy::default(), Keys::new(&[7; 32]).unwrap());
        let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &policy);
        let api = Api::new(&store, Publisher::new(&store, &policy), manager, keys.clone());
        Self { app: api::service(api, &store), keys, store }
    }

    fn token(&self, subject: &Subject) -> String {
        let now = self.store.now();
        self.keys.sign(subject, now, now.plus(Duration::from_secs(600)))
    }

    async fn ask(&self, subject: &Subject, method: Method, path: &str, key: Option<&str>, body: &Value) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header("authorization", format!("Bearer {}", self.token(subject)))
            .header("content-type", "application/json");
        let request = match key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        };
        send(&self.app, request.body(Body::from(body.to_string())).unwrap()).await
    }

    async fn post(&self, path: &str, key: &str, body: &Value) -> Answer {
        self.ask(&own(), Method::POST, path, Some(key), body).await
    }

    async fn count(&self, sql: &'static str) -> i64 {
        let (count,) = self.store.read().await.unwrap().conn().fetch_one(sql, &[]).await.unwrap();
        count
    }
}

const LEDGER: &str = "SELECT count(*) FROM twiceproof_ledger";

fn own() -> Subject {
    Subject::Organisation(default_organisation())
}

fn value(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}

async fn mutating(bed: Bed) {
    let ready = Ready::new(&bed).await;
    let body = json!({"name": "one"});
    let (first, again) = (ready.post("/app", "k", &body).await, ready.post("/app", "k", &body).await);
    assert_eq!((first.status.as_u16(), is_replay(&first), is_replay(&again)), (201, false, true));
    assert_eq!(value(&first), value(&again));
    // A 422 is a list of what is wrong with the request, everything else one code and sentence: as the SDKs read them.
    let reused = ready.post("/app", "k", &json!({"name": "two"})).await;
    let said = value(&reused);
    assert_eq!((reused.status.as_u16(), &said["detail"][0]["type"]), (422, &json!("idempotency_key_reused")));
    assert_eq!(said["detail"][0]["loc"], json!(["header", "idempotency-key"]));
    let invalid = ready.post("/app", "", &body).await;
    assert_eq!((invalid.status.as_u16(), &value(&invalid)["code"]), (400, &json!("idempotency_key_invalid")));
    assert_eq!(ready.count("SELECT count(*) FROM twiceproof_conflicts").await, 0, "bodies may hold secrets");

    // What fails does not burn the key, whether it was looked at or not.
    for bad in [json!({}), json!({"name": "x", "uid": "?"})] {
        assert_eq!(ready.post("/app", "m", &bad).await.status, 422);
    }
    assert_eq!(ready.post("/app", "m", &json!({"name": "three", "uid": "three"})).await.status, 201);
    assert_eq!(ready.post("/app", "n", &json!({"name": "four", "uid": "three"})).await.status, 409, "the uid is taken");
    let path = format!("/app/{}", value(&first)["id"].as_str().unwrap());
    for (method, body) in
        [(Method::PUT, json!({"name": "five"})), (Method::PATCH, json!({"name": "six"})), (Method::DELETE, json!({}))]
    {
        let ask = async || ready.ask(&own(), method.clone(), &path, Some("k"), &body).await;
        let (first, again) = (ask().await, ask().await);
        assert!(first.status.is_success() && !is_replay(&first), "{method}");
        assert_eq!((again.status, &again.body, is_replay(&again)), (first.status, &first.body, true), "{method}");
    }
    let without = ready.ask(&own(), Method::POST, "/app", None, &json!({"name": "seven"})).await;
    assert_eq!(without.status, 201);
    assert_eq!(ready.ask(&own(), Method::GET, "/app", Some("k"), &json!({})).await.status, 200);
    assert_eq!(ready.count(LEDGER).await, 5, "two creates, an update, a patch and a delete");
}

async fn message(bed: Bed) {
    let ready = Ready::new(&bed).await;
    ready.post("/app", "a", &json!({"name": "a", "uid": "a"})).await;
    let endpoint = ready.post("/app/a/endpoint", "e", &json!({"url": "http://127.0.0.1:9/hook"})).await;
    assert_eq!(endpoint.status, 201, "{:?}", endpoint.body);
    let body = json!({"eventType": "order.paid", "payload": {"order": 1}});
    let mut sleeper = ready.store.waker().sleeper();
    sleeper.begin();
    let first = ready.post("/app/a/msg", "m", &body).await;
    tokio::time::timeout(Duration::from_secs(60), sleeper.woken()).await.expect("the worker was not woken");
    let again = ready.post("/app/a/msg", "m", &body).await;
    assert_eq!((first.status.as_u16(), is_replay(&first), is_replay(&again)), (202, false, true));
    assert_eq!(value(&first)["id"], value(&again)["id"]);
    assert_eq!(ready.count("SELECT count(*) FROM twiceproof_events").await, 1);
    assert_eq!(ready.count("SELECT count(*) FROM twiceproof_deliveries").await, 1);
}

async fn callers(bed: Bed) {
    let ready = Ready::new(&bed).await;
    let other = Subject::Organisation(Id::mint(Prefix::Organisation, ready.store.now(), ready.store.random()));
    let body = json!({"name": "one"});
    let mine = ready.post("/app", "k", &body).await;
    let theirs = ready.ask(&other, Method::POST, "/app", Some("k"), &body).await;
    assert_eq!((theirs.status.as_u16(), is_replay(&theirs)), (201, false));
    assert_ne!(value(&mine)["id"], value(&theirs)["id"]);
    // The owner of an application, beside its organisation.
    let app = value(&mine)["id"].as_str().unwrap().to_owned();
    let portal = Subject::Tenant { organisation: default_organisation(), tenant: Key::new(app.clone()).unwrap() };
    let path = format!("/app/{app}/endpoint");
    let endpoint = json!({"url": "http://127.0.0.1:9/hook"});
    for subject in [&own(), &portal] {
        let made = ready.ask(subject, Method::POST, &path, Some("k"), &endpoint).await;
        assert_eq!((made.status.as_u16(), is_replay(&made)), (201, false));
    }
    // Tokens are not kept.
    let before = ready.count(LEDGER).await;
    let access = ready.post(&format!("/auth/app-portal-access/{app}"), "k", &json!({})).await;
    assert_eq!((access.status.as_u16(), ready.count(LEDGER).await), (200, before));
}

async fn refused(bed: Bed) {
    let ready = Ready::new(&bed).await;
    let request = Request::post("/api/v1/app")
        .header("authorization", "Bearer nobody's")
        .header("idempotency-key", "k")
        .body(Body::from(r#"{"name": "one"}"#))
        .unwrap();
    let answer = send(&ready.app, request).await;
    assert_eq!((answer.status.as_u16(), &value(&answer)["code"]), (401, &json!("authentication_failed")));
    assert_eq!(ready.count(LEDGER).await, 0);
}
