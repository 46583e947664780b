//! A database rule beside the key: two different events mean the same order, which gets one invoice.
//!
//! Keys recognise the same event coming twice. They cannot see that two events mean the same thing; a unique rule of
//! the host's own can. The handler refuses the second event; the refusal is stored, and its redeliveries get it again.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde::Deserialize;
use tower::ServiceExt;
use twiceproof::receiver::{HandlerError, Receiver, Reply, Source, handler_fn};
use twiceproof::secret::Secret;
use twiceproof::signature;
use twiceproof::store::{DatabaseUrl, Store, StoreOptions};

#[derive(Deserialize)]
struct Order {
    order: i64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let store =
        Store::connect(&DatabaseUrl::sqlite(folder.path().join("invoices.db"))?, StoreOptions::default()).await?;
    store.migrate().await?;
    let mut tx = store.begin().await?;
    // The rule: one invoice for each order, whatever the events say.
    tx.conn().execute_script("CREATE TABLE invoices (order_number INTEGER NOT NULL PRIMARY KEY)").await?;
    tx.commit().await?;

    let invoices = handler_fn(|conn, event| {
        Box::pin(async move {
            let order: Order = event.json()?;
            let insert = "INSERT INTO invoices (order_number) VALUES ($1) ON CONFLICT DO NOTHING";
            match conn.execute(insert, &[order.order.into()]).await? {
                0 => Err(HandlerError::Refuse(Reply::new(StatusCode::OK).text("this order has its invoice already"))),
                _ => Ok(Reply::ok().text("invoiced")),
            }
        })
    });
    let secret = Secret::generate(store.random());
    let source = Source::standard_webhooks("shop").secret(secret.clone()).build()?;
    let app = Receiver::new(store.clone()).source(source, invoices)?.router();

    // Two people pressed the button: two events with ids of their own. The second is delivered twice.
    for id in ["msg_clicked_by_ann", "msg_clicked_by_bob", "msg_clicked_by_bob"] {
        let body = r#"{"order":1041}"#;
        let now = store.now();
        let request = Request::post("/shop")
            .header(signature::ID, id)
            .header(signature::TIMESTAMP, now.as_secs())
            .header(signature::SIGNATURE, signature::sign(std::slice::from_ref(&secret), id, now, body.as_bytes()))
            .body(Body::from(body))?;
        let response = app.clone().oneshot(request).await?;
        let repeat = response.headers().contains_key("idempotent-replayed");
        let text = axum::body::to_bytes(response.into_body(), 1024).await?;
        println!("{id}: {}{}", String::from_utf8_lossy(&text), if repeat { " (a repeat)" } else { "" });
    }

    let (count,): (i64,) = store.read().await?.conn().fetch_one("SELECT count(*) FROM invoices", &[]).await?;
    println!("2 events, 1 order, {count} invoice");
    Ok(())
}
