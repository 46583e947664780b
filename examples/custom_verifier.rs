//! A sender that signs as nobody else: first described, then verified by code of the host's own.
//!
//! A description is enough wherever an HMAC is taken over body, time and id. This sender has no HMAC for its pings but a
//! token, so that those need a [`Verifier`].

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha512};
use tower::ServiceExt;
use twiceproof::clock::Timestamp;
use twiceproof::key::Key;
use twiceproof::receiver::schemes::{Algorithm, Encoding, HmacScheme, TimeUnit};
use twiceproof::receiver::{Identity, Receiver, Refusal, Reply, Source, Verifier, handler_fn};
use twiceproof::secret::Secret;
use twiceproof::store::{DatabaseUrl, Store, StoreOptions};

/// Accepts a request that carries the token in `x-token`, and takes the header `x-ping` as the event's key.
#[derive(Debug)]
struct Token(Secret);

impl Verifier for Token {
    fn verify(&self, headers: &HeaderMap, _: &[u8], _: Timestamp) -> Result<Identity, Refusal> {
        let once = |name: &str| -> Option<&str> {
            let mut values = headers.get_all(name).iter();
            values.next().filter(|_| values.next().is_none())?.to_str().ok()
        };
        let given = once("x-token").ok_or(Refusal::Other("one x-token is needed"))?;
        // Both sides are hashed under a key, so that comparing tells nothing about the token.
        let mac = || Hmac::<Sha256>::new_from_slice(self.0.expose()).expect("HMAC takes keys of every length");
        let right = mac().chain_update(self.0.expose()).finalize().into_bytes();
        mac().chain_update(given).verify(&right).map_err(|_| Refusal::Other("the token is wrong"))?;
        let key = once("x-ping").and_then(|id| Key::new(id).ok()).ok_or(Refusal::NoEventId)?;
        Ok(Identity::new(key))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let store = Store::connect(&DatabaseUrl::sqlite(folder.path().join("custom.db"))?, StoreOptions::default()).await?;
    store.migrate().await?;

    let scheme = HmacScheme::new("x-signature")
        .algorithm(Algorithm::Sha512)
        .encoding(Encoding::Hex)
        .timestamp_header("x-time")
        .time_unit(TimeUnit::Milliseconds)
        .signed("{timestamp}|{body}")
        .id_pointer("/event/id");
    let described = Source::hmac("events", scheme).secret_text("a secret").build()?;
    let own = Source::with_verifier("pings", Token(Secret::from_text("a token")?)).build()?;
    let nothing = || handler_fn(|_, _| Box::pin(async { Ok(Reply::ok()) }));
    let app = Receiver::new(store.clone()).source(described, nothing())?.source(own, nothing())?.router();

    let body = r#"{"event":{"id":4711}}"#;
    let time = store.now().as_millis();
    let signature = mac(&format!("{time}|{body}"));
    let (mut accepted, mut refused) = (0, 0);
    for (path, headers) in [
        ("/events", [("x-signature", signature.as_str()), ("x-time", &time.to_string())]),
        ("/events", [("x-signature", &signature), ("x-time", &(time + 1).to_string())]),
        ("/pings", [("x-token", "a token"), ("x-ping", "1")]),
        ("/pings", [("x-token", "a tokem"), ("x-ping", "2")]),
    ] {
        let request = headers.iter().fold(Request::post(path), |request, (name, value)| request.header(*name, *value));
        let response = app.clone().oneshot(request.body(Body::from(body))?).await?;
        println!("{path}: {}", response.status());
        if response.status().is_success() { accepted += 1 } else { refused += 1 }
    }
    println!("{accepted} accepted, {refused} refused");
    Ok(())
}

/// What the sender computes.
fn mac(text: &str) -> String {
    let mut mac = Hmac::<Sha512>::new_from_slice(b"a secret").expect("HMAC takes keys of every length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}
