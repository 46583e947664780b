//! `/live` and `/ready`, for whatever starts, stops and routes to this process.
//!
//! Live means that the process answers: restarting it would not help a database that is down. Ready means that work sent
//! here would be taken: the database answers, its schema is current, and no shutdown has begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::Mutex;
use tokio::time::Instant;
use twiceproof_shared::causes::chain;
use twiceproof_shared::store::Store;

/// How long the database may take to answer before this process is not ready.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer of the database is good for: callers that ask more often cost nothing.
const FRESH: Duration = Duration::from_secs(1);

/// The state behind `/live` and `/ready`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    draining: AtomicBool,
    last: Mutex<Option<(Instant, Result<(), NotReady>)>>,
}

/// Why no work should be sent here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// A shutdown has begun.
    #[error("shutting down")]
    Draining,
    /// The database does not answer, or not in time.
    #[error("the database does not answer")]
    Database,
    /// The schema is older than this program: run `twiceproof migrate`.
    #[error("the database lacks migrations; run `twiceproof migrate`")]
    Schema,
}

impl Health {
    /// Answers for a process that works on this store.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self(Arc::new(Inner { store, draining: AtomicBool::new(false), last: Mutex::new(None) }))
    }

    /// From now on not ready: a shutdown has begun.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// Whether work sent here would be taken.
    ///
    /// # Errors
    /// [`NotReady`] says why not.
    pub async fn ready(&self) -> Result<(), NotReady> {
        if self.0.draining.load(Ordering::Relaxed) {
            return Err(NotReady::Draining);
        }
        // One caller asks the database; the others wait for its answer.
        let mut last = self.0.last.lock().await;
        if let Some((asked, answer)) = *last
            && asked.elapsed() < FRESH
        {
            return answer;
        }
        let answer = self.ask().await;
        *last = Some((Instant::now(), answer));
        answer
    }

    async fn ask(&self) -> Result<(), NotReady> {
        match tokio::time::timeout(PATIENCE, self.0.store.pending_migrations()).await {
            Ok(Ok(missing)) if missing.is_empty() => Ok(()),
            Ok(Ok(_)) => Err(NotReady::Schema),
            Ok(Err(error)) => {
                tracing::warn!(error = %chain(&error), "not ready: the database does not answer");
                Err(NotReady::Database)
            }
            Err(_) => {
                tracing::warn!("not ready: the database did not answer within {PATIENCE:?}");
                Err(NotReady::Database)
            }
        }
    }

    /// The routes `/live` and `/ready`: 200, or 503 with the reason as text.
    pub fn router(&self) -> Router {
        let health = self.clone();
        let ready = move || {
            let health = health.clone();
            async move {
                match health.ready().await {
                    Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
                    Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
                }
            }
        };
        Router::new().route("/live", get(|| async { "live\n" })).route("/ready", get(ready))
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt as _;
    use twiceproof_shared::store::{DatabaseUrl, StoreOptions};

    use super::*;

    async fn status(health: &Health, path: &str) -> StatusCode {
        let request = Request::get(path).body(Body::empty()).unwrap();
        health.router().oneshot(request).await.unwrap().status()
    }

    async fn store(folder: &tempfile::TempDir) -> Store {
        let url = DatabaseUrl::sqlite(folder.path().join("health.db")).unwrap();
        Store::connect(&url, StoreOptions::default()).await.unwrap()
    }

    #[tokio::test]
    async fn ready_once_the_schema_is_current_and_until_a_shutdown_begins() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        assert_eq!(Health::new(store.clone()).ready().await, Err(NotReady::Schema));
        store.migrate().await.unwrap();
        let health = Health::new(store);
        assert_eq!(status(&health, "/ready").await, StatusCode::OK);
        health.drain();
        assert_eq!(health.ready().await, Err(NotReady::Draining));
        assert_eq!(status(&health, "/ready").await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(&health, "/live").await, StatusCode::OK);
    }

    #[tokio::test]
    async fn without_its_database_the_process_is_live_but_not_ready() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        store.migrate().await.unwrap();
        store.close().await;
        let health = Health::new(store);
        assert_eq!(health.ready().await, Err(NotReady::Database));
        assert_eq!(status(&health, "/live").await, StatusCode::OK);
    }
}
