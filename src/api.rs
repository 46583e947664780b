//! The dispatcher's REST API as `serve` answers it: behind the receiver's layer for `Idempotency-Key`.
//!
//! Both halves meet here, because neither knows the other. Each caller has keys of its own: an organisation, or the owner of
//! one application who has a portal's token.
//! Invariants: a key of one caller is never looked up for another; a request without a token passes, and the API refuses it.

use axum::Router;
use axum::http::{Method, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::dispatcher::api::token::Subject;
use crate::dispatcher::api::{self, Api};
use crate::key::Key;
use crate::metrics;
use crate::receiver::idempotency::{IdempotencyLayer, Policy, Problem, Rule};
use crate::store::Store;

/// As much as the API reads of a body without a key.
const BODY_LIMIT: usize = 2 * 1024 * 1024;

/// The routes under `/api/v1`. Mutating requests may carry an `Idempotency-Key`: successes are replayed, failures run again.
pub fn service(api: Api, store: &Store) -> Router {
    let judge = api.clone();
    // Bodies may hold secrets of endpoints, so those of conflicts are not kept.
    let rule = Rule::new(Policy::ReplaySuccesses).without_review();
    let layer = IdempotencyLayer::new(store, move |head| judge.subject(head).and_then(caller))
        .rule(rule)
        // They change nothing, and a stored answer would be a stored token.
        .route(Method::POST, "/api/v1/auth/app-portal-access/{app_id}", Rule::new(Policy::Off))
        .route(Method::POST, "/api/v1/auth/logout", Rule::new(Policy::Off))
        .body_limit(BODY_LIMIT)
        .answer_limit(2 * BODY_LIMIT)
        .problems(problem);
    api::router(api).route_layer(layer).route_layer(middleware::from_fn(metrics::api_request))
}

/// Whose keys they are.
fn caller(subject: Subject) -> Option<Key> {
    let mut name = match subject {
        Subject::Organisation(organisation) => organisation.to_string(),
        Subject::Tenant { organisation, tenant } => format!("{organisation}/{tenant}"),
    };
    // The id of a tenant may be as long as a key. Two that differ behind this also differ in their requests' paths.
    name.truncate(Key::MAX_BYTES);
    Key::new(name).ok()
}

/// A problem in the API's own shapes: clients read a 422 as a list of what is wrong with the request.
fn problem(problem: &Problem) -> Response {
    let (code, detail) = (problem.code(), problem.to_string());
    let body: Value = match problem.status() {
        StatusCode::UNPROCESSABLE_ENTITY => {
            json!({ "detail": [{ "loc": ["header", "idempotency-key"], "msg": detail, "type": code }] })
        }
        _ => json!({ "code": code, "detail": detail }),
    };
    (problem.status(), [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
