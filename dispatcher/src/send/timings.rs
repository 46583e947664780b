//! Where the time of a request goes: to the name, to the connection, to the answer.
//!
//! Place in the path: a request notes its own start; resolver and connector, which the client calls while it is polled, note what
//! they did for it.
//! Invariants: a connection that was open already has no times of its own; what is made for one request and used by another,
//! because one became free first, is nobody's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tower::{Layer, Service};

/// When what had happened, since the start of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timings {
    /// The host's name was resolved; none where there was a connection, or no name. Through a proxy names are looked up for the
    /// guard each time, so there it is with an open connection too.
    pub resolved: Option<Duration>,
    /// The connection stood, with TLS; none where there was one.
    pub connected: Option<Duration>,
    /// The head of the answer had come.
    pub answered: Option<Duration>,
}

tokio::task_local! {
    static WATCH: Arc<Watch>;
}

#[derive(Debug)]
struct Watch {
    started: Instant,
    resolved: AtomicU64,
    connected: AtomicU64,
}

const NEVER: u64 = u64::MAX;

/// Measures what `request` does, from now on. Beside it, how that is asked afterwards.
pub(super) async fn watched<T>(started: Instant, request: impl Future<Output = T>) -> (T, Timings) {
    let watch = Arc::new(Watch { started, resolved: AtomicU64::new(NEVER), connected: AtomicU64::new(NEVER) });
    let done = WATCH.scope(Arc::clone(&watch), request).await;
    let noted = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
        NEVER => None,
        micros => Some(Duration::from_micros(micros)),
    };
    let timings = Timings { resolved: noted(&watch.resolved), connected: noted(&watch.connected), answered: None };
    (done, timings)
}

/// The request that is being polled, to be noted for later.
pub(super) struct Noted(Option<Arc<Watch>>);

impl Noted {
    pub(super) fn current() -> Self {
        Self(WATCH.try_with(Arc::clone).ok())
    }

    pub(super) fn resolved(&self) {
        self.note(|watch| &watch.resolved);
    }

    fn connected(&self) {
        self.note(|watch| &watch.connected);
    }

    fn note(&self, at: impl Fn(&Watch) -> &AtomicU64) {
        if let Some(watch) = &self.0 {
            let micros = u64::try_from(watch.started.elapsed().as_micros()).unwrap_or(NEVER - 1);
            // The first counts: through a proxy its name is looked up after the host's.
            let _ = at(watch).compare_exchange(NEVER, micros, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Around the client's connector: notes when a connection stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct NotesConnections;

/// A connector that notes when a connection stands.
#[derive(Debug, Clone)]
pub(super) struct Connector<S>(S);

impl<S> Layer<S> for NotesConnections {
    type Service = Connector<S>;

    fn layer(&self, inner: S) -> Connector<S> {
        Connector(inner)
    }
}

impl<S, R> Service<R> for Connector<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (noted, connecting) = (Noted::current(), self.0.call(request));
        Box::pin(async move {
            let connected = connecting.await;
            if connected.is_ok() {
                noted.connected();
            }
            connected
        })
    }
}
