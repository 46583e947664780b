//! Builds the signed request of one attempt.
//!
//! Place in the path: deliver calls [`sign`] after the claim; [`send`](crate::send) takes the result as it is.
//! Invariants: pure; every attempt has the same id and the same bytes, and a fresh timestamp, so that a late retry does not
//! look like a replay; what is signed is what is sent. The request's `Debug` shows no more of the URL than its destination.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::signature::{self, SigningKey};
use url::Url;

use crate::destination::Destination;
use crate::headers::CustomHeaders;
use crate::signing::Signing;

/// The `User-Agent` of all deliveries.
pub const AGENT: &str = concat!("twiceproof/", env!("CARGO_PKG_VERSION"));

/// What one attempt is made of.
#[derive(Debug)]
pub struct Letter<'a> {
    /// The endpoint's URL.
    pub url: &'a Url,
    /// The minted id of the event, sent as `webhook-id`.
    pub event_id: &'a str,
    /// The payload's media type, as it was published.
    pub content_type: &'a str,
    /// The bytes that were published.
    pub payload: &'a Bytes,
    /// The endpoint's live secrets and private keys; each one signs.
    pub secrets: &'a [SigningKey],
    /// The deadline of the attempt.
    pub timeout: Duration,
    /// Headers that the endpoint's owner wants to see. They never take the place of the others.
    pub custom: &'a CustomHeaders,
    /// The names of the signature headers, and signatures of other styles beside them.
    pub signing: &'a Signing,
}

/// A request that is ready to be sent. Only [`sign`] makes it.
pub struct SignedRequest {
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) timeout: Duration,
}

/// Why a request could not be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotSigned {
    /// The endpoint has no live secret.
    #[error("the endpoint has no live secret")]
    NoSecret,
    /// The endpoint has more live secrets than a receiver would read.
    #[error("the endpoint has more than {} live secrets", signature::MAX_SIGNATURES)]
    TooManySecrets,
    /// It is to be signed in the style of another sender too, and all live secrets are key pairs.
    #[error("the endpoint has no live shared secret to sign with in another style")]
    NoSharedSecret,
    /// The event's content type cannot be a header value.
    #[error("the event's content type is not a header value")]
    ContentType,
}

/// Signs the letter at `now`.
///
/// # Errors
///
/// [`NotSigned`] where there is nothing to sign with, or a part cannot be a header.
pub fn sign(letter: &Letter<'_>, now: Timestamp) -> Result<SignedRequest, NotSigned> {
    match letter.secrets.len() {
        0 => return Err(NotSigned::NoSecret),
        1..=signature::MAX_SIGNATURES => {}
        _ => return Err(NotSigned::TooManySecrets),
    }
    let signatures = signature::sign_with(letter.secrets, letter.event_id, now, letter.payload);
    let content_type = HeaderValue::from_str(letter.content_type).map_err(|_| NotSigned::ContentType)?;
    let mut headers = HeaderMap::with_capacity(8);
    // First, so that whatever is set after them wins.
    letter.custom.put_on(&mut headers);
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    // No answer is ever decompressed.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let signed = (letter.event_id, now, signatures.as_str());
    letter
        .signing
        .put_on(&mut headers, signed, letter.secrets, letter.payload)
        .map_err(|_| NotSigned::NoSharedSecret)?;
    Ok(SignedRequest { url: letter.url.clone(), headers, body: letter.payload.clone(), timeout: letter.timeout })
}

impl SignedRequest {
    /// Where it goes, as logs may show it.
    pub fn destination(&self) -> Destination {
        Destination::of(&self.url)
    }
}

impl fmt::Debug for SignedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedRequest")
            .field("destination", &format_args!("{}", self.destination()))
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;
    use twiceproof_shared::secret::Secret;
    use twiceproof_shared::signature::{SignedHeaders, TOLERANCE, verify_with};

    use super::*;

    const ID: &str = "msg_2mXBNqy0Bx0YlJPkEVTHaMWlKYz";
    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn secret(fill: u8) -> SigningKey {
        Secret::from_bytes(vec![fill; 32]).unwrap().into()
    }

    fn signed(payload: &[u8], secrets: &[SigningKey], now: Timestamp) -> Result<SignedRequest, NotSigned> {
        let letter = Letter {
            url: &Url::parse("https://example.com/geheim?k=geheim").unwrap(),
            event_id: ID,
            content_type: "application/json",
            payload: &Bytes::copy_from_slice(payload),
            secrets,
            timeout: Duration::from_secs(15),
            custom: &CustomHeaders::default(),
            signing: &Signing::default(),
        };
        sign(&letter, now)
    }

    fn header<'a>(request: &'a SignedRequest, name: &str) -> &'a str {
        request.headers.get(name).unwrap().to_str().unwrap()
    }

    fn verifies(request: &SignedRequest, key: SigningKey, now: Timestamp) -> bool {
        let headers = SignedHeaders {
            id: header(request, "webhook-id"),
            timestamp: header(request, "webhook-timestamp"),
            signature: header(request, "webhook-signature"),
        };
        verify_with(&headers, &request.body, &[key.verifying()], now, TOLERANCE).is_ok()
    }

    #[test]
    fn send_g8_every_attempt_has_the_same_id_and_bytes_and_a_signature_that_verifies() {
        for (attempt, minutes) in [(1, 0), (2, 6), (5, 700)] {
            let now = NOW.plus(Duration::from_secs(minutes * 60));
            let request = signed(br#"{"b":1,"a":2}"#, &[secret(1)], now).unwrap();
            assert_eq!(header(&request, "webhook-id"), ID);
            assert_eq!(request.body, &br#"{"b":1,"a":2}"#[..], "attempt {attempt}");
            assert!(verifies(&request, secret(1), now));
        }
    }

    #[test]
    fn send_g10_a_late_attempt_carries_a_fresh_timestamp() {
        let later = NOW.plus(Duration::from_secs(360));
        let request = signed(b"{}", &[secret(1)], later).unwrap();
        assert_eq!(header(&request, "webhook-timestamp"), "1700000360");
        assert!(!verifies(&request, secret(1), later.plus(Duration::from_secs(360))));
    }

    #[test]
    fn both_secrets_sign_while_one_replaces_the_other() {
        let request = signed(b"{}", &[secret(2), secret(1)], NOW).unwrap();
        assert!(verifies(&request, secret(1), NOW));
        assert!(verifies(&request, secret(2), NOW));
        assert!(!verifies(&request, secret(3), NOW));
    }

    #[test]
    fn send_g1_bytes_of_any_kind_are_signed_as_they_are() {
        for payload in [&b""[..], b" { } ", b"\0\xff\xfe", "\u{2028}\u{1f980}".as_bytes(), b"\"\\u0000 1e400\""] {
            let request = signed(payload, &[secret(1)], NOW).unwrap();
            assert_eq!(request.body, payload);
            assert!(verifies(&request, secret(1), NOW));
        }
    }

    #[test]
    fn a_request_without_a_secret_is_not_made() {
        assert_eq!(signed(b"{}", &[], NOW).unwrap_err(), NotSigned::NoSecret);
        let many: Vec<_> = (0..9).map(secret).collect();
        assert_eq!(signed(b"{}", &many, NOW).unwrap_err(), NotSigned::TooManySecrets);
    }

    #[test]
    fn the_headers_are_a_fixed_list() {
        let request = signed(b"{}", &[secret(1)], NOW).unwrap();
        let mut names: Vec<_> = request.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accept",
                "accept-encoding",
                "content-type",
                "user-agent",
                "webhook-id",
                "webhook-signature",
                "webhook-timestamp"
            ]
        );
    }

    #[test]
    fn debug_output_shows_neither_path_nor_query_nor_signature() {
        let request = signed(b"{}", &[secret(1)], NOW).unwrap();
        let shown = format!("{request:?}");
        assert!(shown.contains("https://example.com#"), "{shown}");
        assert!(!shown.contains("geheim") && !shown.contains("v1,"), "{shown}");
    }
}
