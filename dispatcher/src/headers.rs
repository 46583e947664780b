//! Headers that an endpoint's owner wants to see on every request.
//!
//! Place in the path: checked when they are written, put on the request before the system's own, which win.
//! Invariants: what passes can be sent as it is; no custom header can take the place of a signature or change how the request
//! is framed; values may be credentials, so there is no plain `Debug`.

use std::collections::BTreeMap;
use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

/// The most custom headers of an endpoint.
pub const MAX_HEADERS: usize = 50;
/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 4_096;

/// Custom headers, their names in lower case.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CustomHeaders(BTreeMap<String, String>);

/// Why headers are not taken. Values are not repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidHeader {
    /// Not a name that HTTP knows (RFC 9110, section 5.1).
    #[error("{0:?} is not the name of a header")]
    Name(String),
    /// A name that belongs to the sender, the connection or a proxy.
    #[error("the header {0} is set by the sender and cannot be a custom one")]
    Reserved(String),
    /// A value with a line break, another control character or something that is not ASCII, or with space around it.
    #[error(
        "the value of {0} must be visible ASCII characters with spaces or tabs between them, at most {MAX_VALUE_BYTES} bytes"
    )]
    Value(String),
    /// The same name twice, in another case.
    #[error("the header {0} comes twice")]
    Twice(String),
    /// Too many of them.
    #[error("an endpoint has at most {MAX_HEADERS} custom headers")]
    TooMany,
}

impl CustomHeaders {
    /// Checks headers.
    ///
    /// # Errors
    /// [`InvalidHeader`] names the header.
    pub fn new(headers: impl IntoIterator<Item = (String, String)>) -> Result<Self, InvalidHeader> {
        let mut checked = BTreeMap::new();
        for (name, value) in headers {
            let name = self::name(&name)?;
            let inner = value.bytes().all(|byte| byte == b'\t' || (0x20..=0x7e).contains(&byte));
            if !inner || value.len() > MAX_VALUE_BYTES || value.trim() != value {
                return Err(InvalidHeader::Value(name));
            }
            if checked.insert(name.clone(), value).is_some() {
                return Err(InvalidHeader::Twice(name));
            }
        }
        if checked.len() > MAX_HEADERS { Err(InvalidHeader::TooMany) } else { Ok(Self(checked)) }
    }

    /// The same with some changed, and those without a value taken away.
    ///
    /// # Errors
    /// As [`CustomHeaders::new`].
    pub fn patched(&self, changes: impl IntoIterator<Item = (String, Option<String>)>) -> Result<Self, InvalidHeader> {
        let mut headers = self.0.clone();
        for (name, value) in changes {
            let name = self::name(&name)?;
            match value {
                Some(value) => headers.insert(name, value),
                None => headers.remove(&name),
            };
        }
        Self::new(headers)
    }

    /// Names and values. A value may be a credential.
    pub fn expose(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a header of this name usually holds a credential, so that its value is not shown again.
    #[must_use]
    pub fn is_sensitive(name: &str) -> bool {
        const WORDS: [&str; 8] = ["auth", "key", "token", "secret", "password", "cookie", "credential", "signature"];
        WORDS.iter().any(|word| name.to_ascii_lowercase().contains(word))
    }

    /// Puts them on a request. What cannot be a header was not stored by this program, and is left out.
    pub(crate) fn put_on(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0 {
            let pair = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
            if let Some((name, value)) = pair
                && !is_reserved(name.as_str())
            {
                headers.insert(name, value);
            }
        }
    }
}

/// A name that a header of an endpoint's own may have, in lower case.
pub(crate) fn name(text: &str) -> Result<String, InvalidHeader> {
    let shown = || text.chars().take(64).collect();
    let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| InvalidHeader::Name(shown()))?;
    match name.as_str() {
        reserved if is_reserved(reserved) => Err(InvalidHeader::Reserved(reserved.to_owned())),
        name => Ok(name.to_owned()),
    }
}

/// Headers of the message's framing, of the connection, and of the signatures.
fn is_reserved(name: &str) -> bool {
    const NAMES: [&str; 20] = [
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "expect",
        "forwarded",
        "host",
        "http2-settings",
        "idempotency-key",
        "keep-alive",
        "range",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "via",
    ];
    const PREFIXES: [&str; 4] = ["webhook-", "svix-", "proxy-", "x-forwarded-"];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

impl fmt::Debug for CustomHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: &str) -> Result<CustomHeaders, InvalidHeader> {
        CustomHeaders::new([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn ordinary_headers_are_taken_with_their_names_in_lower_case() {
        let headers = one("X-Shop", "a b\tc").unwrap();
        assert_eq!(headers.expose().collect::<Vec<_>>(), [("x-shop", "a b\tc")]);
        assert!(one("authorization", "Basic Zm9v").is_ok());
        assert!(one("x-empty", "").is_ok());
        assert!(one("x-long", &"v".repeat(MAX_VALUE_BYTES)).is_ok());
    }

    #[test]
    fn send_g11_a_line_break_in_a_value_is_refused_when_it_is_written() {
        for value in ["a\r\nb: c", "a\nb", "a\rb", "a\0b", "a\u{7f}", "\u{1}"] {
            assert_eq!(one("x-a", value), Err(InvalidHeader::Value("x-a".to_owned())), "{value:?}");
        }
        assert!(one("x-long", &"v".repeat(MAX_VALUE_BYTES + 1)).is_err());
        assert!(one("x-space", " a").is_err());
    }

    #[test]
    fn send_g12_a_value_that_is_not_ascii_is_refused() {
        for value in ["zażółć", "a\u{a0}b", "😀"] {
            assert_eq!(one("x-a", value), Err(InvalidHeader::Value("x-a".to_owned())), "{value}");
        }
    }

    #[test]
    fn headers_of_the_system_are_refused_in_any_case() {
        for name in
            ["Content-Length", "HOST", "transfer-encoding", "Webhook-Id", "svix-signature", "Proxy-Authorization"]
        {
            assert!(matches!(one(name, "1"), Err(InvalidHeader::Reserved(_))), "{name}");
        }
        for name in ["", "a b", "a:b", "a\r\nb", "ä", "a\0"] {
            assert!(matches!(one(name, "1"), Err(InvalidHeader::Name(_))), "{name:?}");
        }
    }

    #[test]
    fn a_name_comes_once_and_there_are_not_too_many() {
        let twice = [("x-a", "1"), ("X-A", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(CustomHeaders::new(twice), Err(InvalidHeader::Twice("x-a".to_owned())));
        let many = |count: usize| CustomHeaders::new((0..count).map(|n| (format!("x-{n}"), String::new())));
        assert!(many(MAX_HEADERS).is_ok());
        assert_eq!(many(MAX_HEADERS + 1), Err(InvalidHeader::TooMany));
    }

    #[test]
    fn a_patch_changes_adds_and_takes_away() {
        let headers = one("x-a", "1").unwrap().patched([("x-b".to_owned(), Some("2".to_owned()))]).unwrap();
        let headers = headers.patched([("X-A".to_owned(), None), ("x-none".to_owned(), None)]).unwrap();
        assert_eq!(headers.expose().collect::<Vec<_>>(), [("x-b", "2")]);
        assert!(headers.patched([("host".to_owned(), Some("a".to_owned()))]).is_err());
    }

    #[test]
    fn values_are_not_shown() {
        let headers = one("authorization", "geheim").unwrap();
        assert_eq!(format!("{headers:?}"), r#"{"authorization"}"#);
        assert!(CustomHeaders::is_sensitive("X-Api-Key") && !CustomHeaders::is_sensitive("x-shop"));
    }
}
