//! This test program as another process: a receiver that a test can start twice, or kill.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use twiceproof::prove::Hop;
use twiceproof::receiver::Receiver;
use twiceproof::server::{Server, ServerOptions};
use twiceproof_shared::store::{DatabaseUrl, Store, StoreOptions};

use crate::kit::{Effect, source};

const ROLE: &str = "TWICEPROOF_TEST_FIXTURE";

/// Where this process was started as a fixture, it never comes back from here.
pub fn run_if_asked() {
    let Ok(text) = std::env::var(ROLE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(serve(&text));
    std::process::exit(0);
}

/// `DATABASE LISTEN TAKES GATHER`: the database, the address, how many milliseconds the handler takes, and how many
/// requests must be open before any of them gets there.
async fn serve(text: &str) {
    let parts: Vec<&str> = text.split(' ').collect();
    let [database, listen, takes, gather] = parts[..] else { panic!("{text}") };
    let gather: usize = gather.parse().unwrap();
    let mut options = StoreOptions::default();
    options.connections = Some(16);
    let store = Store::connect(&DatabaseUrl::parse(database).unwrap(), options).await.unwrap();
    let handler = Effect { store: store.clone(), takes: Duration::from_millis(takes.parse().unwrap()) };
    let receiver = Receiver::new(store).source(source().build().unwrap(), handler).unwrap();
    let server = Server::bind(listen, ServerOptions::default()).await.unwrap();
    println!("listening {}", server.address());
    let open = watch::Sender::new(0_usize);
    let router = receiver.router().layer(axum::middleware::from_fn(
        move |request: axum::extract::Request, next: axum::middleware::Next| {
            let open = open.clone();
            async move {
                open.send_modify(|open| *open += 1);
                println!("open {}", *open.borrow());
                open.subscribe().wait_for(|open| *open >= gather).await.unwrap();
                next.run(request).await
            }
        },
    ));
    server.serve(router, std::future::pending()).await;
}

/// How a receiver process behaves.
#[derive(Clone, Copy, Default)]
pub struct How<'a> {
    /// How long its handler takes, holding its transaction.
    pub takes: Duration,
    /// How many requests must have come before the first of them is let in; they are under way together then.
    pub gather: usize,
    /// A kill point and its passage.
    pub kill_at: Option<&'a str>,
}

/// A receiver in a process of its own. It is killed on drop.
pub struct ReceiverProcess {
    child: Child,
    pub address: SocketAddr,
    open: Arc<AtomicUsize>,
    log: Option<JoinHandle<()>>,
    pub hop: Hop,
}

impl ReceiverProcess {
    /// Starts it on the database, at `listen` (port 0: a free one).
    pub fn start(database: &DatabaseUrl, listen: &str, how: How<'_>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env(ROLE, format!("{} {listen} {} {}", database.expose(), how.takes.as_millis(), how.gather))
            .env_remove("TWICEPROOF_TEST_KILL_AT")
            .stdout(Stdio::piped());
        if let Some(place) = how.kill_at {
            command.env("TWICEPROOF_TEST_KILL_AT", place);
        }
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.next().unwrap_or_default();
        let address = line.strip_prefix("listening ").unwrap_or_else(|| panic!("it said {line:?}"));
        let address: SocketAddr = address.parse().unwrap();
        let open = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&open);
        let log = std::thread::spawn(move || {
            for line in lines {
                if let Some(open) = line.strip_prefix("open ").and_then(|open| open.parse().ok()) {
                    count.store(open, Ordering::SeqCst);
                }
            }
        });
        Self { child, address, open, log: Some(log), hop: Hop::new(address, Duration::from_secs(60)) }
    }

    /// How many requests had come there, as its log says.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Waits for it to end by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let status = ended(&mut self.child).await;
        // What it wrote before its end is read to the last line.
        if let Some(log) = self.log.take() {
            log.join().unwrap();
        }
        status
    }
}

/// Waits for a process to end by itself.
pub async fn ended(child: &mut Child) -> ExitStatus {
    for _ in 0..6_000 {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the process did not end");
}

impl Drop for ReceiverProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
