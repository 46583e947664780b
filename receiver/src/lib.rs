//! A signed HTTP request becomes one committed effect.
//!
//! A [`Source`] says who sends and how it signs; a [`Handler`] writes the effect through the connection it is lent; a
//! [`Receiver`] brings both to a store and serves them as an axum router. The path of one request is in `ingest`:
//! verify → identify → ledger → handler → outcome → commit → answer.
//!
//! Requests of an API that carry an `Idempotency-Key` go through the tower layer of [`idempotency`].
//!
//! Accepted means durable: a 2xx leaves only after the effect is committed, in one transaction with the event's key and
//! the answer. A redelivery gets that answer again, byte for byte, and nothing runs. So effects happen once where the
//! effect is in the same database transaction as the event record; elsewhere once only if the downstream call carries
//! our key or can be asked first.

mod answer;
mod body;
mod effect;
mod event;
mod handler;
pub mod idempotency;
mod ingest;
mod reply;
mod router;
pub mod schemes;
mod source;
mod together;
pub mod vectors;
mod verify;

pub use event::Event;
pub use handler::{BoxError, Handler, HandlerError, HandlerFn, handler_fn};
pub use reply::Reply;
pub use router::{Receiver, ReceiverError};
pub use source::{Source, SourceBuilder, SourceError};
pub use verify::{Identity, Refusal, VerifiedRequest, Verifier};
