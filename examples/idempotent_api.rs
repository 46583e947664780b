//! An API whose clients repeat themselves: one key, one invoice, and the same answer for each repeat.
//!
//! The layer lends its transaction to the handler, so that the invoice, the key and the answer are committed together. The
//! number that the handler makes comes back in the repeat.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Extension, Router};
use tower::ServiceExt;
use twiceproof::key::Key;
use twiceproof::receiver::idempotency::{IdempotencyLayer, Policy, Rule};
use twiceproof::store::{DatabaseUrl, Loan, Store, StoreError, StoreOptions};

/// Writes an invoice in the transaction that the layer lends.
async fn create(Extension(loan): Extension<Loan>, customer: String) -> Result<(StatusCode, String), StatusCode> {
    let number: Result<(i64,), StoreError> = loan
        .work(|conn| {
            Box::pin(async move {
                let insert = "INSERT INTO invoices (customer) VALUES ($1) RETURNING number";
                conn.fetch_one(insert, &[customer.as_str().into()]).await
            })
        })
        .await;
    match number {
        Ok((number,)) => Ok((StatusCode::CREATED, format!("invoice {number}"))),
        // Everything is rolled back, and the client's repeat runs as the first one.
        Err(_) => Err(StatusCode::SERVICE_UNAVAILABLE),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let store =
        Store::connect(&DatabaseUrl::sqlite(folder.path().join("invoices.db"))?, StoreOptions::default()).await?;
    store.migrate().await?;
    let mut tx = store.begin().await?;
    tx.conn().execute_script("CREATE TABLE invoices (number INTEGER PRIMARY KEY, customer TEXT NOT NULL)").await?;
    tx.commit().await?;

    // A real service takes the tenant from what has authenticated the request.
    let layer = IdempotencyLayer::new(&store, |head| Key::new(head.headers.get("x-tenant")?.to_str().ok()?).ok())
        .rule(Rule::new(Policy::ReplaySuccesses).required());
    let app = Router::new().route("/invoices", post(create)).route_layer(layer);

    // The client saw no answer and repeats itself, twice; then it uses the key for something else.
    let bodies = ["ann", "ann", "ann", "bob"];
    let mut refused = 0;
    for body in bodies {
        let request = Request::post("/invoices")
            .header("x-tenant", "shop")
            .header("idempotency-key", "order-1041-invoice")
            .body(Body::from(body))?;
        let response = app.clone().oneshot(request).await?;
        let (status, repeat) = (response.status(), response.headers().contains_key("idempotent-replayed"));
        refused += u32::from(!status.is_success());
        let text = axum::body::to_bytes(response.into_body(), 1024).await?;
        println!("{body}: {status} {}{}", String::from_utf8_lossy(&text), if repeat { " (a repeat)" } else { "" });
    }

    let (count,): (i64,) = store.read().await?.conn().fetch_one("SELECT count(*) FROM invoices", &[]).await?;
    println!("{} requests, {refused} refused, {count} invoice", bodies.len());
    Ok(())
}
