//! The secrets of endpoints.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::key::Key;
use twiceproof_shared::seal::{Seal, Sealed};
use twiceproof_shared::signature::SigningKey;
use twiceproof_shared::store::{Conn, Store, StoreError};

/// Which secret of which endpoint.
#[derive(Debug, Clone, Copy)]
pub struct SecretKey<'a> {
    /// Whose endpoint it is.
    pub tenant: &'a str,
    /// The endpoint.
    pub endpoint: &'a str,
    /// The id of the secret, by which it can be expired.
    pub key_id: &'a Key,
}

/// A secret as it is stored.
#[derive(Clone, sqlx::FromRow)]
pub struct SecretRow {
    /// Its id.
    pub key_id: String,
    /// How it signs.
    pub kind: String,
    secret: Vec<u8>,
    sealed_by: Option<String>,
}

/// A secret as it is stored, with all that names it.
#[derive(Debug, sqlx::FromRow)]
pub struct NamedSecret {
    /// Whose endpoint it is.
    pub tenant: String,
    /// The endpoint.
    pub endpoint: String,
    /// The secret.
    #[sqlx(flatten)]
    pub row: SecretRow,
}

impl SecretRow {
    /// The parts of a row.
    pub(super) fn new(key_id: String, kind: String, secret: Vec<u8>, sealed_by: Option<String>) -> Self {
        Self { key_id, kind, secret, sealed_by }
    }

    /// The id of the master key that it is sealed under.
    pub fn sealed_by(&self) -> Option<&str> {
        self.sealed_by.as_deref()
    }

    /// Opens the secret.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where no master key opens it, or where it was changed.
    pub fn open(self, seal: &Seal, tenant: &str, endpoint: &str) -> Result<SigningKey, StoreError> {
        let Self { key_id, kind, secret, sealed_by } = self;
        let refused = |reason: String| {
            StoreError::Refused(
                format!("the secret {key_id} of the endpoint {endpoint} cannot be used: {reason}").into(),
            )
        };
        let sealed = Sealed { bytes: secret, by: sealed_by };
        let bytes =
            seal.open(sealed, &bound(tenant, endpoint, &key_id, &kind)).map_err(|error| refused(error.to_string()))?;
        SigningKey::from_stored(&kind, bytes.to_vec()).map_err(|error| refused(error.to_string()))
    }
}

impl std::fmt::Debug for SecretRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretRow").field("key_id", &self.key_id).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// What a sealed secret belongs to.
fn bound<'a>(tenant: &'a str, endpoint: &'a str, key_id: &'a str, kind: &'a str) -> [&'a str; 5] {
    ["endpoint secret", tenant, endpoint, key_id, kind]
}

fn sealed(store: &Store, key: SecretKey<'_>, secret: &SigningKey) -> Sealed {
    let belongs_to = bound(key.tenant, key.endpoint, key.key_id.as_str(), secret.kind());
    store.seal().seal(store.random(), &secret.expose(), &belongs_to)
}

/// Adds a secret, sealed where the store has a master key. False: the endpoint has one with this id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn insert(
    conn: &mut Conn<'_>,
    store: &Store,
    key: SecretKey<'_>,
    secret: &SigningKey,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sealed = sealed(store, key, secret);
    let inserted = conn
        .execute(
            "INSERT INTO twiceproof_endpoint_secrets (tenant, endpoint, key_id, kind, secret, sealed_by, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
            &[
                key.tenant.into(),
                key.endpoint.into(),
                key.key_id.into(),
                secret.kind().into(),
                sealed.bytes.as_slice().into(),
                sealed.by.as_deref().into(),
                now.into(),
            ],
        )
        .await?;
    Ok(inserted == 1)
}

/// Seals a secret anew. False: it has changed meanwhile, or is no longer there.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn reseal(
    conn: &mut Conn<'_>,
    store: &Store,
    key: SecretKey<'_>,
    secret: &SigningKey,
    old: Option<&str>,
) -> Result<bool, StoreError> {
    let sealed = sealed(store, key, secret);
    let updated = conn
        .execute(
            "UPDATE twiceproof_endpoint_secrets SET secret = $4, sealed_by = $5
             WHERE tenant = $1 AND endpoint = $2 AND key_id = $3 AND COALESCE(sealed_by, '') = $6",
            &[
                key.tenant.into(),
                key.endpoint.into(),
                key.key_id.into(),
                sealed.bytes.as_slice().into(),
                sealed.by.as_deref().into(),
                old.unwrap_or_default().into(),
            ],
        )
        .await?;
    Ok(updated == 1)
}

/// A page of all secrets, by tenant, endpoint and id, behind `after`.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn page(conn: &mut Conn<'_>, after: (&str, &str, &str), limit: i64) -> Result<Vec<NamedSecret>, StoreError> {
    conn.fetch_all(
        "SELECT tenant, endpoint, key_id, kind, secret, sealed_by FROM twiceproof_endpoint_secrets
         WHERE (tenant, endpoint, key_id) > ($1, $2, $3) ORDER BY tenant, endpoint, key_id LIMIT $4",
        &[after.0.into(), after.1.into(), after.2.into(), limit.into()],
    )
    .await
}

/// The ids of the master keys that live secrets are sealed under; an empty one where a secret is not sealed.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn sealed_by(conn: &mut Conn<'_>, now: Timestamp) -> Result<Vec<(String,)>, StoreError> {
    conn.fetch_all(
        "SELECT DISTINCT COALESCE(sealed_by, '') FROM twiceproof_endpoint_secrets
         WHERE expires_at IS NULL OR expires_at > $1",
        &[now.into()],
    )
    .await
}

/// A secret, live or not.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn find(conn: &mut Conn<'_>, key: SecretKey<'_>) -> Result<Option<SecretRow>, StoreError> {
    conn.fetch_optional(
        "SELECT key_id, kind, secret, sealed_by FROM twiceproof_endpoint_secrets
         WHERE tenant = $1 AND endpoint = $2 AND key_id = $3",
        &[key.tenant.into(), key.endpoint.into(), key.key_id.into()],
    )
    .await
}

/// Ends a secret's life at a time. False: there is none with this id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn expire(conn: &mut Conn<'_>, key: SecretKey<'_>, at: Timestamp) -> Result<bool, StoreError> {
    let updated = conn
        .execute(
            "UPDATE twiceproof_endpoint_secrets SET expires_at = $4
             WHERE tenant = $1 AND endpoint = $2 AND key_id = $3",
            &[key.tenant.into(), key.endpoint.into(), key.key_id.into(), at.into()],
        )
        .await?;
    Ok(updated == 1)
}

/// Ends a secret's life at a time, unless it ends before.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn expire_by(conn: &mut Conn<'_>, key: SecretKey<'_>, at: Timestamp) -> Result<(), StoreError> {
    conn.execute(
        "UPDATE twiceproof_endpoint_secrets SET expires_at = $4
         WHERE tenant = $1 AND endpoint = $2 AND key_id = $3 AND (expires_at IS NULL OR expires_at > $4)",
        &[key.tenant.into(), key.endpoint.into(), key.key_id.into(), at.into()],
    )
    .await?;
    Ok(())
}

/// The live secrets of an endpoint, newest first: those without an end before those that were told when to end, since two may
/// have been made in one millisecond, and clocks go back.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn all_live(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    now: Timestamp,
) -> Result<Vec<SecretRow>, StoreError> {
    conn.fetch_all(
        "SELECT key_id, kind, secret, sealed_by FROM twiceproof_endpoint_secrets
         WHERE tenant = $1 AND endpoint = $2 AND (expires_at IS NULL OR expires_at > $3)
         ORDER BY CASE WHEN expires_at IS NULL THEN 0 ELSE 1 END, created_at DESC, key_id",
        &[tenant.into(), endpoint.into(), now.into()],
    )
    .await
}

/// How many secrets of an endpoint are live.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn live(conn: &mut Conn<'_>, tenant: &str, endpoint: &str, now: Timestamp) -> Result<usize, StoreError> {
    let (count,): (i64,) = conn
        .fetch_one(
            "SELECT count(*) FROM twiceproof_endpoint_secrets
             WHERE tenant = $1 AND endpoint = $2 AND (expires_at IS NULL OR expires_at > $3)",
            &[tenant.into(), endpoint.into(), now.into()],
        )
        .await?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Whether an endpoint has a shared secret that was not told when to end.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn has_lasting_shared(conn: &mut Conn<'_>, tenant: &str, endpoint: &str) -> Result<bool, StoreError> {
    let (count,): (i64,) = conn
        .fetch_one(
            "SELECT count(*) FROM twiceproof_endpoint_secrets
             WHERE tenant = $1 AND endpoint = $2 AND kind = 'v1' AND expires_at IS NULL",
            &[tenant.into(), endpoint.into()],
        )
        .await?;
    Ok(count > 0)
}
