//! Signatures in the styles of other senders: what we send is what their customers verify.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use twiceproof::dispatcher::headers::CustomHeaders;
use twiceproof::dispatcher::manage::change::EndpointChange;
use twiceproof::dispatcher::{
    AddressPolicy, Dispatcher, ManageError, Manager, NewEndpoint, Policy, SecretKey, Signing,
};
use twiceproof::prove::{Answer, Front, Message};
use twiceproof::receiver::schemes::{KeySource, Provider};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::key::Key;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::TOLERANCE;
use twiceproof_shared::store::Store;

use crate::dispatch::{endpoint, event, options, publish, states, tenant, timed, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("signing::receivers_of_other_senders_verify_what_they_are_sent", verified);
    suite.both("signing::old_secrets_go_on_verifying_until_they_are_over", rotated);
    suite.both("signing::a_signature_cannot_share_its_header_with_a_custom_one", refused);
}

const OLD: &str = "the secret that customers have had for years";

fn read(json: &str) -> Signing {
    serde_json::from_str(json).unwrap()
}

const ALL: &str = r#"{"names": "both", "beside": [
    {"style": "github"}, {"style": "stripe", "key": "bytes"}, {"style": "shopify"},
    {"style": "stripe", "header": "X-Shop-Signature"}]}"#;

/// A receiver that keeps what it is sent.
async fn keeper() -> (Front, Arc<Mutex<Vec<Message>>>) {
    let seen: Arc<Mutex<Vec<Message>>> = Arc::default();
    let log = Arc::clone(&seen);
    let front = Front::open(move |message| {
        let log = Arc::clone(&log);
        async move {
            log.lock().unwrap().push(message);
            Ok(Answer::empty(StatusCode::NO_CONTENT))
        }
    });
    (front.await.unwrap(), seen)
}

/// Whether our own receiver, as a customer of that sender, takes the request.
fn takes(provider: &str, message: &Message, secret: &str, now: Timestamp) -> bool {
    let provider = Provider::named(provider).unwrap();
    let verifier = provider.verifier(vec![KeySource::Text(secret.to_owned().into())], TOLERANCE).unwrap();
    verifier.verify(&message.headers, &message.body, now).is_ok()
}

async fn verified(bed: Bed) {
    let (_clock, store) = timed(&bed).await;
    let (front, seen) = keeper().await;
    let secret = Secret::from_bytes(OLD.as_bytes().to_vec()).unwrap();
    endpoint(&store, url(&front), |new| {
        new.secret = Some(secret.clone().into());
        new.signing = read(ALL);
    })
    .await;
    publish(&store, event(r#"{"id":"evt_1","type":"order.placed","order":1}"#)).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    assert_eq!(states(&store).await.get("delivered"), Some(&1));
    let mut message = seen.lock().unwrap().pop().unwrap();
    let now = store.now();
    // What these senders send besides their signatures, and their receivers want.
    for (name, value) in [
        ("x-github-delivery", "d1"),
        ("x-github-event", "push"),
        ("x-shopify-webhook-id", "w1"),
        ("x-shopify-topic", "a/b"),
    ] {
        message.headers.insert(name, value.parse().unwrap());
    }
    for provider in ["github", "stripe", "shopify"] {
        assert!(takes(provider, &message, OLD, now), "{provider}: {:?}", message.headers);
        assert!(!takes(provider, &message, "another secret, as long as it", now), "{provider}");
        let mut changed = message.clone();
        changed.body = changed.body.iter().map(|byte| byte ^ 1).collect::<Vec<_>>().into();
        assert!(!takes(provider, &changed, OLD, now), "{provider}");
    }
    crate::dispatch::header(&message, "x-shop-signature");
    for part in ["id", "timestamp", "signature"] {
        assert_eq!(message.headers[format!("svix-{part}")], message.headers[format!("webhook-{part}")]);
    }
}

async fn rotated(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, seen) = keeper().await;
    let id = endpoint(&store, url(&front), |new| {
        new.secret = Some(Secret::from_bytes(OLD.as_bytes().to_vec()).unwrap().into());
        new.signing = read(ALL);
    })
    .await;
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let new = "the secret that takes its place, at last";
    clock.advance(Duration::from_secs(1));
    rotate(&store, &manager, &id, new).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for (wait, github, stripe) in [(0, [true, false], [true, true]), (25 * 3600, [false, true], [false, true])] {
        clock.advance(Duration::from_secs(wait));
        publish(&store, event(r#"{"id":"evt_1","type":"a"}"#)).await;
        dispatcher.step().await.unwrap();
        let mut message = seen.lock().unwrap().pop().unwrap();
        for (name, value) in [("x-github-delivery", "d1"), ("x-github-event", "push")] {
            message.headers.insert(name, value.parse().unwrap());
        }
        let now = store.now();
        assert_eq!(
            [OLD, new].map(|secret| takes("github", &message, secret, now)),
            github,
            "one signature: the oldest secret"
        );
        assert_eq!([OLD, new].map(|secret| takes("stripe", &message, secret, now)), stripe, "one for each live secret");
    }
}

async fn rotate(store: &Store, manager: &Manager, id: &str, secret: &str) {
    let (tenant, key_id) = (tenant(), Key::new("key_new").unwrap());
    let key = SecretKey { tenant: tenant.as_str(), endpoint: id, key_id: &key_id };
    let secret = Secret::from_bytes(secret.as_bytes().to_vec()).unwrap().into();
    let mut tx = store.begin().await.unwrap();
    let until = store.now().plus(Duration::from_secs(24 * 3600));
    manager.rotate_secret(&mut tx.conn(), key, &secret, until).await.unwrap();
    tx.commit().await.unwrap();
}

async fn refused(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let custom = CustomHeaders::new([("x-hub-signature-256".to_owned(), "mine".to_owned())]);
    let custom = custom.unwrap();
    let new = NewEndpoint {
        signing: read(r#"{"beside": [{"style": "github"}]}"#),
        ..NewEndpoint::new(tenant(), "http://127.0.0.1:9/")
    };
    let both = NewEndpoint { headers: custom.clone(), ..new.clone() };
    let refused = manager.create_now(both).await.unwrap_err();
    assert!(
        matches!(refused, ManageError::Signing(_)) && refused.to_string().contains("x-hub-signature-256"),
        "{refused}"
    );
    let id = manager.create_now(new).await.unwrap().endpoint.id;
    let mut tx = store.begin().await.unwrap();
    let change = EndpointChange { headers: Some(custom.clone()), ..EndpointChange::default() };
    let refused = manager.change(&mut tx.conn(), &tenant(), &id, change).await.unwrap_err();
    assert!(matches!(refused, ManageError::Signing(_)), "{refused}");
    let change =
        EndpointChange { headers: Some(custom), signing: Some(Signing::default()), ..EndpointChange::default() };
    manager.change(&mut tx.conn(), &tenant(), &id, change).await.unwrap();
    tx.commit().await.unwrap();
}
