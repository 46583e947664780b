//! A client that sends exactly the bytes it is given, once.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// A POST request, whole.
#[derive(Debug, Clone)]
pub struct Message {
    /// Path and query, beginning with `/`.
    pub path: String,
    /// All headers.
    pub headers: HeaderMap,
    /// Raw body.
    pub body: Bytes,
}

/// An answer, whole.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// All headers.
    pub headers: HeaderMap,
    /// Raw body.
    pub body: Bytes,
}

impl Answer {
    /// An answer without headers or body.
    #[must_use]
    pub fn empty(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Bytes::new() }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HopError {
    /// The request could not be put together.
    #[error("the request cannot be built")]
    Request(#[from] http::Error),
    /// The connection failed, perhaps after the request had arrived.
    #[error("no answer came")]
    Connection(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The deadline passed, perhaps after the request had arrived.
    #[error("no answer came in time")]
    Deadline,
}

/// A client with pooled connections to one address.
#[derive(Debug, Clone)]
pub struct Hop {
    client: Client<HttpConnector, Full<Bytes>>,
    to: SocketAddr,
    deadline: Duration,
}

impl Hop {
    /// A client for `to`; each exchange must end within `deadline`.
    #[must_use]
    pub fn new(to: SocketAddr, deadline: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { client: Client::builder(TokioExecutor::new()).build(connector), to, deadline }
    }

    /// Sends the message once and reads the answer whole.
    ///
    /// # Errors
    /// As [`HopError`] says; after an error the request may still have arrived.
    pub async fn send(&self, message: &Message) -> Result<Answer, HopError> {
        let mut request = hyper::Request::post(format!("http://{}{}", self.to, message.path))
            .body(Full::new(message.body.clone()))?;
        *request.headers_mut() = message.headers.clone();
        // These belong to one connection; hyper writes them anew.
        for name in [http::header::HOST, http::header::CONTENT_LENGTH, http::header::TRANSFER_ENCODING] {
            request.headers_mut().remove(name);
        }
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| HopError::Connection(error.into()))?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| HopError::Connection(error.into()))?.to_bytes();
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(self.deadline, exchange).await.map_err(|_| HopError::Deadline)?
    }
}
