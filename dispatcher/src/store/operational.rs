//! What operational webhooks look up: whose they are, and the names by which callers know things.

use twiceproof_shared::store::{Conn, StoreError};

/// Where operational webhooks about a tenant go.
#[derive(Debug, sqlx::FromRow)]
pub struct Home {
    /// The organisation's tenant for them.
    pub tenant: String,
    /// The uid of the tenant that they are about.
    pub about_uid: Option<String>,
}

/// The tenant of this name in the organisation of `about`, unless that is itself; a tenant that nobody entered is of the default
/// organisation.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn home(conn: &mut Conn<'_>, about: &str, name: &str) -> Result<Option<Home>, StoreError> {
    conn.fetch_optional(
        "SELECT p.id AS tenant, (SELECT min(a.uid) FROM twiceproof_tenants a
                 WHERE a.organisation = p.organisation AND a.id = $1) AS about_uid
         FROM twiceproof_tenants p
         WHERE p.organisation = coalesce((SELECT min(o.organisation) FROM twiceproof_tenants o WHERE o.id = $1),
                 'org_000000000000000000000000000')
           AND (p.id = $2 OR p.uid = $2) AND p.id <> $1
         ORDER BY CASE p.id WHEN $2 THEN 0 ELSE 1 END LIMIT 1",
        &[about.into(), name.into()],
    )
    .await
}

/// The uid of an event, if it has one.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn event_uid(conn: &mut Conn<'_>, tenant: &str, event: &str) -> Result<Option<String>, StoreError> {
    let sql = "SELECT uid FROM twiceproof_events WHERE tenant = $1 AND id = $2";
    let found: Option<(Option<String>,)> = conn.fetch_optional(sql, &[tenant.into(), event.into()]).await?;
    Ok(found.and_then(|(uid,)| uid))
}

/// The uid of an endpoint, if it has one and is there.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn endpoint_uid(conn: &mut Conn<'_>, tenant: &str, endpoint: &str) -> Result<Option<String>, StoreError> {
    let sql = "SELECT uid FROM twiceproof_endpoints WHERE tenant = $1 AND id = $2";
    let found: Option<(Option<String>,)> = conn.fetch_optional(sql, &[tenant.into(), endpoint.into()]).await?;
    Ok(found.and_then(|(uid,)| uid))
}
