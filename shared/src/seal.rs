//! Secrets at rest: sealed under a master key that is not in the database.
//!
//! Place in the path: what holds a secret is sealed before it is written and opened after it was read; the store carries the
//! keys ([`Store::seal`](crate::store::Store::seal)).
//! Invariants: XChaCha20-Poly1305 with a random nonce of 24 bytes for each sealing; what it belongs to (tenant, endpoint, …) is
//! bound to it, so that a sealed secret cannot be moved to another row; the first key seals, every key opens; neither keys nor
//! what was opened show themselves.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::random::Random;

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;

/// The master keys of an installation. Cheap to clone. Without any, secrets are kept as they are.
#[derive(Clone, Default)]
pub struct Seal(Arc<[MasterKey]>);

/// A key that seals secrets.
#[derive(Clone)]
pub struct MasterKey {
    id: String,
    cipher: XChaCha20Poly1305,
}

/// A secret as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Nonce and ciphertext, or the secret itself.
    pub bytes: Vec<u8>,
    /// The id of the key that it is sealed under; none: it is not.
    pub by: Option<String>,
}

/// A text is no master key. It is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a master key is `{}` and 32 bytes as base64; `twiceproof keygen --master-key` prints one", MasterKey::PREFIX)]
pub struct InvalidMasterKey;

/// A sealed secret cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// None of the keys is the one that sealed it.
    #[error("it is sealed under the master key {0}, which was not given")]
    KeyMissing(String),
    /// It was changed, or belongs to something else.
    #[error("it is not what was sealed here under this master key")]
    Broken,
}

impl MasterKey {
    /// The prefix of the text form.
    pub const PREFIX: &'static str = "whmk_";

    /// Reads the text form.
    ///
    /// # Errors
    /// [`InvalidMasterKey`].
    pub fn parse(text: &str) -> Result<Self, InvalidMasterKey> {
        let encoded = text.strip_prefix(Self::PREFIX).ok_or(InvalidMasterKey)?;
        let bytes = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| InvalidMasterKey)?);
        let bytes: Zeroizing<[u8; KEY_BYTES]> =
            Zeroizing::new(bytes.as_slice().try_into().map_err(|_| InvalidMasterKey)?);
        Ok(Self::from_bytes(&bytes))
    }

    /// The text form of a new key. `random` must come from the system, not from a seed.
    #[must_use]
    pub fn generate_text(random: &Random) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        random.fill(bytes.as_mut_slice());
        Zeroizing::new(format!("{}{}", Self::PREFIX, STANDARD.encode(bytes.as_slice())))
    }

    /// What names the key beside what it sealed: the start of a hash, from which nothing of the key follows.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Self {
        let mut hash = Sha256::new_with_prefix(b"twiceproof master key id\0");
        hash.update(bytes);
        let id = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { id, cipher: XChaCha20Poly1305::new(&Key::from(*bytes)) }
    }
}

impl Seal {
    /// Seals under the first key, opens under any. Give the old key behind the new one until all is sealed anew.
    #[must_use]
    pub fn new(keys: Vec<MasterKey>) -> Self {
        Self(keys.into())
    }

    /// Reads keys from a text, a line or a word each.
    ///
    /// # Errors
    /// [`InvalidMasterKey`] if any of them is none.
    pub fn parse(text: &str) -> Result<Self, InvalidMasterKey> {
        text.split_whitespace().map(MasterKey::parse).collect::<Result<_, _>>().map(Self::new)
    }

    /// The id of the key that seals, if there is one.
    #[must_use]
    pub fn current(&self) -> Option<&str> {
        self.0.first().map(MasterKey::id)
    }

    /// Whether what was sealed under this key can be opened.
    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        self.0.iter().any(|key| key.id == id)
    }

    /// Seals a secret and binds it to what it belongs to.
    #[must_use]
    pub fn seal(&self, random: &Random, secret: &[u8], belongs_to: &[&str]) -> Sealed {
        let Some(key) = self.0.first() else { return Sealed { bytes: secret.to_vec(), by: None } };
        let mut nonce = [0; NONCE_BYTES];
        random.fill(&mut nonce);
        let payload = Payload { msg: secret, aad: &bound(belongs_to) };
        let mut bytes = nonce.to_vec();
        // Refused only for more than 256 GiB.
        bytes.extend(key.cipher.encrypt(&XNonce::from(nonce), payload).unwrap_or_default());
        Sealed { bytes, by: Some(key.id.clone()) }
    }

    /// Opens what was sealed for the same thing.
    ///
    /// # Errors
    /// As [`SealError`] says.
    pub fn open(&self, sealed: Sealed, belongs_to: &[&str]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let Some(by) = sealed.by else { return Ok(Zeroizing::new(sealed.bytes)) };
        let key = self.0.iter().find(|key| key.id == by).ok_or(SealError::KeyMissing(by))?;
        let (nonce, message) = sealed.bytes.split_first_chunk::<NONCE_BYTES>().ok_or(SealError::Broken)?;
        let payload = Payload { msg: message, aad: &bound(belongs_to) };
        key.cipher.decrypt(&XNonce::from(*nonce), payload).map(Zeroizing::new).map_err(|_| SealError::Broken)
    }
}

/// The parts with their lengths in front, so that no two lists make the same bytes.
fn bound(parts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend((part.len() as u64).to_be_bytes());
        bytes.extend(part.as_bytes());
    }
    bytes
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(MasterKey::id)).finish()
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.id)
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("by", &self.by).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> MasterKey {
        MasterKey::from_bytes(&[byte; KEY_BYTES])
    }

    #[test]
    fn what_is_sealed_can_be_opened_for_the_same_thing_only() {
        let (seal, random) = (Seal::new(vec![key(1)]), Random::seeded(1));
        let sealed = seal.seal(&random, b"geheim", &["acme", "ep_1", "key_1"]);
        assert!(!sealed.bytes.windows(6).any(|window| window == b"geheim"));
        assert_eq!(*seal.open(sealed.clone(), &["acme", "ep_1", "key_1"]).unwrap(), b"geheim");
        for other in [&["acme", "ep_2", "key_1"][..], &["acm", "eep_1", "key_1"], &["acme", "ep_1"]] {
            assert_eq!(seal.open(sealed.clone(), other), Err(SealError::Broken), "{other:?}");
        }
    }

    #[test]
    fn any_changed_bit_is_noticed() {
        let (seal, random) = (Seal::new(vec![key(1)]), Random::seeded(2));
        let sealed = seal.seal(&random, b"geheim", &["acme"]);
        for at in 0..sealed.bytes.len() {
            let mut changed = sealed.clone();
            changed.bytes[at] ^= 1;
            assert_eq!(seal.open(changed, &["acme"]), Err(SealError::Broken), "{at}");
        }
        let short = Sealed { bytes: vec![0; 20], ..sealed };
        assert_eq!(seal.open(short, &["acme"]), Err(SealError::Broken));
    }

    #[test]
    fn an_old_key_opens_what_it_sealed_and_a_new_one_seals() {
        let random = Random::seeded(3);
        let old = Seal::new(vec![key(1)]).seal(&random, b"geheim", &[]);
        let both = Seal::new(vec![key(2), key(1)]);
        assert_eq!(*both.open(old.clone(), &[]).unwrap(), b"geheim");
        assert_eq!(both.seal(&random, b"geheim", &[]).by.as_deref(), Some(key(2).id()));
        let new = Seal::new(vec![key(2)]);
        assert_eq!(new.open(old, &[]), Err(SealError::KeyMissing(key(1).id().to_owned())));
    }

    #[test]
    fn without_keys_secrets_stay_as_they_are() {
        let sealed = Seal::default().seal(&Random::seeded(4), b"geheim", &["acme"]);
        assert_eq!((sealed.bytes.as_slice(), sealed.by.as_deref()), (&b"geheim"[..], None));
        assert_eq!(*Seal::default().open(sealed, &["other"]).unwrap(), b"geheim");
    }

    #[test]
    fn the_text_form_is_read_back_and_nothing_else_is_a_key() {
        let text = MasterKey::generate_text(&Random::seeded(5));
        let seal = Seal::parse(&format!("{}\n{}\n", *text, *text)).unwrap();
        assert_eq!(seal.current(), Some(MasterKey::parse(&text).unwrap().id()));
        assert!(!format!("{seal:?}").contains(&text[6..]));
        for text in ["x", "whmk_", "whmk_AAAA", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="] {
            assert!(Seal::parse(text).is_err(), "{text}");
        }
        assert!(Seal::parse("").unwrap().current().is_none());
    }
}
