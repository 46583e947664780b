//! Bearer tokens: JSON Web Tokens under HS256 (RFC 7519, RFC 7515), and who they speak for.
//!
//! Invariants: one algorithm, whatever the token's header asks for; the signature is compared in constant time, before the
//! claims are read; times are judged by the clock that is handed in; keys have no plain `Debug`.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;

/// The shortest key, in bytes: as long as what HS256 makes (RFC 7518, section 3.2).
pub const SHORTEST_KEY: usize = 32;
/// How far the clocks of who signs and who judges may differ.
const LEEWAY: Duration = Duration::from_secs(60);

/// The key that signs and judges tokens. Cheap to clone.
#[derive(Clone)]
pub struct Keys(Hmac<Sha256>);

/// Who a token speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// All of an organisation.
    Organisation(Id),
    /// One tenant of an organisation, as a portal shows it to its owner.
    Tenant {
        /// The organisation.
        organisation: Id,
        /// The tenant's id.
        tenant: Key,
    },
}

/// Why a token is not taken. Says nothing about the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidToken {
    /// Not three parts of base64url and JSON.
    #[error("the token is no JSON Web Token")]
    Malformed,
    /// Signed in another way.
    #[error("the token is not signed with HS256")]
    Algorithm,
    /// Signed with another key, or changed.
    #[error("the token's signature does not match")]
    Signature,
    /// It has ended.
    #[error("the token has expired")]
    Expired,
    /// It begins later.
    #[error("the token is not valid yet")]
    NotYet,
    /// It does not say for whom it speaks.
    #[error("the token names no organisation (`sub`: org_…), and no application with its organisation (`sub`, `org`)")]
    Subject,
}

/// The key is too short to be safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key for tokens needs {SHORTEST_KEY} bytes or more, this one has {bytes}")]
pub struct ShortKey {
    /// How long it is.
    pub bytes: usize,
}

impl Keys {
    /// Takes the bytes of a secret.
    ///
    /// # Errors
    /// [`ShortKey`].
    pub fn new(secret: &[u8]) -> Result<Self, ShortKey> {
        let short = ShortKey { bytes: secret.len() };
        if secret.len() < SHORTEST_KEY {
            return Err(short);
        }
        Hmac::new_from_slice(secret).map(Self).map_err(|_| short)
    }

    /// Signs a token that is valid from now on, until `expires_at`.
    #[must_use]
    pub fn sign(&self, subject: &Subject, now: Timestamp, expires_at: Timestamp) -> String {
        let (sub, org) = match subject {
            Subject::Organisation(organisation) => (organisation.as_str(), None),
            Subject::Tenant { organisation, tenant } => (tenant.as_str(), Some(organisation.as_str())),
        };
        let claims = Claims {
            iss: Some("twiceproof".to_owned()),
            sub: sub.to_owned(),
            org: org.map(str::to_owned),
            iat: Some(now.as_secs() as f64),
            nbf: None,
            exp: Some(expires_at.as_secs() as f64),
        };
        let header = Header { alg: "HS256".to_owned(), typ: Some("JWT".to_owned()) };
        let text = |json: Vec<u8>| URL_SAFE_NO_PAD.encode(json);
        // Texts and numbers always can be written as JSON.
        let header = text(serde_json::to_vec(&header).unwrap_or_default());
        let claims = text(serde_json::to_vec(&claims).unwrap_or_default());
        let signed = format!("{header}.{claims}");
        let signature = URL_SAFE_NO_PAD.encode(self.mac(&signed).finalize().into_bytes());
        format!("{signed}.{signature}")
    }

    /// Judges a token at this time.
    ///
    /// # Errors
    /// As [`InvalidToken`] says.
    pub fn judge(&self, token: &str, now: Timestamp) -> Result<Subject, InvalidToken> {
        let (signed, signature) = token.rsplit_once('.').ok_or(InvalidToken::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(InvalidToken::Malformed)?;
        let header: Header = read(header)?;
        if header.alg != "HS256" {
            return Err(InvalidToken::Algorithm);
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| InvalidToken::Malformed)?;
        self.mac(signed).verify_slice(&signature).map_err(|_| InvalidToken::Signature)?;
        let claims: Claims = read(claims)?;
        let (early, late) = (now.minus(LEEWAY).as_secs() as f64, now.plus(LEEWAY).as_secs() as f64);
        if claims.exp.is_some_and(|exp| exp <= early) {
            return Err(InvalidToken::Expired);
        }
        if claims.nbf.is_some_and(|nbf| nbf > late) {
            return Err(InvalidToken::NotYet);
        }
        claims.subject().ok_or(InvalidToken::Subject)
    }

    fn mac(&self, signed: &str) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(signed.as_bytes());
        mac
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(…)")
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    typ: Option<String>,
}

/// Times are seconds since the Unix epoch; RFC 7519 allows fractions.
#[derive(Serialize, Deserialize)]
struct Claims {
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<String>,
    sub: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    org: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iat: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nbf: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<f64>,
}

impl Claims {
    fn subject(self) -> Option<Subject> {
        match self.org {
            None => Id::parse(Prefix::Organisation, &self.sub).ok().map(Subject::Organisation),
            Some(organisation) => {
                let organisation = Id::parse(Prefix::Organisation, &organisation).ok()?;
                // An organisation's own token never narrows to itself, so such a subject is a mistake.
                let tenant = Key::new(self.sub).ok().filter(|sub| !sub.as_str().starts_with("org_"))?;
                Some(Subject::Tenant { organisation, tenant })
            }
        }
    }
}

fn read<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, InvalidToken> {
    let json = URL_SAFE_NO_PAD.decode(part).map_err(|_| InvalidToken::Malformed)?;
    serde_json::from_slice(&json).map_err(|_| InvalidToken::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn keys() -> Keys {
        Keys::new(&[7; 32]).unwrap()
    }

    fn organisation() -> Id {
        Id::parse(Prefix::Organisation, "org_000000000000000000000000000").unwrap()
    }

    /// Signs any header and claims.
    fn signed(header: &str, claims: &str) -> String {
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(keys().mac(&text).finalize().into_bytes());
        format!("{text}.{signature}")
    }

    fn judged(claims: &str) -> Result<Subject, InvalidToken> {
        keys().judge(&signed(r#"{"alg":"HS256"}"#, claims), NOW)
    }

    #[test]
    fn a_signed_token_speaks_for_its_subject_until_it_ends() {
        let tenant = Subject::Tenant { organisation: organisation(), tenant: Key::new("app_1").unwrap() };
        for subject in [Subject::Organisation(organisation()), tenant] {
            let token = keys().sign(&subject, NOW, NOW.plus(Duration::from_secs(3600)));
            assert_eq!(keys().judge(&token, NOW), Ok(subject));
            assert_eq!(keys().judge(&token, NOW.plus(Duration::from_secs(3661))), Err(InvalidToken::Expired));
        }
    }

    #[test]
    fn any_changed_character_is_noticed() {
        let token = keys().sign(&Subject::Organisation(organisation()), NOW, NOW.plus(LEEWAY));
        for at in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(keys().judge(&changed, NOW).is_err(), "{at}");
        }
        let other = Keys::new(&[8; 32]).unwrap();
        assert_eq!(other.judge(&token, NOW), Err(InvalidToken::Signature));
    }

    #[test]
    fn the_header_does_not_choose_the_algorithm() {
        let claims = r#"{"sub":"org_000000000000000000000000000"}"#;
        for header in [r#"{"alg":"none"}"#, r#"{"alg":"HS512"}"#, r#"{"alg":"RS256"}"#, r#"{"alg":"hs256"}"#] {
            assert_eq!(keys().judge(&signed(header, claims), NOW), Err(InvalidToken::Algorithm), "{header}");
        }
        let bare = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#), URL_SAFE_NO_PAD.encode(claims));
        assert_eq!(keys().judge(&bare, NOW), Err(InvalidToken::Signature));
    }

    #[test]
    fn times_are_judged_with_a_minute_of_leeway() {
        let sub = r#""sub":"org_000000000000000000000000000""#;
        let at = |seconds: i64| NOW.as_secs() + seconds;
        assert!(judged(&format!("{{{sub}}}")).is_ok());
        assert!(judged(&format!("{{{sub},\"exp\":{}.5}}", at(-59))).is_ok());
        assert_eq!(judged(&format!("{{{sub},\"exp\":{}}}", at(-60))), Err(InvalidToken::Expired));
        assert!(judged(&format!("{{{sub},\"nbf\":{}}}", at(60))).is_ok());
        assert_eq!(judged(&format!("{{{sub},\"nbf\":{}}}", at(61))), Err(InvalidToken::NotYet));
    }

    #[test]
    fn what_names_nobody_is_refused() {
        let org = "org_000000000000000000000000000";
        for claims in [
            r#"{"sub":""}"#.to_owned(),
            r#"{"sub":"org_1"}"#.to_owned(),
            r#"{"sub":"app_1"}"#.to_owned(),
            format!(r#"{{"sub":"{org}","org":"{org}"}}"#),
            r#"{"sub":"app_1","org":"nobody"}"#.to_owned(),
        ] {
            assert_eq!(judged(&claims), Err(InvalidToken::Subject), "{claims}");
        }
        for claims in ["[]", "{}", r#"{"sub":1}"#, ""] {
            assert_eq!(judged(claims), Err(InvalidToken::Malformed), "{claims}");
        }
    }

    #[test]
    fn short_keys_are_refused() {
        assert_eq!(Keys::new(&[1; 31]).unwrap_err(), ShortKey { bytes: 31 });
    }
}
