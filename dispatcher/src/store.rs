//! All SQL of the dispatcher's tables.
//!
//! Place in the path: publish writes through [`events`]; deliver claims through [`claim`], loads through [`load`] and records
//! through [`record`]; manage goes through [`endpoints`].
//! Invariants: static strings; every function takes a `Conn` and a time; rows for bulk statements travel as one JSON
//! argument, with their bytes in another one that they point into; every change of a leased delivery checks the fencing token; on PostgreSQL the order of locks
//! is deliveries before endpoints, each sorted by key, and rows that wait are picked with SKIP LOCKED.

mod attempts;
pub mod claim;
pub mod counts;
pub mod endpoints;
pub mod events;
#[cfg(test)]
pub(crate) mod fixtures;
mod health;
mod lanes;
pub mod load;
pub mod record;
pub mod secrets;
pub mod waiting;
pub mod workers;

use serde::Serialize;
use serde::de::DeserializeOwned;
use twiceproof_shared::store::StoreError;

/// Rows as the one JSON argument of a bulk statement.
fn json<T: Serialize>(rows: &[T]) -> Result<String, StoreError> {
    // Rows are structs of texts and numbers, which always can be written.
    serde_json::to_string(rows).map_err(|_| StoreError::Refused("rows of a statement cannot be written as JSON".into()))
}

/// What a statement gathered into one JSON array.
fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Refused("a statement's JSON cannot be read".into()))
}

/// The bytes of a bulk statement's rows, all in one argument; each row names its part of them. Hex within the JSON took
/// most of the time of an insert.
#[derive(Debug, Default)]
struct Pool(Vec<u8>);

impl Pool {
    /// Where these bytes begin, counted from 1 as SQL does.
    fn add(&mut self, bytes: &[u8]) -> usize {
        let at = self.0.len() + 1;
        self.0.extend_from_slice(bytes);
        at
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The key of a delivery, as JSON rows carry it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct DeliveryKey {
    /// Whose event it is.
    pub tenant: String,
    /// The event.
    pub event: String,
    /// The endpoint that it is owed to.
    pub endpoint: String,
}

#[cfg(test)]
mod tests {
    use super::Pool;

    #[test]
    fn bytes_in_a_pool_follow_one_another_from_one() {
        let mut pool = Pool::default();
        assert_eq!([pool.add(b"ab"), pool.add(b""), pool.add(b"c")], [1, 3, 3]);
        assert_eq!(pool.as_bytes(), b"abc");
    }
}
