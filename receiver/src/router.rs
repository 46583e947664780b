//! Serves sources over HTTP, as an axum router that a host nests where it likes.
//!
//! Place in the path: the first and the last hand that touches a request.
//! Invariants: every path is served with and without its trailing slash and never redirected, since a redirect turns
//! POST into GET; what went wrong is logged here, once.

use std::collections::HashSet;
use std::sync::Arc;

use ::metrics::counter;
use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::Method;
use tracing::Instrument;
use twiceproof_shared::causes::chain;
use twiceproof_shared::metrics;
use twiceproof_shared::store::Store;

use crate::answer::{self, Answer};
use crate::handler::Handler;
use crate::ingest::{IngestError, Route, ingest};
use crate::source::Source;
use crate::together::Together;

/// Sources and their handlers on one store.
pub struct Receiver {
    store: Store,
    routes: Vec<(String, Arc<Route>)>,
}

impl Receiver {
    /// A receiver without sources. The store must be migrated before the first request comes.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self { store, routes: Vec::new() }
    }

    /// Serves a source at `/NAME`.
    ///
    /// # Errors
    /// As [`Receiver::source_at`].
    pub fn source(self, source: Source, handler: impl Handler) -> Result<Self, ReceiverError> {
        let path = format!("/{}", source.name());
        self.source_at(&path, source, handler)
    }

    /// Serves a source at a path of the host's choice: `/` and visible ASCII, no pattern.
    ///
    /// # Errors
    /// [`ReceiverError`] where path or source are taken, or the path is none.
    pub fn source_at(mut self, path: &str, source: Source, handler: impl Handler) -> Result<Self, ReceiverError> {
        let path = check_path(path)?;
        if self.routes.iter().any(|(taken, _)| *taken == path) {
            return Err(ReceiverError::PathTaken { path });
        }
        let route =
            Route { store: self.store.clone(), source, handler: Box::new(handler), together: Together::default() };
        self.routes.push((path, Arc::new(route)));
        let mut seen = HashSet::new();
        match self.routes.iter().find(|(_, route)| !seen.insert((route.source.tenant(), route.source.scope()))) {
            Some((_, route)) => Err(ReceiverError::SourceTaken { scope: route.source.scope().to_string() }),
            None => Ok(self),
        }
    }

    /// The router. It reads bodies itself, under each source's limit.
    pub fn router(&self) -> Router {
        self.routes.iter().fold(Router::new(), |router, (path, route)| {
            let serve = {
                let route = Arc::clone(route);
                move |request: Request| serve(Arc::clone(&route), request)
            };
            let methods = post(serve).fallback(|method: Method| async move { answer::wrong_method(&method) });
            match path.as_str() {
                "/" => router.route("/", methods),
                path => router.route(path, methods.clone()).route(&format!("{path}/"), methods),
            }
        })
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths = self.routes.iter().map(|(path, route)| (path, route.source.scope()));
        f.debug_map().entries(paths).finish()
    }
}

/// Why a source cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiverError {
    /// Not `/` and visible ASCII without `{ } * ? #`, or with a segment that begins with `:`.
    #[error("`{path}` is not a path to serve a source at")]
    Path {
        /// What was given.
        path: String,
    },
    /// Another source is served there.
    #[error("another source is already served at `{path}`")]
    PathTaken {
        /// The path, without its trailing slash.
        path: String,
    },
    /// Two handlers under one scope of the ledger: only the one that comes first would ever act.
    #[error("`{scope}` already has a handler: give the second one a consumer name of its own")]
    SourceTaken {
        /// The scope.
        scope: String,
    },
}

async fn serve(route: Arc<Route>, request: Request) -> Response {
    let span = tracing::error_span!("receive", scope = %route.source.scope(), event = tracing::field::Empty);
    async {
        let (parts, body) = request.into_parts();
        let answer = ingest(&route, parts.headers, body).await;
        log(&answer);
        count(&route, &answer);
        match answer {
            Ok(answer) => answer.into_response(),
            Err(error) => error.into_response(),
        }
    }
    .instrument(span)
    .await
}

fn count(route: &Route, answer: &Result<Answer, IngestError>) {
    let answer = match answer {
        Ok(Answer::First(_)) => "new",
        Ok(Answer::Replay(_)) => "replay",
        Ok(Answer::Expired) => "expired",
        Ok(Answer::Conflict(_)) => "conflict",
        Ok(Answer::InFlight) => "in_flight",
        Err(IngestError::Body(_) | IngestError::Refused(_)) => "refused",
        Err(_) => "failed",
    };
    let source = route.source.scope().to_string();
    counter!(metrics::RECEIVED, "source" => source, "answer" => answer).increment(1);
}

fn log(answer: &Result<Answer, IngestError>) {
    match answer {
        Ok(Answer::First(outcome)) => tracing::debug!(status = outcome.status, "an event was processed"),
        Ok(Answer::Replay(outcome)) => tracing::debug!(status = outcome.status, "a redelivery was ignored"),
        Ok(Answer::Expired) => tracing::warn!("a redelivery came after its answer was forgotten; it was ignored"),
        Ok(Answer::Conflict(_)) => tracing::warn!("a known event id came with another payload; it waits for review"),
        Ok(Answer::InFlight) => tracing::debug!("a redelivery came while the first one is running"),
        Err(IngestError::Body(reason)) => tracing::info!(%reason, "a request was refused"),
        Err(IngestError::Refused(reason)) => tracing::info!(%reason, "a request was refused"),
        Err(error) => {
            tracing::error!(error = %chain(error), "an event was not processed; it is taken again when it is sent again")
        }
    }
}

fn check_path(path: &str) -> Result<String, ReceiverError> {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"{}*?#".contains(&byte);
    // axum's router panics at a segment that begins with `:`, which was a pattern once.
    if !path.starts_with('/') || !path.bytes().all(plain) || path.contains("/:") {
        return Err(ReceiverError::Path { path: path.to_owned() });
    }
    match path.trim_end_matches('/') {
        "" => Ok("/".to_owned()),
        trimmed => Ok(trimmed.to_owned()),
    }
}

#[cfg(test)]
mod tests;
