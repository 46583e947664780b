//! The effect in the event's transaction: three deliveries of one event, one invoice.
//!
//! The handler writes with plain sqlx through the connection that it is lent, so that the invoice, the event's key and
//! the answer are committed together.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use axum::body::Body;
use axum::http::Request;
use tower::ServiceExt;
use twiceproof::receiver::{Event, Handler, HandlerError, Receiver, Reply, Source};
use twiceproof::secret::Secret;
use twiceproof::signature;
use twiceproof::store::{Conn, DatabaseUrl, Store, StoreOptions};

/// Writes an invoice for each event.
struct Invoices;

impl Handler for Invoices {
    async fn handle<'a>(&'a self, conn: &'a mut Conn<'_>, event: &'a Event) -> Result<Reply, HandlerError> {
        // Any sqlx query works here; it shares the event's transaction.
        let sqlite = conn.sqlite().ok_or_else(|| HandlerError::fail("this example runs on SQLite"))?;
        sqlx::query("INSERT INTO invoices (event, body) VALUES ($1, $2)")
            .bind(event.id().as_ref())
            .bind(event.body().as_ref())
            .execute(sqlite)
            .await?;
        Ok(Reply::ok())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let store =
        Store::connect(&DatabaseUrl::sqlite(folder.path().join("invoices.db"))?, StoreOptions::default()).await?;
    store.migrate().await?;
    let mut tx = store.begin().await?;
    tx.conn().execute_script("CREATE TABLE invoices (event TEXT NOT NULL, body BLOB NOT NULL)").await?;
    tx.commit().await?;

    // The receiver: who sends, with which secret, and what is done about it.
    let secret = Secret::generate(store.random());
    let source = Source::standard_webhooks("shop").secret(secret.clone()).build()?;
    let app = Receiver::new(store.clone()).source(source, Invoices)?.router();

    // The sender delivers one event three times, as senders do.
    for delivery in 1..=3 {
        let body = r#"{"order":1041}"#;
        let now = store.now();
        let request = Request::post("/shop")
            .header(signature::ID, "msg_1041")
            .header(signature::TIMESTAMP, now.as_secs())
            .header(
                signature::SIGNATURE,
                signature::sign(std::slice::from_ref(&secret), "msg_1041", now, body.as_bytes()),
            )
            .body(Body::from(body))?;
        let response = app.clone().oneshot(request).await?;
        let repeat = response.headers().contains_key("idempotent-replayed");
        println!("delivery {delivery}: {}{}", response.status(), if repeat { ", a repeat" } else { "" });
    }

    let (invoices,): (i64,) = store.read().await?.conn().fetch_one("SELECT count(*) FROM invoices", &[]).await?;
    println!("3 deliveries, {invoices} invoice");
    Ok(())
}
