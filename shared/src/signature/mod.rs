//! Standard Webhooks 1.0.0 signatures over `id.timestamp.body`: version `v1` is HMAC-SHA256 with a shared secret, version
//! `v1a` is ed25519 with a key pair.
//!
//! Place in the path: the dispatcher signs each attempt, the receiver verifies before anything else looks at the body.
//! Invariants: what is signed is the header text and the raw bytes, never a value printed again; comparison takes
//! constant time; no secret, or none that fits, is a refusal; errors never hold what would have been right.

mod asymmetric;
mod grammar;
mod signing;
#[cfg(test)]
mod vectors;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use self::grammar::Signatures;
use crate::clock::Timestamp;
use crate::secret::Secret;

pub use asymmetric::{PrivateKey, PublicKey, VerifyingKey};
pub use signing::{SigningKey, sign_with};

/// Header that names the event; the same on every attempt.
pub const ID: &str = "webhook-id";
/// Header with the time of the attempt: whole seconds since the Unix epoch.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// Header with the signatures, separated by single spaces.
pub const SIGNATURE: &str = "webhook-signature";
/// How far the timestamp may lie from the present, in both directions: 5 minutes.
pub const TOLERANCE: Duration = Duration::from_secs(300);
/// The most `v1` and `v1a` signatures that one request may carry.
pub const MAX_SIGNATURES: usize = 8;
/// The most bytes that the list of signatures may have.
pub const MAX_SIGNATURE_BYTES: usize = 4096;

/// The signature header's value: one `v1` entry for each secret, in their order; [`sign_with`] takes keys of both kinds.
/// Signing with the old and the new secret is how a secret is rotated.
///
/// `id` must be of the form that [`verify`] accepts (our own ids are): with a `.` in it, two different requests could
/// have the same signed bytes.
pub fn sign(secrets: &[Secret], id: &str, timestamp: Timestamp, body: &[u8]) -> String {
    let timestamp = timestamp.as_secs().to_string();
    let entries = secrets.iter().map(|secret| {
        let digest = mac(secret, id, &timestamp, body).finalize().into_bytes();
        format!("v1,{}", STANDARD.encode(digest))
    });
    entries.collect::<Vec<_>>().join(" ")
}

/// The three headers, as they came.
#[derive(Debug, Clone, Copy)]
pub struct SignedHeaders<'a> {
    /// Value of [`ID`].
    pub id: &'a str,
    /// Value of [`TIMESTAMP`].
    pub timestamp: &'a str,
    /// Value of [`SIGNATURE`].
    pub signature: &'a str,
}

/// What a right signature says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// When the sender made this attempt.
    pub timestamp: Timestamp,
    /// Which of the secrets matched: tells when an old one can go.
    pub secret_index: usize,
}

/// Checks a signed request against any of the shared secrets: only `v1` entries count.
///
/// The id is `[A-Za-z0-9_-]{1,255}`, the timestamp `[0-9]{1,11}`; entries of unknown versions are ignored. The signature
/// is checked before the time, so that only its maker learns what our clock says.
///
/// # Errors
///
/// [`VerifyError`] names what is wrong, never what would be right.
pub fn verify(
    headers: &SignedHeaders<'_>,
    body: &[u8],
    secrets: &[Secret],
    now: Timestamp,
    tolerance: Duration,
) -> Result<Verified, VerifyError> {
    check(headers, now, tolerance, |signatures| {
        secrets.iter().position(|secret| shared_matches(secret, headers, body, signatures))
    })
}

/// The same with keys of either kind: a shared secret looks at `v1` entries alone, a public key at `v1a` entries alone.
///
/// # Errors
///
/// As [`verify`].
pub fn verify_with(
    headers: &SignedHeaders<'_>,
    body: &[u8],
    keys: &[VerifyingKey],
    now: Timestamp,
    tolerance: Duration,
) -> Result<Verified, VerifyError> {
    check(headers, now, tolerance, |signatures| {
        keys.iter().position(|key| match key {
            VerifyingKey::Shared(secret) => shared_matches(secret, headers, body, signatures),
            VerifyingKey::Public(_) if signatures.v1a.is_empty() => false,
            VerifyingKey::Public(key) => {
                let signed = signed_content(headers.id, headers.timestamp, body);
                signatures.v1a.iter().any(|signature| key.verifies(&signed, signature))
            }
        })
    })
}

fn check(
    headers: &SignedHeaders<'_>,
    now: Timestamp,
    tolerance: Duration,
    matching: impl FnOnce(&Signatures) -> Option<usize>,
) -> Result<Verified, VerifyError> {
    grammar::check_id(headers.id)?;
    let timestamp = grammar::timestamp(headers.timestamp)?;
    let signatures = grammar::signatures(headers.signature)?;
    let secret_index = matching(&signatures).ok_or(VerifyError::NoMatch)?;
    check_time(timestamp, now, tolerance)?;
    Ok(Verified { timestamp, secret_index })
}

/// Checks that a signed time lies within the tolerance, in both directions.
///
/// # Errors
///
/// [`VerifyError::TooOld`] and [`VerifyError::TooNew`].
pub fn check_time(timestamp: Timestamp, now: Timestamp, tolerance: Duration) -> Result<(), VerifyError> {
    if now.since(timestamp) > tolerance {
        return Err(VerifyError::TooOld);
    }
    if timestamp.since(now) > tolerance {
        return Err(VerifyError::TooNew);
    }
    Ok(())
}

/// Why a request is not accepted. The texts are safe to answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The id is not `[A-Za-z0-9_-]{1,255}`.
    #[error("the webhook id is malformed")]
    MalformedId,
    /// The timestamp is not `[0-9]{1,11}`.
    #[error("the webhook timestamp is malformed")]
    MalformedTimestamp,
    /// More than [`MAX_SIGNATURES`] or [`MAX_SIGNATURE_BYTES`].
    #[error("the list of webhook signatures is too long")]
    TooManySignatures,
    /// The list looks like several header lines joined by a proxy.
    #[error("the webhook signature header was sent more than once")]
    JoinedSignatures,
    /// None of the signatures was made with one of the secrets.
    #[error("no webhook signature matches")]
    NoMatch,
    /// Rightly signed, longer ago than the tolerance.
    #[error("the webhook timestamp is too old")]
    TooOld,
    /// Rightly signed, further in the future than the tolerance.
    #[error("the webhook timestamp is in the future")]
    TooNew,
}

fn shared_matches(secret: &Secret, headers: &SignedHeaders<'_>, body: &[u8], signatures: &Signatures) -> bool {
    let mac = mac(secret, headers.id, headers.timestamp, body);
    signatures.v1.iter().any(|candidate| mac.clone().verify_slice(candidate).is_ok())
}

/// HMAC-SHA256 of the parts, one after another, for signatures in other styles than Standard Webhooks'.
#[must_use]
pub fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of every length"));
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn mac(secret: &Secret, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose())
        .unwrap_or_else(|_| unreachable!("HMAC takes keys of every length"));
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    mac
}

/// In one piece, since ed25519 hashes what is signed twice.
fn signed_content(id: &str, timestamp: &str, body: &[u8]) -> Vec<u8> {
    [id.as_bytes(), b".", timestamp.as_bytes(), b".", body].concat()
}

#[cfg(test)]
mod tests;
