//! What leaves the house: with which signatures, and never to an address that is not public.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use tokio::net::TcpListener;
use twiceproof::dispatcher::guard::AddressPolicy;
use twiceproof::dispatcher::{
    Dispatcher, DispatcherOptions, ManageError, Manager, NewEndpoint, NewEvent, Policy, Publisher, SecretKey,
};
use twiceproof::prove::{Answer, Front};
use twiceproof_shared::key::Key;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{self, PrivateKey, SignedHeaders, SigningKey, VerifyingKey, verify_with};
use twiceproof_shared::store::Store;

use crate::egress_table::{CASES, Case};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("egress::private_keys_sign_beside_secrets_while_one_replaces_the_other", rotation);
    suite.both("egress::secrets_stored_before_there_were_kinds_go_on_signing", older_schema);
    suite.both("egress::no_spelling_of_an_inner_address_is_accepted_or_connected_to", table);
}

fn tenant() -> Key {
    Key::new("default").unwrap()
}

fn manager(store: &Store, addresses: AddressPolicy) -> Manager {
    Manager::new(store, addresses, &Policy::default())
}

async fn deliver(store: &Store, addresses: AddressPolicy) {
    let event = NewEvent::json(tenant(), "order.placed", "{}".to_owned());
    Publisher::new(store, &Policy::default()).publish_now(event).await.unwrap();
    let mut options = DispatcherOptions::default();
    options.sender.addresses = addresses;
    let mut dispatcher = Dispatcher::start(store, options).await.unwrap();
    while unattempted(store).await > 0 {
        dispatcher.step().await.unwrap();
    }
}

async fn unattempted(store: &Store) -> i64 {
    let sql = "SELECT count(*) FROM twiceproof_deliveries WHERE state IN ('pending', 'leased')";
    let (count,): (i64,) = store.read().await.unwrap().conn().fetch_one(sql, &[]).await.unwrap();
    count
}

async fn rotation(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (front, mut seen) = {
        let (send, seen) = tokio::sync::mpsc::unbounded_channel();
        let front = Front::open(move |message| {
            send.send(message).unwrap();
            async { Ok(Answer::empty(StatusCode::OK)) }
        });
        (front.await.unwrap(), seen)
    };
    let manager = manager(&store, AddressPolicy::AllowPrivate);
    let keys: [SigningKey; 3] = [
        PrivateKey::generate(store.random()).into(),
        PrivateKey::generate(store.random()).into(),
        Secret::generate(store.random()).into(),
    ];
    let mut new = NewEndpoint::new(tenant(), format!("http://{}/hook", front.address()));
    new.secret = Some(keys[0].clone());
    let created = manager.create_now(new).await.unwrap();
    let id = created.endpoint.id;
    let ids = [created.key_id, Key::new("second").unwrap(), Key::new("shared").unwrap()];
    let at = |key_id| SecretKey { tenant: "default", endpoint: &id, key_id };

    // Live keys after each turn: the first alone, all three, the first gone.
    for live in [0..1, 0..3, 1..3] {
        let mut tx = store.begin().await.unwrap();
        for number in live.clone() {
            manager.add_secret(&mut tx.conn(), at(&ids[number]), &keys[number]).await.unwrap();
        }
        if live.start == 1 {
            manager.expire_secret(&mut tx.conn(), at(&ids[0]), store.now()).await.unwrap();
        }
        // The same id with the same bytes but another kind is another key.
        let other = SigningKey::from_stored("v1", keys[0].expose().to_vec()).unwrap();
        let refused = manager.add_secret(&mut tx.conn(), at(&ids[0]), &other).await;
        assert!(matches!(refused, Err(ManageError::SecretIdTaken)), "{refused:?}");
        tx.commit().await.unwrap();

        deliver(&store, AddressPolicy::AllowPrivate).await;
        let message = seen.recv().await.unwrap();
        let header = |name: &str| message.headers.get(name).unwrap().to_str().unwrap();
        let signed = SignedHeaders {
            id: header(signature::ID),
            timestamp: header(signature::TIMESTAMP),
            signature: header(signature::SIGNATURE),
        };
        assert_eq!(signed.signature.split(' ').count(), live.len());
        let verifies = |key: VerifyingKey| {
            verify_with(&signed, &message.body, &[key], store.now(), Duration::from_secs(300)).is_ok()
        };
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(verifies(key.verifying()), live.contains(&number), "key {number} of {live:?}");
        }
        let mut reader = store.read().await.unwrap();
        let shown = manager.public_keys(&mut reader.conn(), &tenant(), &id).await.unwrap();
        let shown: HashMap<_, _> = shown.into_iter().collect();
        assert_eq!(shown.len(), live.clone().filter(|number| *number < 2).count());
        assert!(live.filter(|number| *number < 2).all(|n| shown.get(ids[n].as_str()) == keys[n].public().as_ref()));
    }
}

/// A row as it was written before the column was there, which is one that does not name it.
async fn older_schema(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let sql = "INSERT INTO twiceproof_endpoint_secrets (tenant, endpoint, key_id, secret, created_at)
               VALUES ('default', 'ep', 'k', $1, 1)";
    tx.conn().execute(sql, &[vec![7_u8; 32].as_slice().into()]).await.unwrap();
    let (kind,): (String,) = tx.conn().fetch_one("SELECT kind FROM twiceproof_endpoint_secrets", &[]).await.unwrap();
    assert_eq!(kind, "v1");
    let unknown = "UPDATE twiceproof_endpoint_secrets SET kind = 'v2'";
    assert!(tx.conn().execute(unknown, &[]).await.is_err());
}

async fn table(bed: Bed) {
    assert!(CASES.len() >= 150, "{}", CASES.len());
    let store = bed.db.store(None).await.unwrap();
    let trap = Trap::set().await;
    let strict = manager(&store, AddressPolicy::PublicOnly);
    let mut wrong = Vec::new();
    let mut refused = HashMap::new();
    for (url, expected) in CASES.iter().map(|case| spelled(case, trap.port)) {
        let created = strict.create_now(NewEndpoint::new(tenant(), &url)).await;
        match (&created, expected) {
            (Ok(created), None) => disable(&store, &created.endpoint.id).await,
            (Err(ManageError::Url(reason)), Some(start)) if reason.to_string().starts_with(start) => {}
            _ => wrong.push(format!("{url:?}: {:?}, not {expected:?}", created.map(|created| created.endpoint))),
        }
        if let Some(expected) = expected {
            refused.insert(smuggle(&store, &url).await, (url, expected));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));

    deliver(&store, AddressPolicy::PublicOnly).await;
    let sql = "SELECT endpoint, outcome, error FROM twiceproof_attempts";
    let attempts: Vec<(String, String, String)> = store.read().await.unwrap().conn().fetch_all(sql, &[]).await.unwrap();
    assert_eq!(attempts.len(), refused.len());
    let mut wrong = Vec::new();
    for (endpoint, outcome, error) in attempts {
        let (url, expected) = &refused[&endpoint];
        let reason = error.strip_prefix("blocked: ").unwrap_or(&error);
        if outcome != "not_sent" || !reason.starts_with(expected) {
            wrong.push(format!("{url:?}: {outcome}, {error:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), refused.len(), wrong.join("\n"));
    assert_eq!(trap.connections(), 0);

    // The trap does see what is let through.
    smuggle(&store, &format!("https://127.0.0.1:{}/", trap.port)).await;
    deliver(&store, AddressPolicy::AllowPrivate).await;
    assert!(trap.connections() > 0);
}

fn spelled(case: &Case, port: u16) -> (String, Option<&'static str>) {
    (case.0.replace("{p}", &port.to_string()), case.1)
}

/// An endpoint whose URL was written past the check.
async fn smuggle(store: &Store, url: &str) -> String {
    let new = NewEndpoint::new(tenant(), "https://example.com/");
    let id = manager(store, AddressPolicy::PublicOnly).create_now(new).await.unwrap().endpoint.id;
    let mut tx = store.begin().await.unwrap();
    let sql = "UPDATE twiceproof_endpoints SET url = $1 WHERE id = $2";
    tx.conn().execute(sql, &[url.into(), id.as_str().into()]).await.unwrap();
    tx.commit().await.unwrap();
    id
}

/// So that nothing is sent to strangers.
async fn disable(store: &Store, id: &str) {
    let mut tx = store.begin().await.unwrap();
    manager(store, AddressPolicy::PublicOnly).disable(&mut tx.conn(), &tenant(), id).await.unwrap();
    tx.commit().await.unwrap();
}

/// Listens on loopback behind a port that is open to public addresses, and counts who comes.
struct Trap {
    port: u16,
    count: Arc<AtomicUsize>,
}

impl Trap {
    async fn set() -> Self {
        let listener = loop {
            let mut found = None;
            for port in [8443, 4443, 9443] {
                if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
                    found = Some(listener);
                    break;
                }
            }
            match found {
                Some(listener) => break listener,
                // Other runs on this machine hold all three for a moment.
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        let port = listener.local_addr().unwrap().port();
        let six = TcpListener::bind(("::1", port)).await.ok();
        let count = Arc::new(AtomicUsize::new(0));
        for listener in std::iter::once(listener).chain(six) {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                while listener.accept().await.is_ok() {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        Self { port, count }
    }

    fn connections(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}
