//! Sends one signed request and says what came of it. The only place that opens connections for deliveries.
//!
//! Place in the path: deliver hands over a [`SignedRequest`], outside of any transaction, and gets an
//! [`Exchange`] for [`decide`](crate::decide).
//! Invariants: one deadline covers name look-up, connect, TLS, headers and body. A connection is made only to addresses that
//! the [`AddressPolicy`] allows: the resolver hands over nothing else, and addresses written into the URL, for which no
//! resolver is asked, are checked before. No redirect is followed, no proxy is used but the one that is set, nothing is sent a second time, no
//! answer is decompressed, and no more of an answer is read than is bounded here.

mod body;
mod classify;
mod proxy;
mod resolve;
mod timings;
mod tls;

#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};
use reqwest::redirect;
use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, timeout_at};

use crate::exchange::{Answer, Exchange, NotSent, Unknown};
use crate::guard::AddressPolicy;
use crate::request::SignedRequest;
use body::{Departure, TrackedBody};
use resolve::GuardedResolver;

pub use proxy::{InvalidProxy, Proxy};
pub use timings::Timings;

/// The most of an answer's body that is read before its connection is dropped: 64 KiB.
pub const READ_LIMIT: usize = 64 * 1024;
/// The most of an answer's body that is kept: 1 KiB.
pub const KEEP_LIMIT: usize = 1024;
/// The most headers that an answer may have.
pub const MAX_HEADERS: usize = 128;

/// Sends requests; cheap to clone, one for each process.
#[derive(Debug, Clone)]
pub struct Sender {
    client: reqwest::Client,
    addresses: AddressPolicy,
    /// Where there is a proxy: judges names, since the client looks up the proxy's alone.
    names: Option<GuardedResolver>,
}

/// How a [`Sender`] behaves.
#[derive(Debug, Clone, Default)]
pub struct SenderOptions {
    /// Where requests may go.
    pub addresses: AddressPolicy,
    /// Certificates of authorities to trust beside the system's, for endpoints with a private authority.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// A forward proxy that all of them go through.
    pub proxy: Option<Proxy>,
}

/// A [`Sender`] could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SenderError {
    /// An extra root certificate cannot be used.
    #[error("an extra root certificate cannot be used")]
    ExtraRoot(#[source] rustls::Error),
    /// The TLS settings are not accepted.
    #[error("the TLS settings are not accepted")]
    Tls(#[source] rustls::Error),
    /// The HTTP client could not be built.
    #[error("the HTTP client could not be built")]
    Client(#[source] reqwest::Error),
}

/// What came of a request, and how long it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// What came of it.
    pub exchange: Exchange,
    /// From the start to the end of the exchange.
    pub elapsed: Duration,
    /// Where the time went.
    pub timings: Timings,
}

impl Sender {
    /// Builds the client with the system's root certificates, or those of webpki where the system has none.
    ///
    /// # Errors
    ///
    /// [`SenderError`] where an extra root is no certificate, or the client cannot be built.
    pub fn new(options: SenderOptions) -> Result<Self, SenderError> {
        Self::with_resolver(&options, GuardedResolver::system(options.addresses))
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that opens connections for deliveries")]
    fn with_resolver(options: &SenderOptions, resolver: GuardedResolver) -> Result<Self, SenderError> {
        // The operator's own proxy may stand at a private address; nothing else is looked up by the client then.
        let (names, resolver) = match &options.proxy {
            Some(_) => (Some(resolver), GuardedResolver::system(AddressPolicy::AllowPrivate)),
            None => (None, resolver),
        };
        let mut client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config(&options.extra_roots)?)
            .dns_resolver(resolver)
            .connector_layer(timings::NotesConnections)
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .http1_only()
            .http1_max_headers(MAX_HEADERS)
            // A receiver that closes idle connections rarely does so within 4 seconds: fewer lost requests.
            .pool_idle_timeout(Duration::from_secs(4))
            // Bounds a connection attempt that outlives its request because another connection became free first.
            .connect_timeout(Duration::from_secs(30));
        if let Some(proxy) = &options.proxy {
            client = client.proxy(proxy.for_client().map_err(SenderError::Client)?);
        }
        let client = client.build().map_err(SenderError::Client)?;
        Ok(Self { client, addresses: options.addresses, names })
    }

    /// Where this sender may send to.
    pub fn addresses(&self) -> AddressPolicy {
        self.addresses
    }

    /// Sends the request once, within its deadline.
    pub async fn send(&self, request: SignedRequest) -> Sent {
        self.send_until(request, std::future::pending()).await
    }

    /// Sends the request once, within its deadline, or until `stop` resolves: then the exchange ends as not sent or
    /// unknown, whichever is true.
    pub async fn send_until(&self, request: SignedRequest, stop: impl Future<Output = ()>) -> Sent {
        let started = Instant::now();
        let departure = Departure::default();
        if let Err(refused) = self.addresses.check_url(&request.url) {
            let exchange = Exchange::NotSent(NotSent::Blocked(refused));
            return Sent { exchange, elapsed: started.elapsed(), timings: Timings::default() };
        }
        let exchange = async {
            tokio::select! {
                exchange = self.exchange(request, started, &departure) => exchange,
                () = stop => match departure.has_left() {
                    true => (Exchange::Unknown(Unknown::Shutdown), None),
                    false => (Exchange::NotSent(NotSent::Shutdown), None),
                },
            }
        };
        let ((exchange, answered), timings) = timings::watched(started, exchange).await;
        Sent { exchange, elapsed: started.elapsed(), timings: Timings { answered, ..timings } }
    }

    /// What comes of it, and when the head of the answer had come.
    async fn exchange(
        &self,
        request: SignedRequest,
        started: Instant,
        departure: &Departure,
    ) -> (Exchange, Option<Duration>) {
        let deadline = started + request.timeout;
        if let Some(names) = &self.names {
            match timeout_at(deadline, proxy::check_name(names, &request.url)).await {
                Ok(Ok(())) => {}
                Ok(Err(reason)) => return (Exchange::NotSent(reason), None),
                Err(_) => return (Exchange::NotSent(NotSent::Deadline), None),
            }
        }
        let body = TrackedBody::new(request.body, departure.clone());
        let sending = self.client.post(request.url).headers(request.headers).body(reqwest::Body::wrap(body)).send();
        match timeout_at(deadline, sending).await {
            Ok(Ok(response)) => {
                let answered = started.elapsed();
                (Exchange::Answered(read(response, deadline).await), Some(answered))
            }
            Ok(Err(error)) => (classify::failure(&error, departure.has_left()), None),
            Err(_) if departure.has_left() => (Exchange::Unknown(Unknown::Deadline), None),
            Err(_) => (Exchange::NotSent(NotSent::Deadline), None),
        }
    }
}

/// Reads the answer. The status has come and decides; a body that breaks off, goes on for ever or comes too slowly is cut.
async fn read(mut response: reqwest::Response, deadline: Instant) -> Answer {
    let mut answer = Answer::of_status(response.status().as_u16());
    answer.retry_after = texts(response.headers(), &RETRY_AFTER);
    answer.date = texts(response.headers(), &DATE).pop();
    let mut kept = BytesMut::new();
    let mut seen = 0_usize;
    let complete = loop {
        match timeout_at(deadline, response.chunk()).await {
            Ok(Ok(Some(chunk))) => {
                seen += chunk.len();
                let room = KEEP_LIMIT - kept.len();
                kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
                if seen >= READ_LIMIT {
                    break false;
                }
            }
            Ok(Ok(None)) => break true,
            Ok(Err(_)) | Err(_) => break false,
        }
    };
    answer.body_cut = !complete || seen > kept.len();
    answer.body = Bytes::from(kept);
    answer
}

fn texts(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let values = headers.get_all(name).iter();
    values.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
}
