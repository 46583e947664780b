//! `/metrics` for Prometheus: what both halves count, and how much is open.
//!
//! Place in the path: `serve` installs it; a host that has a recorder of its own for the `metrics` facade gets the same.
//! Invariants: a scrape reads no whole table, and the database at most every ten seconds; nothing secret has a label.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};
use tokio::sync::Mutex;
use tokio::time::Instant;
use twiceproof_dispatcher::open::{Open, open};
use twiceproof_shared::causes::chain;
use twiceproof_shared::metrics as names;
use twiceproof_shared::store::Store;

/// How long what was read from the database is good for.
const FRESH: Duration = Duration::from_secs(10);
/// Upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// The metrics of this process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    handle: PrometheusHandle,
    store: Store,
    read: Mutex<Option<Instant>>,
}

impl Metrics {
    /// Counts for this process from now on.
    ///
    /// # Errors
    /// When something else counts already.
    pub fn install(store: &Store) -> Result<Self, BuildError> {
        let handle = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
        for metric in names::METRICS {
            match metric.kind {
                "counter" => metrics::describe_counter!(metric.name, metric.help),
                "gauge" => metrics::describe_gauge!(metric.name, metric.help),
                _ => metrics::describe_histogram!(metric.name, metrics::Unit::Seconds, metric.help),
            }
        }
        Ok(Self(Arc::new(Inner { handle, store: store.clone(), read: Mutex::new(None) })))
    }

    /// The route `/metrics`. It has no secrets, and asks nobody for a token.
    pub fn router(&self) -> Router {
        let metrics = self.clone();
        Router::new().route("/metrics", get(move || async move { metrics.answer().await }))
    }

    async fn answer(&self) -> Response {
        self.read().await;
        self.0.handle.run_upkeep();
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], self.0.handle.render()).into_response()
    }

    /// Reads how much is open, unless that was just done.
    async fn read(&self) {
        let mut read = self.0.read.lock().await;
        if read.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        let open = match self.0.store.read().await {
            Ok(mut reader) => open(&mut reader.conn(), self.0.store.now()).await,
            Err(error) => Err(error),
        };
        match open {
            Ok(open) => set(&open),
            // What was read before stays; that the database is away shows in `/ready`.
            Err(error) => tracing::debug!(error = %chain(&error), "what is open was not read for the metrics"),
        }
        *read = Some(Instant::now());
    }
}

fn set(open: &Open) {
    for (state, count) in open.by_state {
        gauge!(names::OPEN, "state" => state).set(count as f64);
    }
    for (state, count) in open.overdue {
        gauge!(names::OVERDUE, "state" => state).set(count as f64);
    }
}

/// Counts and measures the answers of the REST API.
pub(crate) async fn api_request(request: Request, next: Next) -> Response {
    let method = request.method().as_str().to_owned();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let began = Instant::now();
    let response = next.run(request).await;
    let status = response.status().as_u16().to_string();
    histogram!(names::API_SECONDS, "method" => method.clone(), "route" => route.clone()).record(began.elapsed());
    counter!(names::API_REQUESTS, "method" => method, "route" => route, "status" => status).increment(1);
    response
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}
