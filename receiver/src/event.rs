//! What a handler is given.
//!
//! Place in the path: made from a verified request, before the ledger is asked.
//! Invariants: the bytes and headers are those that came; an event is an event, whatever its body holds.

use bytes::Bytes;
use http::header::HeaderMap;
use serde::de::DeserializeOwned;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::key::Key;
use twiceproof_shared::ledger::Fingerprint;

use crate::source::Source;
use crate::verify::VerifiedRequest;

/// A verified event.
#[derive(Debug, Clone)]
pub struct Event {
    source: Key,
    tenant: Key,
    request: VerifiedRequest,
}

impl Event {
    pub(crate) fn new(source: &Source, request: VerifiedRequest) -> Self {
        Self { source: source.name().clone(), tenant: source.tenant().clone(), request }
    }

    pub(crate) fn fingerprint(&self) -> Option<Fingerprint> {
        self.request.identity().fingerprint
    }

    /// The event key: the same on every redelivery of this event.
    #[must_use]
    pub fn id(&self) -> &Key {
        &self.request.identity().event_key
    }

    /// The name of the source it came from.
    #[must_use]
    pub fn source(&self) -> &Key {
        &self.source
    }

    /// Whose event it is.
    #[must_use]
    pub fn tenant(&self) -> &Key {
        &self.tenant
    }

    /// When the sender made this attempt, where the scheme signs it. It is not when the event happened: a redelivery
    /// has a later one.
    #[must_use]
    pub fn sent_at(&self) -> Option<Timestamp> {
        self.request.identity().sent_at
    }

    /// What kind of event it is, where the source says where that stands.
    #[must_use]
    pub fn event_type(&self) -> Option<&str> {
        self.request.identity().event_type.as_deref()
    }

    /// When this attempt was verified.
    #[must_use]
    pub fn received_at(&self) -> Timestamp {
        self.request.received_at()
    }

    /// All headers, as they came.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        self.request.headers()
    }

    /// The raw body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        self.request.body()
    }

    /// Reads the body as JSON, whatever its content type says. A byte order mark in front is passed over.
    ///
    /// # Errors
    /// When the body is not JSON of this shape. Handed on with `?`, it fails the handler, so that the sender delivers
    /// again; a handler that rather wants to be done with such a body refuses it, or keeps it and replies.
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        let body: &[u8] = self.body();
        serde_json::from_slice(body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::verify::{Identity, Refusal, Verifier, verify};

    /// A verifier that knows everybody.
    #[derive(Debug)]
    struct Friendly;

    impl Verifier for Friendly {
        fn verify(&self, _: &HeaderMap, _: &[u8], now: Timestamp) -> Result<Identity, Refusal> {
            Ok(Identity { sent_at: Some(now), ..Identity::new(Key::new("msg_1").unwrap()) })
        }
    }

    fn event(body: &'static [u8]) -> Event {
        let source = Source::with_verifier("orders", Friendly).build().unwrap();
        let body = Bytes::from_static(body);
        Event::new(&source, verify(&Friendly, HeaderMap::new(), body, Timestamp::from_secs(7)).unwrap())
    }

    #[test]
    fn an_event_shows_what_its_request_said() {
        let event = event(b"\x00");
        assert_eq!(event.id().as_str(), "msg_1");
        assert_eq!(event.source().as_str(), "orders");
        assert_eq!(event.tenant().as_str(), "default");
        assert_eq!(event.sent_at(), Some(Timestamp::from_secs(7)));
        assert_eq!(event.body(), &b"\x00"[..]);
    }

    #[test]
    fn json_is_read_behind_a_byte_order_mark() {
        let event = event(b"\xef\xbb\xbf{\"a\":1}");
        assert_eq!(event.json::<Value>().unwrap(), json!({"a": 1}));
        assert_eq!(event.body().len(), 10);
    }

    #[test]
    fn what_is_not_json_is_an_error_not_a_panic() {
        assert!(event(b"\xff\xfe\x00a").json::<Value>().is_err());
        assert!(event(b"").json::<Value>().is_err());
        let deep: &[u8] = Box::leak(vec![b'['; 10_000].into_boxed_slice());
        assert!(event(b"[").json::<Value>().is_err());
        assert!(serde_json::from_slice::<Value>(deep).is_err());
    }

    #[test]
    fn large_numbers_keep_their_last_digit() {
        let event = event(b"{\"id\":9007199254740993}");
        assert_eq!(event.json::<Value>().unwrap()["id"].as_u64(), Some(9_007_199_254_740_993));
    }
}
