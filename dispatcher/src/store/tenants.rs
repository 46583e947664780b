//! Organisations and their tenants.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

/// A row of the tenants table.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct TenantRow {
    /// Whose tenant it is.
    pub organisation: String,
    /// The id, under which all that belongs to it is kept.
    pub id: String,
    /// The caller's own id.
    pub uid: Option<String>,
    /// Its name.
    pub name: String,
    /// A JSON object of texts.
    pub metadata: String,
    /// Deliveries per second, over all endpoints.
    pub rate_limit: Option<i64>,
    /// When it was created.
    pub created_at: i64,
    /// When it was last changed.
    pub updated_at: i64,
}

/// Enters an organisation, unless it is there.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn enter_organisation(conn: &mut Conn<'_>, id: &str, now: Timestamp) -> Result<(), StoreError> {
    conn.execute(
        "INSERT INTO twiceproof_organisations (id, name, created_at) VALUES ($1, '', $2) ON CONFLICT DO NOTHING",
        &[id.into(), now.into()],
    )
    .await?;
    Ok(())
}

/// Inserts a tenant. False: its id or uid is there already.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn insert(conn: &mut Conn<'_>, row: &TenantRow) -> Result<bool, StoreError> {
    let inserted = conn
        .execute(
            "INSERT INTO twiceproof_tenants
                 (organisation, id, uid, name, metadata, rate_limit, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
             ON CONFLICT DO NOTHING",
            &[
                Arg::from(&row.organisation),
                Arg::from(&row.id),
                row.uid.as_deref().into(),
                Arg::from(&row.name),
                Arg::from(&row.metadata),
                row.rate_limit.into(),
                row.created_at.into(),
                row.updated_at.into(),
            ],
        )
        .await?;
    Ok(inserted == 1)
}

/// A tenant by its id, or else by its uid.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn find(conn: &mut Conn<'_>, organisation: &str, name: &str) -> Result<Option<TenantRow>, StoreError> {
    conn.fetch_optional(
        "SELECT organisation, id, uid, name, metadata, rate_limit, created_at, updated_at
         FROM twiceproof_tenants WHERE organisation = $1 AND (id = $2 OR uid = $2)
         ORDER BY CASE id WHEN $2 THEN 0 ELSE 1 END LIMIT 1",
        &[organisation.into(), name.into()],
    )
    .await
}

/// A page of an organisation's tenants, by id: behind `from` upwards, or before it downwards.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn page(
    conn: &mut Conn<'_>,
    organisation: &str,
    from: &str,
    down: bool,
    limit: i64,
) -> Result<Vec<TenantRow>, StoreError> {
    let sql = if down {
        "SELECT organisation, id, uid, name, metadata, rate_limit, created_at, updated_at
         FROM twiceproof_tenants WHERE organisation = $1 AND id < $2 ORDER BY id DESC LIMIT $3"
    } else {
        "SELECT organisation, id, uid, name, metadata, rate_limit, created_at, updated_at
         FROM twiceproof_tenants WHERE organisation = $1 AND id > $2 ORDER BY id LIMIT $3"
    };
    conn.fetch_all(sql, &[organisation.into(), from.into(), limit.into()]).await
}

/// Keeps others from giving this uid to a tenant until the end of the transaction, so that a look at who has it holds.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn hold_uid(conn: &mut Conn<'_>, organisation: &str, uid: &str) -> Result<(), StoreError> {
    match conn.database() {
        // Differs because SQLite has one writer.
        Database::Sqlite => {}
        // Differs because an UPDATE, unlike an INSERT, fails where another transaction just took the uid.
        Database::Postgres => {
            let sql =
                "SELECT pg_advisory_xact_lock('twiceproof_tenants'::regclass::oid::integer, hashtext($1 || '/' || $2))";
            conn.execute(sql, &[organisation.into(), uid.into()]).await?;
        }
    }
    Ok(())
}

/// Whether another tenant of the organisation has this uid.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn uid_is_taken(conn: &mut Conn<'_>, row: &TenantRow) -> Result<bool, StoreError> {
    let found: Option<(String,)> = conn
        .fetch_optional(
            "SELECT id FROM twiceproof_tenants WHERE organisation = $1 AND uid = $2 AND id <> $3",
            &[Arg::from(&row.organisation), row.uid.as_deref().into(), Arg::from(&row.id)],
        )
        .await?;
    Ok(found.is_some())
}

/// Writes what can be changed of a tenant. False: there is none.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn update(conn: &mut Conn<'_>, row: &TenantRow) -> Result<bool, StoreError> {
    let updated = conn
        .execute(
            "UPDATE twiceproof_tenants SET uid = $3, name = $4, metadata = $5, rate_limit = $6, updated_at = $7
             WHERE organisation = $1 AND id = $2",
            &[
                Arg::from(&row.organisation),
                Arg::from(&row.id),
                row.uid.as_deref().into(),
                Arg::from(&row.name),
                Arg::from(&row.metadata),
                row.rate_limit.into(),
                row.updated_at.into(),
            ],
        )
        .await?;
    Ok(updated == 1)
}

/// Deletes a tenant with its endpoints. Their open deliveries come to their end, its events go with their retention.
/// False: there is none.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn delete(conn: &mut Conn<'_>, organisation: &str, id: &str) -> Result<bool, StoreError> {
    let sql = "DELETE FROM twiceproof_tenants WHERE organisation = $1 AND id = $2";
    if conn.execute(sql, &[organisation.into(), id.into()]).await? == 0 {
        return Ok(false);
    }
    for sql in [
        "DELETE FROM twiceproof_endpoint_secrets WHERE tenant = $1",
        "DELETE FROM twiceproof_endpoint_event_types WHERE tenant = $1",
        "DELETE FROM twiceproof_endpoints WHERE tenant = $1",
    ] {
        conn.execute(sql, &[id.into()]).await?;
    }
    Ok(true)
}
