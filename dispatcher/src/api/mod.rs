//! The REST API: applications, endpoints, event types, messages and attempts, as an axum router.
//!
//! It speaks the Svix vocabulary, so that the official SDKs work against it: an *application* is a tenant, a *message* an
//! event. The translation stands here and nowhere else.
//! Place in the path: `serve` mounts [`router`]; a host can too. Handlers read what was asked, call [`publish`](crate::publish)
//! or [`manage`](crate::manage), and say what came of it.
//! Invariants: whoever asks is known before anything is read ([`auth`]), and sees the tenants of the own organisation only; a
//! 2xx leaves after the commit; no error tells more than the caller may know. A mutating handler works through
//! [`Work`](work::Work), which is a transaction of its own or the one that a layer lends.

mod applications;
mod attempts;
mod auth;
mod authentication;
mod body;
mod brought;
mod endpoints;
mod error;
mod event_types;
mod health;
mod messages;
mod missed;
mod page;
mod policy;
mod query;
mod replays;
mod time;
pub mod token;
mod window;
mod work;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use twiceproof_shared::store::Store;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;

use crate::manage::Manager;
use crate::publish::Publisher;
use error::ApiError;
use token::Keys;

/// What the API works with. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Api(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    publisher: Publisher,
    manager: Manager,
    keys: Keys,
    public_url: String,
    event_retention: Option<Duration>,
}

impl Api {
    /// An API over one store. `keys` judge the callers' tokens.
    #[must_use]
    pub fn new(store: &Store, publisher: Publisher, manager: Manager, keys: Keys) -> Self {
        let (store, public_url) = (store.clone(), String::new());
        Self(Arc::new(Inner { store, publisher, manager, keys, public_url, event_retention: None }))
    }

    /// The same with the address at which this server is known, `https://HOST` without a slash at its end.
    #[must_use]
    pub fn with_public_url(self, url: impl Into<String>) -> Self {
        Self(Arc::new(Inner { public_url: url.into(), ..self.inner() }))
    }

    /// The same, which tells how long the workers keep events.
    #[must_use]
    pub fn with_event_retention(self, kept: Duration) -> Self {
        Self(Arc::new(Inner { event_retention: Some(kept), ..self.inner() }))
    }

    fn inner(&self) -> Inner {
        let Inner { store, publisher, manager, keys, public_url, event_retention } = &*self.0;
        let (store, publisher, manager, keys) = (store.clone(), publisher.clone(), manager.clone(), keys.clone());
        Inner { store, publisher, manager, keys, public_url: public_url.clone(), event_retention: *event_retention }
    }

    fn event_retention(&self) -> Option<Duration> {
        self.0.event_retention
    }

    fn public_url(&self) -> &str {
        &self.0.public_url
    }

    /// Who sends a request with this head; none where it has no valid token. For layers in front of the [`router`].
    #[must_use]
    pub fn subject(&self, head: &axum::http::request::Parts) -> Option<token::Subject> {
        auth::subject(head, self).ok()
    }

    fn store(&self) -> &Store {
        &self.0.store
    }

    fn publisher(&self) -> &Publisher {
        &self.0.publisher
    }

    fn manager(&self) -> &Manager {
        &self.0.manager
    }

    fn keys(&self) -> &Keys {
        &self.0.keys
    }
}

/// What a body may have beside a payload, in bytes.
const ENVELOPE: usize = 64 * 1024;

/// The routes under `/api/v1`.
pub fn router(api: Api) -> Router {
    let limit = DefaultBodyLimit::max(api.publisher().payload_limit() + ENVELOPE);
    let (router, _) = described().split_for_parts();
    let described = axum::Json(openapi());
    let router =
        router.route("/api/v1/openapi.json", axum::routing::get(move || std::future::ready(described.clone())));
    router.fallback(nowhere).method_not_allowed_fallback(not_like_this).layer(limit).with_state(api)
}

async fn nowhere() -> ApiError {
    ApiError::http(StatusCode::NOT_FOUND, "not_found", "There is no such route")
}

async fn not_like_this() -> ApiError {
    ApiError::http(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "The route does not take this method")
}

/// The OpenAPI description of all routes, made from the code that answers them.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    described().into_openapi()
}

fn described() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(Description::openapi())
        .merge(health::routes())
        .merge(applications::routes())
        .merge(event_types::routes())
        .merge(authentication::routes())
        .merge(endpoints::routes())
        .merge(messages::routes())
        .merge(attempts::routes())
        .merge(replays::routes())
        .merge(missed::routes())
        .merge(policy::routes())
}

#[derive(utoipa::OpenApi)]
#[openapi(info(title = "twiceproof", description = "At-least-once webhooks under stable event ids."))]
struct Description;
