//! Endpoints: create, read, secrets, disable, enable.
//!
//! Place in the path: called by the API, the command line and hosts, in a transaction of the caller's.
//! Invariants: a URL is checked before it is stored; it is shown only where it was asked for by name. An endpoint always
//! was created with a secret. Disabling parks what waits, enabling makes it pending again; nothing is dropped. Refusals are
//! no SQL errors, so they leave the caller's transaction usable.

pub mod sealing;
pub mod tenants;

use std::sync::Arc;
use std::time::Duration;

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::{InvalidKey, Key};
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{MAX_SIGNATURES, PublicKey, SigningKey};
use twiceproof_shared::store::{Conn, Store, StoreError, Wake};

use crate::endpoint::{Endpoint, NewEndpoint};
use crate::event::{InvalidEvent, check_event_type};
use crate::guard::{AddressPolicy, Refused};
use crate::schedule::Policy;
use crate::store::endpoints::{self, EndpointRow};
use crate::store::secrets::{self, SecretKey};
use crate::store::waiting;

/// Manages the endpoints of one store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Manager {
    store: Store,
    addresses: AddressPolicy,
    timeout: Duration,
    slots: u32,
}

/// An endpoint that was just created.
#[derive(Debug)]
pub struct Created {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The id of its first secret.
    pub key_id: Key,
    /// Its first secret, given or generated: the receiver needs it; of a private key, only [`SigningKey::public`].
    pub secret: SigningKey,
}

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManageError {
    /// The URL is not allowed.
    #[error(transparent)]
    Url(#[from] Refused),
    /// An event type of the filter is none.
    #[error(transparent)]
    EventType(#[from] InvalidEvent),
    /// A limit is out of bounds.
    #[error("{0}")]
    Limit(&'static str),
    /// The uid belongs to another endpoint.
    #[error("the uid is already used by {0}")]
    UidTaken(String),
    /// The endpoint has a secret with this id.
    #[error("the endpoint already has a secret with this id")]
    SecretIdTaken,
    /// The endpoint has as many live secrets as a receiver reads signatures.
    #[error("an endpoint has at most {MAX_SIGNATURES} live secrets; expire one first")]
    TooManySecrets,
    /// There is no such endpoint, or no such secret.
    #[error("not found")]
    NotFound,
    /// The database could not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The longest deadline of one attempt.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest description, in bytes.
pub const MAX_DESCRIPTION_BYTES: usize = 1_024;

impl Manager {
    /// A manager that allows these addresses; timeout and slots of the policy are the defaults of new endpoints.
    pub fn new(store: &Store, addresses: AddressPolicy, policy: &Policy) -> Self {
        Self { store: store.clone(), addresses, timeout: policy.timeout, slots: policy.slots_per_endpoint }
    }

    /// Creates an enabled endpoint in the caller's transaction. It gets the events that are published from now on.
    ///
    /// # Errors
    /// As [`ManageError`] says.
    pub async fn create(&self, conn: &mut Conn<'_>, new: NewEndpoint) -> Result<Created, ManageError> {
        let ready = self.ready(new)?;
        insert(conn, &self.store, &ready).await?;
        Ok(ready.created())
    }

    /// Creates an enabled endpoint in a transaction of its own.
    ///
    /// # Errors
    /// As [`ManageError`] says.
    pub async fn create_now(&self, new: NewEndpoint) -> Result<Created, ManageError> {
        // Minted before the unit, which may run again: it then finds its own endpoint by the id.
        let ready = Arc::new(self.ready(new)?);
        let unit = (self.store.clone(), Arc::clone(&ready));
        self.store
            .run(move |conn| {
                let (store, ready) = unit.clone();
                Box::pin(async move { insert(conn, &store, &ready).await })
            })
            .await?;
        Ok(ready.created())
    }

    /// An endpoint by its id.
    ///
    /// # Errors
    /// [`ManageError::NotFound`], or as [`ManageError::Store`] says.
    pub async fn get(&self, conn: &mut Conn<'_>, tenant: &Key, id: &str) -> Result<Endpoint, ManageError> {
        let row = endpoints::find(conn, tenant.as_str(), id).await?.ok_or(ManageError::NotFound)?;
        with_event_types(conn, row).await
    }

    /// A page of a tenant's endpoints in the order of their ids, behind `after` (empty for the first page).
    ///
    /// # Errors
    /// As [`ManageError::Store`] says.
    pub async fn list(
        &self,
        conn: &mut Conn<'_>,
        tenant: &Key,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Endpoint>, ManageError> {
        let rows = endpoints::page(conn, tenant.as_str(), after, i64::from(limit)).await?;
        let mut page = Vec::with_capacity(rows.len());
        for row in rows {
            page.push(with_event_types(conn, row).await?);
        }
        Ok(page)
    }

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

    /// Ends a secret's life at a time, now or later. An endpoint without a live secret is sent nothing.
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

    /// Disables an endpoint and parks what waits for it. Requests under way go on.
    ///
    /// # Errors
    /// [`ManageError::NotFound`], or as [`ManageError::Store`] says.
    pub async fn disable(&self, conn: &mut Conn<'_>, tenant: &Key, id: &str) -> Result<(), ManageError> {
        let (tenant, now) = (tenant.as_str(), self.store.now());
        found(endpoints::disable(conn, tenant, id, "manual", now).await?)?;
        waiting::park_pending(conn, tenant, id, now, MOST_MOVED).await?;
        waiting::park_backoff(conn, tenant, id, now, MOST_MOVED).await?;
        Ok(())
    }

    /// Enables an endpoint and makes what was parked pending, oldest first. Send the [`Wake`] after the commit. What is
    /// above a bounded number follows within seconds, moved by the worker.
    ///
    /// # Errors
    /// [`ManageError::NotFound`], or as [`ManageError::Store`] says.
    pub async fn enable(&self, conn: &mut Conn<'_>, tenant: &Key, id: &str) -> Result<Wake, ManageError> {
        let now = self.store.now();
        found(endpoints::enable(conn, tenant.as_str(), id, now).await?)?;
        waiting::unpark(conn, tenant.as_str(), id, now, MOST_MOVED).await?;
        Ok(self.store.waker().owed())
    }

    /// Checks the endpoint and gives it its id and its first secret.
    fn ready(&self, new: NewEndpoint) -> Result<Ready, ManageError> {
        let row = self.row(&new)?;
        let secret = new.secret.unwrap_or_else(|| Secret::generate(self.store.random()).into());
        let key_id = self.mint_key_id().map_err(|_| ManageError::SecretIdTaken)?;
        Ok(Ready { row, event_types: new.event_types, key_id, secret })
    }

    fn row(&self, new: &NewEndpoint) -> Result<EndpointRow, ManageError> {
        let now = self.store.now();
        let url = self.addresses.parse_url(&new.url)?;
        for event_type in &new.event_types {
            check_event_type(event_type)?;
        }
        if new.description.len() > MAX_DESCRIPTION_BYTES || new.description.contains('\0') {
            return Err(ManageError::Limit("a description has at most 1024 bytes and no NUL"));
        }
        let timeout = new.timeout.unwrap_or(self.timeout);
        if timeout < Duration::from_millis(1) || timeout > MAX_TIMEOUT {
            return Err(ManageError::Limit("a timeout lies between 1 ms and 5 minutes"));
        }
        let slots = new.slots.unwrap_or(self.slots);
        if slots == 0 {
            return Err(ManageError::Limit("an endpoint needs at least one slot"));
        }
        Ok(EndpointRow {
            tenant: new.tenant.to_string(),
            id: Id::mint(Prefix::Endpoint, now, self.store.random()).into(),
            uid: new.uid.clone().map(String::from),
            url: url.into(),
            description: new.description.clone(),
            state: "enabled".to_owned(),
            state_reason: None,
            all_event_types: i64::from(new.event_types.is_empty()),
            timeout_ms: i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX),
            slots: i64::from(slots),
            last_success_at: None,
            last_failure_at: None,
            failures_in_row: 0,
            created_at: now.as_millis(),
        })
    }
}

/// An endpoint that was checked and has its id and its first secret.
#[derive(Debug)]
struct Ready {
    row: EndpointRow,
    event_types: Vec<String>,
    key_id: Key,
    secret: SigningKey,
}

impl Ready {
    fn created(&self) -> Created {
        Created {
            endpoint: Endpoint::new(self.row.clone(), self.event_types.clone()),
            key_id: self.key_id.clone(),
            secret: self.secret.clone(),
        }
    }
}

async fn insert(conn: &mut Conn<'_>, store: &Store, ready: &Ready) -> Result<(), ManageError> {
    let Ready { row, event_types, key_id, secret } = ready;
    if !endpoints::insert(conn, row).await? {
        if endpoints::find(conn, &row.tenant, &row.id).await?.is_some() {
            // An earlier run of the same unit.
            return Ok(());
        }
        let uid = row.uid.as_deref().unwrap_or_default();
        let holder = endpoints::id_of_uid(conn, &row.tenant, uid).await?;
        return Err(ManageError::UidTaken(holder.map_or_else(String::new, |(id,)| id)));
    }
    endpoints::insert_event_types(conn, &row.tenant, &row.id, event_types).await?;
    let key = SecretKey { tenant: &row.tenant, endpoint: &row.id, key_id };
    secrets::insert(conn, store, key, secret, Timestamp::from_millis(row.created_at)).await?;
    Ok(())
}

/// How many rows one call moves.
const MOST_MOVED: i64 = 10_000;

async fn with_event_types(conn: &mut Conn<'_>, row: EndpointRow) -> Result<Endpoint, ManageError> {
    let types = endpoints::event_types(conn, &row.tenant, &row.id).await?;
    Ok(Endpoint::new(row, types.into_iter().map(|(name,)| name).collect()))
}

fn found(found: bool) -> Result<(), ManageError> {
    if found { Ok(()) } else { Err(ManageError::NotFound) }
}

#[cfg(test)]
mod tests;
