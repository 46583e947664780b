//! What a request is signed with: a shared secret (`v1`) or the private half of a key pair (`v1a`).
//!
//! Place in the path: the dispatcher stores kind and bytes of each key, and signs every attempt with all live ones.
//! Invariants: the kind that is stored beside the bytes fixes the algorithm, so neither is ever used as the other; no key
//! shows itself.

use zeroize::Zeroizing;

use super::{PrivateKey, PublicKey, VerifyingKey, sign};
use crate::clock::Timestamp;
use crate::secret::{InvalidSecret, Secret};

/// What a request is signed with. Its kind says how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SigningKey {
    /// A shared secret: signs as `v1`.
    Shared(Secret),
    /// The private half of a key pair: signs as `v1a`.
    Private(PrivateKey),
}

impl SigningKey {
    /// Reads `whsk_…` as a private key and everything else as [`Secret::parse`] does.
    ///
    /// # Errors
    /// [`InvalidSecret`]; for a public key `whpk_…` too, since nothing can be signed with it.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        if text.starts_with(PublicKey::PREFIX) {
            return Err(InvalidSecret::PublicKey);
        }
        if text.starts_with(PrivateKey::PREFIX) {
            return PrivateKey::parse(text).map(Self::Private);
        }
        Secret::parse(text).map(Self::Shared)
    }

    /// Takes kind and bytes, as the database keeps them.
    ///
    /// # Errors
    /// [`InvalidSecret`] for another kind, and for bytes that are no key of this kind.
    pub fn from_stored(kind: &str, bytes: Vec<u8>) -> Result<Self, InvalidSecret> {
        match kind {
            "v1" => Secret::from_bytes(bytes).map(Self::Shared),
            "v1a" => PrivateKey::from_seed(&Zeroizing::new(bytes)).map(Self::Private),
            _ => Err(InvalidSecret::NotAKey),
        }
    }

    /// The version of the signatures that it makes, which is the kind that is stored: `v1` or `v1a`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Shared(_) => "v1",
            Self::Private(_) => "v1a",
        }
    }

    /// The raw bytes: for storing, never for showing.
    #[must_use]
    pub fn expose(&self) -> Zeroizing<Vec<u8>> {
        match self {
            Self::Shared(secret) => Zeroizing::new(secret.expose().to_vec()),
            Self::Private(key) => key.seed(),
        }
    }

    /// The text form, `whsec_…` or `whsk_…`, to be shown once to who asked for the key.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        match self {
            Self::Shared(secret) => secret.to_text(),
            Self::Private(key) => key.to_text(),
        }
    }

    /// The public half, which may be shown; a shared secret has none.
    #[must_use]
    pub fn public(&self) -> Option<PublicKey> {
        match self {
            Self::Shared(_) => None,
            Self::Private(key) => Some(key.public()),
        }
    }

    /// What a receiver verifies with: the same secret, or the public half alone.
    #[must_use]
    pub fn verifying(&self) -> VerifyingKey {
        match self {
            Self::Shared(secret) => secret.clone().into(),
            Self::Private(key) => key.public().into(),
        }
    }
}

/// The signature header's value: one entry for each key, in their order, separated by single spaces. What `id` must look
/// like, [`sign`] says.
#[must_use]
pub fn sign_with(keys: &[SigningKey], id: &str, timestamp: Timestamp, body: &[u8]) -> String {
    let entries = keys.iter().map(|key| match key {
        SigningKey::Shared(secret) => sign(std::slice::from_ref(secret), id, timestamp, body),
        SigningKey::Private(key) => key.sign(id, timestamp, body),
    });
    entries.collect::<Vec<_>>().join(" ")
}

impl From<Secret> for SigningKey {
    fn from(secret: Secret) -> Self {
        Self::Shared(secret)
    }
}

impl From<PrivateKey> for SigningKey {
    fn from(key: PrivateKey) -> Self {
        Self::Private(key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SignedHeaders, TOLERANCE, verify_with};
    use super::*;
    use crate::random::Random;

    const NOW: Timestamp = Timestamp::from_secs(1_614_265_330);
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";

    #[test]
    fn every_key_of_the_list_signs_and_the_receiver_finds_each() {
        let random = Random::seeded(7);
        let keys: [SigningKey; 4] = [
            Secret::generate(&random).into(),
            PrivateKey::generate(&random).into(),
            Secret::generate(&random).into(),
            PrivateKey::generate(&random).into(),
        ];
        let signature = sign_with(&keys, ID, NOW, b"{}");
        let versions: Vec<_> = signature.split(' ').map(|entry| entry.split(',').next().unwrap()).collect();
        assert_eq!(versions, ["v1", "v1a", "v1", "v1a"]);
        let headers = SignedHeaders { id: ID, timestamp: "1614265330", signature: &signature };
        for key in &keys {
            verify_with(&headers, b"{}", &[key.verifying()], NOW, TOLERANCE).unwrap();
            assert!(verify_with(&headers, b"{ }", &[key.verifying()], NOW, TOLERANCE).is_err());
        }
        let strangers = [Secret::generate(&random).into(), PrivateKey::generate(&random).public().into()];
        assert!(verify_with(&headers, b"{}", &strangers, NOW, TOLERANCE).is_err());
    }

    #[test]
    fn kind_and_bytes_bring_a_key_back_and_a_wrong_kind_is_refused() {
        let random = Random::seeded(8);
        for key in [SigningKey::from(Secret::generate(&random)), PrivateKey::generate(&random).into()] {
            let back = SigningKey::from_stored(key.kind(), key.expose().to_vec()).unwrap();
            assert_eq!((back.kind(), back.to_text()), (key.kind(), key.to_text()));
            let text = SigningKey::parse(&key.to_text()).unwrap();
            assert_eq!((text.kind(), text.expose()), (key.kind(), key.expose()));
            assert!(!format!("{key:?}").contains(&key.to_text()[6..20]), "{key:?}");
        }
        let public = PrivateKey::generate(&random).public();
        assert_eq!(SigningKey::parse(&public.to_text()).unwrap_err(), InvalidSecret::PublicKey);
        assert_eq!(SigningKey::from_stored("v1a", vec![1; 24]).unwrap_err(), InvalidSecret::NotAKey);
        assert_eq!(SigningKey::from_stored("v2", vec![1; 32]).unwrap_err(), InvalidSecret::NotAKey);
    }
}
