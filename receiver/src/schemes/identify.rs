//! Which event is this? Asked once the sender is known.
//!
//! Place in the path: the second half of a verifier.
//! Invariants: a value is taken as it stands, never trimmed or folded; a rule that finds nothing is a refusal and never a
//! made-up key; what a fingerprint leaves out is named by the provider.

use std::collections::BTreeMap;

use http::header::{HeaderMap, HeaderName};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use twiceproof_shared::key::Key;
use twiceproof_shared::ledger::Fingerprint;

use super::SchemeError;
use crate::verify::{Identity, Refusal, single};

/// Where a part of an id stands.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Header(String),
    /// A text or a whole number in the JSON body (RFC 6901).
    Pointer(String),
    /// SHA-256 of the body.
    BodyDigest,
}

/// Ids of one or more parts; the first of which all parts are there is used.
#[derive(Debug, Clone, Default)]
pub(super) struct Alternatives(Vec<Vec<Place>>);

impl Alternatives {
    pub(super) fn add<const N: usize>(&mut self, places: [Place; N]) {
        self.0.push(places.into());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn checked(self) -> Result<Self, SchemeError> {
        for place in self.0.iter().flatten() {
            match place {
                Place::Header(name) if HeaderName::try_from(name.as_str()).is_err() => return Err(SchemeError::Header),
                Place::Pointer(pointer) if !pointer.starts_with('/') => return Err(SchemeError::Pointer),
                _ => {}
            }
        }
        Ok(self)
    }

    fn find(&self, headers: &HeaderMap, body: &Body<'_>) -> Result<Option<String>, Refusal> {
        for places in &self.0 {
            let parts: Vec<_> = places.iter().map(|place| body.at(place, headers)).collect::<Result<_, _>>()?;
            if let Some(parts) = parts.into_iter().collect::<Option<Vec<String>>>() {
                return Ok(Some(parts.join(":")));
            }
        }
        Ok(None)
    }
}

/// Event key, type and fingerprint of a verified request.
///
/// # Errors
/// [`Refusal::NoEventId`] where no rule finds an id that can be a key.
pub(super) fn identify(
    headers: &HeaderMap,
    body: &[u8],
    ids: &Alternatives,
    types: &Alternatives,
    volatile: &[&str],
) -> Result<Identity, Refusal> {
    let body = Body::new(body);
    let id = ids.find(headers, &body)?.ok_or(Refusal::NoEventId)?;
    let mut identity = Identity::new(Key::new(id).map_err(|_| Refusal::NoEventId)?);
    identity.event_type = types.find(headers, &body)?;
    identity.fingerprint = if volatile.is_empty() { None } else { fingerprint(body.text, volatile) };
    Ok(identity)
}

/// SHA-256 over the members of a JSON object, byte for byte, but for those that may change between deliveries.
fn fingerprint(body: &[u8], volatile: &[&str]) -> Option<Fingerprint> {
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_slice(body).ok()?;
    volatile.iter().for_each(|name| {
        members.remove(*name);
    });
    let mut hash = Sha256::new();
    for (name, value) in members {
        for part in [name.as_str(), value.get()] {
            // Lengths, so that no other members give the same bytes.
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
    }
    Some(Fingerprint { version: Fingerprint::MEMBERS_V1, hash: hash.finalize().into() })
}

/// A body that is parsed when a rule first asks for it.
struct Body<'a> {
    raw: &'a [u8],
    text: &'a [u8],
    json: std::cell::OnceCell<Value>,
}

impl<'a> Body<'a> {
    fn new(raw: &'a [u8]) -> Self {
        Self { raw, text: raw.strip_prefix(b"\xef\xbb\xbf").unwrap_or(raw), json: std::cell::OnceCell::new() }
    }

    fn at(&self, place: &Place, headers: &HeaderMap) -> Result<Option<String>, Refusal> {
        let value = match place {
            Place::Header(name) => {
                let name = HeaderName::try_from(name.as_str()).map_err(|_| Refusal::NoEventId)?;
                let value = if headers.contains_key(&name) { Some(single(headers, &name)?) } else { None };
                value.map(str::to_owned)
            }
            Place::Pointer(pointer) => {
                let json = self.json.get_or_init(|| serde_json::from_slice(self.text).unwrap_or_default());
                match json.pointer(pointer) {
                    Some(Value::String(text)) => Some(text.clone()),
                    Some(Value::Number(number)) if !number.is_f64() => Some(number.to_string()),
                    _ => None,
                }
            }
            Place::BodyDigest => {
                let hex: String = Sha256::digest(self.raw).iter().map(|byte| format!("{byte:02x}")).collect();
                Some(format!("sha256:{hex}"))
            }
        };
        Ok(value.filter(|value| !value.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn find(alternatives: &Alternatives, headers: &HeaderMap, body: &[u8]) -> Result<String, Refusal> {
        identify(headers, body, alternatives, &Alternatives::default(), &[]).map(|identity| identity.event_key.into())
    }

    #[test]
    fn the_first_rule_whose_parts_are_all_there_is_used() {
        let header = |name: &str| Place::Header(name.to_owned());
        let mut ids = Alternatives::default();
        ids.add([header("x-hook"), header("x-id")]);
        ids.add([header("x-id")]);
        let mut headers = HeaderMap::new();
        assert_eq!(find(&ids, &headers, b""), Err(Refusal::NoEventId));
        headers.insert("x-id", HeaderValue::from_static("7"));
        assert_eq!(find(&ids, &headers, b"").unwrap(), "7");
        headers.insert("x-hook", HeaderValue::from_static("h"));
        assert_eq!(find(&ids, &headers, b"").unwrap(), "h:7");
        headers.append("x-id", HeaderValue::from_static("8"));
        assert!(matches!(find(&ids, &headers, b""), Err(Refusal::RepeatedHeader(_))));
    }

    #[test]
    fn a_pointer_takes_texts_and_whole_numbers() {
        let mut ids = Alternatives::default();
        ids.add([Place::Pointer("/event/id".to_owned())]);
        let of = |body: &[u8]| find(&ids, &HeaderMap::new(), body);
        assert_eq!(of(br#"{"event":{"id":"evt_1"}}"#).unwrap(), "evt_1");
        assert_eq!(of(b"\xef\xbb\xbf{\"event\":{\"id\":9007199254740993}}").unwrap(), "9007199254740993");
        for body in [
            &br#"{"event":{"id":""}}"#[..],
            br#"{"event":{"id":null}}"#,
            br#"{"event":{"id":1.5}}"#,
            br#"{"event":{"id":123456789012345678901234567890}}"#,
            br#"{"event":{"id":"a b"}}"#,
            br#"{"event":{"id":["a"]}}"#,
            b"not json",
            b"",
        ] {
            assert_eq!(of(body), Err(Refusal::NoEventId));
        }
    }

    #[test]
    fn a_fingerprint_leaves_out_what_is_volatile_and_nothing_else() {
        let of = |body: &[u8]| fingerprint(body, &["pending_webhooks"]);
        let first = of(br#"{"id":"evt_1","pending_webhooks":2,"amount":1}"#).unwrap();
        assert_eq!(of(br#"{"amount":1,"id":"evt_1","pending_webhooks":1}"#), Some(first));
        assert_ne!(of(br#"{"id":"evt_1","pending_webhooks":2,"amount":1.0}"#), Some(first));
        assert_ne!(of(br#"{"id":"evt_1","data":{"pending_webhooks":2},"amount":1}"#), Some(first));
        assert_eq!(of(b"[]"), None);
    }
}
