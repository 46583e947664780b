//! Reads the header: a structured-field string (RFC 8941, section 3.3.3), or the same text bare, as most clients send it.
//!
//! Place in the path: before any lookup.
//! Invariants: one request has one key, whatever a proxy would make of several; both ways to write a key are one key.

use http::header::{HeaderMap, HeaderName};
use twiceproof_shared::key::{InvalidKey, Key};

/// The header's name.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Why the header holds no key. The text itself is not repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidHeader {
    /// Two lines.
    #[error("there are several Idempotency-Key headers")]
    Repeated,
    /// A list, a parameter, an open string, or a backslash before something else than `"` or `\`.
    #[error("the Idempotency-Key is neither one quoted string nor a text without quotes, commas and semicolons")]
    Form,
    /// The text cannot be a key.
    #[error("the Idempotency-Key cannot be used: {0}")]
    Key(#[from] InvalidKey),
}

/// Reads the key, if there is one.
pub(super) fn read(headers: &HeaderMap) -> Result<Option<Key>, InvalidHeader> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(InvalidHeader::Repeated);
    }
    let text = value.as_bytes().trim_ascii();
    let text = match text.strip_prefix(b"\"") {
        Some(quoted) => unquoted(quoted)?,
        None if text.iter().any(|byte| b"\",;".contains(byte)) => return Err(InvalidHeader::Form),
        None => text.to_vec(),
    };
    // What is not UTF-8 is not visible ASCII either.
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Some(Key::new(text)?))
}

/// The content of a quoted string whose opening quote has gone.
fn unquoted(quoted: &[u8]) -> Result<Vec<u8>, InvalidHeader> {
    let mut text = Vec::with_capacity(quoted.len());
    let mut bytes = quoted.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' if bytes.as_slice().is_empty() => return Ok(text),
            b'"' => return Err(InvalidHeader::Form),
            b'\\' => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => text.push(*escaped),
                _ => return Err(InvalidHeader::Form),
            },
            byte => text.push(*byte),
        }
    }
    Err(InvalidHeader::Form)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn key(value: &[u8]) -> Result<String, InvalidHeader> {
        read(&headers(&[value])).map(|key| key.unwrap().to_string())
    }

    #[test]
    fn a_quoted_and_a_bare_key_are_the_same() {
        assert_eq!(key(b"8e03978e-40d5").unwrap(), "8e03978e-40d5");
        assert_eq!(key(b"\"8e03978e-40d5\"").unwrap(), "8e03978e-40d5");
        assert_eq!(key(b"  \"a,b;c\"  ").unwrap(), "a,b;c");
        assert_eq!(key(br#""a\"b\\c""#).unwrap(), r#"a"b\c"#);
        assert_eq!(key(br"a\b").unwrap(), r"a\b");
        assert_eq!(read(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn lists_parameters_and_broken_strings_are_refused() {
        for value in [
            &b"a,b"[..],
            b"a;q=1",
            b"\"a\", \"b\"",
            b"\"a\";q=1",
            b"\"a",
            b"a\"",
            b"\"",
            br#""a\"#,
            br#""a\n""#,
            b"\"a\"\"b\"",
        ] {
            assert_eq!(key(value), Err(InvalidHeader::Form), "{}", value.escape_ascii());
        }
        assert_eq!(read(&headers(&[b"a", b"a"])), Err(InvalidHeader::Repeated));
    }

    #[test]
    fn a_key_has_1_to_255_visible_ascii_characters() {
        for value in [&b""[..], b"  ", b"\"\"", b"a b", b"\"a b\"", b"\xff", "\"schl\u{fc}ssel\"".as_bytes()] {
            assert!(matches!(key(value), Err(InvalidHeader::Key(_))), "{}", value.escape_ascii());
        }
        assert!(key("k".repeat(255).as_bytes()).is_ok());
        assert!(matches!(key("k".repeat(256).as_bytes()), Err(InvalidHeader::Key(InvalidKey::TooLong { bytes: 256 }))));
        // The quotes and the escapes do not count.
        assert!(key(format!("\"{}\"", r"\\".repeat(255)).as_bytes()).is_ok());
    }
}
