//! The layer and the service it makes: which requests pass, and which go through the ledger.
//!
//! Place in the path: in front of the routes. What has a key goes on in [`once`](super::once).
//! Invariants: a request that needs no protection costs no query, no wait and no copy; nothing is looked up under a key that
//! was not checked, or for nobody.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use http::Method;
use http::header::{self, HeaderValue};
use http::request::Parts;
use tower::{Layer, Service};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use super::header::{IDEMPOTENCY_KEY, read};
use super::once::once;
use super::problem::Problem;
use super::rule::{Policy, Rule};
use crate::body::BodyLimits;

/// Puts `Idempotency-Key` in front of routes. Use it with [`Router::route_layer`](axum::Router::route_layer), so that paths that
/// do not exist pass.
#[derive(Clone)]
pub struct IdempotencyLayer(Arc<Settings>);

type TenantOf = dyn Fn(&Parts) -> Option<Key> + Send + Sync;
type AnswerTo = dyn Fn(&Problem) -> Response + Send + Sync;

/// What the layer knows.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) store: Store,
    tenant: Arc<TenantOf>,
    problems: Arc<AnswerTo>,
    rule: Rule,
    routes: HashMap<String, Vec<(Method, Rule)>>,
    pub(super) body: BodyLimits,
    pub(super) answer_limit: usize,
    pub(super) deadline: Duration,
    pub(super) wait: Duration,
}

impl IdempotencyLayer {
    /// A layer that keeps its keys in the store, by tenant: `tenant` says from the head of a request whose it is. A request of
    /// nobody (`None`) passes to the handler, which must refuse it. The store must be migrated before the first request
    /// comes.
    #[must_use]
    pub fn new(store: &Store, tenant: impl Fn(&Parts) -> Option<Key> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Settings {
            store: store.clone(),
            tenant: Arc::new(tenant),
            problems: Arc::new(|problem| problem.into_response()),
            rule: Rule::default(),
            routes: HashMap::new(),
            body: BodyLimits { bytes: 1024 * 1024, time: Duration::from_secs(30) },
            answer_limit: 1024 * 1024,
            deadline: Duration::from_secs(2),
            wait: Duration::ZERO,
        }))
    }

    /// The rule of all routes that have none of their own.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.settings().rule = rule;
        self
    }

    /// The rule of one route; `path` as it stands in the router: `/invoices/{id}`.
    #[must_use]
    pub fn route(mut self, method: Method, path: &str, rule: Rule) -> Self {
        self.settings().routes.entry(path.to_owned()).or_default().push((method, rule));
        self
    }

    /// How the layer's own refusals look. Default: problem documents (RFC 9457). `Retry-After` is set afterwards.
    #[must_use]
    pub fn problems(mut self, answer: impl Fn(&Problem) -> Response + Send + Sync + 'static) -> Self {
        self.settings().problems = Arc::new(answer);
        self
    }

    /// Largest body of a request with a key, in bytes. Default: 1 MiB. It is read before anything else happens.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.settings().body.bytes = bytes;
        self
    }

    /// Longest time for the body of a request with a key to arrive. Default: 30 s.
    #[must_use]
    pub fn body_deadline(mut self, deadline: Duration) -> Self {
        self.settings().body.time = deadline;
        self
    }

    /// Largest body of an answer that is to be stored, in bytes. Default: 1 MiB. A larger one is a 500, and everything is
    /// rolled back.
    #[must_use]
    pub fn answer_limit(mut self, bytes: usize) -> Self {
        self.settings().answer_limit = bytes;
        self
    }

    /// Longest time that the handler may take, its answer's body included. Default: 2 s.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings().deadline = deadline;
        self
    }

    /// How long a repeat waits, without a connection, for a first request that runs in this process. Default: not at all.
    #[must_use]
    pub fn in_flight_wait(mut self, wait: Duration) -> Self {
        self.settings().wait = wait;
        self
    }

    fn settings(&mut self) -> &mut Settings {
        Arc::make_mut(&mut self.0)
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("rule", &self.0.rule)
            .field("routes", &self.0.routes)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotent<S>;

    fn layer(&self, inner: S) -> Idempotent<S> {
        Idempotent { settings: Arc::clone(&self.0), inner }
    }
}

/// A service behind the layer.
#[derive(Clone)]
pub struct Idempotent<S> {
    settings: Arc<Settings>,
    inner: S,
}

impl<S> Service<Request> for Idempotent<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let Some(rule) = self.settings.rule_of(&request) else { return Either::Left(self.inner.call(request)) };
        let (head, body) = request.into_parts();
        let Some(tenant) = (self.settings.tenant)(&head) else {
            return Either::Left(self.inner.call(Request::from_parts(head, body)));
        };
        let key = match read(&head.headers) {
            Ok(Some(key)) => key,
            Ok(None) => return refused(self.settings.refuse(&Problem::KeyMissing)),
            Err(invalid) => return refused(self.settings.refuse(&Problem::KeyInvalid(invalid))),
        };
        // The one that is ready answers; its clone waits for the next request.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let (settings, rule) = (Arc::clone(&self.settings), rule.clone());
        Either::Right(once(settings, rule, (tenant, key), Request::from_parts(head, body), inner).map(Ok).boxed())
    }
}

fn refused<F>(response: Response) -> Either<F, BoxFuture<'static, Result<Response, Infallible>>> {
    Either::Right(std::future::ready(Ok(response)).boxed())
}

impl<S> fmt::Debug for Idempotent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Idempotent(..)")
    }
}

impl Settings {
    /// The rule of a request that does not pass.
    fn rule_of(&self, request: &Request) -> Option<&Rule> {
        let is_safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
        if is_safe {
            return None;
        }
        let path = request.extensions().get::<MatchedPath>().map_or_else(|| request.uri().path(), MatchedPath::as_str);
        let own = self.routes.get(path).and_then(|rules| rules.iter().find(|(method, _)| method == request.method()));
        let rule = own.map_or(&self.rule, |(_, rule)| rule);
        let is_concerned = rule.is_required || request.headers().contains_key(IDEMPOTENCY_KEY);
        (is_concerned && rule.policy != Policy::Off).then_some(rule)
    }

    /// The answer to a problem.
    pub(super) fn refuse(&self, problem: &Problem) -> Response {
        let mut response = (self.problems)(problem);
        if let Some(seconds) = problem.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
