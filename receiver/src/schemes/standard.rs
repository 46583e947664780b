//! Standard Webhooks 1.0.0: three headers, `v1` (HMAC-SHA256) or `v1a` (ed25519) over `id.timestamp.body`.
//!
//! Place in the path: the verifier of sources that follow the specification.
//! Invariants: the grammar and the comparison are those of `twiceproof_shared::signature`; the sender's id is the event
//! key, so a redelivery is recognised whatever else changed about the attempt. The kind of a key says which version counts.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::key::Key;
use twiceproof_shared::signature::{self, SignedHeaders, VerifyError, VerifyingKey};

use crate::verify::{Identity, Refusal, Verifier, single};

/// Verifies Standard Webhooks requests against one or more secrets or public keys.
#[derive(Debug)]
pub struct StandardWebhooks {
    keys: Vec<VerifyingKey>,
    tolerance: Duration,
    names: Names,
}

#[derive(Debug)]
struct Names {
    id: HeaderName,
    timestamp: HeaderName,
    signature: HeaderName,
}

impl StandardWebhooks {
    /// The most secrets that are live at once: each costs a hash over the body.
    pub const MAX_SECRETS: usize = 4;

    /// Headers `webhook-…`. Without a key every request is refused; [`crate::SourceBuilder`] makes that an error.
    #[must_use]
    pub fn new(keys: Vec<VerifyingKey>, tolerance: Duration) -> Self {
        let names = Names {
            id: HeaderName::from_static(signature::ID),
            timestamp: HeaderName::from_static(signature::TIMESTAMP),
            signature: HeaderName::from_static(signature::SIGNATURE),
        };
        Self { keys, tolerance, names }
    }

    /// The same under the headers `svix-…`.
    #[must_use]
    pub fn with_svix_headers(mut self) -> Self {
        self.names = Names {
            id: HeaderName::from_static("svix-id"),
            timestamp: HeaderName::from_static("svix-timestamp"),
            signature: HeaderName::from_static("svix-signature"),
        };
        self
    }
}

impl Verifier for StandardWebhooks {
    fn verify(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<Identity, Refusal> {
        let signed = SignedHeaders {
            id: single(headers, &self.names.id)?,
            timestamp: single(headers, &self.names.timestamp)?,
            signature: single(headers, &self.names.signature)?,
        };
        let verified = signature::verify_with(&signed, body, &self.keys, now, self.tolerance)?;
        let event_key = Key::new(signed.id).map_err(|_| VerifyError::MalformedId)?;
        tracing::debug!(secret = verified.secret_index, "a signature matched");
        Ok(Identity { sent_at: Some(verified.timestamp), ..Identity::new(event_key) })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use twiceproof_shared::secret::Secret;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_760_000_000);
    const BODY: &[u8] = b"\xff\xfe\x00a";

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes(vec![byte; 24]).unwrap()
    }

    fn signed(prefix: &str, secrets: &[Secret]) -> HeaderMap {
        let signature = signature::sign(secrets, "msg_1", NOW, BODY);
        [("id", "msg_1"), ("timestamp", "1760000000"), ("signature", &signature)]
            .into_iter()
            .map(|(name, value)| {
                let name = HeaderName::try_from(format!("{prefix}{name}")).unwrap();
                (name, HeaderValue::from_str(value).unwrap())
            })
            .collect()
    }

    #[test]
    fn the_id_is_the_event_key_and_the_body_need_not_be_text() {
        let verifier = StandardWebhooks::new(vec![secret(1).into()], signature::TOLERANCE);
        let identity = verifier.verify(&signed("webhook-", &[secret(1)]), BODY, NOW).unwrap();
        assert_eq!(identity.event_key.as_str(), "msg_1");
        assert_eq!(identity.sent_at, Some(NOW));
    }

    #[test]
    fn every_header_is_needed_once() {
        let verifier = StandardWebhooks::new(vec![secret(1).into()], signature::TOLERANCE);
        for name in [signature::ID, signature::TIMESTAMP, signature::SIGNATURE] {
            let mut headers = signed("webhook-", &[secret(1)]);
            let value = headers.remove(name).unwrap();
            let refusal = verifier.verify(&headers, BODY, NOW).unwrap_err();
            assert!(matches!(&refusal, Refusal::MissingHeader(missing) if missing == name), "{refusal}");
            headers.append(name, value.clone());
            headers.append(name, value);
            let refusal = verifier.verify(&headers, BODY, NOW).unwrap_err();
            assert!(matches!(&refusal, Refusal::RepeatedHeader(repeated) if repeated == name), "{refusal}");
        }
    }

    #[test]
    fn the_wrong_secret_is_refused_and_any_of_several_may_match() {
        let headers = signed("webhook-", &[secret(1), secret(2)]);
        let verify = |secrets| StandardWebhooks::new(secrets, signature::TOLERANCE).verify(&headers, BODY, NOW);
        assert_eq!(verify(vec![secret(3).into()]), Err(Refusal::Signature(VerifyError::NoMatch)));
        assert_eq!(verify(vec![]), Err(Refusal::Signature(VerifyError::NoMatch)));
        assert!(verify(vec![secret(3).into(), secret(2).into()]).is_ok());
    }

    #[test]
    fn only_the_chosen_header_names_count() {
        let headers = signed("svix-", &[secret(1)]);
        let verifier = StandardWebhooks::new(vec![secret(1).into()], signature::TOLERANCE);
        assert!(verifier.verify(&headers, BODY, NOW).is_err());
        assert!(verifier.with_svix_headers().verify(&headers, BODY, NOW).is_ok());
    }
}
