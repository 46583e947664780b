//! A tower layer for `Idempotency-Key`: however often one request of an API arrives, its effect happens once, and every
//! repeat gets the first answer (draft-ietf-httpapi-idempotency-key-header-07).
//!
//! ```
//! # use axum::{Extension, Router, routing::post};
//! # use http::StatusCode;
//! # use twiceproof_receiver::idempotency::{IdempotencyLayer, Policy, Rule};
//! # use twiceproof_shared::{key::Key, store::{Loan, Store, StoreError}};
//! async fn create(Extension(loan): Extension<Loan>) -> Result<StatusCode, StatusCode> {
//!     let insert = "INSERT INTO invoices (customer) VALUES ('ann')";
//!     let done: Result<u64, StoreError> = loan.work(|conn| Box::pin(conn.execute(insert, &[]))).await;
//!     done.map(|_| StatusCode::CREATED).map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
//! }
//!
//! # fn app(store: &Store) -> Router {
//! let layer = IdempotencyLayer::new(store, |head| head.extensions.get::<Key>().cloned())
//!     .rule(Rule::new(Policy::ReplaySuccesses).required());
//! Router::new().route("/invoices", post(create)).route_layer(layer)
//! # }
//! ```
//!
//! The layer begins a transaction, claims (tenant, route, key) in it and lends it to the handler as a [`Loan`] among the
//! request's extensions. When the handler has answered, it writes the answer last, commits, and only then answers.
//!
//! | the key | is answered |
//! |---|---|
//! | is new | by the handler |
//! | was used with the same request | with the stored status, headers and body, and `idempotent-replayed: true` |
//! | was used with another request | 422 |
//! | is being used right now | 409 with `Retry-After` |
//! | is empty, longer than 255, not visible ASCII, or there are two | 400 |
//! | is missing | by the handler, or 400 where the route [requires](Rule::required) one |
//! | was used so long ago that the answer is forgotten | 422, or as new: [`Expired`] |
//!
//! Keys come as the draft's quoted string or bare, which is the same key; a bare one has no `"`, `,` and `;`, which would be a
//! list or a parameter. Requests are the same if method, path, query, media type (without parameters) and body are.
//! GET, HEAD, OPTIONS and TRACE pass, and so does what carries no key: without a query and without a wait.
//! Not stored of an answer: cookies, credentials, `Date`, `Content-Length` and what belongs to the connection.
//!
//! What a handler must know:
//!
//! - What it writes through the [`Loan`] happens once. What it does elsewhere (another database, a call to somebody) may
//!   happen again: after a failure, or a commit that did not come about. If it asks the layer's own store for another
//!   transaction, it gets [`StoreError::Reentrant`](twiceproof_shared::store::StoreError::Reentrant), so that no effect is
//!   outside by mistake, and nobody waits for a lock that the layer holds.
//! - It leaves COMMIT and ROLLBACK to the layer, and gives back what it took out of the loan. A handler that panics, drops the
//!   transaction or keeps it is a 500, and everything is rolled back. One that commits by itself is not run again,
//!   because that could repeat what it committed: where it does not get to its answer, the key stays in flight until somebody
//!   looks.
//! - It has a [deadline](IdempotencyLayer::deadline), then everything is rolled back: a 503, and the key is as new. On SQLite,
//!   which has one writer, it keeps everybody else from writing meanwhile.
//! - Its answer must fit the [limit](IdempotencyLayer::answer_limit) where it is stored. One that does not, or whose headers
//!   are not UTF-8, could not be repeated: a 500, and everything is rolled back.
//! - Once the body has arrived, the request is worked off in a task of its own, also if the client leaves.
//!
//! A commit whose outcome is unknown is looked up. If it cannot be found out at once, the answer is a 503, and the client's
//! repeat with the same key finds it out. The handler never runs twice for one request.
//!
//! [`Loan`]: twiceproof_shared::store::Loan

mod ending;
mod fingerprint;
mod header;
mod layer;
mod once;
mod outcome;
mod problem;
mod rule;
mod sealed;

pub use header::InvalidHeader;
pub use layer::{IdempotencyLayer, Idempotent};
pub use problem::Problem;
pub use rule::{Expired, Policy, Rule};
