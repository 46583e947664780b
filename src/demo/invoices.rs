//! The receiver's side: an invoice for each order, numbered 1..N without a gap, and the same with a protection left out.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde::Deserialize;
use twiceproof_receiver::{Event, Handler, HandlerError, Receiver, Reply, Source};
use twiceproof_shared::causes::chain;
use twiceproof_shared::key::Key;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{self, SignedHeaders};
use twiceproof_shared::store::{Conn, Store, StoreError};

use super::{DemoError, Sabotage, store as tables};

/// The network sets this header where the handler is to fail after its write.
pub const FAIL_AFTER_WRITE: &str = "x-demo-fail-after-write";

/// The path of the receiver's only source.
pub const PATH: &str = "/shop";

/// What the network's five minutes of tolerance are measured with.
pub const TOLERANCE: std::time::Duration = std::time::Duration::from_secs(300);

#[derive(Deserialize)]
struct Order {
    order: i64,
}

/// The receiver's router, whole or with a protection left out.
pub fn router(store: &Store, tenant: &Key, secret: &Secret, sabotage: Option<Sabotage>) -> Result<Router, DemoError> {
    if sabotage == Some(Sabotage::Ledger) {
        return Ok(without_ledger(store, secret));
    }
    let source = Source::standard_webhooks("shop").tenant(tenant.to_string()).secret(secret.clone()).build();
    let source = source.map_err(|error| DemoError::Setup(error.into()))?;
    let receiver = Receiver::new(store.clone());
    let receiver = match sabotage {
        Some(Sabotage::Transaction) => receiver.source(source, OnAnotherConnection(store.clone())),
        _ => receiver.source(source, InvoiceHandler),
    };
    let receiver = receiver.map_err(|error| DemoError::Setup(error.into()))?;
    Ok(receiver.router())
}

/// Writes the invoice through the connection it is lent: effect, key and answer commit together.
struct InvoiceHandler;

impl Handler for InvoiceHandler {
    async fn handle<'a>(&'a self, conn: &'a mut Conn<'_>, event: &'a Event) -> Result<Reply, HandlerError> {
        let order: Order = event.json()?;
        let number = tables::add_invoice(conn, order.order, event.id().as_ref()).await?;
        if event.headers().contains_key(FAIL_AFTER_WRITE) {
            return Err(HandlerError::fail("failed on purpose, after the write"));
        }
        Ok(Reply::ok().json(&serde_json::json!({ "invoice": number }))?)
    }
}

/// Sabotage: the effect goes through a second connection, so that it does not share the fate of the event's key.
struct OnAnotherConnection(Store);

impl Handler for OnAnotherConnection {
    async fn handle<'a>(&'a self, _conn: &'a mut Conn<'_>, event: &'a Event) -> Result<Reply, HandlerError> {
        let order: Order = event.json()?;
        let (store, id) = (self.0.clone(), event.id().to_string());
        // On SQLite the other connection gets its turn only after this transaction, so nobody waits for it.
        tokio::spawn(async move {
            let written: Result<i64, StoreError> = store
                .run(move |conn| {
                    let id = id.clone();
                    Box::pin(async move { tables::add_invoice(conn, order.order, &id).await })
                })
                .await;
            if let Err(error) = written {
                tracing::warn!(error = %chain(&error), "an invoice on the second connection was not written");
            }
        });
        if event.headers().contains_key(FAIL_AFTER_WRITE) {
            return Err(HandlerError::fail("failed on purpose, after the write"));
        }
        Ok(Reply::ok())
    }
}

/// Sabotage: a handler that verifies and writes, and never asks whether the event came before.
fn without_ledger(store: &Store, secret: &Secret) -> Router {
    let state = Arc::new((store.clone(), secret.clone()));
    Router::new().route(PATH, post(apply_at_once)).with_state(state)
}

async fn apply_at_once(State(state): State<Arc<(Store, Secret)>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let (store, secret) = &*state;
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let (id, timestamp, signature) =
        (header(signature::ID), header(signature::TIMESTAMP), header(signature::SIGNATURE));
    let signed = SignedHeaders { id: &id, timestamp: &timestamp, signature: &signature };
    let verified = signature::verify(&signed, &body, std::slice::from_ref(secret), store.now(), TOLERANCE);
    let (Ok(_), Ok(order)) = (verified, serde_json::from_slice::<Order>(&body)) else {
        return StatusCode::UNAUTHORIZED;
    };
    let fail = headers.contains_key(FAIL_AFTER_WRITE);
    let written: Result<i64, StoreError> = store
        .run(move |conn| {
            let id = id.clone();
            Box::pin(async move {
                let number = tables::add_invoice(conn, order.order, &id).await?;
                if fail { Err(StoreError::Closed) } else { Ok(number) }
            })
        })
        .await;
    if written.is_ok() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR }
}
