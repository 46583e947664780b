//! GitHub's webhooks: a push that is delivered again acts once, and only its SHA-256 signature counts.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tower::ServiceExt;
use twiceproof::receiver::{Receiver, Reply, Source, handler_fn};
use twiceproof::store::{DatabaseUrl, Store, StoreOptions};

const SECRET: &str = "It's a Secret to Everybody";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let store = Store::connect(&DatabaseUrl::sqlite(folder.path().join("builds.db"))?, StoreOptions::default()).await?;
    store.migrate().await?;
    let mut tx = store.begin().await?;
    tx.conn().execute_script("CREATE TABLE builds (commit_id TEXT NOT NULL)").await?;
    tx.commit().await?;

    // One secret for each hook; while it is replaced, add the old one with a second `secret_text`.
    let source = Source::github("github").secret_text(SECRET).build()?;
    let builds = handler_fn(|conn, event| {
        Box::pin(async move {
            // A `ping` comes when the hook is made. Types that mean nothing to us are answered with 2xx too.
            if event.event_type() != Some("push") {
                return Ok(Reply::ok());
            }
            let push: serde_json::Value = event.json()?;
            let commit = push["after"].as_str().unwrap_or_default();
            conn.execute("INSERT INTO builds (commit_id) VALUES ($1)", &[commit.into()]).await?;
            Ok(Reply::ok())
        })
    });
    let app = Receiver::new(store.clone()).source(source, builds)?.router();

    let push = r#"{"ref":"refs/heads/main","after":"6dcb09b5b57875f334f61aebed695e2e4193db5e"}"#;
    let signature = format!("sha256={}", mac(push.as_bytes()));
    let mut answers = Vec::new();
    for (header, value, event) in [
        ("x-hub-signature-256", signature.as_str(), "ping"),
        ("x-hub-signature-256", &signature, "push"),
        // Somebody pressed "Redeliver": the same delivery id.
        ("x-hub-signature-256", &signature, "push"),
        // The right digest in the old header, whose algorithm is SHA-1.
        ("x-hub-signature", &signature, "push"),
    ] {
        let request = Request::post("/github")
            .header(header, value)
            .header("x-github-event", event)
            .header("x-github-hook-id", "292430182")
            .header("x-github-delivery", format!("72d3162e-cc78-11e3-81ab-{event}"))
            .body(Body::from(push))?;
        let response = app.clone().oneshot(request).await?;
        println!("{event} under {header}: {}", response.status());
        answers.push(response.status());
    }

    let refused = answers.iter().filter(|status| **status == StatusCode::UNAUTHORIZED).count();
    let (builds,): (i64,) = store.read().await?.conn().fetch_one("SELECT count(*) FROM builds", &[]).await?;
    println!("4 requests, {refused} refused, {builds} build");
    Ok(())
}

/// What GitHub computes.
fn mac(body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("HMAC takes keys of every length");
    mac.update(body);
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}
