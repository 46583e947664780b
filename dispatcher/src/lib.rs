//! An accepted event is delivered to every subscribed endpoint: at least once, under one stable event id, signed, with
//! exponential backoff, until the endpoint answers 2xx or the retry horizon ends.
//!
//! Two main paths: [`publish`] accepts an event in the caller's transaction, [`deliver`] sends what was accepted. What
//! happens after an attempt is decided in [`mod@decide`], without I/O. [`manage`] keeps the endpoints.

#[cfg(feature = "api")]
pub mod api;
pub mod breaker;
pub mod decide;
pub mod deliver;
pub mod destination;
pub mod doctor;
pub mod endpoint;
pub mod endpoint_policy;
pub mod event;
pub mod exchange;
#[cfg(test)]
mod fixtures;
pub mod guard;
pub mod headers;
pub mod manage;
pub mod open;
pub mod operational;
pub mod publish;
pub mod purge;
pub mod rate;
pub mod replay;
pub mod request;
pub mod retry_after;
pub mod schedule;
pub mod send;
pub mod signing;
pub mod statuses;
#[doc(hidden)]
pub mod store;
mod worker_lock;

pub use deliver::{Dispatcher, DispatcherOptions, StartError};
pub use endpoint::{Endpoint, NewEndpoint};
pub use endpoint_policy::EndpointPolicy;
pub use event::NewEvent;
pub use guard::AddressPolicy;
pub use manage::{ManageError, Manager};
pub use publish::{PublishError, Published, Publisher};
pub use purge::{Purge, Purged, Retention, ShortRetention};
pub use schedule::{Policy, Schedule};
pub use send::SenderOptions;
pub use signing::Signing;
pub use store::counts::{Counts, counts};
pub use store::record::Recorded;
pub use store::secrets::SecretKey;
pub use worker_lock::LockError;
