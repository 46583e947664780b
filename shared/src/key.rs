//! Keys: names that callers and senders choose (tenant, scope, event key, uid, ordering key).
//!
//! Place in the path: checked before any SQL sees them.
//! Invariants: 1 to 255 bytes, each 0x21 to 0x7E, so that a key compares as bytes on both databases, cannot hide a
//! space, a line break or a look-alike, and fits every header and log line.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A checked key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(String);

impl Key {
    /// The most bytes that a key may have.
    pub const MAX_BYTES: usize = 255;

    /// Checks a key. Nothing is trimmed and no case is folded.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] says which rule was broken.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidKey> {
        let text = text.into();
        if text.is_empty() {
            return Err(InvalidKey::Empty);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidKey::TooLong { bytes: text.len() });
        }
        match text.bytes().position(|byte| !(0x21..=0x7e).contains(&byte)) {
            Some(position) => Err(InvalidKey::Character { position }),
            None => Ok(Self(text)),
        }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0
    }
}

impl TryFrom<String> for Key {
    type Error = InvalidKey;

    fn try_from(text: String) -> Result<Self, InvalidKey> {
        Self::new(text)
    }
}

impl FromStr for Key {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Self::new(text)
    }
}

/// Why a text is no key. The text itself is not repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// There is nothing.
    #[error("a key may not be empty")]
    Empty,
    /// More than [`Key::MAX_BYTES`].
    #[error("a key may have 255 bytes, this one has {bytes}")]
    TooLong {
        /// How many there are.
        bytes: usize,
    },
    /// A byte outside of 0x21 to 0x7E: a space, a control character or not ASCII.
    #[error("a key may only have visible ASCII characters; the byte at position {position} is another")]
    Character {
        /// Position of the first such byte, from 0.
        position: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_ascii_character_is_accepted() {
        let text: String = ('!'..='~').collect();
        assert_eq!(Key::new(text.clone()).unwrap().as_str(), text);
    }

    #[test]
    fn a_key_has_1_to_255_bytes() {
        assert_eq!(Key::new(""), Err(InvalidKey::Empty));
        assert!(Key::new("k").is_ok());
        assert!(Key::new("k".repeat(255)).is_ok());
        assert_eq!(Key::new("k".repeat(256)), Err(InvalidKey::TooLong { bytes: 256 }));
    }

    #[test]
    fn spaces_controls_and_look_alikes_are_refused() {
        for text in ["ab c", "abc ", " abc", "abc\n", "ab\0c", "ab\u{7f}c", "аbc", "ab\u{200b}c"] {
            assert!(matches!(Key::new(text), Err(InvalidKey::Character { .. })), "{text:?}");
        }
        assert_eq!(Key::new("ab c"), Err(InvalidKey::Character { position: 2 }));
    }

    #[test]
    fn case_is_kept() {
        assert_ne!(Key::new("Order"), Key::new("order"));
    }

    #[test]
    fn reading_json_checks_the_key() {
        assert_eq!(serde_json::from_str::<Key>("\"a\"").unwrap(), Key::new("a").unwrap());
        assert!(serde_json::from_str::<Key>("\"a b\"").is_err());
    }
}
