//! Drives the REST API with the official Rust SDK, and checks what arrives with the SDK's own verifier.
//!
//!     tour SERVER TOKEN OTHER_TOKEN
//!
//! A program of its own, because what the SDK depends on is not to be mixed with what the project is built of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use svix::api::{ApplicationListOptions, MessageCreateOptions, MessageListOptions, Svix, SvixOptions};
use svix::error::Error;
use svix::models::{
    ApplicationIn, EndpointIn, EndpointSecretRotateIn, EventTypeIn, MessageIn, RecoverIn,
};
use svix::webhooks::Webhook;

struct Message {
    headers: HeaderMap,
    body: Bytes,
}

/// A receiver that keeps what it is sent; it answers 500 while it fails.
#[derive(Clone, Default)]
struct Sink {
    seen: Arc<Mutex<Vec<Message>>>,
    fails: Arc<AtomicBool>,
}

impl Sink {
    async fn open(&self) -> String {
        let sink = self.clone();
        let keep = move |headers: HeaderMap, body: Bytes| {
            sink.seen.lock().unwrap().push(Message { headers, body });
            let fails = sink.fails.load(Ordering::SeqCst);
            async move { if fails { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK } }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, Router::new().fallback(keep)).into_future());
        url
    }

    /// The next request for this message.
    async fn next(&self, id: &str) -> Message {
        until(async || {
            let mut seen = self.seen.lock().unwrap();
            let at = seen.iter().position(|message| message.headers["webhook-id"] == id)?;
            Some(seen.remove(at))
        })
        .await
    }
}

/// Asks again until there is something.
async fn until<T>(ask: impl AsyncFn() -> Option<T>) -> T {
    for _ in 0..3_000 {
        if let Some(value) = ask().await {
            return value;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not come to that");
}

fn status(error: Error) -> u16 {
    match error {
        Error::Http(content) => content.status.as_u16(),
        Error::Validation(content) => content.status.as_u16(),
        other => panic!("{other:?}"),
    }
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let client = |token: &str| {
        let options = SvixOptions { server_url: Some(words[1].clone()), ..SvixOptions::default() };
        Svix::new(token.to_owned(), Some(options))
    };
    let (svix, stranger) = (client(&words[2]), client(&words[3]));
    let sink = Sink::default();
    let url = sink.open().await;

    let shop = || ApplicationIn { uid: Some("shop".to_owned()), ..ApplicationIn::new("Shop".to_owned()) };
    let app = svix.application().create(shop(), None).await.unwrap();
    assert_eq!(svix.application().get_or_create(shop(), None).await.unwrap().id, app.id);
    for number in 0..4 {
        svix.application().create(ApplicationIn::new(format!("Other {number}")), None).await.unwrap();
    }
    let mut apps = BTreeSet::new();
    let mut iterator = None;
    loop {
        let options = ApplicationListOptions { limit: Some(2), iterator, ..ApplicationListOptions::default() };
        let page = svix.application().list(Some(options)).await.unwrap();
        apps.extend(page.data.into_iter().map(|app| app.id));
        if page.done {
            break;
        }
        iterator = page.iterator;
    }
    assert_eq!(apps.len(), 5);
    assert_eq!(status(stranger.application().get(app.id.clone()).await.unwrap_err()), 404);

    let mut paid = EventTypeIn::new(String::new(), String::new());
    paid.name = "order.paid".to_owned();
    paid.description = "An order was paid".to_owned();
    assert_eq!(svix.event_type().create(paid, None).await.unwrap().name, "order.paid");

    let endpoint = EndpointIn {
        event_types: Some(BTreeSet::from(["order.paid".to_owned()])),
        headers: Some(BTreeMap::from([("x-shop".to_owned(), "one".to_owned())])),
        ..EndpointIn::new(url)
    };
    let endpoint = svix.endpoint().create("shop".to_owned(), endpoint, None).await.unwrap();
    let secret = svix.endpoint().get_secret(app.id.clone(), endpoint.id.clone()).await.unwrap().key;

    let message = |n: i64| MessageIn::new("order.paid".to_owned(), serde_json::json!({ "n": n }));
    let once = || MessageIn { event_id: Some("evt-1".to_owned()), ..message(1) };
    let first = svix.message().create(app.id.clone(), once(), None).await.unwrap();
    let arrived = sink.next(&first.id).await;
    Webhook::new(&secret).unwrap().verify(&arrived.body, &arrived.headers).unwrap();
    assert_eq!((&arrived.body[..], arrived.headers["x-shop"].as_bytes()), (&br#"{"n":1}"#[..], &b"one"[..]));
    assert_eq!(status(svix.message().create(app.id.clone(), once(), None).await.unwrap_err()), 409);
    let key = || {
        let idempotency_key = Some("key-1".to_owned());
        Some(MessageCreateOptions { idempotency_key, ..MessageCreateOptions::default() })
    };
    let second = svix.message().create(app.id.clone(), message(2), key()).await.unwrap();
    assert_eq!(svix.message().create(app.id.clone(), message(2), key()).await.unwrap().id, second.id);
    assert_eq!(status(svix.message().create(app.id.clone(), message(3), key()).await.unwrap_err()), 422);
    sink.next(&second.id).await;
    let options = MessageListOptions { limit: Some(1), ..MessageListOptions::default() };
    let page = svix.message().list(app.id.clone(), Some(options)).await.unwrap();
    assert_eq!((page.data[0].id.as_str(), page.done), (second.id.as_str(), false));

    sink.fails.store(true, Ordering::SeqCst);
    let failed = svix.message().create(app.id.clone(), message(4), None).await.unwrap();
    sink.next(&failed.id).await;
    let attempts = || svix.message_attempt();
    let made = async || attempts().list_by_msg(app.id.clone(), failed.id.clone(), None).await.unwrap().data;
    until(async || made().await.into_iter().find(|attempt| attempt.response_status_code == 500)).await;
    sink.fails.store(false, Ordering::SeqCst);
    attempts().resend(app.id.clone(), failed.id.clone(), endpoint.id.clone(), None).await.unwrap();
    sink.next(&failed.id).await;
    until(async || made().await.into_iter().find(|attempt| attempt.response_status_code == 200)).await;

    let rotate = EndpointSecretRotateIn::default();
    svix.endpoint().rotate_secret(app.id.clone(), endpoint.id.clone(), rotate, None).await.unwrap();
    let rotated = svix.message().create(app.id.clone(), message(5), None).await.unwrap();
    let arrived = sink.next(&rotated.id).await;
    let new_secret = svix.endpoint().get_secret(app.id.clone(), endpoint.id.clone()).await.unwrap().key;
    assert_ne!(secret, new_secret);
    for secret in [secret, new_secret] {
        Webhook::new(&secret).unwrap().verify(&arrived.body, &arrived.headers).unwrap();
    }

    let since: RecoverIn = serde_json::from_value(serde_json::json!({ "since": "2020-01-01T00:00:00Z" })).unwrap();
    svix.endpoint().recover(app.id.clone(), endpoint.id.clone(), since, None).await.unwrap();
    svix.application().delete(app.id.clone()).await.unwrap();
    assert_eq!(status(svix.application().get(app.id).await.unwrap_err()), 404);
    println!("ok the end");
}
