//! A port on the loopback address whose every connection is given to a keeper.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Pause after the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listening port. It closes with all its connections when it is dropped.
#[derive(Debug)]
pub(super) struct Listening {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Listening {
    /// Takes a free port; `keeper` has each connection until its future ends.
    pub(super) async fn open<K, F>(keeper: K) -> std::io::Result<Self>
    where
        K: Fn(TcpStream) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                while connections.try_join_next().is_some() {}
                let Ok((stream, _)) = listener.accept().await else {
                    // Out of files, most likely: without a pause this loop would keep those from being closed.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                // A small message that waits for company would only be slow.
                let _ = stream.set_nodelay(true);
                connections.spawn(keeper(stream));
            }
        });
        Ok(Self { address, accepting })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
