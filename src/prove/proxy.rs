//! A TCP proxy that does one kind of harm at a time, to HTTP as well as to PostgreSQL's protocol.
//!
//! It passes everything on until it is armed; the next connection that the fault can bite is its victim, all others go
//! on. Where a fault shall be seen as HTTP (no answer to this very request), [`Front`](super::Front) is the better tool.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, watch};

use super::listen::Listening;

/// The bytes of a COMMIT in PostgreSQL's simple query protocol.
const COMMIT: &[u8] = b"Q\x00\x00\x00\x0bCOMMIT\x00";
/// The longest wait for an answer that will not be passed on.
const ANSWER: Duration = Duration::from_secs(5);

/// What is done to one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It ends after so many more bytes of the client's.
    CutForth(usize),
    /// It ends after so many more bytes of the server's.
    CutBack(usize),
    /// Half of what the server says next is passed on, then it ends.
    Halve,
    /// What the client says next waits this long.
    Delay(Duration),
    /// What the client says next is taken and never passed on; it ends after this long.
    Swallow(Duration),
    /// PostgreSQL: it ends instead of the client's next COMMIT, which does not happen.
    CommitNotSent,
    /// PostgreSQL: it ends after the client's next COMMIT was done, before its answer.
    CommitAnswerLost,
}

/// A running proxy. It closes with all its connections when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    listening: Listening,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    armed: Mutex<Option<Fault>>,
    bites: watch::Sender<u64>,
    is_away: AtomicBool,
}

impl Proxy {
    /// A proxy on a free loopback port in front of `server`, `HOST:PORT`.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn open(server: impl Into<String>) -> std::io::Result<Self> {
        let server: Arc<str> = server.into().into();
        let state =
            Arc::new(State { armed: Mutex::new(None), bites: watch::Sender::new(0), is_away: AtomicBool::new(false) });
        let shared = Arc::clone(&state);
        let listening = Listening::open(move |client| {
            let (server, state) = (Arc::clone(&server), Arc::clone(&shared));
            async move {
                if state.is_away.load(Ordering::SeqCst) {
                    return;
                }
                // Nobody there: the client sees its connection end, as it would without us.
                if let Ok(server) = TcpStream::connect(&*server).await {
                    let _ = server.set_nodelay(true);
                    carry(client, server, state).await;
                }
            }
        });
        Ok(Self { listening: listening.await?, state })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Does this to the next connection that it can be done to, once; a fault that has not bitten yet is forgotten.
    pub fn arm(&self, fault: Fault) {
        *self.state.armed() = Some(fault);
    }

    /// Forgets a fault that has not bitten yet.
    pub fn disarm(&self) {
        *self.state.armed() = None;
    }

    /// How many faults have bitten.
    #[must_use]
    pub fn bites(&self) -> u64 {
        *self.state.bites.borrow()
    }

    /// Waits until more than `before` faults have bitten; false after `patience`.
    pub async fn bitten(&self, before: u64, patience: Duration) -> bool {
        let mut bites = self.state.bites.subscribe();
        let bitten = tokio::time::timeout(patience, bites.wait_for(|bites| *bites > before)).await;
        bitten.is_ok_and(|seen| seen.is_ok())
    }

    /// While it is away, new connections are closed at once.
    pub fn set_away(&self, is_away: bool) {
        self.state.is_away.store(is_away, Ordering::SeqCst);
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Forth,
    Back,
}

impl State {
    fn armed(&self) -> std::sync::MutexGuard<'_, Option<Fault>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The armed fault, if these bytes are what it waits for.
    fn take(&self, way: Way, bytes: &[u8]) -> Option<Fault> {
        let mut armed = self.armed();
        let bites = match (*armed)? {
            Fault::CutForth(_) | Fault::Delay(_) | Fault::Swallow(_) => way == Way::Forth,
            Fault::CutBack(_) | Fault::Halve => way == Way::Back,
            Fault::CommitNotSent | Fault::CommitAnswerLost => {
                way == Way::Forth && bytes.windows(COMMIT.len()).any(|window| window == COMMIT)
            }
        };
        if !bites {
            return None;
        }
        self.bites.send_modify(|bites| *bites += 1);
        armed.take()
    }
}

/// One connection.
struct Line {
    state: Arc<State>,
    /// Answers are not passed on any more, but heard.
    is_muted: AtomicBool,
    heard: Notify,
}

async fn carry(client: TcpStream, server: TcpStream, state: Arc<State>) {
    let line = Line { state, is_muted: AtomicBool::new(false), heard: Notify::new() };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Whichever way ends first, both ends see the connection close.
    tokio::select! {
        _ = line.pump(Way::Forth, from_client, to_server) => {}
        _ = line.pump(Way::Back, from_server, to_client) => {}
    }
}

impl Line {
    async fn pump(&self, way: Way, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
        let mut buffer = vec![0; 16 * 1024];
        let mut left: Option<usize> = None;
        loop {
            let read = from.read(&mut buffer).await?;
            let bytes = &buffer[..read];
            if bytes.is_empty() {
                return Ok(());
            }
            if way == Way::Back && self.is_muted.load(Ordering::SeqCst) {
                self.heard.notify_one();
                continue;
            }
            match self.state.take(way, bytes) {
                None => {}
                Some(Fault::CutForth(after) | Fault::CutBack(after)) => left = Some(after),
                Some(Fault::Halve) => return to.write_all(&bytes[..read / 2]).await,
                Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
                Some(Fault::Swallow(time)) => {
                    tokio::time::sleep(time).await;
                    return Ok(());
                }
                Some(Fault::CommitNotSent) => return Ok(()),
                Some(Fault::CommitAnswerLost) => {
                    // The COMMIT must be over before the client hears of the cut.
                    self.is_muted.store(true, Ordering::SeqCst);
                    to.write_all(bytes).await?;
                    let _ = tokio::time::timeout(ANSWER, self.heard.notified()).await;
                    return Ok(());
                }
            }
            match &mut left {
                Some(left) if *left < read => return to.write_all(&bytes[..*left]).await,
                Some(left) => *left -= read,
                None => {}
            }
            to.write_all(bytes).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{COMMIT, Fault, Proxy};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// A server that answers every message with itself, twice; what it has heard.
    async fn echo() -> (String, tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (heard, hears) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let heard = heard.clone();
                tokio::spawn(async move {
                    let mut buffer = [0; 64];
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        heard.send(buffer[..read].to_vec()).unwrap();
                        let _ = stream.write_all(&buffer[..read].repeat(2)).await;
                    }
                });
            }
        });
        (address, hears)
    }

    /// Sends the message under the fault: what came back until the connection ended, and what the server heard.
    async fn under(fault: Fault, message: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (server, mut hears) = echo().await;
        let proxy = Proxy::open(server).await.unwrap();
        proxy.arm(fault);
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(message).await.unwrap();
        let mut back = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(20), client.read_to_end(&mut back)).await;
        assert!(ended.is_ok(), "the connection was ended");
        assert_eq!(proxy.bites(), 1);
        drop(proxy);
        let mut heard = Vec::new();
        while let Ok(bytes) = hears.try_recv() {
            heard.extend(bytes);
        }
        (back, heard)
    }

    #[tokio::test]
    async fn it_cuts_at_the_byte_it_was_told() {
        assert_eq!(under(Fault::CutForth(3), b"abcdef").await.1, b"abc");
        assert_eq!(under(Fault::CutBack(5), b"abcdef").await.0, b"abcde");
        assert_eq!(under(Fault::Halve, b"abcdef").await.0, b"abcdef");
        assert_eq!(under(Fault::Swallow(Duration::from_millis(5)), b"abc").await, (vec![], vec![]));
    }

    #[tokio::test]
    async fn it_cuts_before_a_commit_or_after_it_was_done() {
        assert_eq!(under(Fault::CommitNotSent, COMMIT).await, (vec![], vec![]));
        assert_eq!(under(Fault::CommitAnswerLost, COMMIT).await, (vec![], COMMIT.to_vec()));
    }

    #[tokio::test]
    async fn what_is_not_the_victim_goes_on() {
        let (server, _hears) = echo().await;
        let proxy = Proxy::open(server).await.unwrap();
        proxy.arm(Fault::CommitNotSent);
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        for _ in 0..2 {
            client.write_all(b"hi").await.unwrap();
            let mut back = [0; 4];
            client.read_exact(&mut back).await.unwrap();
            assert_eq!(&back, b"hihi");
        }
        assert_eq!(proxy.bites(), 0);
        proxy.set_away(true);
        let mut refused = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(refused.read(&mut [0; 4]).await.unwrap_or(0), 0);
    }
}
