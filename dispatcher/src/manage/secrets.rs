//! The secrets of an endpoint: what signs, and how one takes the place of another.
//!
//! Invariants: an endpoint has at most as many live secrets as a receiver reads signatures; a secret is shown only to who asks
//! for it by name.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::key::{InvalidKey, Key};
use twiceproof_shared::signature::{MAX_SIGNATURES, PublicKey, SigningKey};
use twiceproof_shared::store::{Conn, StoreError};

use super::{ManageError, Manager, found};
use crate::signing::Signing;
use crate::store::endpoints;
use crate::store::secrets::{self, SecretKey};

impl Manager {
    /// A fresh id for a secret.
    ///
    /// # Errors
    /// Never: the id is made of visible ASCII characters.
    pub fn mint_key_id(&self) -> Result<Key, InvalidKey> {
        Key::new(format!("key_{:016x}", self.store.random().below(u64::MAX)))
    }

    /// Adds a secret or a private key; from now on it signs too. To rotate, add the new one, and expire the old one when the receiver has
    /// changed over. Adding the same secret under the same id again changes nothing.
    ///
    /// # Errors
    /// As [`ManageError`] says.
    pub async fn add_secret(
        &self,
        conn: &mut Conn<'_>,
        key: SecretKey<'_>,
        secret: &SigningKey,
    ) -> Result<(), ManageError> {
        let now = self.store.now();
        // Held until the end of the transaction: two callers at once must not pass the limit together.
        found(endpoints::touch(conn, key.tenant, key.endpoint, now).await?)?;
        if let Some(row) = secrets::find(conn, key).await? {
            let stored = row.open(self.store.seal(), key.tenant, key.endpoint)?;
            return if stored.kind() == secret.kind() && stored.expose() == secret.expose() {
                Ok(())
            } else {
                Err(ManageError::SecretIdTaken)
            };
        }
        if secrets::live(conn, key.tenant, key.endpoint, now).await? >= MAX_SIGNATURES {
            return Err(ManageError::TooManySecrets);
        }
        // False only where another transaction just used the same id.
        if secrets::insert(conn, &self.store, key, secret, now).await? {
            Ok(())
        } else {
            Err(ManageError::SecretIdTaken)
        }
    }

    /// The public halves of an endpoint's live private keys with their ids, newest first: what its owner verifies with.
    ///
    /// # Errors
    /// As [`ManageError::Store`] says.
    pub async fn public_keys(
        &self,
        conn: &mut Conn<'_>,
        tenant: &Key,
        id: &str,
    ) -> Result<Vec<(String, PublicKey)>, ManageError> {
        let rows = secrets::all_live(conn, tenant.as_str(), id, self.store.now()).await?;
        let mut public = Vec::new();
        for row in rows {
            let key_id = row.key_id.clone();
            if let Some(key) = row.open(self.store.seal(), tenant.as_str(), id)?.public() {
                public.push((key_id, key));
            }
        }
        Ok(public)
    }

    /// Ends a secret's life at a time, now or later. An endpoint without a live secret is sent nothing, nor is one without a
    /// shared one that also signs in the style of another sender.
    ///
    /// # Errors
    /// [`ManageError::NotFound`], or as [`ManageError::Store`] says.
    pub async fn expire_secret(
        &self,
        conn: &mut Conn<'_>,
        key: SecretKey<'_>,
        at: Timestamp,
    ) -> Result<(), ManageError> {
        found(secrets::expire(conn, key, at).await?)
    }

    /// The secret or private key that was added last and is live: what an endpoint's owner verifies with.
    ///
    /// # Errors
    /// [`ManageError::NotFound`] where no secret is live, or as [`ManageError::Store`] says.
    pub async fn newest_secret(&self, conn: &mut Conn<'_>, tenant: &Key, id: &str) -> Result<SigningKey, ManageError> {
        let rows = secrets::all_live(conn, tenant.as_str(), id, self.store.now()).await?;
        let newest = rows.into_iter().next().ok_or(ManageError::NotFound)?;
        Ok(newest.open(self.store.seal(), tenant.as_str(), id)?)
    }

    /// Has `secret` sign from now on, and those that sign now until `old_until`, if that is not sooner than they would end
    /// anyway. Of those, so many go at once that all fit beside each other.
    ///
    /// # Errors
    /// As [`ManageError`] says; [`ManageError::Signing`] for a private key where the endpoint also signs in the style of
    /// another sender.
    pub async fn rotate_secret(
        &self,
        conn: &mut Conn<'_>,
        key: SecretKey<'_>,
        secret: &SigningKey,
        old_until: Timestamp,
    ) -> Result<(), ManageError> {
        let now = self.store.now();
        found(endpoints::touch(conn, key.tenant, key.endpoint, now).await?)?;
        if secrets::find(conn, key).await?.is_some() {
            // An earlier run of the same unit.
            return Ok(());
        }
        let row = endpoints::find(conn, key.tenant, key.endpoint).await?.ok_or(ManageError::NotFound)?;
        let broken = |_| StoreError::Refused("how the endpoint is signed for cannot be read".into());
        let signing: Signing = serde_json::from_str(&row.signing).map_err(broken)?;
        signing.check_secret(secret)?;
        let live = secrets::all_live(conn, key.tenant, key.endpoint, now).await?;
        for (place, row) in live.iter().enumerate() {
            let key_id = Key::new(row.key_id.clone()).map_err(|_| ManageError::NotFound)?;
            let old = SecretKey { key_id: &key_id, ..key };
            // Newest first: the place of the new one is the first.
            let until = if place + 1 < MAX_SIGNATURES { old_until } else { now };
            secrets::expire_by(conn, old, until).await?;
        }
        self.add_secret(conn, key, secret).await
    }
}
