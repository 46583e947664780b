//! How an endpoint is signed for: the names of the signature headers, and signatures in the styles of other senders beside them.
//!
//! A publisher who has signed in a way of its own moves to this one without a customer noticing: the old header stays as long as
//! somebody reads it. Place in the path: checked when an endpoint is written, stored as JSON beside it, read with its URL, put on
//! the request after the custom headers, which cannot take their place.
//! Invariants: every request carries the signatures of Standard Webhooks under at least one set of names; what passes
//! [`Signing::check`] can be sent as it is. Only shared secrets sign in other styles: those know nothing of key pairs; so an
//! endpoint with such a style has a shared secret when it is written, and is not rotated to a key pair.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{self, SigningKey, hmac_sha256};

use crate::headers::{self, CustomHeaders};

/// The most signatures beside the standard ones.
pub const MAX_BESIDE: usize = 5;

/// How an endpoint is signed for. `{}` in JSON: by `webhook-…` headers alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Signing {
    /// The names of the headers with id, time and signatures.
    #[serde(skip_serializing_if = "Names::is_webhook")]
    pub names: Names,
    /// Signatures in the styles of other senders, beside those.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Beside>,
}

/// The names of the headers with id, time and signatures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Names {
    /// `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    #[default]
    Webhook,
    /// `svix-id`, `svix-timestamp`, `svix-signature`.
    Svix,
    /// Both, with the same values.
    Both,
}

/// A signature in the style of another sender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Beside {
    /// Whose style it is.
    pub style: Style,
    /// The name of its header, where it is not that sender's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// What of the secret is the key, where it is not what that sender's customers use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyForm>,
}

/// How other senders sign: always with HMAC-SHA256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Style {
    /// `X-Hub-Signature-256: sha256=…`, of the body, in hexadecimal.
    Github,
    /// `Stripe-Signature: t=…,v1=…`, of time, dot and body, in hexadecimal; one `v1` for each live secret.
    Stripe,
    /// `X-Shopify-Hmac-Sha256: …`, of the body, in base64.
    Shopify,
}

/// What of a secret is the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum KeyForm {
    /// Its bytes: what is behind `whsec_`, decoded. A secret that was a text before is its bytes so.
    Bytes,
    /// Its text as it is shown, `whsec_` and all.
    Text,
}

/// Why it is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSigning {
    /// A header that HTTP does not know, or that belongs to the sender.
    #[error("a signature cannot be in that header: {0}")]
    Header(#[from] headers::InvalidHeader),
    /// Two signatures in one header, or one in a custom header.
    #[error("the header {0} is used twice, for a signature and for something else")]
    Twice(String),
    /// Too many of them.
    #[error("at most {MAX_BESIDE} signatures go beside the standard ones")]
    TooMany,
    /// Other styles know nothing of key pairs.
    #[error(
        "signing in the style of another sender needs a shared secret (whsec_…) that has no end, not only key pairs"
    )]
    NoSharedSecret,
}

/// There is no shared secret to sign with in another style.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoSharedSecret;

impl Signing {
    /// Checks it beside an endpoint's custom headers.
    ///
    /// # Errors
    /// [`InvalidSigning`] names what is wrong.
    pub fn check(&self, custom: &CustomHeaders) -> Result<(), InvalidSigning> {
        if self.beside.len() > MAX_BESIDE {
            return Err(InvalidSigning::TooMany);
        }
        let mut taken: Vec<String> = custom.expose().map(|(name, _)| name.to_owned()).collect();
        for beside in &self.beside {
            let name = headers::name(beside.header())?;
            if taken.contains(&name) {
                return Err(InvalidSigning::Twice(name));
            }
            taken.push(name);
        }
        Ok(())
    }

    /// Whether it takes a shared secret to sign so.
    #[must_use]
    pub fn needs_shared_secret(&self) -> bool {
        !self.beside.is_empty()
    }

    /// Checks that it can go on with a secret that takes the place of all others.
    pub(crate) fn check_secret(&self, secret: &SigningKey) -> Result<(), InvalidSigning> {
        match secret {
            SigningKey::Shared(_) => Ok(()),
            _ if self.needs_shared_secret() => Err(InvalidSigning::NoSharedSecret),
            _ => Ok(()),
        }
    }

    /// Puts id, time and signatures on a request. What cannot be a header was not stored by this program, and is left out.
    pub(crate) fn put_on(
        &self,
        headers: &mut HeaderMap,
        (id, now, signatures): (&str, Timestamp, &str),
        keys: &[SigningKey],
        body: &[u8],
    ) -> Result<(), NoSharedSecret> {
        let time = now.as_secs().to_string();
        const SVIX: [&str; 3] = ["svix-id", "svix-timestamp", "svix-signature"];
        const WEBHOOK: [&str; 3] = [signature::ID, signature::TIMESTAMP, signature::SIGNATURE];
        let sets: &[[&'static str; 3]] = match self.names {
            Names::Webhook => &[WEBHOOK],
            Names::Svix => &[SVIX],
            Names::Both => &[WEBHOOK, SVIX],
        };
        for (name, value) in sets.iter().flat_map(|names| names.iter().zip([id, &time, signatures])) {
            put(headers, name, value);
        }
        for beside in &self.beside {
            let value = beside.value(&time, keys, body)?;
            put(headers, beside.header(), &value);
        }
        Ok(())
    }
}

fn put(headers: &mut HeaderMap, name: &str, value: &str) {
    // Ids, digits, hexadecimal and base64 are header values.
    if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
        headers.insert(name, value);
    }
}

impl Names {
    fn is_webhook(&self) -> bool {
        *self == Self::Webhook
    }
}

impl Style {
    /// Its name, as settings and the API write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Github => "github",
            Self::Stripe => "stripe",
            Self::Shopify => "shopify",
        }
    }
}

impl Beside {
    /// The name of its header: the one that was given, or that sender's own in lower case.
    #[must_use]
    pub fn header(&self) -> &str {
        self.header.as_deref().unwrap_or(match self.style {
            Style::Github => "x-hub-signature-256",
            Style::Stripe => "stripe-signature",
            Style::Shopify => "x-shopify-hmac-sha256",
        })
    }

    /// What of the secret is the key: what was given, or what that sender's customers use.
    #[must_use]
    pub fn key_form(&self) -> KeyForm {
        self.key.unwrap_or(match self.style {
            Style::Stripe => KeyForm::Text,
            Style::Github | Style::Shopify => KeyForm::Bytes,
        })
    }

    fn value(&self, time: &str, keys: &[SigningKey], body: &[u8]) -> Result<String, NoSharedSecret> {
        let shared = || {
            keys.iter().filter_map(|key| match key {
                SigningKey::Shared(secret) => Some(secret),
                _ => None,
            })
        };
        // These have room for one signature. While one secret replaces the other, customers that have not changed yet go on.
        let oldest = shared().next_back().ok_or(NoSharedSecret)?;
        Ok(match self.style {
            Style::Github => format!("sha256={}", hex(&self.mac(oldest, &[body]))),
            Style::Shopify => STANDARD.encode(self.mac(oldest, &[body])),
            Style::Stripe => shared().fold(format!("t={time}"), |value, secret| {
                value + ",v1=" + &hex(&self.mac(secret, &[time.as_bytes(), b".", body]))
            }),
        })
    }

    fn mac(&self, secret: &Secret, parts: &[&[u8]]) -> [u8; 32] {
        match self.key_form() {
            KeyForm::Bytes => hmac_sha256(secret.expose(), parts),
            KeyForm::Text => hmac_sha256(secret.to_text().as_bytes(), parts),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use twiceproof_shared::signature::PrivateKey;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn secret(text: &str) -> SigningKey {
        Secret::from_bytes(text.as_bytes().to_vec()).unwrap().into()
    }

    fn read(json: &str) -> Signing {
        serde_json::from_str(json).unwrap()
    }

    fn signed(json: &str, keys: &[SigningKey], body: &[u8]) -> Result<HeaderMap, NoSharedSecret> {
        let mut headers = HeaderMap::new();
        read(json).put_on(&mut headers, ("msg_1", NOW, "v1,abc"), keys, body).map(|()| headers)
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn without_a_word_the_headers_are_those_of_standard_webhooks() {
        let headers = signed("{}", &[secret("0123456789abcdef")], b"{}").unwrap();
        assert_eq!(names(&headers), ["webhook-id", "webhook-signature", "webhook-timestamp"]);
        assert_eq!(serde_json::to_string(&Signing::default()).unwrap(), "{}");
    }

    #[test]
    fn the_older_names_carry_the_same_values() {
        let headers = signed(r#"{"names": "svix"}"#, &[secret("0123456789abcdef")], b"{}").unwrap();
        assert_eq!(names(&headers), ["svix-id", "svix-signature", "svix-timestamp"]);
        let headers = signed(r#"{"names": "both"}"#, &[secret("0123456789abcdef")], b"{}").unwrap();
        for part in ["id", "timestamp", "signature"] {
            assert_eq!(headers[format!("svix-{part}")], headers[format!("webhook-{part}")], "{part}");
        }
    }

    /// GitHub's own documented example.
    #[test]
    fn a_github_signature_is_the_one_of_its_documentation() {
        let json = r#"{"beside": [{"style": "github"}]}"#;
        let headers = signed(json, &[secret("It's a Secret to Everybody")], b"Hello, World!").unwrap();
        let expected = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert_eq!(headers["x-hub-signature-256"], expected);
    }

    #[test]
    fn where_there_is_room_for_one_the_oldest_secret_signs_and_else_each_does() {
        let json = r#"{"beside": [{"style": "github"}, {"style": "stripe", "key": "bytes"}, {"style": "shopify", "header": "X-Shop"}]}"#;
        let (new, old) = (secret("new secret, new secret"), secret("old secret, old secret"));
        let both = signed(json, &[new.clone(), old.clone()], b"{}").unwrap();
        let only_old = signed(json, std::slice::from_ref(&old), b"{}").unwrap();
        for header in ["x-hub-signature-256", "x-shop"] {
            assert_eq!(both[header], only_old[header]);
        }
        let pairs: Vec<&str> = both["stripe-signature"].to_str().unwrap().split(',').collect();
        assert_eq!((pairs[0], pairs.len()), ("t=1700000000", 3));
        assert_eq!(pairs[2], only_old["stripe-signature"].to_str().unwrap().split(',').next_back().unwrap());
        let private = PrivateKey::generate(&twiceproof_shared::random::Random::seeded(1));
        assert_eq!(signed(json, &[private.clone().into()], b"{}"), Err(NoSharedSecret));
        assert!(signed(json, &[private.into(), old], b"{}").is_ok());
    }

    #[test]
    fn what_cannot_be_a_header_of_a_signature_is_refused() {
        let custom = CustomHeaders::new([("x-a".to_owned(), "1".to_owned())]).unwrap();
        let check = |json: &str| read(json).check(&custom);
        assert_eq!(check(r#"{"beside": [{"style": "github"}, {"style": "shopify"}]}"#), Ok(()));
        for header in ["webhook-id", "svix-signature", "host", "a b", "", "content-type"] {
            let json = format!(r#"{{"beside": [{{"style": "github", "header": "{header}"}}]}}"#);
            assert!(matches!(check(&json), Err(InvalidSigning::Header(_))), "{header:?}");
        }
        let twice = InvalidSigning::Twice("x-a".to_owned());
        assert_eq!(check(r#"{"beside": [{"style": "github", "header": "X-A"}]}"#), Err(twice));
        assert!(check(r#"{"beside": [{"style": "github"}, {"style": "github"}]}"#).is_err());
        let many = [r#"{"style": "github"}"#; 6].join(",");
        assert_eq!(check(&format!(r#"{{"beside": [{many}]}}"#)), Err(InvalidSigning::TooMany));
        for json in [r#"{"name": "svix"}"#, r#"{"names": "other"}"#, r#"{"beside": [{"style": "md5"}]}"#] {
            assert!(serde_json::from_str::<Signing>(json).is_err(), "{json}");
        }
    }
}
