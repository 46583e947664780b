//! The REST API as `serve` answers it, without a socket: behind the layer for `Idempotency-Key`, on a clock of the test's own.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use twiceproof::dispatcher::api::Api;
use twiceproof::dispatcher::api::token::{Keys, Subject};
use twiceproof::dispatcher::guard::AddressPolicy;
use twiceproof::dispatcher::manage::tenants::default_organisation;
use twiceproof::dispatcher::{Counts, Dispatcher, Manager, Policy, Publisher, counts};
use twiceproof_shared::clock::{Clock as _, ManualClock};
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use crate::dispatch::{options, timed};
use crate::harness::Bed;

/// The API over one database.
pub struct Rest {
    pub clock: ManualClock,
    pub store: Store,
    keys: Keys,
    router: Router,
}

/// One caller of the API.
#[derive(Clone)]
pub struct Caller {
    router: Router,
    token: String,
}

impl Rest {
    /// An API that lets endpoints have private addresses, as the sinks of tests do.
    pub async fn open(bed: &Bed) -> Self {
        Self::with(bed, AddressPolicy::AllowPrivate).await
    }

    pub async fn with(bed: &Bed, addresses: AddressPolicy) -> Self {
        let (clock, store) = timed(bed).await;
        let keys = Keys::new(&[7; 32]).unwrap();
        let publisher = Publisher::new(&store, &Policy::default());
        let manager = Manager::new(&store, addresses, &Policy::default());
        let router = twiceproof::api::service(Api::new(&store, publisher, manager, keys.clone()), &store);
        Self { clock, store, keys, router }
    }

    /// Who speaks for the organisation that a server has by itself.
    pub fn operator(&self) -> Caller {
        self.caller(&Subject::Organisation(default_organisation()))
    }

    /// Who speaks for another organisation.
    pub fn stranger(&self) -> Caller {
        self.caller(&Subject::Organisation(Id::lowest_at(Prefix::Organisation, self.clock.now())))
    }

    /// The owner of one application.
    pub fn portal(&self, app: &str) -> Caller {
        let tenant = Key::new(app).unwrap();
        self.caller(&Subject::Tenant { organisation: default_organisation(), tenant })
    }

    fn caller(&self, subject: &Subject) -> Caller {
        let now = self.clock.now();
        let token = self.keys.sign(subject, now, now.plus(Duration::from_secs(365 * 86_400)));
        Caller { router: self.router.clone(), token }
    }

    /// A worker on the same database.
    pub async fn dispatcher(&self) -> Dispatcher {
        Dispatcher::start(&self.store, options()).await.unwrap()
    }

    /// What became of all deliveries.
    pub async fn counts(&self) -> Counts {
        counts(&mut self.store.read().await.unwrap().conn(), None).await.unwrap()
    }
}

impl Caller {
    /// Sends a request and reads the answer; `null` where it has no body.
    pub async fn send(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        self.send_with(method, path, body, &[]).await
    }

    pub async fn send_with(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> (StatusCode, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        let answer = self.router.clone().oneshot(request.body(body).unwrap()).await.unwrap();
        let status = answer.status();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
        (status, body)
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.send(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.send(Method::POST, path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.send(Method::PUT, path, Some(body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.send(Method::PATCH, path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> (StatusCode, Value) {
        self.send(Method::DELETE, path, None).await
    }

    /// Creates an application; its id.
    pub async fn app(&self, name: &str) -> String {
        let (status, app) = self.post("/app", json!({ "name": name })).await;
        assert_eq!(status, StatusCode::CREATED, "{app}");
        text(&app["id"])
    }

    /// Creates an endpoint; its id.
    pub async fn endpoint(&self, app: &str, body: Value) -> String {
        let (status, endpoint) = self.post(&format!("/app/{app}/endpoint"), body).await;
        assert_eq!(status, StatusCode::CREATED, "{endpoint}");
        text(&endpoint["id"])
    }

    /// Creates a message; its id.
    pub async fn message(&self, app: &str, body: Value) -> String {
        let (status, message) = self.post(&format!("/app/{app}/msg"), body).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{message}");
        text(&message["id"])
    }
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// What a 422 complains about: the places, and all it says.
pub fn complaint(answer: &(StatusCode, Value)) -> (Vec<String>, String) {
    assert_eq!(answer.0, StatusCode::UNPROCESSABLE_ENTITY, "{}", answer.1);
    let first = &answer.1["detail"][0];
    (first["loc"].as_array().unwrap().iter().map(text).collect(), text(&first["msg"]))
}
