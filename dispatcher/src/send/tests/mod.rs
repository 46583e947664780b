//! The sender against raw servers on the loopback address, and against traps that must stay empty.

mod answers;
mod failures;
mod guarded;
mod hostile;
mod proxied;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::secret::Secret;
use url::Url;

use super::*;
use crate::fixtures::{RawServer, read_request};
use crate::headers::CustomHeaders;
use crate::request::{Letter, sign};
use crate::signing::Signing;

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
        secrets: &[Secret::from_bytes(vec![7; 32]).unwrap().into()],
        timeout,
        custom: &CustomHeaders::default(),
        signing: &Signing::default(),
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
