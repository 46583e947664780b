//! Stripe's webhooks while the secret is rolled: an event that is delivered again acts once, though its time, its
//! signatures and its `pending_webhooks` differ.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tower::ServiceExt;
use twiceproof::clock::Timestamp;
use twiceproof::receiver::{Receiver, Reply, Source, handler_fn};
use twiceproof::store::{DatabaseUrl, Store, StoreOptions};

const OLD_SECRET: &str = "whsec_the_old_secret";
const NEW_SECRET: &str = "whsec_the_new_secret";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let store =
        Store::connect(&DatabaseUrl::sqlite(folder.path().join("payments.db"))?, StoreOptions::default()).await?;
    store.migrate().await?;
    let mut tx = store.begin().await?;
    tx.conn().execute_script("CREATE TABLE payments (invoice TEXT NOT NULL)").await?;
    tx.commit().await?;

    let source = Source::stripe("stripe").secret_text(OLD_SECRET).secret_text(NEW_SECRET).build()?;
    println!("answers are kept for {} days", source.retention().as_secs() / 86_400);
    let payments = handler_fn(|conn, event| {
        Box::pin(async move {
            if event.event_type() == Some("invoice.paid") {
                let paid: serde_json::Value = event.json()?;
                let invoice = paid["data"]["object"]["id"].as_str().unwrap_or_default();
                conn.execute("INSERT INTO payments (invoice) VALUES ($1)", &[invoice.into()]).await?;
            }
            Ok(Reply::ok())
        })
    });
    let app = Receiver::new(store.clone()).source(source, payments)?.router();

    let now = store.now();
    let mut repeats = 0;
    for (at, secrets, pending) in [
        (now.minus(Duration::from_secs(60)), &[OLD_SECRET][..], 2),
        (now.minus(Duration::from_secs(30)), &[NEW_SECRET, OLD_SECRET], 1),
        (now, &[NEW_SECRET], 1),
    ] {
        let body = format!(
            r#"{{"id":"evt_1","type":"invoice.paid","pending_webhooks":{pending},"data":{{"object":{{"id":"in_1"}}}}}}"#
        );
        let request =
            Request::post("/stripe").header("stripe-signature", signed(at, secrets, &body)).body(Body::from(body))?;
        let response = app.clone().oneshot(request).await?;
        let repeat = response.headers().contains_key("idempotent-replayed");
        println!("{} signatures: {}{}", secrets.len(), response.status(), if repeat { ", a repeat" } else { "" });
        repeats += i32::from(repeat);
    }

    let (payments,): (i64,) = store.read().await?.conn().fetch_one("SELECT count(*) FROM payments", &[]).await?;
    println!("3 deliveries, {repeats} repeats, {payments} payment");
    Ok(())
}

/// What Stripe sends: one `v1` for each secret that is live.
fn signed(at: Timestamp, secrets: &[&str], body: &str) -> String {
    let time = at.as_secs();
    let signature = |secret: &&str| {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of every length");
        mac.update(format!("{time}.{body}").as_bytes());
        let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!(",v1={hex}")
    };
    format!("t={time}{}", secrets.iter().map(signature).collect::<String>())
}
