//! A port on which connects hang: its queue is full, and nobody accepts.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// How many connections fill it up at most; the shortest queue holds one or two.
const MOST_FILLERS: usize = 16;
/// On loopback a connect takes far less than this, or it hangs.
const HANGS_AFTER: Duration = Duration::from_millis(300);

/// The port. It is closed on drop.
#[derive(Debug)]
pub struct FullPort {
    address: SocketAddr,
    _listener: TcpListener,
    _fillers: Vec<TcpStream>,
}

impl FullPort {
    /// Opens it on loopback, and fills it up.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn open() -> std::io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let listener = socket.listen(0)?;
        let address = listener.local_addr()?;
        let mut fillers = Vec::new();
        while fillers.len() < MOST_FILLERS
            && let Ok(filler) = tokio::time::timeout(HANGS_AFTER, TcpStream::connect(address)).await
        {
            fillers.push(filler?);
        }
        Ok(Self { address, _listener: listener, _fillers: fillers })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connect_to_a_full_port_hangs() {
        let port = FullPort::open().await.unwrap();
        let connecting = tokio::time::timeout(HANGS_AFTER * 2, TcpStream::connect(port.address));
        assert!(connecting.await.is_err(), "it was let in");
    }
}
