//! The processes of a round: started, killed, stopped and let go on.
//!
//! Invariants: a process ends with this value; what it said before its end is in the book when its end is known.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::Instant;
use twiceproof_shared::kill::Part;
use twiceproof_shared::store::DatabaseUrl;

use super::CrashError;
use super::actor::{Offer, READY, Role, Setup};
use super::book::Book;

/// How long a process may take until it is ready, and to its end once it was told.
const PATIENCE: Duration = Duration::from_secs(30);
/// Settings of the worker: short leases and waits, so that a round is short.
const QUICK: [(&str, &str); 5] = [
    ("TWICEPROOF_LOG_LEVEL", "warn"),
    ("TWICEPROOF_ALLOW_PRIVATE_ADDRESSES", "true"),
    ("TWICEPROOF_DELIVERY_LEASE_MARGIN", "1s"),
    ("TWICEPROOF_RETRY_FIRST", "100ms"),
    ("TWICEPROOF_RETRY_CAP", "400ms"),
];

/// How to start the processes of a round.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) program: PathBuf,
    /// Their working folder, which holds their logs.
    pub(super) folder: PathBuf,
    /// The database as publisher and worker reach it, …
    pub(super) database: DatabaseUrl,
    /// … and as the receiver does.
    pub(super) effects: DatabaseUrl,
    /// Where the receiver listens.
    pub(super) listen: String,
    pub(super) secret: String,
    pub(super) book: Arc<Book>,
}

/// A running process.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    part: Part,
    input: Option<ChildStdin>,
    listener: Option<JoinHandle<()>>,
    book: Arc<Book>,
}

impl Stage {
    /// Starts a process and waits until it is ready. `kill_at`: a point and its passage.
    pub(super) async fn start(&self, part: Part, kill_at: Option<(&str, u64)>) -> Result<Process, CrashError> {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TWICEPROOF_")) {
            command.env_remove(name);
        }
        if let Some((name, passage)) = kill_at {
            command.env("TWICEPROOF_TEST_KILL_AT", format!("{name}:{passage}"));
        }
        let log = File::options().create(true).append(true).open(self.folder.join("stderr.log"))?;
        command.current_dir(&self.folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        match part {
            Part::Worker => command
                .args(["serve", "--listen", "127.0.0.1:0"])
                .env("TWICEPROOF_DATABASE", self.database.expose())
                .envs(QUICK),
            Part::Publisher | Part::Receiver => command.args(["prove", "actor"]),
        };
        let mut child = command.spawn()?;
        let mut input = child.stdin.take();
        let output = child.stdout.take();
        let role = match part {
            Part::Worker => None,
            Part::Publisher => Some(Role::Publisher),
            Part::Receiver => Some(Role::Receiver { listen: self.listen.clone(), secret: self.secret.clone() }),
        };
        if let (Some(role), Some(input)) = (role, &mut input) {
            // The database's address may hold a password: it goes neither into arguments nor into a file.
            let database = if part == Part::Receiver { &self.effects } else { &self.database };
            let setup = Setup { database: database.expose(), role };
            let line = serde_json::to_string(&setup).map_err(std::io::Error::from)?;
            writeln!(input, "{line}")?;
        }
        let (tell, ready) = mpsc::channel();
        let book = Arc::clone(&self.book);
        let listener = output.map(|output| std::thread::spawn(move || listen(output, &book, &tell)));
        let mut process = Process { child, part, input, listener, book: Arc::clone(&self.book) };
        let deadline = Instant::now() + PATIENCE;
        while ready.try_recv().is_err() {
            if process.child.try_wait()?.is_some() {
                // An armed process may die before it is ready.
                break;
            }
            if Instant::now() >= deadline {
                return Err(CrashError::NotReady(process.part));
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        Ok(process)
    }
}

/// Writes down what a process says, until its end.
fn listen(output: impl std::io::Read, book: &Book, ready: &mpsc::Sender<()>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(fact) => book.note(fact),
            // `ready` of an actor, `listening on …` of the worker.
            Err(_) if line == READY || line.starts_with("listening") => {
                let _ = ready.send(());
            }
            // A process that was killed in the middle of a line.
            Err(_) => {}
        }
    }
}

impl Process {
    /// Hands an offer to a publisher. Where that fails it has gone, and what became of the offer is found out with its end.
    pub(super) fn offer(&mut self, offer: &Offer) {
        let line = serde_json::to_string(offer).unwrap_or_default();
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}");
        }
    }

    /// Whether it has ended. What it had said is written down then.
    pub(super) fn has_ended(&mut self) -> Result<bool, CrashError> {
        let ended = self.child.try_wait()?.is_some();
        if ended {
            self.hear_out();
        }
        Ok(ended)
    }

    /// Waits for its end; false if it still runs after `patience`.
    async fn ended(&mut self, patience: Duration) -> Result<bool, CrashError> {
        let deadline = Instant::now() + patience;
        while !self.has_ended()? {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(true)
    }

    /// Ends it at once, as `kill -9` does.
    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.hear_out();
        if self.part == Part::Publisher {
            // What was offered to it after it had died of itself.
            self.book.publisher_gone();
        }
    }

    /// Lets it end in its own way; true if it did, and said that all is well.
    pub(super) async fn stop(mut self) -> Result<bool, CrashError> {
        drop(self.input.take());
        if self.part == Part::Worker {
            self.signal("TERM")?;
        }
        let ended = self.ended(PATIENCE).await?;
        Ok(ended && self.child.wait()?.success())
    }

    /// Stops it in the middle of whatever it does (`STOP`), or lets it go on (`CONT`).
    pub(super) fn signal(&self, name: &str) -> Result<(), CrashError> {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status()?;
        if sent.success() { Ok(()) } else { Err(CrashError::Signal) }
    }

    /// Everything that it had said is written down.
    fn hear_out(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
