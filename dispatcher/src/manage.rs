//! Endpoints: create, read, secrets, disable, enable.
//!
//! Place in the path: called by the API, the command line and hosts, in a transaction of the caller's.
//! Invariants: a URL is checked before it is stored; it is shown only where it was asked for by name. An endpoint always
//! was created with a secret. Disabling parks what waits, enabling makes it pending again; nothing is dropped. Refusals are
//! no SQL errors, so they leave the caller's transaction usable.

pub mod change;
pub mod event_types;
pub mod sealing;
mod secrets;
pub mod tenants;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{MAX_SIGNATURES, SigningKey};
use twiceproof_shared::store::{Conn, Store, StoreError, Wake};

use crate::endpoint::{Endpoint, NewEndpoint};
use crate::endpoint_policy::InvalidPolicy;
use crate::event::InvalidEvent;
use crate::guard::{AddressPolicy, Refused};
use crate::headers::InvalidHeader;
use crate::operational::{self, Telling, What};
use crate::schedule::Policy;
use crate::signing::InvalidSigning;
use crate::store::endpoints::{self, EndpointRow};
use crate::store::secrets::{self as stored_secrets, SecretKey};
use crate::store::waiting;

/// Manages the endpoints of one store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Manager {
    store: Store,
    addresses: AddressPolicy,
    policy: Policy,
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
    /// A custom header cannot be one.
    #[error(transparent)]
    Header(#[from] InvalidHeader),
    /// The policy cannot be one.
    #[error(transparent)]
    Policy(#[from] InvalidPolicy),
    /// The way it is signed for cannot be one.
    #[error(transparent)]
    Signing(#[from] InvalidSigning),
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
        Self { store: store.clone(), addresses, policy: policy.clone() }
    }

    /// What holds where an endpoint has no policy of its own.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Creates an enabled endpoint in the caller's transaction. It gets the events that are published from now on.
    ///
    /// # Errors
    /// As [`ManageError`] says.
    pub async fn create(&self, conn: &mut Conn<'_>, new: NewEndpoint) -> Result<Created, ManageError> {
        let ready = self.ready(new)?;
        insert(conn, &self.store, &ready).await?;
        ready.created()
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
        ready.created()
    }

    /// An endpoint by its id.
    ///
    /// # Errors
    /// [`ManageError::NotFound`], or as [`ManageError::Store`] says.
    pub async fn get(&self, conn: &mut Conn<'_>, tenant: &Key, id: &str) -> Result<Endpoint, ManageError> {
        let row = endpoints::find(conn, tenant.as_str(), id).await?.ok_or(ManageError::NotFound)?;
        with_event_types(conn, row).await
    }

    /// An endpoint by its id, or else by its uid.
    ///
    /// # Errors
    /// [`ManageError::NotFound`], or as [`ManageError::Store`] says.
    pub async fn find(&self, conn: &mut Conn<'_>, tenant: &Key, id_or_uid: &str) -> Result<Endpoint, ManageError> {
        let row = endpoints::find_by_name(conn, tenant.as_str(), id_or_uid).await?.ok_or(ManageError::NotFound)?;
        with_event_types(conn, row).await
    }

    /// A tenant's oldest endpoint with this URL, however it is spelt.
    ///
    /// # Errors
    /// [`ManageError::Url`], or as [`ManageError::Store`] says.
    pub async fn with_url(
        &self,
        conn: &mut Conn<'_>,
        tenant: &Key,
        url: &str,
    ) -> Result<Option<Endpoint>, ManageError> {
        let url = self.addresses.parse_url(url)?;
        match endpoints::find_by_url(conn, tenant.as_str(), url.as_str()).await? {
            Some(row) => with_event_types(conn, row).await.map(Some),
            None => Ok(None),
        }
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
        self.page(conn, tenant, after, false, i64::from(limit)).await
    }

    /// The same, or where it goes `down`, the page before `from`, backwards.
    pub(crate) async fn page(
        &self,
        conn: &mut Conn<'_>,
        tenant: &Key,
        from: &str,
        down: bool,
        limit: i64,
    ) -> Result<Vec<Endpoint>, ManageError> {
        let rows = endpoints::page(conn, tenant.as_str(), from, down, limit).await?;
        let ids = || rows.iter().map(|row| row.id.as_str());
        let Some((first, last)) = ids().min().zip(ids().max()) else { return Ok(Vec::new()) };
        let mut types: HashMap<String, Vec<String>> = HashMap::new();
        for (endpoint, name) in endpoints::event_types_between(conn, tenant.as_str(), first, last).await? {
            types.entry(endpoint).or_default().push(name);
        }
        let endpoint = |row: EndpointRow| {
            let types = types.remove(&row.id).unwrap_or_default();
            Ok(Endpoint::new(row, types)?)
        };
        rows.into_iter().map(endpoint).collect()
    }

    /// Disables an endpoint and parks what waits for it. Requests under way go on.
    ///
    /// # Errors
    /// [`ManageError::NotFound`], or as [`ManageError::Store`] says.
    pub async fn disable(&self, conn: &mut Conn<'_>, tenant: &Key, id: &str) -> Result<(), ManageError> {
        let (tenant, now) = (tenant.as_str(), self.store.now());
        let was_enabled = self.is_enabled(conn, tenant, id).await?;
        found(endpoints::disable(conn, tenant, id, "manual", now).await?)?;
        waiting::park_pending(conn, tenant, id, now, MOST_MOVED).await?;
        waiting::park_backoff(conn, tenant, id, now, MOST_MOVED).await?;
        if was_enabled {
            tell(conn, &self.store, tenant, id, What::Disabled("manual", now)).await?;
        }
        Ok(())
    }

    /// Enables an endpoint and makes what was parked pending, oldest first. Send the [`Wake`] after the commit. What is
    /// above a bounded number follows within seconds, moved by the worker.
    ///
    /// # Errors
    /// [`ManageError::NotFound`], or as [`ManageError::Store`] says.
    pub async fn enable(&self, conn: &mut Conn<'_>, tenant: &Key, id: &str) -> Result<Wake, ManageError> {
        let now = self.store.now();
        let was_enabled = self.is_enabled(conn, tenant.as_str(), id).await?;
        found(endpoints::enable(conn, tenant.as_str(), id, now).await?)?;
        waiting::unpark(conn, tenant.as_str(), id, now, MOST_MOVED).await?;
        if !was_enabled {
            tell(conn, &self.store, tenant.as_str(), id, What::Enabled).await?;
        }
        Ok(self.store.waker().owed())
    }

    async fn is_enabled(&self, conn: &mut Conn<'_>, tenant: &str, id: &str) -> Result<bool, ManageError> {
        let row = endpoints::find(conn, tenant, id).await?.ok_or(ManageError::NotFound)?;
        Ok(row.state == "enabled")
    }

    /// Checks the endpoint and gives it its id and its first secret.
    pub(crate) fn ready(&self, new: NewEndpoint) -> Result<Ready, ManageError> {
        let id = Id::mint(Prefix::Endpoint, self.store.now(), self.store.random());
        let row = self.row(&new, id)?;
        let signing = new.signing;
        let secret = new.secret.unwrap_or_else(|| Secret::generate(self.store.random()).into());
        signing.check_secret(&secret)?;
        let key_id = self.mint_key_id().map_err(|_| ManageError::SecretIdTaken)?;
        Ok(Ready { row, event_types: new.event_types, key_id, secret })
    }
}

/// An endpoint that was checked and has its id and its first secret.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    row: EndpointRow,
    event_types: Vec<String>,
    key_id: Key,
    secret: SigningKey,
}

impl Ready {
    /// The same, of this tenant.
    #[cfg(feature = "api")]
    pub(crate) fn of(&self, tenant: &Key) -> Self {
        let mut ready = self.clone();
        ready.row.tenant = tenant.to_string();
        ready
    }

    pub(crate) fn created(&self) -> Result<Created, ManageError> {
        let mut event_types = self.event_types.clone();
        event_types.sort_unstable();
        event_types.dedup();
        Ok(Created {
            endpoint: Endpoint::new(self.row.clone(), event_types)?,
            key_id: self.key_id.clone(),
            secret: self.secret.clone(),
        })
    }
}

/// Stores an endpoint in the caller's transaction.
pub(crate) async fn insert(conn: &mut Conn<'_>, store: &Store, ready: &Ready) -> Result<(), ManageError> {
    let Ready { row, event_types, key_id, secret } = ready;
    if let Some(uid) = &row.uid {
        endpoints::hold_uid(conn, &row.tenant, uid).await?;
    }
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
    stored_secrets::insert(conn, store, key, secret, Timestamp::from_millis(row.created_at)).await?;
    tell(conn, store, &row.tenant, &row.id, What::Created).await
}

/// Tells the organisation what has happened to an endpoint.
async fn tell(conn: &mut Conn<'_>, store: &Store, tenant: &str, id: &str, what: What) -> Result<(), ManageError> {
    let telling = Telling { tenant: tenant.to_owned(), endpoint: id.to_owned(), what };
    operational::tell(conn, store, vec![telling]).await?;
    Ok(())
}

/// How many rows one call moves.
const MOST_MOVED: i64 = 10_000;

async fn with_event_types(conn: &mut Conn<'_>, row: EndpointRow) -> Result<Endpoint, ManageError> {
    let types = endpoints::event_types(conn, &row.tenant, &row.id).await?;
    Ok(Endpoint::new(row, types.into_iter().map(|(name,)| name).collect())?)
}

fn found(found: bool) -> Result<(), ManageError> {
    if found { Ok(()) } else { Err(ManageError::NotFound) }
}

#[cfg(test)]
mod tests;
