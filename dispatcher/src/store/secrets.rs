//! The secrets of endpoints.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::key::Key;
use twiceproof_shared::signature::SigningKey;
use twiceproof_shared::store::{Conn, StoreError};

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

/// Adds a secret. False: the endpoint has one with this id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn insert(
    conn: &mut Conn<'_>,
    key: SecretKey<'_>,
    secret: &SigningKey,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let inserted = conn
        .execute(
            "INSERT INTO twiceproof_endpoint_secrets (tenant, endpoint, key_id, kind, secret, created_at)
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
            &[
                key.tenant.into(),
                key.endpoint.into(),
                key.key_id.into(),
                secret.kind().into(),
                secret.expose().as_slice().into(),
                now.into(),
            ],
        )
        .await?;
    Ok(inserted == 1)
}

/// Kind and bytes of a secret, live or not.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn find(conn: &mut Conn<'_>, key: SecretKey<'_>) -> Result<Option<(String, Vec<u8>)>, StoreError> {
    conn.fetch_optional(
        "SELECT kind, secret FROM twiceproof_endpoint_secrets WHERE tenant = $1 AND endpoint = $2 AND key_id = $3",
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

/// Id, kind and bytes of the live secrets of an endpoint, newest first.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn all_live(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    now: Timestamp,
) -> Result<Vec<(String, String, Vec<u8>)>, StoreError> {
    conn.fetch_all(
        "SELECT key_id, kind, secret FROM twiceproof_endpoint_secrets
         WHERE tenant = $1 AND endpoint = $2 AND (expires_at IS NULL OR expires_at > $3)
         ORDER BY created_at DESC, key_id",
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
