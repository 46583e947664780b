//! The sink: takes every request, answers 200, and notes when each body arrived. Below some paths it is a bad receiver:
//! slow, silent, or holding its answers back until it is told to let them go.
//!
//! It has a thread of its own, so that its processor time can be told from the program's.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::meter::Latencies;

/// What each body begins with; its number of [`DIGITS`] digits follows.
const HEAD: &str = r#"{"n":"#;
const DIGITS: usize = 12;

/// Below this path an answer takes [`SLOW`]; nothing is noted.
pub const SLOW_PATH: &str = "/slow";
/// Below this path requests are taken and never answered; nothing is noted.
pub const SILENT_PATH: &str = "/silent";
/// Below this path answers wait while [`Sink::hold`] says so.
pub const HELD_PATH: &str = "/held";
/// How slow the slow path is.
pub const SLOW: Duration = Duration::from_secs(10);

/// A body of `bytes` bytes with a number in it. JSON allows no leading zeros, so the number is filled up in front.
pub fn body(number: usize, bytes: usize) -> Bytes {
    let mut text = format!("{HEAD}{number:>DIGITS$},\"fill\":\"");
    let fill = bytes.saturating_sub(text.len() + 2);
    text.extend(std::iter::repeat_n('x', fill));
    text.push_str("\"}");
    Bytes::from(text)
}

/// The number of a body.
pub fn number(body: &[u8]) -> Option<usize> {
    let digits = body.get(HEAD.len()..HEAD.len() + DIGITS)?;
    std::str::from_utf8(digits).ok()?.trim_start().parse().ok()
}

/// What has arrived in one turn, and when it had been sent.
#[derive(Debug)]
pub struct Arrivals {
    base: Instant,
    /// By number: microseconds after `base`, plus one; 0 where it was not sent yet.
    sent: Vec<AtomicU64>,
    count: AtomicU64,
    latencies: Latencies,
}

impl Arrivals {
    fn new(events: usize) -> Self {
        let sent = (0..events).map(|_| AtomicU64::new(0)).collect();
        Self { base: Instant::now(), sent, count: AtomicU64::new(0), latencies: Latencies::default() }
    }

    /// Notes that this one is sent now.
    pub fn sent(&self, number: usize) {
        if let Some(sent) = self.sent.get(number) {
            sent.store(self.micros() + 1, Ordering::Relaxed);
        }
    }

    /// How many have arrived, repeats included.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// From sent to arrived.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    fn arrived(&self, body: &[u8]) {
        let sent = number(body).and_then(|number| self.sent.get(number)).map(|sent| sent.load(Ordering::Relaxed));
        if let Some(sent @ 1..) = sent {
            self.latencies.note(std::time::Duration::from_micros(self.micros().saturating_sub(sent - 1)));
        }
        self.count.fetch_add(1, Ordering::Release);
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A running sink. It ends when it is dropped.
#[derive(Debug)]
pub struct Sink {
    address: SocketAddr,
    thread: Option<PathBuf>,
    turn: Arc<Mutex<Arc<Arrivals>>>,
    hold: watch::Sender<bool>,
    stop: CancellationToken,
}

impl Sink {
    /// Opens it on a free loopback port.
    ///
    /// # Errors
    /// When no port or no thread can be had.
    pub fn open() -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let turn = Arc::new(Mutex::new(Arc::new(Arrivals::new(0))));
        let (hold, held) = watch::channel(false);
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("bench-sink".to_owned()).spawn({
            let (turn, stop) = (Arc::clone(&turn), stop.clone());
            move || {
                let itself = std::fs::read_link("/proc/thread-self").ok();
                let _ = tell.send(itself.map(|link| PathBuf::from("/proc").join(link).join("stat")));
                runtime.block_on(serve(listener, turn, held, stop));
            }
        })?;
        Ok(Self { address, thread: told.recv().ok().flatten(), turn, hold, stop })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where its processor time can be read.
    pub fn thread(&self) -> Option<PathBuf> {
        self.thread.clone()
    }

    /// Begins a turn with bodies of numbers below `events`.
    pub fn begin(&self, events: usize) -> Arc<Arrivals> {
        let arrivals = Arc::new(Arrivals::new(events));
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&arrivals);
        arrivals
    }

    /// Holds the answers below [`HELD_PATH`] back from now on, or lets them go.
    pub fn hold(&self, hold: bool) {
        self.hold.send_replace(hold);
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve(
    listener: std::net::TcpListener,
    turn: Arc<Mutex<Arc<Arrivals>>>,
    held: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => continue,
            },
        };
        // Only small answers leave here, which should not wait for more.
        let _ = stream.set_nodelay(true);
        let (turn, held) = (Arc::clone(&turn), held.clone());
        connections.spawn(async move {
            let service = service_fn(move |request| take(request, Arc::clone(&turn), held.clone()));
            // A connection ends with its client.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn take(
    request: hyper::Request<Incoming>,
    turn: Arc<Mutex<Arc<Arrivals>>>,
    mut held: watch::Receiver<bool>,
) -> Result<hyper::Response<Empty<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    if let Ok(body) = request.into_body().collect().await {
        match path.as_str() {
            SLOW_PATH => tokio::time::sleep(SLOW).await,
            SILENT_PATH => std::future::pending().await,
            _ => {
                let arrivals = Arc::clone(&turn.lock().unwrap_or_else(PoisonError::into_inner));
                arrivals.arrived(&body.to_bytes());
            }
        }
    }
    if path.starts_with(HELD_PATH) {
        // An error means that the sink itself has gone.
        let _ = held.wait_for(|hold| !hold).await;
    }
    Ok(hyper::Response::new(Empty::new()))
}

#[cfg(test)]
mod tests {
    use super::{body, number};

    #[test]
    fn a_body_is_json_of_its_size_and_keeps_its_number() {
        for (n, bytes) in [(0, 32), (7, 33), (999_999, 1024)] {
            let body = body(n, bytes);
            assert_eq!(body.len(), bytes);
            assert_eq!(number(&body), Some(n));
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["n"], n);
        }
    }
}
