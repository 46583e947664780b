//! Endpoints and their filters.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::json;

/// A row of the endpoints table.
#[derive(Clone, sqlx::FromRow)]
pub struct EndpointRow {
    /// Whose endpoint it is.
    pub tenant: String,
    /// The minted id.
    pub id: String,
    /// The caller's own id.
    pub uid: Option<String>,
    /// The URL: a credential.
    pub url: String,
    /// What it is for.
    pub description: String,
    /// `enabled` or `disabled`.
    pub state: String,
    /// Why it is disabled.
    pub state_reason: Option<String>,
    /// 1: it takes events of all types.
    pub all_event_types: i64,
    /// The deadline of one attempt, in milliseconds.
    pub timeout_ms: i64,
    /// How many requests a worker may have under way to it.
    pub slots: i64,
    /// When it last answered 2xx.
    pub last_success_at: Option<i64>,
    /// When it last failed.
    pub last_failure_at: Option<i64>,
    /// How often it failed since.
    pub failures_in_row: i64,
    /// When it was created.
    pub created_at: i64,
}

/// Inserts an enabled endpoint. False: its uid (or, when the unit runs again, its id) is there already.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn insert(conn: &mut Conn<'_>, row: &EndpointRow) -> Result<bool, StoreError> {
    let inserted = conn
        .execute(
            "INSERT INTO twiceproof_endpoints (tenant, id, uid, url, description, state, all_event_types, timeout_ms,
                 slots, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, 'enabled', $6, $7, $8, $9, $9)
             ON CONFLICT DO NOTHING",
            &[
                Arg::from(&row.tenant),
                Arg::from(&row.id),
                row.uid.as_deref().into(),
                Arg::from(&row.url),
                Arg::from(&row.description),
                row.all_event_types.into(),
                row.timeout_ms.into(),
                row.slots.into(),
                row.created_at.into(),
            ],
        )
        .await?;
    Ok(inserted == 1)
}

/// Adds event types to an endpoint's filter.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn insert_event_types(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    event_types: &[String],
) -> Result<(), StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "INSERT INTO twiceproof_endpoint_event_types (tenant, endpoint, event_type)
             SELECT $1, $2, value FROM json_each($3) WHERE true ON CONFLICT DO NOTHING"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "INSERT INTO twiceproof_endpoint_event_types (tenant, endpoint, event_type)
             SELECT $1, $2, value FROM json_array_elements_text($3::json) ON CONFLICT DO NOTHING"
        }
    };
    conn.execute(sql, &[tenant.into(), endpoint.into(), Arg::from(&json(event_types)?)]).await?;
    Ok(())
}

/// An endpoint by its id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn find(conn: &mut Conn<'_>, tenant: &str, id: &str) -> Result<Option<EndpointRow>, StoreError> {
    conn.fetch_optional(
        "SELECT tenant, id, uid, url, description, state, state_reason, all_event_types, timeout_ms, slots,
                last_success_at, last_failure_at, failures_in_row, created_at
         FROM twiceproof_endpoints WHERE tenant = $1 AND id = $2",
        &[tenant.into(), id.into()],
    )
    .await
}

/// Marks an endpoint as changed and keeps others from changing it until the end of the transaction. False: there is none.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn touch(conn: &mut Conn<'_>, tenant: &str, id: &str, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE twiceproof_endpoints SET updated_at = $3 WHERE tenant = $1 AND id = $2";
    Ok(conn.execute(sql, &[tenant.into(), id.into(), now.into()]).await? == 1)
}

/// The id of the endpoint with this uid.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn id_of_uid(conn: &mut Conn<'_>, tenant: &str, uid: &str) -> Result<Option<(String,)>, StoreError> {
    conn.fetch_optional(
        "SELECT id FROM twiceproof_endpoints WHERE tenant = $1 AND uid = $2",
        &[tenant.into(), uid.into()],
    )
    .await
}

/// A page of a tenant's endpoints, by id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn page(conn: &mut Conn<'_>, tenant: &str, after: &str, limit: i64) -> Result<Vec<EndpointRow>, StoreError> {
    conn.fetch_all(
        "SELECT tenant, id, uid, url, description, state, state_reason, all_event_types, timeout_ms, slots,
                last_success_at, last_failure_at, failures_in_row, created_at
         FROM twiceproof_endpoints WHERE tenant = $1 AND id > $2 ORDER BY id LIMIT $3",
        &[tenant.into(), after.into(), limit.into()],
    )
    .await
}

/// The filter of an endpoint, sorted.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn event_types(conn: &mut Conn<'_>, tenant: &str, endpoint: &str) -> Result<Vec<(String,)>, StoreError> {
    conn.fetch_all(
        "SELECT event_type FROM twiceproof_endpoint_event_types WHERE tenant = $1 AND endpoint = $2
         ORDER BY event_type",
        &[tenant.into(), endpoint.into()],
    )
    .await
}

/// Disables an endpoint. False: there is none with this id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn disable(
    conn: &mut Conn<'_>,
    tenant: &str,
    id: &str,
    reason: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let updated = conn
        .execute(
            "UPDATE twiceproof_endpoints SET state = 'disabled', state_reason = $3, updated_at = $4
             WHERE tenant = $1 AND id = $2",
            &[tenant.into(), id.into(), reason.into(), now.into()],
        )
        .await?;
    Ok(updated == 1)
}

/// Enables an endpoint. False: there is none with this id.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn enable(conn: &mut Conn<'_>, tenant: &str, id: &str, now: Timestamp) -> Result<bool, StoreError> {
    let updated = conn
        .execute(
            "UPDATE twiceproof_endpoints SET state = 'enabled', state_reason = NULL, failures_in_row = 0, updated_at = $3
             WHERE tenant = $1 AND id = $2",
            &[tenant.into(), id.into(), now.into()],
        )
        .await?;
    Ok(updated == 1)
}

impl std::fmt::Debug for EndpointRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointRow").field("id", &self.id).field("state", &self.state).finish_non_exhaustive()
    }
}
