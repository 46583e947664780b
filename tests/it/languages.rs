//! Publishing from other languages, each in its own transaction: rolled back, there is no event; committed, it is delivered.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use http::StatusCode;
use twiceproof::dispatcher::{AddressPolicy, Dispatcher, DispatcherOptions, Manager, NewEndpoint, Policy};
use twiceproof::prove::{Answer, Front, Message};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.postgres("languages::psql_publishes_in_its_own_transaction", psql);
    let installed = std::env::var_os("TWICEPROOF_TEST_SDKS").map(PathBuf::from);
    suite.both_given(&installed, "languages::python_publishes_in_its_own_transaction", python);
    suite.postgres_given(&installed, "languages::node_publishes_in_its_own_transaction", node);
}

/// A database with a table of orders, an endpoint, and what arrived there.
struct Shop {
    store: Store,
    seen: Arc<Mutex<Vec<Message>>>,
    _front: Front,
}

impl Shop {
    async fn open(bed: &Bed) -> Self {
        let store = bed.db.store(None).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        tx.conn().execute_script("CREATE TABLE orders (name TEXT NOT NULL)").await.unwrap();
        tx.commit().await.unwrap();
        let seen: Arc<Mutex<Vec<Message>>> = Arc::default();
        let log = Arc::clone(&seen);
        let front = Front::open(move |message| {
            log.lock().unwrap().push(message);
            async { Ok(Answer::empty(StatusCode::OK)) }
        });
        let front = front.await.unwrap();
        let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
        let url = format!("http://{}/hook", front.address());
        manager.create_now(NewEndpoint::new(Key::new("default").unwrap(), url)).await.unwrap();
        Self { store, seen, _front: front }
    }

    /// What is there after one transaction was rolled back and one committed, and that the event is delivered.
    async fn has_one(&self, id: &str) {
        let mut reader = self.store.read().await.unwrap();
        let orders: Vec<(String,)> = reader.conn().fetch_all("SELECT name FROM orders", &[]).await.unwrap();
        let events: Vec<(String,)> = reader.conn().fetch_all("SELECT id FROM twiceproof_events", &[]).await.unwrap();
        drop(reader);
        assert_eq!((orders.len(), events.len()), (1, 1), "{orders:?} {events:?}");
        assert_eq!(events[0].0, id);
        let mut options = DispatcherOptions::default();
        options.sender.addresses = AddressPolicy::AllowPrivate;
        let mut dispatcher = Dispatcher::start(&self.store, options).await.unwrap();
        assert_eq!(dispatcher.step().await.unwrap().recorded.delivered, 1);
        dispatcher.stop().await;
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].headers["webhook-id"], id);
        assert!(seen[0].body.starts_with(b"{\"order\":7"), "{:?}", seen[0].body);
    }
}

/// What a program printed last.
async fn said(mut command: Command) -> String {
    let output = tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output().unwrap()).await.unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
    said.lines().last().unwrap_or_default().to_owned()
}

/// The address without what sqlx alone understands, and the schema.
async fn place(bed: &Bed, store: &Store) -> (String, String) {
    let (schema,): (String,) =
        store.read().await.unwrap().conn().fetch_one("SELECT current_schema()::text", &[]).await.unwrap();
    let url = bed.db.url().expose().to_string();
    (url.split('?').next().unwrap().to_owned(), schema)
}

async fn psql(bed: Bed) {
    let shop = Shop::open(&bed).await;
    let (url, schema) = place(&bed, &shop.store).await;
    let script = r#"
        BEGIN;
        INSERT INTO orders VALUES ('no');
        SELECT twiceproof_publish('default', 'order.paid', convert_to('{"order":7}', 'UTF8'));
        ROLLBACK;
        BEGIN;
        INSERT INTO orders VALUES ('yes');
        SELECT id FROM twiceproof_publish('default', 'order.paid', convert_to('{"order":7}', 'UTF8'), uid => 'psql');
        COMMIT;
        SELECT twiceproof_wake();
        SELECT id FROM twiceproof_publish('default', 'order.paid', convert_to('{"order":7}', 'UTF8'), uid => 'psql');"#;
    let mut command = Command::new("psql");
    command.args(["--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-q", "-A", "-t", "-d", &url, "-c"]);
    command.arg(script).env("PGOPTIONS", format!("-c search_path={schema}"));
    shop.has_one(&said(command).await).await;
}

async fn python(bed: Bed, sdks: PathBuf) {
    let shop = Shop::open(&bed).await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(sdks.join("python/bin/python"));
    command.arg(root.join("tests/sdk/publish.py"));
    match bed.db.url().file() {
        Some(file) => command.arg("sqlite").arg(file).arg(root.join("src/guide/sql.md")),
        None => {
            let (url, schema) = place(&bed, &shop.store).await;
            command.args(["postgres", &url, &schema])
        }
    };
    shop.has_one(&said(command).await).await;
}

async fn node(bed: Bed, sdks: PathBuf) {
    let shop = Shop::open(&bed).await;
    let (url, schema) = place(&bed, &shop.store).await;
    // Modules are looked for beside the script.
    let script = sdks.join("javascript/publish.mjs");
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk/publish.mjs"), &script).unwrap();
    let mut command = Command::new("node");
    command.arg(script).args([&url, &schema]);
    shop.has_one(&said(command).await).await;
}
