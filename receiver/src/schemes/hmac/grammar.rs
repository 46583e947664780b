//! The grammar of signature headers and timestamps.
//!
//! Place in the path: before any signature is computed.
//! Invariants: nothing is repaired; a time that comes twice is a refusal; what cannot match is left out, and how many may
//! match is bounded.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::signature::{MAX_SIGNATURE_BYTES, MAX_SIGNATURES, VerifyError};

/// How signatures stand in their header.
#[derive(Debug, Clone)]
pub(super) enum Form {
    /// One signature, or several with a separator between them.
    Values { prefix: String, separator: Option<char> },
    /// `key=value` pairs, separated by commas.
    Pairs { timestamp: String, signature: String },
}

/// What a header says.
pub(super) struct Signed<'a> {
    pub(super) timestamp: Option<&'a str>,
    pub(super) candidates: Vec<Vec<u8>>,
}

impl Form {
    /// Reads a header; `decode` says which texts could match. One space after a separator is passed over, since some
    /// senders write it.
    pub(super) fn read<'a>(
        &self,
        text: &'a str,
        decode: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<Signed<'a>, VerifyError> {
        if text.len() > MAX_SIGNATURE_BYTES {
            return Err(VerifyError::TooManySignatures);
        }
        let mut times = Vec::new();
        let signatures: Vec<&str> = match self {
            Self::Values { prefix, separator: None } => text.strip_prefix(prefix.as_str()).into_iter().collect(),
            Self::Values { prefix, separator: Some(separator) } => {
                entries(text, *separator).filter_map(|entry| entry.strip_prefix(prefix.as_str())).collect()
            }
            Self::Pairs { timestamp, signature } => {
                let pairs: Vec<_> = entries(text, ',').filter_map(|entry| entry.split_once('=')).collect();
                let of = |name: &str| pairs.iter().filter(|(key, _)| *key == name).map(|(_, value)| *value).collect();
                times = of(timestamp);
                of(signature)
            }
        };
        if signatures.len() > MAX_SIGNATURES {
            return Err(VerifyError::TooManySignatures);
        }
        let timestamp = match (self, times.as_slice()) {
            (Self::Values { .. }, _) => None,
            (Self::Pairs { .. }, [time]) => Some(*time),
            (Self::Pairs { .. }, []) => return Err(VerifyError::MalformedTimestamp),
            // Two header lines that a proxy joined.
            (Self::Pairs { .. }, _) => return Err(VerifyError::JoinedSignatures),
        };
        Ok(Signed { timestamp, candidates: signatures.into_iter().filter_map(decode).collect() })
    }
}

fn entries(text: &str, separator: char) -> impl Iterator<Item = &str> {
    text.split(separator).map(|entry| entry.strip_prefix(' ').unwrap_or(entry))
}

/// What a timestamp counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeUnit {
    /// Seconds since the Unix epoch: 1 to 11 digits.
    Seconds,
    /// Milliseconds since the Unix epoch: 1 to 14 digits.
    Milliseconds,
}

impl TimeUnit {
    /// Digits alone. Which unit it is, the source says; it is never guessed from the number.
    pub(super) fn read(self, text: &str) -> Option<Timestamp> {
        let most = match self {
            Self::Seconds => 11,
            Self::Milliseconds => 14,
        };
        if !(1..=most).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number = text.parse().ok()?;
        Some(match self {
            Self::Seconds => Timestamp::from_secs(number),
            Self::Milliseconds => Timestamp::from_millis(number),
        })
    }
}

/// An id that is part of the signed content: `[A-Za-z0-9_-]{1,255}`, so that no other cut of the content gives it.
pub(super) fn plain_id(text: &str) -> Result<&str, VerifyError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=255).contains(&text.len()) && text.bytes().all(plain) { Ok(text) } else { Err(VerifyError::MalformedId) }
}
