//! A database of the first schema is migrated and goes on where it was: nothing is lost, sent again or acted on twice.

use std::time::Duration;

use http::StatusCode;
use sha2::{Digest, Sha256};
use twiceproof::dispatcher::{Dispatcher, Policy, PublishError, Publisher};
use twiceproof_migrations::{Migration, POSTGRES, SQLITE};
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::signature;
use twiceproof_shared::store::{Arg, Database, Store, StoreOptions};

use crate::dispatch::{answer, endpoint, event, header, only, options, publish, sink, states, url, verify};
use crate::harness::{Bed, Suite};
use crate::kit::{self, Effect, Receiving, effects, signed, source};

pub fn register(suite: &mut Suite) {
    suite.both("upgrade::a_database_of_the_first_schema_goes_on_where_it_was", first_schema);
}

/// States at the time of the upgrade. The worker of the leased one is gone.
const STATES: [&str; 5] = ["pending", "backoff", "leased", "parked", "delivered"];

async fn first_schema(bed: Bed) {
    let old = open(&bed).await;
    let steps = match bed.database() {
        Database::Sqlite => SQLITE,
        Database::Postgres => POSTGRES,
    };
    make(&old, &steps[0]).await;

    // What the first release wrote: a processed request, and deliveries in every state.
    let (old, receiving) = kit::receiving(old).await;
    let request = signed("evt-1", "{}", old.now());
    let first = receiving.send(&request).await;
    assert_eq!(first.status, StatusCode::OK);
    let (front, seen) = sink(|_, _| answer(200)).await;
    let lane = add_endpoint(&old, &url(&front)).await;
    let mut ids = Vec::new();
    for state in STATES {
        ids.push(add_event(&old, &lane, state).await);
    }

    // The newer program, while the older one is still connected.
    let store = open(&bed).await;
    let missing: Vec<i64> = steps[1..].iter().map(|step| step.version).collect();
    assert_eq!(store.pending_migrations().await.unwrap(), missing);
    assert_eq!(store.migrate().await.unwrap(), missing);
    assert_eq!(store.migrate().await.unwrap(), [0_i64; 0]);

    let handler = Effect { store: store.clone(), takes: Duration::ZERO };
    let newer = Receiving::start(&store, source(), handler).await;
    for receiving in [&receiving, &newer] {
        let again = receiving.send(&request).await;
        assert_eq!((again.status, &again.body), (first.status, &first.body), "answered from the ledger");
    }
    assert_eq!(effects(&store).await.len(), 1);

    let publisher = Publisher::new(&store, &Policy::default());
    let uid = Key::new("uid-pending").unwrap();
    let again = publisher.publish_now(event("pending").with_uid(uid.clone())).await.unwrap();
    assert_eq!((again.id.as_str(), again.fresh), (ids[0].as_str(), false));
    let other = publisher.publish_now(event("other").with_uid(uid)).await;
    assert!(matches!(other, Err(PublishError::Conflict(_))), "{other:?}");

    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for _ in 0..20 {
        dispatcher.step().await.unwrap();
        if states(&store).await == only("delivered", 5) {
            break;
        }
    }
    assert_eq!(states(&store).await, only("delivered", 5));
    let mut sent: Vec<String> = Vec::new();
    for message in seen.lock().unwrap().iter() {
        verify(message, store.now());
        assert_eq!(header(message, signature::SIGNATURE).split(' ').count(), 1, "an expired secret does not sign");
        sent.push(header(message, signature::ID).to_owned());
    }
    sent.sort_unstable();
    ids.truncate(4);
    ids.sort_unstable();
    assert_eq!(sent, ids, "each once, and none that had been delivered");

    // Rows of both releases stand side by side.
    endpoint(&store, url(&front), |_| {}).await;
    publish(&store, event("new")).await;
    dispatcher.step().await.unwrap();
    assert_eq!(states(&store).await, only("delivered", 7));
}

async fn open(bed: &Bed) -> Store {
    let mut options = StoreOptions::default();
    options.connections = Some(4);
    Store::connect(bed.db.url(), options).await.unwrap()
}

/// Makes the schema as the program did that knew this step alone.
async fn make(store: &Store, step: &Migration) {
    let mut tx = store.begin().await.unwrap();
    let table = "CREATE TABLE twiceproof_migrations (version BIGINT NOT NULL PRIMARY KEY, name TEXT NOT NULL,
                 checksum TEXT NOT NULL, applied_at BIGINT NOT NULL)";
    tx.conn().execute_script(table).await.unwrap();
    tx.conn().execute_script(step.sql).await.unwrap();
    let checksum: String = Sha256::digest(step.sql.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let record = "INSERT INTO twiceproof_migrations (version, name, checksum, applied_at) VALUES ($1, $2, $3, 1)";
    tx.conn().execute(record, &[step.version.into(), step.name.into(), checksum.as_str().into()]).await.unwrap();
    tx.commit().await.unwrap();
}

async fn execute(store: &Store, sql: &'static str, args: &[Arg<'_>]) {
    let mut tx = store.begin().await.unwrap();
    tx.conn().execute(sql, args).await.unwrap();
    tx.commit().await.unwrap();
}

async fn add_endpoint(store: &Store, url: &str) -> String {
    let id = Id::mint(Prefix::Endpoint, store.now(), store.random()).to_string();
    let sql = "INSERT INTO twiceproof_endpoints
                   (tenant, id, url, state, all_event_types, timeout_ms, slots, created_at, updated_at)
               VALUES ('default', $1, $2, 'enabled', 1, 15000, 32, 1, 1)";
    execute(store, sql, &[id.as_str().into(), url.into()]).await;
    let sql = "INSERT INTO twiceproof_endpoint_secrets (tenant, endpoint, key_id, secret, created_at, expires_at)
               VALUES ('default', $1, 'live', $2, 1, NULL), ('default', $1, 'expired', $3, 1, 2)";
    let secret = kit::secret();
    execute(store, sql, &[id.as_str().into(), secret.expose().into(), [7_u8; 32].as_slice().into()]).await;
    id
}

/// An event whose payload is the state of its delivery.
async fn add_event(store: &Store, endpoint: &str, state: &str) -> String {
    let (id, now) = (Id::mint(Prefix::Event, store.now(), store.random()).to_string(), store.now().as_millis());
    let (uid, digest) = (format!("uid-{state}"), Sha256::digest(state.as_bytes()));
    let sql = "INSERT INTO twiceproof_events (tenant, id, uid, event_type, content_type, payload, digest, created_at)
               VALUES ('default', $1, $2, 'order.placed', 'application/json', $3, $4, $5)";
    let args = [id.as_str().into(), uid.as_str().into(), state.as_bytes().into(), digest.as_slice().into(), now.into()];
    execute(store, sql, &args).await;
    let sql = "INSERT INTO twiceproof_deliveries
                   (tenant, event, endpoint, state, due_at, deadline_at, attempts, token, lease_owner, created_at)
               VALUES ('default', $1, $2, $3, $4, $5, 1, 1, CASE WHEN $3 = 'leased' THEN 'wrk_gone' END, $4)";
    let args = [id.as_str().into(), endpoint.into(), state.into(), now.into(), (now + 3_600_000).into()];
    execute(store, sql, &args).await;
    id
}
