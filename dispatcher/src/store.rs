//! All SQL of the dispatcher's tables.
//!
//! Place in the path: publish writes through [`events`]; deliver claims through [`claim`], loads through [`load`] and records
//! through [`record`]; manage goes through [`endpoints`].
//! Invariants: static strings; every function takes a `Conn` and a time; rows for bulk statements travel as one JSON
//! argument with bytes in hex; every change of a leased delivery checks the fencing token; on PostgreSQL the order of locks
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
use twiceproof_shared::store::StoreError;

/// Rows as the one JSON argument of a bulk statement.
fn json<T: Serialize>(rows: &[T]) -> Result<String, StoreError> {
    // Rows are structs of texts and numbers, which always can be written.
    serde_json::to_string(rows).map_err(|_| StoreError::Refused("rows of a statement cannot be written as JSON".into()))
}

/// Bytes as a JSON row carries them.
fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
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
    use super::hex;

    #[test]
    fn bytes_become_two_digits_each() {
        assert_eq!(hex(b"\x00\x0f\xa0\xff"), "000fa0ff");
    }
}
