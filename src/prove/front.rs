//! A front door for HTTP/1 requests whose keeper may hang up instead of answering, as a broken network does.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::hop::{Answer, Message};
use super::listen::Listening;

/// The keeper closed the connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("hung up without an answer")]
pub struct HungUp;

/// A listening front door. It closes when it is dropped.
#[derive(Debug)]
pub struct Front(Listening);

impl Front {
    /// Opens a front door on a free loopback port. `keeper` sees each request whole and answers it, or hangs up.
    ///
    /// A request goes on being handled when its client leaves.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn open<K, F>(keeper: K) -> std::io::Result<Self>
    where
        K: Fn(Message) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Answer, HungUp>> + Send + 'static,
    {
        let keeper = Arc::new(keeper);
        let listening = Listening::open(move |stream| {
            let keeper = Arc::clone(&keeper);
            async move {
                let service = service_fn(move |request| answer(request, Arc::clone(&keeper)));
                // A connection that ends badly is what this front door is for.
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            }
        });
        Ok(Self(listening.await?))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

async fn answer<K, F>(request: hyper::Request<Incoming>, keeper: Arc<K>) -> Result<hyper::Response<Full<Bytes>>, HungUp>
where
    K: Fn(Message) -> F,
    F: Future<Output = Result<Answer, HungUp>> + Send + 'static,
{
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| HungUp)?.to_bytes();
    let path = head.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
    let message = Message { path, headers: head.headers, body };
    let handled = tokio::spawn(keeper(message)).await;
    let answer = handled.map_err(|_| HungUp)??;
    let mut response = hyper::Response::new(Full::new(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response.headers_mut().remove(http::header::TRANSFER_ENCODING);
    response.headers_mut().remove(http::header::CONNECTION);
    Ok(response)
}
