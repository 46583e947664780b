//! The secrets of endpoints under the master keys: are they there, and sealing anew under another.
//!
//! Invariants: a secret is replaced only where it still is what was opened; whoever signs meanwhile opens the old or the new.

use std::sync::Arc;

use twiceproof_shared::key::Key;
use twiceproof_shared::store::{Store, StoreError};

use crate::store::secrets::{self, NamedSecret, SecretKey};

/// How many secrets one transaction seals.
const BATCH: i64 = 500;

/// Live secrets are sealed under a master key that was not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("secrets of endpoints are sealed under the master key {}, which was not given", missing.join(" and "))]
pub struct MasterKeyMissing {
    /// The ids of the keys.
    pub missing: Vec<String>,
}

/// What sealing anew did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Resealed {
    /// Secrets that were sealed anew.
    pub sealed: u64,
    /// Secrets that were sealed under this key already.
    pub kept: u64,
}

/// Checks that every live secret could be opened, as far as its key is concerned. Beside it, how the answer `Ok` was
/// reached: whether any secret is stored as it is.
///
/// # Errors
/// The inner error names the keys that are missing, the outer one is as [`StoreError`] says.
pub async fn check(store: &Store) -> Result<Result<bool, MasterKeyMissing>, StoreError> {
    let keys = secrets::sealed_by(&mut store.read().await?.conn(), store.now()).await?;
    let any_plain = keys.iter().any(|(id,)| id.is_empty());
    let missing = keys.into_iter().map(|(id,)| id).filter(|id| !id.is_empty() && !store.seal().has(id));
    let missing: Vec<String> = missing.collect();
    Ok(if missing.is_empty() { Ok(any_plain) } else { Err(MasterKeyMissing { missing }) })
}

/// Seals every secret under the store's first master key, in small batches. Run again after an error, it goes on with
/// what is left.
///
/// # Errors
/// [`StoreError::Refused`] where a secret cannot be opened or there is no master key; else as [`StoreError`] says.
pub async fn reseal(store: &Store) -> Result<Resealed, StoreError> {
    let Some(current) = store.seal().current() else {
        return Err(StoreError::Refused("there is no master key to seal under".into()));
    };
    let current: Arc<str> = current.into();
    let mut after = <(String, String, String)>::default();
    let mut done = Resealed::default();
    loop {
        let from = (after.0.as_str(), after.1.as_str(), after.2.as_str());
        let page = secrets::page(&mut store.read().await?.conn(), from, BATCH).await?;
        let Some(last) = page.last() else { return Ok(done) };
        after = (last.tenant.clone(), last.endpoint.clone(), last.row.key_id.clone());
        let count = page.len() as u64;
        let stale: Vec<NamedSecret> = page.into_iter().filter(|one| one.row.sealed_by() != Some(&*current)).collect();
        let sealed = if stale.is_empty() { 0 } else { seal_batch(store, stale).await? };
        done.sealed += sealed;
        done.kept += count - sealed;
    }
}

async fn seal_batch(store: &Store, stale: Vec<NamedSecret>) -> Result<u64, StoreError> {
    let input = Arc::new((store.clone(), stale));
    store
        .run(move |conn| {
            let input = Arc::clone(&input);
            Box::pin(async move {
                let (store, stale) = &*input;
                let mut sealed = 0;
                for NamedSecret { tenant, endpoint, row } in stale {
                    let old = row.sealed_by().map(str::to_owned);
                    let key_id = Key::new(row.key_id.clone())
                        .map_err(|error| StoreError::Refused(format!("a secret has no usable id: {error}").into()))?;
                    let secret = row.clone().open(store.seal(), tenant, endpoint)?;
                    let key = SecretKey { tenant, endpoint, key_id: &key_id };
                    sealed += u64::from(secrets::reseal(conn, store, key, &secret, old.as_deref()).await?);
                }
                Ok(sealed)
            })
        })
        .await
}
