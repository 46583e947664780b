//! The database is away in ways that are not its end: read-only, full, without a free connection, its clock moved. Nothing is
//! accepted that cannot be kept, nothing is lost or doubled, and everything goes on by itself afterwards.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use twiceproof::dispatcher::{
    AddressPolicy, Dispatcher, DispatcherOptions, Manager, NewEndpoint, NewEvent, Policy, PublishError, Publisher,
};
use twiceproof_shared::clock::{Clock, ManualClock, Timestamp};
use twiceproof_shared::cluster::Cluster;
use twiceproof_shared::key::Key;
use twiceproof_shared::store::{Database, DatabaseUrl, Store, StoreOptions, create_schema};

use crate::harness::{Bed, Suite};
use crate::kit::{Effect, Receiving, effects, make_effects, secret, signed, source};

pub fn register(suite: &mut Suite) {
    suite.postgres("faults::rel_b50_a_read_only_database_takes_nothing_and_goes_on_afterwards", read_only);
    suite.both("faults::without_a_free_connection_nothing_is_lost_and_work_goes_on", no_connection);
    suite.both("faults::rel_b61_a_clock_that_jumps_loses_and_doubles_nothing", clock_jumps);
    let can_mount = SmallDisk::mount().is_some();
    suite.sqlite_where(can_mount, "faults::a_full_disk_takes_nothing_and_loses_nothing", full_disk);
}

/// Both halves on one store, the receiver's effects behind the dispatcher's only endpoint.
struct Halves {
    store: Store,
    publisher: Publisher,
    dispatcher: Dispatcher,
    receiving: Receiving,
}

impl Halves {
    async fn start(store: Store) -> Self {
        make_effects(&store).await;
        let handler = Effect { store: store.clone(), takes: Duration::ZERO };
        let receiving = Receiving::start(&store, source(), handler).await;
        let tenant = Key::new("default").unwrap();
        let mut endpoint = NewEndpoint::new(tenant, format!("http://{}/shop", receiving.address));
        endpoint.secret = Some(secret().into());
        let policy = Policy::default();
        Manager::new(&store, AddressPolicy::AllowPrivate, &policy).create_now(endpoint).await.unwrap();
        let mut options = DispatcherOptions::default();
        options.sender.addresses = AddressPolicy::AllowPrivate;
        let dispatcher = Dispatcher::start(&store, options).await.unwrap();
        Self { publisher: Publisher::new(&store, &policy), store, dispatcher, receiving }
    }

    async fn publish(&self, number: usize) -> Result<(), PublishError> {
        let uid = Key::new(format!("order-{number}")).unwrap();
        let payload = format!(r#"{{"order":{number},"padding":"{}"}}"#, "x".repeat(2_000));
        let event = NewEvent::json(Key::new("default").unwrap(), "order.placed", payload).with_uid(uid);
        self.publisher.publish_now(event).await.map(drop)
    }

    /// What the receiver says to a request of its own.
    async fn receive(&self, id: &str) -> u16 {
        self.receiving.send(&signed(id, vec![b'x'; 2_000], self.store.now())).await.status.as_u16()
    }

    async fn count(&self, state: &str) -> i64 {
        let sql = "SELECT count(*) FROM twiceproof_deliveries WHERE state = $1";
        let (count,): (i64,) = self.store.read().await.unwrap().conn().fetch_one(sql, &[state.into()]).await.unwrap();
        count
    }
}

fn is_unavailable(result: &Result<(), PublishError>) -> bool {
    matches!(result, Err(PublishError::Store(error)) if error.is_retryable())
}

async fn read_only(_: Bed) {
    // A server of its own: it is read-only for everybody. A SQLite file that nobody may write is the full disk below.
    let cluster = Cluster::start().unwrap();
    let schema = create_schema(&cluster.url(), "read_only").await.unwrap();
    let store = Store::connect(&schema, StoreOptions::default()).await.unwrap();
    store.migrate().await.unwrap();
    let mut halves = Halves::start(store).await;
    halves.publish(1).await.unwrap();
    set_read_only(&halves.store, true).await;
    let refused = halves.publish(2).await;
    assert!(is_unavailable(&refused), "{refused:?}");
    assert_eq!(halves.receive("msg_direct").await, 503);
    let step = halves.dispatcher.step().await;
    assert!(matches!(&step, Err(error) if error.is_retryable()), "{step:?}");
    assert_eq!(effects(&halves.store).await.len(), 0);

    set_read_only(&halves.store, false).await;
    halves.publish(2).await.unwrap();
    assert_eq!(halves.receive("msg_direct").await, 200);
    assert_eq!(halves.dispatcher.step().await.unwrap().recorded.delivered, 2);
    assert_eq!(effects(&halves.store).await.len(), 3);
}

async fn set_read_only(store: &Store, on: bool) {
    let set = if on {
        "ALTER SYSTEM SET default_transaction_read_only = on"
    } else {
        "ALTER SYSTEM RESET default_transaction_read_only"
    };
    let mut reader = store.read().await.unwrap();
    reader.conn().execute_script(set).await.unwrap();
    reader.conn().execute_script("SELECT pg_reload_conf()").await.unwrap();
    drop(reader);
    // Each backend takes the setting up before its next statement once the signal has come.
    let expected = if on { "on" } else { "off" };
    for _ in 0..500 {
        let mut held = Vec::new();
        let mut all = true;
        for _ in 0..8 {
            let mut reader = store.read().await.unwrap();
            let sql = "SELECT current_setting('default_transaction_read_only')";
            let (value,): (String,) = reader.conn().fetch_one(sql, &[]).await.unwrap();
            all &= value == expected;
            held.push(reader);
        }
        if all {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the server did not take the setting up");
}

async fn no_connection(bed: Bed) {
    drop(bed.db.store(None).await.unwrap());
    let mut options = StoreOptions::default();
    options.connections = Some(2);
    let store = Store::connect(bed.db.url(), options).await.unwrap();
    store.migrate().await.unwrap();
    let mut halves = Halves::start(store.clone()).await;
    halves.publish(1).await.unwrap();
    let held = [store.read().await.unwrap(), store.read().await.unwrap()];
    let (published, answer) = tokio::join!(halves.publish(2), halves.receive("msg_direct"));
    // Shared publishes have connections of their own, and on SQLite so has every unit of work.
    let expected = if bed.database() == Database::Sqlite { 200 } else { 503 };
    assert!(published.is_ok() && answer == expected, "{published:?} {answer}");
    drop(held);
    halves.publish(2).await.unwrap();
    assert_eq!(halves.receive("msg_direct").await, 200);
    assert_eq!(halves.dispatcher.step().await.unwrap().recorded.delivered, 2);
    assert_eq!(effects(&halves.store).await.len(), 3);
}

async fn clock_jumps(bed: Bed) {
    let start = Timestamp::from_secs(1_700_000_000);
    let clock = ManualClock::new(start);
    let store = bed.db.store(Some(Arc::new(clock.clone()))).await.unwrap();
    let mut halves = Halves::start(store).await;
    let hours = Duration::from_secs(6 * 3600);
    halves.publish(1).await.unwrap();
    // Back, before it was sent: what is pending does not wait for the time of its making to come again.
    clock.set(start.minus(hours));
    assert_eq!(halves.dispatcher.step().await.unwrap().recorded.delivered, 1);
    halves.publish(2).await.unwrap();
    // Forward: it is sent once, and nothing that is done fires again.
    clock.set(start.plus(hours));
    assert_eq!(halves.dispatcher.step().await.unwrap().recorded.delivered, 1);
    assert_eq!(halves.dispatcher.step().await.unwrap().claimed, 0);
    // A redelivery is recognised on either side of a jump.
    let message = signed("msg_direct", "x", clock.now());
    assert_eq!(halves.receiving.send(&message).await.status, 200);
    for jump in [start.minus(hours), start.plus(hours * 4), start] {
        clock.set(jump);
        let again = halves.receiving.send(&signed("msg_direct", "x", jump)).await;
        assert!(again.status == 200 && again.headers.contains_key("idempotent-replayed"), "{again:?}");
    }
    assert_eq!((halves.count("delivered").await, effects(&halves.store).await.len()), (2, 3));
}

/// A file system of 3 MiB. It is unmounted on drop.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// None: this user may not mount.
    fn mount() -> Option<Self> {
        let folder = tempfile::Builder::new().prefix("twiceproof-disk-").tempdir().unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=3m", "none"]).arg(folder.path()).output();
        mount.is_ok_and(|output| output.status.success()).then_some(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

async fn full_disk(_: Bed) {
    let disk = SmallDisk::mount().unwrap();
    let url = DatabaseUrl::sqlite(disk.path().join("test.db")).unwrap();
    let store = Store::connect(&url, StoreOptions::default()).await.unwrap();
    store.migrate().await.unwrap();
    let mut halves = Halves::start(store).await;
    let filler = disk.path().join("filler");
    std::fs::write(&filler, vec![0; 1024 * 1024]).unwrap();
    let mut accepted = 0;
    let refused = loop {
        match halves.publish(accepted + 1).await {
            Ok(()) => accepted += 1,
            refused => break refused,
        }
        assert!(accepted < 5_000, "the disk never was full");
    };
    println!("{accepted} events were accepted before the disk was full: {refused:?}");
    assert!(is_unavailable(&refused), "{refused:?}");
    // Smaller writes may find room still; after those the answer stays the same.
    let mut taken = 0;
    while halves.receive(&format!("msg_{taken}")).await == 200 {
        taken += 1;
    }
    assert_eq!(halves.receive(&format!("msg_{taken}")).await, 503);

    std::fs::remove_file(&filler).unwrap();
    // The one that was refused is accepted now, or was found to have been accepted.
    halves.publish(accepted + 1).await.unwrap();
    let mut delivered = 0;
    while let Ok(step) = halves.dispatcher.step().await
        && step.claimed > 0
    {
        delivered += step.recorded.delivered;
    }
    assert_eq!(delivered as usize, accepted + 1);
    assert_eq!(effects(&halves.store).await.len(), accepted + 1 + taken);
    let mut reader = halves.store.read().await.unwrap();
    let (whole,): (String,) = reader.conn().fetch_one("PRAGMA integrity_check", &[]).await.unwrap();
    assert_eq!(whole, "ok");
}
