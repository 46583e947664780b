//! Signing secrets that do not show themselves and are wiped when dropped.
//!
//! Place in the path: read from configuration or the database, lent to `signature` for signing and verifying.
//! Invariants: the bytes leave only through [`Secret::expose`] and [`Secret::to_text`]; no `Display`, no `Serialize`,
//! no comparison; errors never repeat what was given.

use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use zeroize::Zeroizing;

use crate::random::Random;

/// A symmetric signing secret (Standard Webhooks: `whsec_` and base64).
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// The fewest bytes that are accepted. Standard Webhooks asks for 24; providers hand out 16.
    pub const MIN_BYTES: usize = 16;
    /// The most bytes that are accepted.
    pub const MAX_BYTES: usize = 255;
    /// The prefix of the text form.
    pub const PREFIX: &'static str = "whsec_";

    /// Reads the text form: `whsec_` (may be missing), then standard base64, with or without its padding. Nothing is
    /// trimmed and no character is skipped; only the unused low bits of the last character may be anything, because
    /// the Standard Webhooks libraries' own examples set them.
    ///
    /// # Errors
    ///
    /// [`InvalidSecret`] says what to change.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        if text.is_empty() {
            return Err(InvalidSecret::Empty);
        }
        if text.contains(char::is_whitespace) {
            return Err(InvalidSecret::Whitespace);
        }
        if text.starts_with("v1,") || text.starts_with("v1a,") {
            return Err(InvalidSecret::VersionPrefix);
        }
        if text.starts_with("whpk_") || text.starts_with("whsk_") {
            return Err(InvalidSecret::Asymmetric);
        }
        let encoded = text.strip_prefix(Self::PREFIX).unwrap_or(text);
        if encoded.is_empty() {
            return Err(InvalidSecret::Empty);
        }
        let bytes = LENIENT_PADDING.decode(encoded).map_err(|_| InvalidSecret::NotBase64)?;
        Self::from_bytes(bytes)
    }

    /// Takes the characters of a text as they are: for senders that sign with the text itself, as GitHub, Stripe, Slack
    /// and Shopify do. It may be shorter than [`Secret::MIN_BYTES`], since the sender's users choose it; spaces inside are
    /// part of it.
    ///
    /// # Errors
    ///
    /// [`InvalidSecret`] for nothing, for more than [`Secret::MAX_BYTES`], for space at an end and for line breaks and other
    /// control characters: those were copied along.
    pub fn from_text(text: &str) -> Result<Self, InvalidSecret> {
        if text.is_empty() {
            return Err(InvalidSecret::Empty);
        }
        if text.trim() != text || text.contains(char::is_control) {
            return Err(InvalidSecret::Whitespace);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidSecret::TooLong { bytes: text.len() });
        }
        Ok(Self(Zeroizing::new(text.as_bytes().to_vec())))
    }

    /// Takes the raw bytes, as the database keeps them.
    ///
    /// # Errors
    ///
    /// [`InvalidSecret`] if there are too few or too many.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, InvalidSecret> {
        let bytes = Zeroizing::new(bytes);
        match bytes.len() {
            0 => Err(InvalidSecret::Empty),
            short if short < Self::MIN_BYTES => Err(InvalidSecret::TooShort { bytes: short }),
            long if long > Self::MAX_BYTES => Err(InvalidSecret::TooLong { bytes: long }),
            _ => Ok(Self(bytes)),
        }
    }

    /// A new secret of 32 bytes. `random` must come from the system, not from a seed.
    pub fn generate(random: &Random) -> Self {
        let mut bytes = Zeroizing::new(vec![0; 32]);
        random.fill(&mut bytes);
        Self(bytes)
    }

    /// The raw bytes: for computing a signature and for storing, never for showing.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The text form with its `whsec_`, to be shown once to who asked for the secret.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = String::with_capacity(Self::PREFIX.len() + self.0.len().div_ceil(3) * 4);
        text.push_str(Self::PREFIX);
        STANDARD.encode_string(self.expose(), &mut text);
        Zeroizing::new(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// Why a text is no signing secret. The text itself is not repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSecret {
    /// There is nothing, or nothing behind `whsec_`.
    #[error("the secret is empty")]
    Empty,
    /// A space, tab or line break; usually copied along.
    #[error("the secret holds a space or a line break: remove it")]
    Whitespace,
    /// `v1,whsec_…`: some consoles show the version before the secret.
    #[error("the secret begins with a signature version: leave out what stands before `whsec_`")]
    VersionPrefix,
    /// `whpk_…` or `whsk_…`: a key of the asymmetric scheme, which must never be used as a shared secret.
    #[error(
        "`whpk_` and `whsk_` keys belong to the asymmetric scheme (v1a) and are no shared secrets: use a `whsec_` secret"
    )]
    Asymmetric,
    /// `whsk_…` where requests are verified: whoever holds it can sign.
    #[error("the key is a private one: a receiver needs only the public key, `whpk_…`")]
    PrivateKey,
    /// `whpk_…` where requests are signed: nothing can be signed with it.
    #[error("the key is a public one: to sign, the private key is needed, `whsk_…`")]
    PublicKey,
    /// No ed25519 key, or one of small order, for which anybody can sign.
    #[error("the key is not `whpk_` or `whsk_` and the base64 of an ed25519 key")]
    NotAKey,
    /// A character outside of standard base64, or padding in the wrong place.
    #[error("the secret is not standard base64 behind `whsec_`")]
    NotBase64,
    /// Another character than a hexadecimal digit, or an odd number of them.
    #[error("the secret is not a row of hexadecimal digits in pairs")]
    NotHex,
    /// Fewer than [`Secret::MIN_BYTES`].
    #[error("the secret has only {bytes} bytes once decoded, at least 16 are needed")]
    TooShort {
        /// How many there are.
        bytes: usize,
    },
    /// More than [`Secret::MAX_BYTES`].
    #[error("the secret has {bytes} bytes once decoded, at most 255 are allowed")]
    TooLong {
        /// How many there are.
        bytes: usize,
    },
}

const LENIENT_PADDING: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    #[track_caller]
    fn refused(text: &str) -> InvalidSecret {
        Secret::parse(text).expect_err("must be refused")
    }

    #[test]
    fn the_prefix_may_be_missing() {
        let with = Secret::parse(TEXT).unwrap();
        let without = Secret::parse(&TEXT["whsec_".len()..]).unwrap();
        assert_eq!(with.expose(), without.expose());
        assert_eq!(with.expose().len(), 24);
        assert_eq!(*with.to_text(), TEXT);
    }

    #[test]
    fn the_padding_may_be_missing() {
        let bytes: Vec<u8> = (0..32).collect();
        let padded = STANDARD.encode(&bytes);
        for text in [padded.as_str(), padded.trim_end_matches('=')] {
            assert_eq!(Secret::parse(text).unwrap().expose(), bytes);
        }
    }

    #[test]
    fn empty_secrets_are_refused() {
        assert_eq!(refused(""), InvalidSecret::Empty);
        assert_eq!(refused("whsec_"), InvalidSecret::Empty);
        assert_eq!(Secret::from_bytes(Vec::new()).unwrap_err(), InvalidSecret::Empty);
    }

    #[test]
    fn whitespace_is_named_not_trimmed() {
        for text in [format!("{TEXT}\n"), format!(" {TEXT}"), TEXT.replace('8', "\t"), format!("{TEXT}\u{a0}")] {
            assert_eq!(refused(&text), InvalidSecret::Whitespace);
        }
    }

    #[test]
    fn a_text_is_taken_as_it_is_without_what_was_copied_along() {
        for text in ["whsec_test_secret", "It's a Secret to Everybody", "ä"] {
            assert_eq!(Secret::from_text(text).unwrap().expose(), text.as_bytes());
        }
        for text in ["   ", "a\n", "\ta", " a", "a ", "a\u{a0}", "a\nb", "a\0b"] {
            assert_eq!(Secret::from_text(text).unwrap_err(), InvalidSecret::Whitespace, "{text:?}");
        }
        assert_eq!(Secret::from_text("").unwrap_err(), InvalidSecret::Empty);
        assert_eq!(Secret::from_text(&"x".repeat(256)).unwrap_err(), InvalidSecret::TooLong { bytes: 256 });
    }

    #[test]
    fn a_version_before_the_prefix_is_explained() {
        assert_eq!(refused(&format!("v1,{TEXT}")), InvalidSecret::VersionPrefix);
        assert!(refused(&format!("v1,{TEXT}")).to_string().contains("whsec_"));
    }

    #[test]
    fn asymmetric_keys_are_never_shared_secrets() {
        for text in ["whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=", "whsk_AAAA"] {
            assert_eq!(refused(text), InvalidSecret::Asymmetric);
        }
    }

    #[test]
    fn characters_outside_of_the_alphabet_are_refused_not_skipped() {
        for text in [
            "whsec_%%%%",
            "whsec_xyz!",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa-_",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw====",
            "whsec_MfKQ9r8=GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        ] {
            assert_eq!(refused(text), InvalidSecret::NotBase64, "{text}");
        }
    }

    #[test]
    fn a_secret_has_16_to_255_bytes() {
        for (bytes, error) in [
            (15, Some(InvalidSecret::TooShort { bytes: 15 })),
            (16, None),
            (255, None),
            (256, Some(InvalidSecret::TooLong { bytes: 256 })),
        ] {
            let text = format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
            assert_eq!(Secret::parse(&text).err(), error);
        }
    }

    #[test]
    fn debug_and_errors_show_nothing() {
        let secret = Secret::parse(TEXT).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(redacted)");
        let error = refused("whsec_CANARYCANARY!");
        assert!(!format!("{error:?} {error}").contains("CANARY"));
    }

    #[test]
    fn generated_secrets_have_32_bytes_and_survive_their_text_form() {
        let random = Random::from_system();
        let secret = Secret::generate(&random);
        assert_eq!(secret.expose().len(), 32);
        assert_eq!(Secret::parse(&secret.to_text()).unwrap().expose(), secret.expose());
        assert_ne!(Secret::generate(&random).expose(), secret.expose());
    }
}
