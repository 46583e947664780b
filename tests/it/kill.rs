//! The real program and a receiver process, ended at named places as by `kill -9`: nothing is lost, nothing doubled.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use twiceproof::dispatcher::guard::AddressPolicy;
use twiceproof::dispatcher::{Manager, NewEndpoint, NewEvent, Policy, Publisher};
use twiceproof_shared::key::Key;
use twiceproof_shared::kill::MIGRATION;
use twiceproof_shared::store::{DatabaseUrl, Store, StoreOptions};

use crate::fixture::{How, ReceiverProcess, ended};
use crate::harness::{Bed, Suite};
use crate::kit::{effects, make_effects, secret};

pub fn register(suite: &mut Suite) {
    suite.both("kill::send_l23_after_the_claim_everything_claimed_is_delivered_later", |bed| {
        a_few_times(bed, Victim::Dispatcher("after_claim"))
    });
    suite.both("kill::after_the_request_left_it_is_sent_again_under_the_same_id", |bed| {
        a_few_times(bed, Victim::Dispatcher("request_left"))
    });
    suite.both("kill::rel_b01_after_the_effect_before_its_commit_it_happens_once", |bed| {
        a_few_times(bed, Victim::Receiver("effect_before_commit"))
    });
    suite.both("kill::a_program_killed_while_it_makes_the_tables_makes_them_the_next_time", migration);
    suite.postgres("kill::rel_b26_a_worker_stopped_past_its_lease_changes_nothing_when_it_goes_on", stopped);
}

/// Who is killed, and where.
#[derive(Clone, Copy)]
enum Victim {
    Dispatcher(&'static str),
    Receiver(&'static str),
}

/// Events of each round; at least this many requests are under way when the kill comes.
const EVENTS: usize = 100;
const IN_FLIGHT: i64 = 32;

async fn a_few_times(bed: Bed, victim: Victim) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let tenant = Key::new("default").unwrap();
    // A port that is ours for the whole test: the receiver comes back on it.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("127.0.0.1:{port}");
    let policy = Policy::default();
    let mut endpoint = NewEndpoint::new(tenant.clone(), format!("http://{listen}/shop"));
    endpoint.secret = Some(secret().into());
    endpoint.timeout = Some(Duration::from_secs(4));
    Manager::new(&store, AddressPolicy::AllowPrivate, &policy).create_now(endpoint).await.unwrap();
    let publisher = Publisher::new(&store, &policy);

    for round in 1..=2 {
        let accepted = publish(&publisher, &tenant, round).await;
        let (dispatcher_dies, receiver_dies) = match victim {
            Victim::Dispatcher(place) => (Some(place), None),
            Victim::Receiver(place) => (None, Some(place)),
        };
        let mut receiver = ReceiverProcess::start(
            bed.db.url(),
            &listen,
            How { gather: IN_FLIGHT as usize, kill_at: receiver_dies, ..How::default() },
        );
        let mut program = Program::start(bed.db.url(), dispatcher_dies);
        let status = match victim {
            Victim::Dispatcher(_) => program.ended().await,
            Victim::Receiver(_) => receiver.ended().await,
        };
        assert!(!status.success(), "round {round}: it was to be killed, and ended with {status}");
        let in_flight = match victim {
            Victim::Dispatcher(_) => deliveries(&store, "leased").await,
            Victim::Receiver(_) => receiver.open() as i64,
        };
        println!("round {round}: killed with {in_flight} of {accepted} in flight");
        assert!(in_flight >= IN_FLIGHT, "round {round}: only {in_flight} in flight");
        // Both come back, and nothing kills them this time.
        drop(receiver);
        drop(program);
        let receiver = ReceiverProcess::start(bed.db.url(), &listen, How::default());
        let program = Program::start(bed.db.url(), None);
        all_delivered(&store).await;
        let seen = effects(&store).await;
        let mut distinct: Vec<&str> = seen.iter().map(|(event, _)| event.as_str()).collect();
        distinct.dedup();
        assert_eq!(distinct.len(), round * EVENTS, "round {round}: lost");
        assert_eq!(seen.len(), round * EVENTS, "round {round}: double");
        drop((receiver, program));
    }
}

/// A worker is stopped with 32 requests under way; another takes them over and finishes; then the first goes on.
async fn stopped(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let tenant = Key::new("default").unwrap();
    // The receiver lets nobody in before the other worker's requests have come as well.
    let how = How { gather: IN_FLIGHT as usize + 1, ..How::default() };
    let receiver = ReceiverProcess::start(bed.db.url(), "127.0.0.1:0", how);
    let policy = Policy::default();
    let mut endpoint = NewEndpoint::new(tenant.clone(), format!("http://{}/shop", receiver.address));
    endpoint.secret = Some(secret().into());
    endpoint.timeout = Some(Duration::from_secs(4));
    Manager::new(&store, AddressPolicy::AllowPrivate, &policy).create_now(endpoint).await.unwrap();
    let publisher = Publisher::new(&store, &policy);
    for number in 0..IN_FLIGHT {
        let event = NewEvent::json(tenant.clone(), "order.placed", format!(r#"{{"order":{number}}}"#));
        publisher.publish_now(event).await.unwrap();
    }
    let first = Program::start(bed.db.url(), None);
    while (receiver.open() as i64) < IN_FLIGHT {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first.signal("STOP");
    let second = Program::start(bed.db.url(), None);
    all_delivered(&store).await;
    first.signal("CONT");
    let late = "SELECT count(*) FROM twiceproof_attempts WHERE late = 1";
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        let (count,): (i64,) = store.read().await.unwrap().conn().fetch_one(late, &[]).await.unwrap();
        if count == IN_FLIGHT {
            break;
        }
        assert!(Instant::now() < patience, "{count} of {IN_FLIGHT} attempts were kept as late");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(deliveries(&store, "delivered").await, IN_FLIGHT, "what it recorded changed nothing");
    assert_eq!(effects(&store).await.len() as i64, IN_FLIGHT);
    drop((first, second));
}

/// The tables are made in one transaction: all of them or none.
async fn migration(bed: Bed) {
    let killed = Program::start(bed.db.url(), Some(MIGRATION.name)).ended().await;
    assert!(!killed.success());
    let store = Store::connect(bed.db.url(), StoreOptions::default()).await.unwrap();
    let steps = store.pending_migrations().await.unwrap();
    assert_eq!(steps.first(), Some(&1), "nothing is half done");
    assert_eq!(store.migrate().await.unwrap(), steps);
    assert_eq!(store.pending_migrations().await.unwrap(), [0; 0]);
}

async fn publish(publisher: &Publisher, tenant: &Key, round: usize) -> usize {
    for number in 0..EVENTS {
        let event = NewEvent::json(tenant.clone(), "order.placed", format!(r#"{{"order":"{round}-{number}"}}"#));
        publisher.publish_now(event).await.unwrap();
    }
    EVENTS
}

async fn deliveries(store: &Store, state: &str) -> i64 {
    let mut reader = store.read().await.unwrap();
    let sql = "SELECT count(*) FROM twiceproof_deliveries WHERE state = $1";
    let (count,): (i64,) = reader.conn().fetch_one(sql, &[state.into()]).await.unwrap();
    count
}

async fn all_delivered(store: &Store) {
    let patience = Instant::now() + Duration::from_secs(120);
    loop {
        let mut waiting = 0;
        for state in ["pending", "backoff", "leased", "parked", "dead"] {
            waiting += deliveries(store, state).await;
        }
        if waiting == 0 {
            return;
        }
        assert!(Instant::now() < patience, "{waiting} deliveries are stuck");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// `twiceproof serve` in a process of its own. It is killed on drop.
pub struct Program(Child);

impl Program {
    pub fn start(database: &DatabaseUrl, kill_at: Option<&str>) -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0)).to_string();
        Self::run(&["serve", "--allow-private-addresses", "--listen", &listen], database, kill_at)
    }

    /// `twiceproof worker`.
    pub fn worker(database: &DatabaseUrl) -> Self {
        Self::run(&["worker", "--allow-private-addresses"], database, None)
    }

    fn run(args: &[&str], database: &DatabaseUrl, kill_at: Option<&str>) -> Self {
        let mut command = Command::new(binary());
        command
            .args(args)
            .env("TWICEPROOF_DATABASE", database.expose())
            .envs(QUICK)
            .env_remove("TWICEPROOF_TEST_KILL_AT")
            .current_dir(std::env::temp_dir())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        if let Some(place) = kill_at {
            command.env("TWICEPROOF_TEST_KILL_AT", place);
        }
        Self(command.spawn().unwrap())
    }

    pub async fn ended(&mut self) -> ExitStatus {
        ended(&mut self.0).await
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Short leases and retries, so that a test need not wait for the defaults.
const QUICK: [(&str, &str); 3] = [
    ("TWICEPROOF_LOG_LEVEL", "error"),
    ("TWICEPROOF_DELIVERY_LEASE_MARGIN", "1s"),
    ("TWICEPROOF_RETRY_FIRST", "200ms"),
];

/// The program under test.
pub fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_twiceproof"))
}
