//! This test program as another process: a receiver that a test can start twice, or kill.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

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

/// `DATABASE LISTEN MILLISECONDS`: the database, the address, and how long the handler takes.
async fn serve(text: &str) {
    let parts: Vec<&str> = text.split(' ').collect();
    let [database, listen, takes] = parts[..] else { panic!("{text}") };
    let mut options = StoreOptions::default();
    options.connections = Some(16);
    let store = Store::connect(&DatabaseUrl::parse(database).unwrap(), options).await.unwrap();
    let handler = Effect { store: store.clone(), takes: Duration::from_millis(takes.parse().unwrap()) };
    let receiver = Receiver::new(store).source(source().build().unwrap(), handler).unwrap();
    let server = Server::bind(listen, ServerOptions::default()).await.unwrap();
    println!("listening {}", server.address());
    server.serve(receiver.router(), std::future::pending()).await;
}

/// A receiver in a process of its own. It is killed on drop.
pub struct ReceiverProcess {
    child: Child,
    pub hop: Hop,
}

impl ReceiverProcess {
    /// Starts it on the database, at `listen` (port 0: a free one). `kill_at` names a kill point and its passage.
    pub fn start(database: &DatabaseUrl, listen: &str, takes: Duration, kill_at: Option<&str>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env(ROLE, format!("{} {listen} {}", database.expose(), takes.as_millis()))
            .env_remove("TWICEPROOF_TEST_KILL_AT")
            .stdout(Stdio::piped());
        if let Some(place) = kill_at {
            command.env("TWICEPROOF_TEST_KILL_AT", place);
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening ").unwrap_or_else(|| panic!("it said {line:?}"));
        let address: SocketAddr = address.parse().unwrap();
        Self { child, hop: Hop::new(address, Duration::from_secs(60)) }
    }

    /// Waits for it to end by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        ended(&mut self.child).await
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
