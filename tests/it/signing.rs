//! Signatures in the styles of other senders: what we send is what their customers verify.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use twiceproof::dispatcher::headers::CustomHeaders;
use twiceproof::dispatcher::manage::change::EndpointChange;
use twiceproof::dispatcher::{
    AddressPolicy, Dispatcher, ManageError, Manager, NewEndpoint, Policy, SecretKey, Signing,
};
use twiceproof::prove::{Answer, Front, Message};
use twiceproof::receiver::schemes::{KeySource, Provider};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::key::Key;
use twiceproof_shared::random::Random;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{PrivateKey, SigningKey, TOLERANCE};
use twiceproof_shared::store::Store;

use crate::api_bed::{Rest, complaint};
use crate::dispatch::{endpoint, event, options, publish, states, tenant, timed, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("signing::receivers_of_other_senders_verify_what_they_are_sent", verified);
    suite.both("signing::old_secrets_go_on_verifying_until_they_are_over", rotated);
    suite.both("signing::a_signature_cannot_share_its_header_with_a_custom_one", refused);
    suite.both("signing::key_pairs_alone_sign_in_no_other_style_and_are_refused_before", no_shared_secret);
    suite.both("signing::it_is_written_and_read_over_the_api", over_the_api);
    suite.both("signing::it_is_written_and_shown_by_the_program", by_the_program);
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

async fn no_shared_secret(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let beside = read(r#"{"beside": [{"style": "github"}]}"#);
    let pair: SigningKey = PrivateKey::generate(&Random::seeded(7)).into();
    let new = NewEndpoint {
        signing: beside.clone(),
        secret: Some(pair.clone()),
        ..NewEndpoint::new(tenant(), "http://127.0.0.1:9/")
    };
    let is_refused = |refused: ManageError| {
        assert!(matches!(&refused, ManageError::Signing(_)) && refused.to_string().contains("whsec_"), "{refused}");
    };
    is_refused(manager.create_now(new.clone()).await.unwrap_err());
    let id = manager.create_now(NewEndpoint { signing: Signing::default(), ..new.clone() }).await.unwrap().endpoint.id;
    let change = |signing: &Signing| EndpointChange { signing: Some(signing.clone()), ..EndpointChange::default() };
    let mut tx = store.begin().await.unwrap();
    is_refused(manager.change(&mut tx.conn(), &tenant(), &id, change(&beside)).await.unwrap_err());
    // The other names carry key pairs' signatures as well.
    let names = read(r#"{"names": "both"}"#);
    manager.change(&mut tx.conn(), &tenant(), &id, change(&names)).await.unwrap();
    let (of, key_id) = (tenant(), Key::new("key_shared").unwrap());
    let key = SecretKey { tenant: of.as_str(), endpoint: &id, key_id: &key_id };
    let shared = Secret::from_bytes(OLD.as_bytes().to_vec()).unwrap().into();
    manager.add_secret(&mut tx.conn(), key, &shared).await.unwrap();
    manager.change(&mut tx.conn(), &tenant(), &id, change(&beside)).await.unwrap();
    let next = Key::new("key_next").unwrap();
    let key = SecretKey { key_id: &next, ..key };
    let until = store.now().plus(Duration::from_secs(60));
    is_refused(manager.rotate_secret(&mut tx.conn(), key, &pair, until).await.unwrap_err());
    manager.rotate_secret(&mut tx.conn(), key, &shared, until).await.unwrap();
    tx.commit().await.unwrap();
}

async fn over_the_api(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let all = format!("/app/{app}/endpoint");
    let url = "https://example.com/hook";
    let signing = json!({
        "names": "both",
        "beside": [
            { "style": "github", "header": "X-Acme-Signature-256" },
            { "style": "stripe", "key": "bytes" },
            { "style": "shopify" },
        ],
    });
    let (status, made) = api.post(&all, json!({ "url": url, "signing": signing })).await;
    assert_eq!((status, &made["signing"]), (StatusCode::CREATED, &signing), "{made}");
    let one = format!("{all}/{}", made["id"].as_str().unwrap());
    for (body, expected) in [
        (json!({ "description": "stays" }), signing.clone()),
        (json!({ "signing": { "names": "svix" } }), json!({ "names": "svix" })),
        (json!({ "signing": {} }), json!({})),
        (json!({ "signing": signing }), signing.clone()),
    ] {
        assert_eq!(api.patch(&one, body).await.1["signing"], expected);
        assert_eq!(api.get(&one).await.1["signing"], expected);
    }
    let beside = |entry: Value| json!({ "beside": [entry] });
    for (wrong, word) in [
        (json!({ "name": "svix" }), "unknown field `name`"),
        (json!({ "names": "other" }), "unknown variant `other`"),
        (beside(json!({ "style": "md5" })), "unknown variant `md5`"),
        (beside(json!({ "style": "github", "heder": "x-a" })), "unknown field `heder`"),
        (beside(json!({ "style": "github", "header": "a b" })), "not the name of a header"),
        (beside(json!({ "style": "github", "header": "Webhook-Signature" })), "webhook-signature is set by the sender"),
        (beside(json!({ "style": "github", "header": "content-length" })), "content-length is set by the sender"),
    ] {
        for answer in [
            api.post(&all, json!({ "url": url, "signing": wrong })).await,
            api.put(&one, json!({ "url": url, "signing": wrong })).await,
            api.patch(&one, json!({ "signing": wrong })).await,
        ] {
            let (loc, text) = complaint(&answer);
            assert_eq!(loc[..2], ["body", "signing"], "{wrong}: {text}");
            assert!(text.contains(word), "{wrong}: {text}");
        }
    }
    let pair = PrivateKey::generate(&Random::seeded(7)).to_text();
    let body = json!({ "url": url, "signing": signing, "secret": pair.as_str() });
    assert!(complaint(&api.post(&all, body).await).1.contains("whsec_"));
    assert!(
        complaint(&api.post(&format!("{one}/secret/rotate"), json!({ "key": pair.as_str() })).await)
            .1
            .contains("whsec_")
    );
    let headers = json!({ "headers": { "X-Acme-Signature-256": "mine" } });
    let (loc, text) = complaint(&api.patch(&format!("{one}/headers"), headers).await);
    assert!(loc == ["body", "signing"] && text.contains("x-acme-signature-256"), "{loc:?} {text}");
    assert_eq!(api.get(&one).await.1["signing"], signing, "nothing of it was stored");
}

async fn by_the_program(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, format!("{OLD}\n")).unwrap();
    let database = bed.db.url().expose();
    let run_here = async |args: &[&str]| {
        let mut command = crate::program::program(folder.path());
        command.env("TWICEPROOF_DATABASE", &database).args(args);
        tokio::task::spawn_blocking(move || crate::program::run(&mut command)).await.unwrap()
    };
    let add = ["endpoint", "add", "https://example.com/hook", "--json", "--secret-is-text", "--secret-file"];
    let add = [&add[..], &[secret.to_str().unwrap(), "--header-names", "both", "--also-sign-like"]].concat();
    let (_, _, errors) = run_here(&[&add[..], &["gitlab"]].concat()).await;
    assert!(errors.contains("github, stripe, shopify"), "{errors}");
    let (_, _, errors) = run_here(&[&add[..], &["github=Host"]].concat()).await;
    assert!(errors.contains("host is set by the sender"), "{errors}");
    let styles = ["github=X-Acme-Signature-256", "--also-sign-like", "stripe:bytes"];
    let (added, out, errors) = run_here(&[&add[..], &styles].concat()).await;
    assert!(added, "{errors}");
    let added: Value = serde_json::from_str(&out).unwrap();
    let id = added["id"].as_str().unwrap();
    let manager = Manager::new(&store, AddressPolicy::PublicOnly, &Policy::default());
    let kept = manager.newest_secret(&mut store.read().await.unwrap().conn(), &tenant(), id).await.unwrap();
    assert_eq!(*kept.expose(), OLD.as_bytes(), "its characters are the key");
    let (_, out, errors) = run_here(&["endpoint", "show", id]).await;
    let line = "signed   webhook-… and svix-…, X-Acme-Signature-256 (like github, by the secret's bytes), stripe-signature (like stripe, by the secret's bytes)";
    assert!(out.contains(line), "{out}{errors}");
    let (_, out, _) = run_here(&["endpoint", "show", id, "--json"]).await;
    let shown: Value = serde_json::from_str(&out).unwrap();
    let signing = json!({
        "names": "both",
        "beside": [{ "style": "github", "header": "X-Acme-Signature-256" }, { "style": "stripe", "key": "bytes" }],
    });
    assert_eq!((&shown["signing"], &added["signing"]), (&signing, &signing));
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
