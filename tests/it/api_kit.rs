//! The REST API as a client sees it: requests with a bearer token through the router, without a socket.

use axum::Router;
use axum::body::Body;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;
use twiceproof::dispatcher::api::Api;
use twiceproof::dispatcher::api::token::{Keys, Subject};
use twiceproof::dispatcher::{AddressPolicy, Manager, Policy, Publisher};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::store::Store;

/// The API over one store, behind its layer for `Idempotency-Key`.
#[derive(Clone)]
pub struct Rest {
    router: Router,
    keys: Keys,
    store: Store,
}

impl Rest {
    pub fn new(store: &Store) -> Self {
        Self::with(store, Publisher::new(store, &Policy::default()))
    }

    pub fn with(store: &Store, publisher: Publisher) -> Self {
        let keys = Keys::new(&[7; 32]).unwrap();
        let manager = Manager::new(store, AddressPolicy::AllowPrivate, &Policy::default());
        let api = Api::new(store, publisher, manager, keys.clone()).with_public_url("https://hooks.example");
        Self { router: twiceproof::api::service(api, store), keys, store: store.clone() }
    }

    /// Whoever speaks for the n-th organisation.
    pub fn organisation(&self, n: i64) -> Client {
        let organisation = Id::lowest_at(Prefix::Organisation, Timestamp::from_secs(1_700_000_000 + n));
        let now = self.store.now();
        let token =
            self.keys.sign(&Subject::Organisation(organisation), now, Timestamp::from_secs(i64::MAX / 1_000_000));
        self.client(&token)
    }

    pub fn client(&self, token: &str) -> Client {
        Client { router: self.router.clone(), authorization: format!("Bearer {token}"), key: None }
    }
}

/// One caller of the API.
#[derive(Clone)]
pub struct Client {
    router: Router,
    authorization: String,
    key: Option<&'static str>,
}

/// An answer.
#[derive(Debug)]
pub struct Got {
    pub status: StatusCode,
    pub text: String,
}

impl Client {
    /// The same caller, with an `Idempotency-Key`.
    pub fn keyed(&self, key: &'static str) -> Self {
        Self { key: Some(key), ..self.clone() }
    }

    pub async fn send(&self, method: Method, path: &str, body: impl Into<Body>) -> Got {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header("authorization", &self.authorization)
            .header("content-type", "application/json");
        if let Some(key) = self.key {
            request = request.header("idempotency-key", key);
        }
        let answer = self.router.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        Got { status, text: String::from_utf8(body.into()).unwrap() }
    }

    pub async fn get(&self, path: &str) -> Got {
        self.send(Method::GET, path, Body::empty()).await
    }

    pub async fn delete(&self, path: &str) -> Got {
        self.send(Method::DELETE, path, Body::empty()).await
    }

    pub async fn post(&self, path: &str, body: impl Into<Body>) -> Got {
        self.send(Method::POST, path, body).await
    }

    pub async fn put(&self, path: &str, body: impl Into<Body>) -> Got {
        self.send(Method::PUT, path, body).await
    }

    pub async fn patch(&self, path: &str, body: impl Into<Body>) -> Got {
        self.send(Method::PATCH, path, body).await
    }

    /// Makes an application under this uid.
    pub async fn application(&self, uid: &str) {
        self.post("/app", format!(r#"{{"name":"{uid}","uid":"{uid}"}}"#)).await.json(201);
    }

    /// Makes an endpoint of the application under this uid, with more fields if `more` has some.
    pub async fn endpoint(&self, app: &str, uid: &str, url: &str, more: &str) -> String {
        let body = format!(r#"{{"uid":"{uid}","url":"{url}"{more}}}"#);
        text(&self.post(&format!("/app/{app}/endpoint"), body).await.json(201)["id"])
    }

    /// Publishes a message of this type to the application; its id.
    pub async fn message(&self, app: &str, event_type: &str, more: &str) -> String {
        let body = format!(r#"{{"eventType":"{event_type}","payload":{{}}{more}}}"#);
        text(&self.post(&format!("/app/{app}/msg"), body).await.json(202)["id"])
    }

    /// A list's entries by one of their fields, and whether the list is done.
    pub async fn list(&self, path: &str, field: &str) -> (Vec<String>, bool) {
        let page = self.get(path).await.json(200);
        let entries = page["data"].as_array().unwrap().iter().map(|entry| text(&entry[field]));
        (entries.collect(), page["done"].as_bool().unwrap())
    }
}

impl Got {
    /// The body, which comes with this status.
    #[track_caller]
    pub fn json(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        serde_json::from_str(&self.text).unwrap()
    }

    /// The code of an error with this status.
    #[track_caller]
    pub fn code(&self, status: u16) -> String {
        text(&self.json(status)["code"])
    }

    /// Nothing, with this status.
    #[track_caller]
    pub fn empty(&self, status: u16) {
        assert_eq!((self.status.as_u16(), self.text.as_str()), (status, ""));
    }
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}
