//! The whole path on a SQLite file, through the router. What both databases must do alike is in the root package's
//! integration tests.

#![cfg(feature = "sqlite")]

mod outcomes;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;
use twiceproof_shared::clock::{ManualClock, Timestamp};
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature;
use twiceproof_shared::store::{Arg, Conn, StoreError};
use twiceproof_shared::testing::TestDatabase;

use super::*;
use crate::event::Event;
use crate::handler::{HandlerError, handler_fn};
use crate::reply::Reply;
use crate::source::SourceBuilder;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NOW: Timestamp = Timestamp::from_secs(1_760_000_000);

/// A receiver with one source, on a database of its own, at a time that stands still.
struct World {
    router: Router,
    store: Store,
    _database: TestDatabase,
}

/// What came back.
#[derive(Debug, PartialEq)]
struct Answered {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answered {
    fn replayed(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }

    fn without_marker(mut self) -> Self {
        self.headers.remove("idempotent-replayed");
        self
    }
}

impl World {
    async fn new(handler: impl Handler) -> Self {
        Self::with(|source| source, handler).await
    }

    async fn with(change: impl FnOnce(SourceBuilder) -> SourceBuilder, handler: impl Handler) -> Self {
        let database = TestDatabase::sqlite();
        let store = database.store(Some(Arc::new(ManualClock::new(NOW)))).await.unwrap();
        store
            .run::<_, StoreError, _>(|conn| {
                Box::pin(async { conn.execute_script("CREATE TABLE effects (event TEXT NOT NULL)").await })
            })
            .await
            .unwrap();
        let source = change(Source::standard_webhooks("orders").secret_text(SECRET)).build().unwrap();
        let router = Receiver::new(store.clone()).source(source, handler).unwrap().router();
        Self { router, store, _database: database }
    }

    async fn send(&self, request: Request<Body>) -> Answered {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answered { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    async fn deliver(&self, id: &str, body: &'static str) -> Answered {
        self.send(signed(id, body)).await
    }

    async fn count(&self, sql: &'static str, args: &[Arg<'_>]) -> i64 {
        let mut reader = self.store.read().await.unwrap();
        reader.conn().fetch_one::<(i64,)>(sql, args).await.unwrap().0
    }

    /// How often this body came under a used id.
    async fn conflicts_of(&self, body: &str) -> i64 {
        let sql = "SELECT seen_count FROM twiceproof_conflicts WHERE request_body = $1";
        self.count(sql, &[body.as_bytes().into()]).await
    }

    async fn effects(&self) -> i64 {
        self.count("SELECT count(*) FROM effects", &[]).await
    }

    async fn keys(&self) -> i64 {
        self.count("SELECT count(*) FROM twiceproof_ledger", &[]).await
    }
}

fn signed(id: &str, body: &'static str) -> Request<Body> {
    signed_at(id, body, NOW, "/orders")
}

fn signed_at(id: &str, body: &'static str, timestamp: Timestamp, path: &str) -> Request<Body> {
    let secret = Secret::parse(SECRET).unwrap();
    Request::post(path)
        .header(signature::ID, id)
        .header(signature::TIMESTAMP, timestamp.as_secs())
        .header(signature::SIGNATURE, signature::sign(&[secret], id, timestamp, body.as_bytes()))
        .body(Body::from(body))
        .unwrap()
}

async fn write(conn: &mut Conn<'_>, event: &Event) -> Result<(), StoreError> {
    conn.execute("INSERT INTO effects (event) VALUES ($1)", &[event.id().into()]).await.map(drop)
}

/// Writes the effect and answers with a number that no second run would find again.
fn writes_effect() -> impl Handler {
    handler_fn(|conn, event| {
        Box::pin(async move {
            write(conn, event).await?;
            let number = twiceproof_shared::random::Random::from_system().below(u64::MAX);
            Ok(Reply::new(StatusCode::CREATED).text(number.to_string()))
        })
    })
}

/// A handler that behaves as `script` says on its first run, its second, and so on; it writes the effect each time.
fn scripted(
    script: impl for<'a> Fn(usize, &'a Event) -> BoxFuture<'a, Result<Reply, HandlerError>> + Send + Sync + 'static,
) -> impl Handler {
    let runs = AtomicUsize::new(0);
    let script = Arc::new(script);
    handler_fn(move |conn, event| {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        let script = Arc::clone(&script);
        Box::pin(async move {
            write(conn, event).await?;
            script(run, event).await
        })
    })
}

/// The other form that a handler can take.
struct Invoices;

impl Handler for Invoices {
    async fn handle(&self, conn: &mut Conn<'_>, event: &Event) -> Result<Reply, HandlerError> {
        write(conn, event).await?;
        let value: serde_json::Value = event.json()?;
        Ok(Reply::ok().json(&value["number"])?)
    }
}
