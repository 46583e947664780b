//! The sender against raw servers on the loopback address, and against traps that must stay empty.

mod answers;
mod failures;
mod guarded;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::secret::Secret;
use url::Url;

use super::*;
use crate::request::{Letter, sign};

/// A server on a free port that counts its connections.
struct RawServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl RawServer {
    async fn start<F, Fut>(serve: F) -> Self
    where
        F: Fn(TcpStream) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream));
            }
        });
        Self { address, connections }
    }

    /// Reads each request of a connection and answers it with these bytes.
    async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = Arc::new(answer.into());
        Self::start(move |mut stream| {
            let answer = Arc::clone(&answer);
            async move {
                while read_request(&mut stream).await.is_some() {
                    if stream.write_all(&answer).await.is_err() {
                        break;
                    }
                }
            }
        })
        .await
    }

    /// Connections that are made here were not to be made.
    async fn trap() -> Self {
        Self::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await
    }

    fn url(&self) -> String {
        format!("http://{}/geheim?token=geheim", self.address)
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// One whole request, or none if the connection ended before.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return Some(text);
            }
        }
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await.ok()?;
        if read == 0 {
            return None;
        }
        bytes.extend_from_slice(&chunk[..read]);
    }
}

fn local() -> Sender {
    Sender::new(SenderOptions { addresses: AddressPolicy::AllowPrivate, ..SenderOptions::default() }).unwrap()
}

fn public() -> Sender {
    Sender::new(SenderOptions::default()).unwrap()
}

fn request(url: &str, timeout: Duration) -> SignedRequest {
    request_with(url, timeout, br#"{"type":"order.paid"}"#)
}

fn request_with(url: &str, timeout: Duration, payload: &[u8]) -> SignedRequest {
    let letter = Letter {
        url: &Url::parse(url).unwrap(),
        event_id: "msg_2mXBNqy0Bx0YlJPkEVTHaMWlKYz",
        content_type: "application/json",
        payload: &Bytes::copy_from_slice(payload),
        secrets: &[Secret::from_bytes(vec![7; 32]).unwrap()],
        timeout,
    };
    sign(&letter, Timestamp::from_secs(1_700_000_000)).unwrap()
}

/// Sends with a deadline that is long enough for anything that is meant to end by itself.
async fn send(sender: &Sender, url: &str) -> Exchange {
    let sent = sender.send(request(url, Duration::from_secs(20))).await;
    assert!(sent.elapsed < Duration::from_secs(15), "{:?}", sent.exchange);
    sent.exchange
}

/// Sends with a short deadline and asserts that it was kept.
async fn send_briefly(sender: &Sender, url: &str) -> Exchange {
    let sent = sender.send(request(url, Duration::from_millis(400))).await;
    assert!(sent.elapsed < Duration::from_millis(1_400), "{sent:?}");
    sent.exchange
}

fn answer(exchange: Exchange) -> Answer {
    match exchange {
        Exchange::Answered(answer) => answer,
        other => panic!("not answered: {other:?}"),
    }
}
