//! All SQL of the dispatcher's tables.
//!
//! Place in the path: publish writes through [`events`] and [`fan_outs`]; deliver claims through [`claim`], loads through [`load`] and records
//! through [`record`]; manage goes through [`endpoints`].
//! Invariants: static strings; every function takes a `Conn` and a time; rows for bulk statements travel as one JSON
//! argument, with their bytes in another one that they point into; every change of a leased delivery checks the fencing token; on PostgreSQL the order of locks
//! is deliveries before endpoints, each sorted by key, and rows that wait are picked with SKIP LOCKED.

mod admit;
mod attempts;
pub mod claim;
pub mod counts;
pub mod doctor;
pub mod endpoints;
pub mod event_types;
pub mod events;
pub mod fan_outs;
mod finished;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod health;
pub mod history;
mod lanes;
pub mod load;
pub mod operational;
pub mod ordering;
pub mod overdue;
pub mod purge;
pub mod record;
pub mod replays;
pub mod resend;
pub mod secrets;
pub mod tenants;
pub mod waiting;
pub mod workers;

use serde::Serialize;
use twiceproof_shared::store::bulk::{Pool, from_json, to_json as json};

/// The key of a delivery, as JSON rows carry it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, sqlx::FromRow)]
pub struct DeliveryKey {
    /// Whose event it is.
    pub tenant: String,
    /// The event.
    pub event: String,
    /// The endpoint that it is owed to.
    pub endpoint: String,
}
