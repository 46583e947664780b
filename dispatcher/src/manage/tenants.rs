//! Tenants: whose events they are. Each belongs to one organisation, which alone sees it.
//!
//! Invariants: a tenant's id never changes; a uid belongs to one tenant of the organisation, and cannot be taken for an id.

use std::collections::BTreeMap;

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::{Conn, Store, StoreError};

use super::ManageError;
use crate::store::tenants::{self, TenantRow};

/// Texts that a tenant's or endpoint's owner keeps with it.
pub type Metadata = BTreeMap<String, String>;

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// The most bytes of all metadata, as JSON.
pub const MAX_METADATA_BYTES: usize = 16 * 1024;

/// A tenant as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tenant {
    /// The id.
    pub id: Key,
    /// What can be changed.
    pub details: TenantDetails,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// What can be changed of a tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantDetails {
    /// Its name.
    pub name: String,
    /// The caller's own id.
    pub uid: Option<Key>,
    /// Deliveries per second, over all endpoints; none: as many as there are.
    pub rate_limit: Option<u32>,
    /// Whatever the caller wants to keep with it.
    pub metadata: Metadata,
}

/// The organisation of whoever runs one of their own, and of what was made without an API.
#[must_use]
pub fn default_organisation() -> Id {
    Id::lowest_at(Prefix::Organisation, Timestamp::EPOCH)
}

/// A new tenant before it is stored, with its id: a unit of work that runs again finds its own.
#[derive(Debug)]
pub struct NewTenant {
    organisation: Id,
    tenant: Tenant,
}

impl NewTenant {
    /// Checks a tenant and gives it its id.
    ///
    /// # Errors
    /// [`ManageError::Limit`].
    pub fn new(store: &Store, organisation: &Id, details: TenantDetails) -> Result<Self, ManageError> {
        check(&details)?;
        let now = store.now();
        let id = Id::mint(Prefix::Tenant, now, store.random());
        let id = Key::new(String::from(id)).map_err(|_| ManageError::NotFound)?;
        let tenant = Tenant { id, details, created_at: now, updated_at: now };
        Ok(Self { organisation: organisation.clone(), tenant })
    }

    /// Stores the tenant in the caller's transaction.
    ///
    /// # Errors
    /// [`ManageError::UidTaken`], or as [`ManageError::Store`] says.
    pub async fn create(&self, conn: &mut Conn<'_>) -> Result<Tenant, ManageError> {
        let organisation = self.organisation.as_str();
        tenants::enter_organisation(conn, organisation, self.tenant.created_at).await?;
        if let Some(uid) = &self.tenant.details.uid {
            tenants::hold_uid(conn, organisation, uid.as_str()).await?;
        }
        if tenants::insert(conn, &row(&self.organisation, &self.tenant)).await? {
            return Ok(self.tenant.clone());
        }
        match tenants::find(conn, organisation, self.tenant.id.as_str()).await? {
            // An earlier run of the same unit.
            Some(row) => tenant(row),
            None => Err(taken(&self.tenant.details)),
        }
    }
}

/// Makes a tenant known that was used without an API, as the command line does: its name is its id.
///
/// # Errors
/// As [`ManageError::Store`] says.
pub async fn adopt(conn: &mut Conn<'_>, id: &Key, now: Timestamp) -> Result<(), ManageError> {
    let organisation = default_organisation();
    let details = TenantDetails { name: id.to_string(), ..TenantDetails::default() };
    let tenant = Tenant { id: id.clone(), details, created_at: now, updated_at: now };
    tenants::enter_organisation(conn, organisation.as_str(), now).await?;
    tenants::insert(conn, &row(&organisation, &tenant)).await?;
    Ok(())
}

/// A tenant of an organisation by its id, or else by its uid.
///
/// # Errors
/// As [`ManageError::Store`] says.
pub async fn find(conn: &mut Conn<'_>, organisation: &Id, id_or_uid: &str) -> Result<Option<Tenant>, ManageError> {
    tenants::find(conn, organisation.as_str(), id_or_uid).await?.map(tenant).transpose()
}

/// A page of an organisation's tenants in the order of their ids: behind `from`, or before it where it goes `down`.
///
/// # Errors
/// As [`ManageError::Store`] says.
pub async fn page(
    conn: &mut Conn<'_>,
    organisation: &Id,
    from: &str,
    down: bool,
    limit: i64,
) -> Result<Vec<Tenant>, ManageError> {
    let rows = tenants::page(conn, organisation.as_str(), from, down, limit).await?;
    rows.into_iter().map(tenant).collect()
}

/// Changes a tenant.
///
/// # Errors
/// As [`ManageError`] says.
pub async fn update(
    conn: &mut Conn<'_>,
    organisation: &Id,
    old: &Tenant,
    details: TenantDetails,
    now: Timestamp,
) -> Result<Tenant, ManageError> {
    check(&details)?;
    let tenant = Tenant { details, updated_at: now, ..old.clone() };
    let row = row(organisation, &tenant);
    if let Some(uid) = &row.uid {
        tenants::hold_uid(conn, &row.organisation, uid).await?;
        if tenants::uid_is_taken(conn, &row).await? {
            return Err(taken(&tenant.details));
        }
    }
    if tenants::update(conn, &row).await? { Ok(tenant) } else { Err(ManageError::NotFound) }
}

/// Deletes a tenant with its endpoints. What was accepted stays until its retention is over; nothing more is sent.
///
/// # Errors
/// [`ManageError::NotFound`], or as [`ManageError::Store`] says.
pub async fn delete(conn: &mut Conn<'_>, organisation: &Id, id: &Key) -> Result<(), ManageError> {
    super::found(tenants::delete(conn, organisation.as_str(), id.as_str()).await?)
}

/// Checks metadata.
///
/// # Errors
/// [`ManageError::Limit`].
pub(super) fn metadata_json(metadata: &Metadata) -> Result<String, ManageError> {
    // Texts always can be written as JSON.
    let json = serde_json::to_string(metadata).unwrap_or_default();
    if json.len() > MAX_METADATA_BYTES || json.contains("\\u0000") {
        return Err(ManageError::Limit("metadata have at most 16 KiB as JSON, and no NUL"));
    }
    Ok(json)
}

/// Checks that a uid cannot be taken for an id.
///
/// # Errors
/// [`ManageError::Limit`].
pub(crate) fn check_uid(prefix: Prefix, uid: Option<&Key>) -> Result<(), ManageError> {
    match uid {
        Some(uid) if Id::parse(prefix, uid.as_str()).is_ok() => {
            Err(ManageError::Limit("a uid may not look like an id of ours"))
        }
        _ => Ok(()),
    }
}

fn check(details: &TenantDetails) -> Result<(), ManageError> {
    let name = &details.name;
    if name.trim().is_empty() || name.len() > MAX_NAME_BYTES || name.contains('\0') {
        return Err(ManageError::Limit("a name has 1 to 255 bytes, not only spaces, and no NUL"));
    }
    if details.rate_limit == Some(0) {
        return Err(ManageError::Limit("a rate limit is 1 or more per second"));
    }
    check_uid(Prefix::Tenant, details.uid.as_ref())?;
    metadata_json(&details.metadata).map(drop)
}

fn taken(details: &TenantDetails) -> ManageError {
    ManageError::UidTaken(details.uid.as_ref().map_or_else(String::new, Key::to_string))
}

fn row(organisation: &Id, tenant: &Tenant) -> TenantRow {
    let details = &tenant.details;
    TenantRow {
        organisation: organisation.to_string(),
        id: tenant.id.to_string(),
        uid: details.uid.as_ref().map(Key::to_string),
        name: details.name.clone(),
        metadata: serde_json::to_string(&details.metadata).unwrap_or_default(),
        rate_limit: details.rate_limit.map(i64::from),
        created_at: tenant.created_at.as_millis(),
        updated_at: tenant.updated_at.as_millis(),
    }
}

fn tenant(row: TenantRow) -> Result<Tenant, ManageError> {
    let broken = || StoreError::Refused("a stored tenant cannot be read; was it written by another program?".into());
    Ok(Tenant {
        id: Key::new(row.id).map_err(|_| broken())?,
        details: TenantDetails {
            name: row.name,
            uid: row.uid.map(Key::new).transpose().map_err(|_| broken())?,
            rate_limit: row.rate_limit.map(u32::try_from).transpose().map_err(|_| broken())?,
            metadata: serde_json::from_str(&row.metadata).map_err(|_| broken())?,
        },
        created_at: Timestamp::from_millis(row.created_at),
        updated_at: Timestamp::from_millis(row.updated_at),
    })
}
