//! The strict grammar of the three headers.
//!
//! Place in the path: before any signature is computed.
//! Invariants: nothing is trimmed, folded or repaired; a text that is accepted has exactly one meaning. Without `.` in
//! the id and with digits only in the timestamp, `id.timestamp.body` can be cut in one way.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{MAX_SIGNATURE_BYTES, MAX_SIGNATURES, VerifyError};
use crate::clock::Timestamp;

/// The signatures of a list, by version. All of them could match.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Signatures {
    /// HMAC-SHA256.
    pub(super) v1: Vec<[u8; 32]>,
    /// ed25519.
    pub(super) v1a: Vec<[u8; 64]>,
}

/// `[A-Za-z0-9_-]{1,255}`
pub(super) fn check_id(text: &str) -> Result<(), VerifyError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=255).contains(&text.len()) && text.bytes().all(allowed) { Ok(()) } else { Err(VerifyError::MalformedId) }
}

/// `[0-9]{1,11}`, as seconds. Leading zeros stay within the grammar: the signature covers the text as it came.
pub(super) fn timestamp(text: &str) -> Result<Timestamp, VerifyError> {
    if !(1..=11).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(VerifyError::MalformedTimestamp);
    }
    let secs = text.parse().map_err(|_| VerifyError::MalformedTimestamp)?;
    Ok(Timestamp::from_secs(secs))
}

/// The `v1` and `v1a` entries of a list separated by spaces. Other versions are ignored; an entry that is not the padded
/// standard base64 of exactly 32 or 64 bytes cannot match and is left out. No entry has a second comma: where one does, a
/// proxy joined header lines that were repeated, and repeated signature headers are refused.
pub(super) fn signatures(text: &str) -> Result<Signatures, VerifyError> {
    if text.len() > MAX_SIGNATURE_BYTES {
        return Err(VerifyError::TooManySignatures);
    }
    if text.split(' ').any(|entry| entry.matches(',').count() > 1) {
        return Err(VerifyError::JoinedSignatures);
    }
    let of = |version: &'static str| text.split(' ').filter_map(move |entry| entry.strip_prefix(version));
    if of("v1,").count() + of("v1a,").count() > MAX_SIGNATURES {
        return Err(VerifyError::TooManySignatures);
    }
    Ok(Signatures { v1: of("v1,").filter_map(exactly).collect(), v1a: of("v1a,").filter_map(exactly).collect() })
}

fn exactly<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_1_to_255_plain_characters() {
        for id in ["a", "msg_p5jXN8AQM9LWM0D4loKWxJek", "A-Z_09", &"x".repeat(255)] {
            assert_eq!(check_id(id), Ok(()), "{id}");
        }
        for id in ["", "a.1614265330", ".", "a b", " a", "a\n", "a,b", "а", "a\0", &"x".repeat(256)] {
            assert_eq!(check_id(id), Err(VerifyError::MalformedId), "{id:?}");
        }
    }

    #[test]
    fn timestamps_are_1_to_11_plain_digits() {
        for (text, secs) in
            [("0", 0), ("1614265330", 1_614_265_330), ("01614265330", 1_614_265_330), ("99999999999", 99_999_999_999)]
        {
            assert_eq!(timestamp(text), Ok(Timestamp::from_secs(secs)), "{text}");
        }
        for text in [
            "",
            "hello",
            "+1614265330",
            "-1614265330",
            " 1614265330",
            "1614265330 ",
            " 161",
            "1614265330.0",
            "1.6e9",
            "1_614_265_330",
            "0x60380ab2",
            "1614265330000",
            "001614265330",
            "9223372036854775807",
            "-9223372036854775808",
            "99999999999999999999999",
            "340282366920938463463374607431768211456",
            "١٦١٤٢٦٥٣٣٠",
            "１６１４２６５３３０",
        ] {
            assert_eq!(timestamp(text), Err(VerifyError::MalformedTimestamp), "{text:?}");
        }
    }

    #[test]
    fn only_known_versions_of_the_right_length_are_kept() {
        let (right, longer) = (STANDARD.encode([7; 32]), STANDARD.encode([7; 64]));
        let list = format!(
            "v2,{right} v1a,{right} V1,{right} v1={right} v1 v1, v1,{} v1,{right} {right}  v1,{} v1,{longer} v1a,{longer} v1b,{longer}",
            &right[..20],
            STANDARD.encode([7; 31]),
        );
        assert_eq!(signatures(&list), Ok(Signatures { v1: vec![[7; 32]], v1a: vec![[7; 64]] }));
        assert_eq!(signatures(""), Ok(Signatures::default()));
    }

    #[test]
    fn eight_signatures_are_enough() {
        let entry = format!("v1,{}", STANDARD.encode([7; 32]));
        assert_eq!(signatures(&[entry.as_str(); 8].join(" ")).map(|list| list.v1.len()), Ok(8));
        let asymmetric = format!("v1a,{}", STANDARD.encode([7; 64]));
        let mixed = [[entry.as_str(); 8].join(" "), asymmetric].join(" ");
        assert_eq!(signatures(&mixed), Err(VerifyError::TooManySignatures));
        let nine = [entry.as_str(); 9].join(" ");
        assert_eq!(signatures(&nine), Err(VerifyError::TooManySignatures));
        let many = vec![entry.as_str(); 10_000].join(" ");
        assert_eq!(signatures(&many), Err(VerifyError::TooManySignatures));
    }

    #[test]
    fn joined_header_lines_are_refused() {
        let entry = format!("v1,{}", STANDARD.encode([7; 32]));
        for separator in [", ", ",", " ,"] {
            let list = format!("{entry}{separator}{entry}");
            assert_eq!(signatures(&list), Err(VerifyError::JoinedSignatures), "{separator:?}");
        }
    }

    #[test]
    fn a_list_of_more_than_4_kib_is_refused_whatever_its_versions() {
        let unknown = format!("v9,{}", "x".repeat(MAX_SIGNATURE_BYTES - 3));
        assert_eq!(signatures(&unknown), Ok(Signatures::default()));
        assert_eq!(signatures(&(unknown + "x")), Err(VerifyError::TooManySignatures));
    }
}
