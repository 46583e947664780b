//! Keys of the asymmetric scheme, `v1a`: ed25519 (RFC 8032) over the same signed content as `v1`.
//!
//! Place in the path: a receiver that must not be able to sign holds only the public key.
//! Invariants: the kind of the key fixes the algorithm, so a public key is never used as a shared secret and a header's
//! version label decides nothing; keys of small order are refused, and verification is strict; a private key does not
//! show itself and is wiped when dropped.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer as _};
use zeroize::Zeroizing;

use super::signed_content;
use crate::clock::Timestamp;
use crate::random::Random;
use crate::secret::{InvalidSecret, Secret};

/// What a request is verified with. Its kind says which signatures count.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum VerifyingKey {
    /// A shared secret: only `v1` counts.
    Shared(Secret),
    /// A public key: only `v1a` counts.
    Public(PublicKey),
}

impl VerifyingKey {
    /// Reads `whpk_…` as a public key and everything else as [`Secret::parse`] does.
    ///
    /// # Errors
    /// [`InvalidSecret`]; for a private key `whsk_…` too, since a receiver has no use for it.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        if text.starts_with(PublicKey::PREFIX) {
            return PublicKey::parse(text).map(Self::Public);
        }
        if text.starts_with(PrivateKey::PREFIX) {
            return Err(InvalidSecret::PrivateKey);
        }
        Secret::parse(text).map(Self::Shared)
    }
}

impl From<Secret> for VerifyingKey {
    fn from(secret: Secret) -> Self {
        Self::Shared(secret)
    }
}

impl From<PublicKey> for VerifyingKey {
    fn from(key: PublicKey) -> Self {
        Self::Public(key)
    }
}

/// The public half of an ed25519 key (Standard Webhooks 1.0.0, "Signature scheme": `whpk_` and base64).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(ed25519_dalek::VerifyingKey);

impl PublicKey {
    /// The prefix of the text form.
    pub const PREFIX: &'static str = "whpk_";

    /// Reads the text form: `whpk_` and the padded standard base64 of 32 bytes.
    ///
    /// # Errors
    /// [`InvalidSecret`] where the text is something else, or the key is none on the curve or of small order.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let bytes: [u8; 32] = decode(text, Self::PREFIX)?.as_slice().try_into().map_err(|_| InvalidSecret::NotAKey)?;
        let key = ed25519_dalek::VerifyingKey::from_bytes(&bytes).map_err(|_| InvalidSecret::NotAKey)?;
        if key.is_weak() { Err(InvalidSecret::NotAKey) } else { Ok(Self(key)) }
    }

    /// The text form.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{}{}", Self::PREFIX, STANDARD.encode(self.0.as_bytes()))
    }

    pub(super) fn verifies(&self, signed: &[u8], signature: &[u8; 64]) -> bool {
        self.0.verify_strict(signed, &Signature::from_bytes(signature)).is_ok()
    }
}

/// The private half of an ed25519 key (`whsk_` and base64).
#[derive(Clone)]
pub struct PrivateKey(ed25519_dalek::SigningKey);

impl PrivateKey {
    /// The prefix of the text form.
    pub const PREFIX: &'static str = "whsk_";

    /// Reads the text form: `whsk_` and the padded standard base64 of the 32 bytes of RFC 8032, alone or with the public
    /// key behind them, as other implementations write it.
    ///
    /// # Errors
    /// [`InvalidSecret`] where the text is something else, or its two halves do not belong together.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let bytes = decode(text, Self::PREFIX)?;
        let (seed, public) = bytes.split_at_checked(32).ok_or(InvalidSecret::NotAKey)?;
        let seed = Zeroizing::new(<[u8; 32]>::try_from(seed).map_err(|_| InvalidSecret::NotAKey)?);
        let key = ed25519_dalek::SigningKey::from_bytes(&seed);
        if public.is_empty() || public == key.verifying_key().as_bytes() {
            Ok(Self(key))
        } else {
            Err(InvalidSecret::NotAKey)
        }
    }

    /// Takes the 32 bytes of RFC 8032, as the database keeps them.
    pub(super) fn from_seed(bytes: &[u8]) -> Result<Self, InvalidSecret> {
        let seed = Zeroizing::new(<[u8; 32]>::try_from(bytes).map_err(|_| InvalidSecret::NotAKey)?);
        Ok(Self(ed25519_dalek::SigningKey::from_bytes(&seed)))
    }

    pub(super) fn seed(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.0.as_bytes().to_vec())
    }

    /// A new key. `random` must come from the system, not from a seed.
    pub fn generate(random: &Random) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        random.fill(&mut *seed);
        Self(ed25519_dalek::SigningKey::from_bytes(&seed))
    }

    /// What receivers verify with.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// The text form, private and public half, to be shown once to who asked for the key.
    pub fn to_text(&self) -> Zeroizing<String> {
        let bytes = Zeroizing::new(self.0.to_keypair_bytes());
        let mut text = String::with_capacity(Self::PREFIX.len() + bytes.len().div_ceil(3) * 4);
        text.push_str(Self::PREFIX);
        STANDARD.encode_string(bytes.as_slice(), &mut text);
        Zeroizing::new(text)
    }

    /// One `v1a` entry of the signature header. Beside others it is separated by a single space. What `id` must look
    /// like, [`super::sign`] says.
    #[must_use]
    pub fn sign(&self, id: &str, timestamp: Timestamp, body: &[u8]) -> String {
        let signed = signed_content(id, &timestamp.as_secs().to_string(), body);
        format!("v1a,{}", STANDARD.encode(self.0.sign(&signed).to_bytes()))
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(redacted)")
    }
}

fn decode(text: &str, prefix: &str) -> Result<Zeroizing<Vec<u8>>, InvalidSecret> {
    if text.is_empty() || text == prefix {
        return Err(InvalidSecret::Empty);
    }
    if text.contains(char::is_whitespace) {
        return Err(InvalidSecret::Whitespace);
    }
    let encoded = text.strip_prefix(prefix).ok_or(InvalidSecret::NotAKey)?;
    STANDARD.decode(encoded).map(Zeroizing::new).map_err(|_| InvalidSecret::NotAKey)
}

#[cfg(test)]
mod tests {
    use super::super::{SignedHeaders, TOLERANCE, VerifyError, sign, verify_with};
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_614_265_330);
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";

    fn check(key: &VerifyingKey, signature: &str) -> Result<(), VerifyError> {
        let headers = SignedHeaders { id: ID, timestamp: "1614265330", signature };
        verify_with(&headers, b"{}", std::slice::from_ref(key), NOW, TOLERANCE).map(|_| ())
    }

    fn private(byte: u8) -> PrivateKey {
        PrivateKey(ed25519_dalek::SigningKey::from_bytes(&[byte; 32]))
    }

    #[test]
    fn only_the_diagonal_of_keys_and_headers_passes() {
        let (key, secret) = (private(7), Secret::from_bytes(vec![7; 32]).unwrap());
        let v1a = key.sign(ID, NOW, b"{}");
        let v1 = sign(std::slice::from_ref(&secret), ID, NOW, b"{}");
        let (public, shared) = (VerifyingKey::from(key.public()), VerifyingKey::from(secret));
        assert_eq!(check(&public, &v1a), Ok(()));
        assert_eq!(check(&shared, &v1), Ok(()));
        assert_eq!(check(&public, &v1), Err(VerifyError::NoMatch));
        assert_eq!(check(&shared, &v1a), Err(VerifyError::NoMatch));
        for both in [format!("{v1} {v1a}"), format!("{v1a} {v1}")] {
            assert_eq!((check(&public, &both), check(&shared, &both)), (Ok(()), Ok(())));
        }
        let relabelled = [v1a.replace("v1a,", "v1,"), v1.replace("v1,", "v1a,"), v1a.replace("v1a,", "v1b,")];
        for other in relabelled {
            assert_eq!(check(&public, &other), Err(VerifyError::NoMatch), "{other}");
            assert_eq!(check(&shared, &other), Err(VerifyError::NoMatch), "{other}");
        }
    }

    #[test]
    fn a_public_key_is_never_a_shared_secret() {
        let key = private(7).public();
        let forged = Secret::from_bytes(key.0.as_bytes().to_vec()).unwrap();
        let forged = sign(&[forged], ID, NOW, b"{}");
        for label in ["v1,", "v1a,"] {
            let outcome = check(&VerifyingKey::from(key.clone()), &forged.replace("v1,", label));
            assert_eq!(outcome, Err(VerifyError::NoMatch));
        }
    }

    #[test]
    fn every_prefix_and_every_flipped_bit_is_refused() {
        let key = private(7);
        let (public, right) = (VerifyingKey::from(key.public()), key.sign(ID, NOW, b"{}"));
        let encoded = right.strip_prefix("v1a,").unwrap();
        for length in 0..encoded.len() {
            assert_eq!(check(&public, &format!("v1a,{}", &encoded[..length])), Err(VerifyError::NoMatch), "{length}");
        }
        let bytes = STANDARD.decode(encoded).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let other = format!("v1a,{}", STANDARD.encode(other));
            assert_eq!(check(&public, &other), Err(VerifyError::NoMatch), "{bit}");
        }
        let unpadded = right.trim_end_matches('=');
        assert_eq!(check(&public, unpadded), Err(VerifyError::NoMatch));
    }

    /// RFC 8032, 7.1, TEST 2.
    #[test]
    fn a_key_of_the_rfc_signs_as_the_rfc_says() {
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
        };
        let seed = hex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb");
        let key = PrivateKey::parse(&format!("whsk_{}", STANDARD.encode(seed))).unwrap();
        let public = hex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
        assert_eq!(key.public().to_text(), format!("whpk_{}", STANDARD.encode(public)));
        let signature = hex(concat!(
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da",
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ));
        assert_eq!(key.0.sign(&[0x72]).to_bytes().as_slice(), signature);
    }

    #[test]
    fn text_forms_survive_and_halves_must_belong_together() {
        let key = PrivateKey::generate(&Random::from_system());
        let text = key.to_text();
        assert_eq!(PrivateKey::parse(&text).unwrap().public(), key.public());
        assert_eq!(PublicKey::parse(&key.public().to_text()).unwrap(), key.public());
        let mixed = [[7; 32], *private(8).public().0.as_bytes()].concat();
        let mixed = PrivateKey::parse(&format!("whsk_{}", STANDARD.encode(mixed)));
        assert_eq!(mixed.unwrap_err(), InvalidSecret::NotAKey);
        assert_eq!(format!("{key:?}"), "PrivateKey(redacted)");
    }

    #[test]
    fn what_is_no_public_key_is_refused_when_it_is_read() {
        let of = |bytes: &[u8]| format!("whpk_{}", STANDARD.encode(bytes));
        let mut one = [0; 32];
        one[0] = 1;
        for (text, error) in [
            (String::new(), InvalidSecret::Empty),
            ("whpk_".to_owned(), InvalidSecret::Empty),
            (format!("{}\n", private(7).public().to_text()), InvalidSecret::Whitespace),
            (of(&[7; 31]), InvalidSecret::NotAKey),
            (of(&[7; 33]), InvalidSecret::NotAKey),
            // The neutral element: a signature for it could be made by anybody.
            (of(&one), InvalidSecret::NotAKey),
            ("whpk_%%%%".to_owned(), InvalidSecret::NotAKey),
        ] {
            assert_eq!(PublicKey::parse(&text).unwrap_err(), error, "{text:?}");
        }
        let private = VerifyingKey::parse(&private(7).to_text()).unwrap_err();
        assert_eq!(private, InvalidSecret::PrivateKey);
    }
}
