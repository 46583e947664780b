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
    /// When it was last changed.
    pub updated_at: i64,
    /// The channels that it takes, as a sorted JSON array.
    pub channels: String,
    /// Its custom headers, as a JSON object: values may be credentials.
    pub headers: String,
    /// A JSON object of texts.
    pub metadata: String,
    /// Deliveries per second.
    pub rate_limit: Option<i64>,
    /// What differs from the worker's policy, as a JSON object.
    pub policy: String,
    /// How it is signed for, as a JSON object.
    pub signing: String,
    /// The policy's horizon in milliseconds.
    pub horizon_ms: Option<i64>,
    /// Since when it only fails.
    pub failing_since: Option<i64>,
    /// Its breaker is open until then.
    pub breaker_until: Option<i64>,
    /// It asked to be sent nothing before.
    pub throttled_until: Option<i64>,
}

/// Reads whole rows of endpoints.
macro_rules! select {
    ($which:literal) => {
        concat!(
            "SELECT tenant, id, uid, url, description, state, state_reason, all_event_types, timeout_ms, slots,
                    last_success_at, last_failure_at, failures_in_row, created_at, updated_at, channels, headers, metadata,
                    rate_limit, policy, signing, horizon_ms, failing_since, breaker_until, throttled_until
             FROM twiceproof_endpoints ",
            $which
        )
    };
}

/// Inserts an endpoint. False: its uid (or, when the unit runs again, its id) is there already.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn insert(conn: &mut Conn<'_>, row: &EndpointRow) -> Result<bool, StoreError> {
    let inserted = conn
        .execute(
            "INSERT INTO twiceproof_endpoints (tenant, id, uid, url, description, state, state_reason, all_event_types,
                 timeout_ms, slots, channels, headers, metadata, rate_limit, created_at, updated_at, policy,
                 horizon_ms, signing)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15, $16, $17, $18)
             ON CONFLICT DO NOTHING",
            &[
                Arg::from(&row.tenant),
                Arg::from(&row.id),
                row.uid.as_deref().into(),
                Arg::from(&row.url),
                Arg::from(&row.description),
                Arg::from(&row.state),
                row.state_reason.as_deref().into(),
                row.all_event_types.into(),
                row.timeout_ms.into(),
                row.slots.into(),
                Arg::from(&row.channels),
                Arg::from(&row.headers),
                Arg::from(&row.metadata),
                row.rate_limit.into(),
                row.created_at.into(),
                Arg::from(&row.policy),
                row.horizon_ms.into(),
                Arg::from(&row.signing),
            ],
        )
        .await?;
    Ok(inserted == 1)
}

/// Writes what can be changed of an endpoint, but for its state. False: there is none.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn update(conn: &mut Conn<'_>, row: &EndpointRow) -> Result<bool, StoreError> {
    let updated = conn
        .execute(
            "UPDATE twiceproof_endpoints SET uid = $3, url = $4, description = $5, all_event_types = $6, timeout_ms = $7,
                 slots = $8, channels = $9, headers = $10, metadata = $11, rate_limit = $12, updated_at = $13,
                 policy = $14, horizon_ms = $15, signing = $16
             WHERE tenant = $1 AND id = $2",
            &[
                Arg::from(&row.tenant),
                Arg::from(&row.id),
                row.uid.as_deref().into(),
                Arg::from(&row.url),
                Arg::from(&row.description),
                row.all_event_types.into(),
                row.timeout_ms.into(),
                row.slots.into(),
                Arg::from(&row.channels),
                Arg::from(&row.headers),
                Arg::from(&row.metadata),
                row.rate_limit.into(),
                row.updated_at.into(),
                Arg::from(&row.policy),
                row.horizon_ms.into(),
                Arg::from(&row.signing),
            ],
        )
        .await?;
    Ok(updated == 1)
}

/// Deletes an endpoint with its filter and secrets; its open deliveries come to their end. False: there is none.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn delete(conn: &mut Conn<'_>, tenant: &str, id: &str) -> Result<bool, StoreError> {
    let sql = "DELETE FROM twiceproof_endpoints WHERE tenant = $1 AND id = $2";
    if conn.execute(sql, &[tenant.into(), id.into()]).await? == 0 {
        return Ok(false);
    }
    delete_event_types(conn, tenant, id).await?;
    let sql = "DELETE FROM twiceproof_endpoint_secrets WHERE tenant = $1 AND endpoint = $2";
    conn.execute(sql, &[tenant.into(), id.into()]).await?;
    Ok(true)
}

/// Empties an endpoint's filter.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn delete_event_types(conn: &mut Conn<'_>, tenant: &str, endpoint: &str) -> Result<(), StoreError> {
    let sql = "DELETE FROM twiceproof_endpoint_event_types WHERE tenant = $1 AND endpoint = $2";
    conn.execute(sql, &[tenant.into(), endpoint.into()]).await?;
    Ok(())
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
    conn.fetch_optional(select!("WHERE tenant = $1 AND id = $2"), &[tenant.into(), id.into()]).await
}

/// Marks an endpoint as changed and keeps others from changing it until the end of the transaction. False: there is none.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn touch(conn: &mut Conn<'_>, tenant: &str, id: &str, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE twiceproof_endpoints SET updated_at = $3 WHERE tenant = $1 AND id = $2";
    Ok(conn.execute(sql, &[tenant.into(), id.into(), now.into()]).await? == 1)
}

/// Keeps others from giving this uid to an endpoint until the end of the transaction, so that a look at who has it holds.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn hold_uid(conn: &mut Conn<'_>, tenant: &str, uid: &str) -> Result<(), StoreError> {
    match conn.database() {
        // Differs because SQLite has one writer.
        Database::Sqlite => {}
        // Differs because an UPDATE, unlike an INSERT, fails where another transaction just took the uid.
        Database::Postgres => {
            let sql = "SELECT pg_advisory_xact_lock('twiceproof_endpoints'::regclass::oid::integer, hashtext($1 || '/' || $2))";
            conn.execute(sql, &[tenant.into(), uid.into()]).await?;
        }
    }
    Ok(())
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

/// An endpoint by its id, or else by its uid.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn find_by_name(conn: &mut Conn<'_>, tenant: &str, name: &str) -> Result<Option<EndpointRow>, StoreError> {
    conn.fetch_optional(
        select!("WHERE tenant = $1 AND (id = $2 OR uid = $2) ORDER BY CASE id WHEN $2 THEN 0 ELSE 1 END LIMIT 1"),
        &[tenant.into(), name.into()],
    )
    .await
}

/// The oldest endpoint of a tenant with this URL. Reads all of the tenant's: for commands, not for hot paths.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn find_by_url(conn: &mut Conn<'_>, tenant: &str, url: &str) -> Result<Option<EndpointRow>, StoreError> {
    let args = [tenant.into(), url.into()];
    conn.fetch_optional(select!("WHERE tenant = $1 AND url = $2 ORDER BY id LIMIT 1"), &args).await
}

/// A page of a tenant's endpoints, by id: behind `from` upwards, or before it downwards.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn page(
    conn: &mut Conn<'_>,
    tenant: &str,
    from: &str,
    down: bool,
    limit: i64,
) -> Result<Vec<EndpointRow>, StoreError> {
    let sql = if down {
        select!("WHERE tenant = $1 AND id < $2 ORDER BY id DESC LIMIT $3")
    } else {
        select!("WHERE tenant = $1 AND id > $2 ORDER BY id LIMIT $3")
    };
    conn.fetch_all(sql, &[tenant.into(), from.into(), limit.into()]).await
}

/// Endpoint and event type of the filters of a tenant's endpoints from one id to another, both included.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn event_types_between(
    conn: &mut Conn<'_>,
    tenant: &str,
    first: &str,
    last: &str,
) -> Result<Vec<(String, String)>, StoreError> {
    conn.fetch_all(
        "SELECT endpoint, event_type FROM twiceproof_endpoint_event_types
         WHERE tenant = $1 AND endpoint >= $2 AND endpoint <= $3 ORDER BY endpoint, event_type",
        &[tenant.into(), first.into(), last.into()],
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
            "UPDATE twiceproof_endpoints SET state = 'enabled', state_reason = NULL, failures_in_row = 0, updated_at = $3,
                 failing_since = NULL, breaker_step = 0, breaker_until = NULL, breaker_ramp = 0, probe_until = NULL,
                 throttled_until = NULL
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
