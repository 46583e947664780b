//! Serves an axum [`Router`] over HTTP/1.1, for `serve` and for hosts that have no server of their own.
//!
//! `axum::serve` waits for ever: for the rest of a request's head, for one more connection, for the last answer. Here
//! the head has a deadline, which also ends idle kept-alive connections; a peer that does not read its answers is cut;
//! connections are capped, the next ones wait in the kernel's queue; and after a shutdown answers under way get a
//! bounded time. How long a body may idle is the receiver's decision, because only it knows the size limit.

mod stall;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use stall::Unstalled;
use twiceproof_shared::causes::chain;

/// Bytes of a request's head that are read before it is refused.
const HEAD_LIMIT: usize = 64 * 1024;
/// Pause after the system refused a connection for want of files or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Limits of a [`Server`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerOptions {
    /// Longest wait for a whole request head, also between the requests of one connection.
    pub head_timeout: Duration,
    /// Longest time in which a peer takes nothing of what it is sent.
    pub write_timeout: Duration,
    /// Connections open at a time.
    pub connections: usize,
    /// How long answers under way may take after a shutdown.
    pub drain: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(10),
            connections: 1024,
            drain: Duration::from_secs(30),
        }
    }
}

/// A bound server that does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    options: ServerOptions,
}

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were still busy at the end of the drain time and were cut.
    pub cut: usize,
}

impl Server {
    /// Binds to `HOST:PORT`. Port 0 takes a free one; [`Server::address`] tells which.
    ///
    /// # Errors
    /// What the system says: the name is unknown, the port is taken, the port needs more rights.
    pub async fn bind(address: &str, options: ServerOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, options })
    }

    /// Where it is bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown` is ready, then takes no more connections and drains.
    ///
    /// Handlers find the peer as [`ConnectInfo<SocketAddr>`]. When the future is dropped, all connections are cut.
    pub async fn serve(self, router: Router, shutdown: impl Future<Output = ()>) -> Drained {
        let slots = Arc::new(Semaphore::new(self.options.connections));
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let (stream, peer, slot) = tokio::select! {
                biased;
                () = &mut shutdown => break,
                accepted = accept(&self.listener, &slots) => accepted,
            };
            reap(&mut connections);
            let connection = connection(stream, peer, router.clone(), self.options);
            let connection = graceful.watch(connection);
            connections.spawn(async move {
                // An error is the peer's: it left, was too slow or does not speak HTTP.
                if let Err(error) = connection.await {
                    tracing::debug!(%peer, error = %chain(&error), "connection ended early");
                }
                drop(slot);
            });
        }
        drop(self.listener);
        drain(graceful, connections, self.options.drain).await
    }
}

/// Waits for a free slot, then for a connection.
async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    loop {
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else {
            // Nobody closes this semaphore.
            std::future::pending::<()>().await;
            continue;
        };
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer, slot),
            Err(error) if of_the_peer(&error) => {}
            Err(error) => {
                tracing::error!(error = %chain(&error), "cannot accept a connection; trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

type Service = TowerToHyperService<tower::util::BoxCloneService<hyper::Request<Incoming>, Response, Infallible>>;

fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    options: ServerOptions,
) -> http1::Connection<TokioIo<Unstalled<TcpStream>>, Service> {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, error = %chain(&error), "small answers may be delayed");
    }
    let service = router
        .map_request(move |request: hyper::Request<Incoming>| -> Request {
            let mut request = request.map(axum::body::Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            request
        })
        .boxed_clone();
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.head_timeout)
        .max_buf_size(HEAD_LIMIT)
        .serve_connection(
            TokioIo::new(Unstalled::new(stream, options.write_timeout)),
            TowerToHyperService::new(service),
        )
}

/// Forgets the connections that have ended, and says so where one ended in a panic.
fn reap(connections: &mut JoinSet<()>) {
    while let Some(ended) = connections.try_join_next() {
        report(ended);
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(error = %chain(&error), "a request handler panicked");
    }
}

async fn drain(graceful: GracefulShutdown, mut connections: JoinSet<()>, limit: Duration) -> Drained {
    let quiet = async {
        graceful.shutdown().await;
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    };
    let _ = tokio::time::timeout(limit, quiet).await;
    reap(&mut connections);
    let cut = connections.len();
    connections.shutdown().await;
    Drained { cut }
}

#[cfg(test)]
mod tests;
