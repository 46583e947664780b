//! Algorithms and encodings, all of them strict.
//!
//! Invariants: digests are compared in constant time and as wholes; a key is never empty and never of the asymmetric kind.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Sha256, Sha512};
use twiceproof_shared::secret::{InvalidSecret, Secret};

/// The hash of an HMAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// HMAC-SHA256.
    Sha256,
    /// HMAC-SHA512.
    Sha512,
    /// HMAC-SHA1: still unbroken as an HMAC, and yet only for senders that offer nothing else.
    Sha1,
}

impl Algorithm {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
            Self::Sha1 => 20,
        }
    }

    /// Whether one of the candidates is the HMAC of the content.
    pub(super) fn verifies(self, secret: &Secret, content: &[&[u8]], candidates: &[Vec<u8>]) -> bool {
        if candidates.is_empty() {
            return false;
        }
        match self {
            Self::Sha256 => any::<Hmac<Sha256>>(secret, content, candidates),
            Self::Sha512 => any::<Hmac<Sha512>>(secret, content, candidates),
            Self::Sha1 => any::<Hmac<Sha1>>(secret, content, candidates),
        }
    }
}

fn any<M: Mac + KeyInit + Clone>(secret: &Secret, content: &[&[u8]], candidates: &[Vec<u8>]) -> bool {
    let Ok(mut mac) = <M as KeyInit>::new_from_slice(secret.expose()) else {
        return false;
    };
    content.iter().for_each(|part| mac.update(part));
    candidates.iter().any(|candidate| mac.clone().verify_slice(candidate).is_ok())
}

/// How a signature is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// Hexadecimal digits, in either case.
    Hex,
    /// Standard base64 with its padding.
    Base64,
}

impl Encoding {
    /// The bytes, where there are exactly so many.
    pub(super) fn decode(self, text: &str, bytes: usize) -> Option<Vec<u8>> {
        let decoded = match self {
            Self::Hex => hex(text),
            Self::Base64 => STANDARD.decode(text).ok(),
        };
        decoded.filter(|decoded| decoded.len() == bytes)
    }
}

/// How a secret is written. Nothing is guessed: the wrong one makes every request fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretEncoding {
    /// The characters are the key.
    Text,
    /// Standard base64, behind `whsec_` or not, of at least 16 bytes.
    Base64,
    /// Hexadecimal digits of at least 16 bytes.
    Hex,
}

impl SecretEncoding {
    pub(super) fn read(self, text: &str) -> Result<Secret, InvalidSecret> {
        if text.starts_with("whpk_") || text.starts_with("whsk_") {
            return Err(InvalidSecret::Asymmetric);
        }
        match self {
            Self::Text => Secret::from_text(text),
            Self::Base64 => Secret::parse(text),
            Self::Hex if text.contains(char::is_whitespace) => Err(InvalidSecret::Whitespace),
            Self::Hex => Secret::from_bytes(hex(text).ok_or(InvalidSecret::NotHex)?),
        }
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_strict_and_lengths_exact() {
        assert_eq!(Encoding::Hex.decode("00fF", 2), Some(vec![0, 255]));
        for text in ["", "00f", "00ff00", "0xff", "00 f", "+0ff", "00fg", "００", "00ff\n"] {
            assert_eq!(Encoding::Hex.decode(text, 2), None, "{text:?}");
        }
        assert_eq!(Encoding::Base64.decode("AP8=", 2), Some(vec![0, 255]));
        for text in ["", "AP8", "AP9=", "AP8==", " AP8=", "AP8A", "AP8=\n", "AP-_"] {
            assert_eq!(Encoding::Base64.decode(text, 2), None, "{text:?}");
        }
    }

    #[test]
    fn secrets_are_read_as_their_source_says() {
        let digits = "000102030405060708090a0b0c0d0e0f";
        assert_eq!(SecretEncoding::Text.read(digits).unwrap().expose(), digits.as_bytes());
        assert_eq!(SecretEncoding::Hex.read(digits).unwrap().expose().len(), 16);
        assert_eq!(SecretEncoding::Base64.read(digits).unwrap().expose().len(), 24);
        for (encoding, text, error) in [
            (SecretEncoding::Text, "", InvalidSecret::Empty),
            (SecretEncoding::Text, "secret\n", InvalidSecret::Whitespace),
            (SecretEncoding::Text, "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=", InvalidSecret::Asymmetric),
            (SecretEncoding::Hex, "", InvalidSecret::Empty),
            (SecretEncoding::Hex, "0001 0203", InvalidSecret::Whitespace),
            (SecretEncoding::Hex, "0001", InvalidSecret::TooShort { bytes: 2 }),
            (SecretEncoding::Hex, "xx", InvalidSecret::NotHex),
            (SecretEncoding::Base64, "xyz!", InvalidSecret::NotBase64),
        ] {
            assert_eq!(encoding.read(text).unwrap_err(), error, "{encoding:?} {text:?}");
        }
    }
}
