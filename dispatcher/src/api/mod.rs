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
mod auth;
mod body;
mod error;
mod health;
mod page;
mod query;
mod time;
pub mod token;
mod work;

use std::sync::Arc;

use axum::Router;
use twiceproof_shared::store::Store;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;

use crate::manage::Manager;
use crate::publish::Publisher;
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
}

impl Api {
    /// An API over one store. `keys` judge the callers' tokens.
    #[must_use]
    pub fn new(store: &Store, publisher: Publisher, manager: Manager, keys: Keys) -> Self {
        Self(Arc::new(Inner { store: store.clone(), publisher, manager, keys }))
    }

    fn store(&self) -> &Store {
        &self.0.store
    }

    #[expect(dead_code, reason = "messages come with their routes")]
    fn publisher(&self) -> &Publisher {
        &self.0.publisher
    }

    #[expect(dead_code, reason = "endpoints come with their routes")]
    fn manager(&self) -> &Manager {
        &self.0.manager
    }

    fn keys(&self) -> &Keys {
        &self.0.keys
    }
}

/// The routes under `/api/v1`.
pub fn router(api: Api) -> Router {
    let (router, _) = described().split_for_parts();
    router.with_state(api)
}

/// The OpenAPI description of all routes, made from the code that answers them.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    described().into_openapi()
}

fn described() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(Description::openapi()).merge(health::routes()).merge(applications::routes())
}

#[derive(utoipa::OpenApi)]
#[openapi(info(title = "twiceproof", description = "At-least-once webhooks under stable event ids."))]
struct Description;
