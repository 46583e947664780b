//! Secrets at rest: sealed under a master key that is not in the database, and still signing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;
use twiceproof::dispatcher::api::Api;
use twiceproof::dispatcher::api::token::{Keys, Subject};
use twiceproof::dispatcher::manage::sealing;
use twiceproof::dispatcher::manage::tenants::default_organisation;
use twiceproof::dispatcher::{
    AddressPolicy, Dispatcher, DispatcherOptions, Manager, NewEndpoint, NewEvent, Policy, Publisher, SecretKey,
};
use twiceproof::prove::{Answer, Front, Message};
use twiceproof_shared::key::Key;
use twiceproof_shared::random::Random;
use twiceproof_shared::seal::{MasterKey, Seal};
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{self, SignedHeaders, SigningKey};
use twiceproof_shared::store::{Store, StoreOptions};

use crate::harness::{Bed, Suite};

/// What would be found if anything of the secret lay open.
const CANARY: &[u8; 32] = b"canary-canary-canary-canary-0001";

pub fn register(suite: &mut Suite) {
    suite.both("sealing::a_sealed_secret_signs_and_is_nowhere_in_the_database", canary);
    suite.both("sealing::secrets_are_sealed_anew_under_another_key_and_go_on_signing", reseal);
    suite.both("sealing::a_sealed_secret_does_not_sign_for_another_endpoint", moved);
    suite.both("sealing::a_missing_master_key_is_named", missing);
    suite.both("sealing::a_stored_answer_with_a_secret_is_sealed_too", stored_answer);
}

fn key(seed: u64) -> MasterKey {
    MasterKey::parse(&MasterKey::generate_text(&Random::seeded(seed))).unwrap()
}

async fn open(bed: &Bed, keys: Vec<MasterKey>) -> Store {
    let mut options = StoreOptions::default();
    options.connections = Some(4);
    options.seal = Seal::new(keys);
    let store = Store::connect(bed.db.url(), options).await.unwrap();
    store.migrate().await.unwrap();
    store
}

fn tenant() -> Key {
    Key::new("default").unwrap()
}

fn secret() -> SigningKey {
    Secret::from_bytes(CANARY.to_vec()).unwrap().into()
}

/// An endpoint that is signed for with the canary, and a sink behind it.
async fn endpoint(store: &Store) -> (Front, Arc<Mutex<Vec<Message>>>, String) {
    let seen: Arc<Mutex<Vec<Message>>> = Arc::default();
    let log = Arc::clone(&seen);
    let front = Front::open(move |message| {
        log.lock().unwrap().push(message);
        async { Ok(Answer::empty(StatusCode::OK)) }
    });
    let front = front.await.unwrap();
    let manager = Manager::new(store, AddressPolicy::AllowPrivate, &Policy::default());
    let url = format!("http://{}/hook", front.address());
    let new = NewEndpoint { secret: Some(secret()), ..NewEndpoint::new(tenant(), url) };
    let id = manager.create_now(new).await.unwrap().endpoint.id;
    (front, seen, id)
}

/// Publishes one event and delivers it; how many of the requests that arrived are signed with the canary.
async fn delivered(store: &Store, seen: &Mutex<Vec<Message>>) -> usize {
    let event = NewEvent::json(tenant(), "order.paid", Bytes::from_static(b"{}"));
    Publisher::new(store, &Policy::default()).publish_now(event).await.unwrap();
    let mut options = DispatcherOptions::default();
    options.sender.addresses = AddressPolicy::AllowPrivate;
    let mut dispatcher = Dispatcher::start(store, options).await.unwrap();
    dispatcher.step().await.unwrap();
    dispatcher.stop().await;
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let keys = [secret().verifying()];
    let signed = |message: &&Message| {
        let header = |name: &str| message.headers.get(name).unwrap().to_str().unwrap();
        let headers = SignedHeaders {
            id: header(signature::ID),
            timestamp: header(signature::TIMESTAMP),
            signature: header(signature::SIGNATURE),
        };
        signature::verify_with(&headers, &message.body, &keys, store.now(), signature::TOLERANCE).is_ok()
    };
    seen.iter().filter(signed).count()
}

/// All that the database has of secrets; on SQLite, all of its files.
async fn stored(bed: &Bed, store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    let rows: Vec<(Vec<u8>,)> = store
        .read()
        .await
        .unwrap()
        .conn()
        .fetch_all("SELECT secret FROM twiceproof_endpoint_secrets ORDER BY tenant, endpoint, key_id", &[])
        .await
        .unwrap();
    assert!(!rows.is_empty());
    bytes.extend(rows.into_iter().flat_map(|(secret,)| secret));
    for entry in bed.db.folder().into_iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
        bytes.extend(std::fs::read(entry.unwrap().path()).unwrap());
    }
    bytes
}

fn has_canary(bytes: &[u8]) -> bool {
    bytes.windows(12).any(|window| window == &CANARY[..12])
}

async fn canary(bed: Bed) {
    let store = open(&bed, vec![key(1)]).await;
    let (_front, seen, _) = endpoint(&store).await;
    assert_eq!(delivered(&store, &seen).await, 1);
    assert!(!has_canary(&stored(&bed, &store).await));
    // The search finds it where it lies open.
    let plain = open(&bed, Vec::new()).await;
    endpoint(&plain).await;
    assert!(has_canary(&stored(&bed, &plain).await));
}

async fn reseal(bed: Bed) {
    let plain = open(&bed, Vec::new()).await;
    let (_front, seen, _) = endpoint(&plain).await;
    assert_eq!(sealing::check(&plain).await.unwrap(), Ok(true));

    let first = open(&bed, vec![key(1)]).await;
    assert_eq!(sealing::reseal(&first).await.unwrap().sealed, 1);
    assert_eq!(sealing::reseal(&first).await.unwrap().kept, 1);
    assert_eq!(sealing::check(&first).await.unwrap(), Ok(false));

    let both = open(&bed, vec![key(2), key(1)]).await;
    assert_eq!(delivered(&both, &seen).await, 1);
    assert_eq!(sealing::reseal(&both).await.unwrap().sealed, 1);
    let second = open(&bed, vec![key(2)]).await;
    assert_eq!(delivered(&second, &seen).await, 1);
}

/// Whoever can write into the database cannot have one tenant's secret sign for another's endpoint.
async fn moved(bed: Bed) {
    let store = open(&bed, vec![key(1)]).await;
    let (_front, seen, id) = endpoint(&store).await;
    let mut tx = store.begin().await.unwrap();
    let sql = "UPDATE twiceproof_endpoint_secrets SET key_id = 'key_other' WHERE endpoint = $1";
    assert_eq!(tx.conn().execute(sql, &[(&id).into()]).await.unwrap(), 1);
    tx.commit().await.unwrap();
    assert_eq!(delivered(&store, &seen).await, 0);
    assert!(seen.lock().unwrap().is_empty(), "nothing is sent that nobody signed");
}

/// A rotation answers with the new secret, and its answer is stored for repeats.
async fn stored_answer(bed: Bed) {
    let store = open(&bed, vec![key(1)]).await;
    let keys = Keys::new(&[7; 32]).unwrap();
    let publisher = Publisher::new(&store, &Policy::default());
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let api = Api::new(&store, publisher, manager, keys.clone());
    let router = twiceproof::api::service(api, &store);
    let now = store.now();
    let token = keys.sign(&Subject::Organisation(default_organisation()), now, now.plus(Duration::from_secs(60)));
    let post = async |path: String, body: serde_json::Value| {
        let request = Request::post(path)
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json")
            .header("idempotency-key", "once")
            .body(Body::from(body.to_string()))
            .unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let replayed = answer.headers().contains_key("idempotent-replayed");
        assert!(!answer.headers().contains_key("x-twiceproof-sealed-by"));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (replayed, serde_json::from_slice::<serde_json::Value>(&body).unwrap())
    };
    post("/api/v1/app".to_owned(), serde_json::json!({ "name": "Shop", "uid": "shop" })).await;
    let new = serde_json::json!({ "url": "https://example.com/", "uid": "hook" });
    post("/api/v1/app/shop/endpoint".to_owned(), new).await;
    let rotate = || post("/api/v1/app/shop/endpoint/hook/secret/rotate".to_owned(), serde_json::json!({}));
    let (first, again) = (rotate().await, rotate().await);
    assert_eq!((first.0, again.0), (false, true));
    assert_eq!(first.1, again.1, "byte for byte what was answered first");
    let secret = first.1["key"].as_str().unwrap();
    assert!(secret.starts_with("whsec_"));
    let sql = "SELECT outcome_body FROM twiceproof_ledger ORDER BY scope";
    let rows: Vec<(Vec<u8>,)> = store.read().await.unwrap().conn().fetch_all(sql, &[]).await.unwrap();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|(body,)| !body.windows(secret.len()).any(|window| window == secret.as_bytes())));
}

async fn missing(bed: Bed) {
    let store = open(&bed, vec![key(1)]).await;
    let (_front, seen, id) = endpoint(&store).await;
    let other = open(&bed, vec![key(2)]).await;
    let missing = sealing::check(&other).await.unwrap().unwrap_err();
    assert_eq!(missing.missing, [key(1).id()]);
    let refused = sealing::reseal(&other).await.unwrap_err().to_string();
    assert!(refused.contains(key(1).id()) && refused.contains(&id), "{refused}");
    assert_eq!(delivered(&other, &seen).await, 0);
    // With the key it was only late.
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let key_id = Key::new("key_second").unwrap();
    let mut tx = store.begin().await.unwrap();
    let name = SecretKey { tenant: "default", endpoint: &id, key_id: &key_id };
    manager.add_secret(&mut tx.conn(), name, &secret()).await.unwrap();
    // The same again changes nothing, sealed as it is.
    manager.add_secret(&mut tx.conn(), name, &secret()).await.unwrap();
    tx.commit().await.unwrap();
}
