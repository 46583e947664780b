//! The plain client: signs and posts, over as many connections as it is told, and knows no database.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature;
use twiceproof_shared::store::Store;

use super::meter::Latencies;
use super::sink::body;
use super::{BenchError, BenchOptions};

/// A client with pooled connections. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    store: Store,
    secret: Secret,
}

impl Client {
    /// A client like the dispatcher's, without its guard.
    ///
    /// # Errors
    /// When the HTTP client cannot be built.
    #[expect(
        clippy::disallowed_methods,
        reason = "the measuring kit opens connections of its own, to loopback addresses"
    )]
    pub fn new(store: &Store, secret: &Secret) -> Result<Self, BenchError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // It never speaks TLS, but the client wants to be told of a provider.
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| BenchError::Setup(error.into()))?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .http1_only()
            .timeout(Duration::from_secs(30))
            .build()?;
        Ok(Self { http, store: store.clone(), secret: secret.clone() })
    }

    /// Posts `count` bodies to `url`, `connections` at a time. Each has an id of its own.
    ///
    /// # Errors
    /// When one is not answered, or not with 2xx.
    pub async fn post_all(
        &self,
        url: &str,
        count: usize,
        connections: usize,
        options: &BenchOptions,
    ) -> Result<Arc<Latencies>, BenchError> {
        let latencies = Arc::new(Latencies::default());
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..connections.min(count) {
            let (client, url, bytes) = (self.clone(), url.to_owned(), options.payload);
            let (next, latencies) = (Arc::clone(&next), Arc::clone(&latencies));
            tasks.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return Ok(());
                    }
                    let began = Instant::now();
                    client.post(&url, body(number, bytes)).await?;
                    latencies.note(began.elapsed());
                }
            });
        }
        join(tasks).await?;
        Ok(latencies)
    }

    async fn post(&self, url: &str, body: bytes::Bytes) -> Result<(), BenchError> {
        let now = self.store.now();
        let id = Id::mint(Prefix::Event, now, self.store.random());
        let signed = signature::sign(std::slice::from_ref(&self.secret), id.as_str(), now, &body);
        let request = self
            .http
            .post(url)
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(signature::ID, id.as_str())
            .header(signature::TIMESTAMP, now.as_secs().to_string())
            .header(signature::SIGNATURE, signed)
            .body(body);
        let response = request.send().await?;
        let status = response.status();
        response.bytes().await?;
        if status.is_success() { Ok(()) } else { Err(BenchError::Refused(status.as_u16())) }
    }
}

/// Waits for all tasks; the first error ends the rest.
pub async fn join(mut tasks: JoinSet<Result<(), BenchError>>) -> Result<(), BenchError> {
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|_| BenchError::Panicked)??;
    }
    Ok(())
}
