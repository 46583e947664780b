//! Who sent this? Only [`verify`] makes a [`VerifiedRequest`], and nothing that has an effect takes anything less.
//!
//! Place in the path: after the body was read, before anything is parsed or stored.
//! Invariants: the raw bytes are judged, never a value printed again; a signature header that is missing or repeated is
//! a refusal, never a reason to skip the check; a refusal tells nothing that only the sender should know.

use std::fmt::Debug;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::key::Key;
use twiceproof_shared::ledger::Fingerprint;
use twiceproof_shared::signature::VerifyError;

/// Judges requests of one source.
pub trait Verifier: Debug + Send + Sync + 'static {
    /// Says whom the request comes from and how to recognise it again.
    ///
    /// # Errors
    /// [`Refusal`], which is answered to whoever sent the request.
    fn verify(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<Identity, Refusal>;
}

/// Checks a request with its source's verifier.
///
/// # Errors
/// [`Refusal`] of that verifier.
pub(crate) fn verify(
    verifier: &dyn Verifier,
    headers: HeaderMap,
    body: Bytes,
    now: Timestamp,
) -> Result<VerifiedRequest, Refusal> {
    let identity = verifier.verify(&headers, &body, now)?;
    Ok(VerifiedRequest { identity, headers, body, received_at: now })
}

/// What a verifier learnt from a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Recognises a redelivery of the same message.
    pub event_key: Key,
    /// When the sender made this attempt, where the scheme says it.
    pub sent_at: Option<Timestamp>,
    /// What kind of event it is, where the scheme says where that stands. It need not be signed.
    pub event_type: Option<String>,
    /// What must be the same for two deliveries to be the same; `None` for the raw body.
    pub fingerprint: Option<Fingerprint>,
}

impl Identity {
    /// Of an event that is recognised by this key, and about which nothing else is known.
    #[must_use]
    pub fn new(event_key: Key) -> Self {
        Self { event_key, sent_at: None, event_type: None, fingerprint: None }
    }
}

/// A request whose sender is known. The type is the proof that it was checked.
#[derive(Debug, Clone)]
pub struct VerifiedRequest {
    identity: Identity,
    headers: HeaderMap,
    body: Bytes,
    received_at: Timestamp,
}

impl VerifiedRequest {
    /// What the verifier learnt.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// All headers, as they came.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The raw body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// When it was checked.
    #[must_use]
    pub fn received_at(&self) -> Timestamp {
        self.received_at
    }
}

/// Why a request is not taken for its sender's. The texts are safe to answer with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A header that the scheme needs is not there.
    #[error("the header `{0}` is missing")]
    MissingHeader(HeaderName),
    /// A header that must come once came several times; which one would count is anybody's guess.
    #[error("the header `{0}` was sent more than once")]
    RepeatedHeader(HeaderName),
    /// A header's value has characters that it cannot have.
    #[error("the header `{0}` is malformed")]
    MalformedHeader(HeaderName),
    /// Rightly signed, but nothing in it can be the event's key.
    #[error("the request has no usable event id")]
    NoEventId,
    /// A verifier of the host's own refuses. The text is answered.
    #[error("{0}")]
    Other(&'static str),
    /// The signature or its time is not accepted.
    #[error(transparent)]
    Signature(#[from] VerifyError),
}

/// The value of a header that must come exactly once.
///
/// # Errors
/// [`Refusal`] that names the header.
pub(crate) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a str, Refusal> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or_else(|| Refusal::MissingHeader(name.clone()))?;
    if values.next().is_some() {
        return Err(Refusal::RepeatedHeader(name.clone()));
    }
    value.to_str().map_err(|_| Refusal::MalformedHeader(name.clone()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_header_must_come_exactly_once() {
        let name = HeaderName::from_static("webhook-signature");
        let mut headers = HeaderMap::new();
        assert_eq!(single(&headers, &name), Err(Refusal::MissingHeader(name.clone())));
        headers.append(&name, HeaderValue::from_static("v1,a"));
        assert_eq!(single(&headers, &name), Ok("v1,a"));
        headers.append(&name, HeaderValue::from_static("v1,a"));
        let refusal = single(&headers, &name).unwrap_err();
        assert_eq!(refusal, Refusal::RepeatedHeader(name));
        assert!(refusal.to_string().contains("webhook-signature"));
    }

    #[test]
    fn a_header_that_is_not_ascii_is_malformed() {
        let name = HeaderName::from_static("webhook-timestamp");
        let value = HeaderValue::from_bytes("١٦١٤٢٦٥٣٣٠".as_bytes()).unwrap();
        let headers = HeaderMap::from_iter([(name.clone(), value)]);
        assert_eq!(single(&headers, &name), Err(Refusal::MalformedHeader(name)));
    }
}
