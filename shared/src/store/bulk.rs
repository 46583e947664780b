//! Rows of a bulk statement: one JSON argument, and their bytes in another one that the rows point into.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StoreError;

/// Rows as the one JSON argument of a bulk statement.
///
/// # Errors
/// [`StoreError::Refused`] where a row cannot be written as JSON; structs of texts and numbers always can.
pub fn to_json<T: Serialize>(rows: &[T]) -> Result<String, StoreError> {
    serde_json::to_string(rows).map_err(|_| StoreError::refused("rows of a statement cannot be written as JSON"))
}

/// What a statement gathered into one JSON array.
///
/// # Errors
/// [`StoreError::Refused`] where it is not what was asked for.
pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::refused("a statement's JSON cannot be read"))
}

/// The bytes of a bulk statement's rows, all in one argument; each row names its part of them. Hex within the JSON took
/// most of the time of an insert.
#[derive(Debug, Default)]
pub struct Pool(Vec<u8>);

impl Pool {
    /// Where these bytes begin, counted from 1 as SQL does.
    pub fn add(&mut self, bytes: &[u8]) -> usize {
        let at = self.0.len() + 1;
        self.0.extend_from_slice(bytes);
        at
    }

    /// The argument.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
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
