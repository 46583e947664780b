//! Fan-out: from an event to its deliveries.
//!
//! Place in the path: the last statement of a publish. Where the tenant has more than 500 endpoints, publish leaves a row
//! here instead, and workers make the deliveries, a page of endpoints in each transaction.
//! Invariants: a publish reads at most so many endpoints for each event; page and mark are one transaction, so that a fan-out
//! that is cut off goes on where it was; a tenant's fan-outs are made one after another, and an event with an ordering
//! key never overtakes one, so that the order of deliveries is that of the events.

use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::json;

/// An event that is new and has to be fanned out.
#[derive(Debug, Serialize)]
pub struct FreshEvent<'a> {
    /// Whose event it is.
    pub tenant: &'a str,
    /// The minted id.
    pub id: &'a str,
    /// The event type, which the endpoints' filters are asked for.
    pub event_type: &'a str,
    /// The channels as a JSON array, of which an endpoint with channels has to have one.
    pub channels: &'a str,
    /// The ordering key.
    pub ordering_key: Option<&'a str>,
    /// From when on it is not sent any more, in milliseconds.
    pub expires_at: Option<i64>,
}

/// Begins a statement that makes deliveries of an event `v` for an endpoint `e`: one with an ordering key waits until it is looked
/// whether another is before it; else it is pending, or parked where the endpoint is disabled, so that it can be delivered once
/// it is enabled. `$now` and `$deadline` are parameters. A tenant that nobody entered is of the default organisation, as in
/// `manage`.
macro_rules! delivery {
    ($now:literal, $deadline:literal) => {
        concat!(
            "INSERT INTO twiceproof_deliveries
                 (tenant, event, endpoint, state, state_reason, due_at, deadline_at, created_at, ordering_key, expires_at,
                  at_most_once)
             SELECT e.tenant, v.id, e.id,
                    CASE WHEN v.ordering_key IS NOT NULL THEN 'blocked'
                         WHEN e.state = 'enabled' THEN 'pending' ELSE 'parked' END,
                    CASE WHEN v.ordering_key IS NULL AND e.state <> 'enabled' THEN 'endpoint_disabled' END,
                    ",
            $now,
            ", coalesce(",
            $now,
            " + e.horizon_ms, ",
            $deadline,
            "), ",
            $now,
            ", v.ordering_key, v.expires_at,
                    CASE WHEN EXISTS (
                        SELECT 1 FROM twiceproof_event_types y
                        WHERE y.name = v.event_type AND y.guarantee = 'at_most_once' AND y.organisation = coalesce(
                            (SELECT min(o.organisation) FROM twiceproof_tenants o WHERE o.id = e.tenant),
                            'org_000000000000000000000000000'))
                    THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END "
        )
    };
}
pub(super) use delivery;

/// The part of a statement that asks whether the endpoint `e` takes the event `v`. Each database has its own way to read JSON.
macro_rules! takes {
    (sqlite) => {
        takes!("json_each(e.channels) c JOIN json_each(v.channels) w ON w.value = c.value")
    };
    (postgres) => {
        takes!(
            "json_array_elements_text(e.channels::json) c
                 JOIN json_array_elements_text(v.channels::json) w ON w.value = c.value"
        )
    };
    ($shared_channel:literal) => {
        concat!(
            "(e.all_event_types = 1 OR EXISTS (
                 SELECT 1 FROM twiceproof_endpoint_event_types t
                 WHERE t.tenant = e.tenant AND t.endpoint = e.id AND t.event_type = v.event_type))
             AND (e.channels = '[]' OR EXISTS (SELECT 1 FROM ",
            $shared_channel,
            "))"
        )
    };
}
pub(super) use takes;

/// Makes one delivery for each endpoint that takes the event, or leaves that to the workers where there are many. An endpoint's
/// own horizon goes before `deadline_at`. Returns how many rows there are for workers to do.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn fan_out(
    conn: &mut Conn<'_>,
    events: &[FreshEvent<'_>],
    now: Timestamp,
    deadline_at: Timestamp,
) -> Result<u64, StoreError> {
    let rows = events.iter().enumerate().map(|(n, event)| Numbered { n, event });
    let rows = json(&rows.collect::<Vec<_>>())?;
    let args = [Arg::from(&rows), now.into(), deadline_at.into()];
    match conn.database() {
        // Differs because SQLite has no statement that writes two tables.
        Database::Sqlite => {
            let left = conn
                .execute(
                    "INSERT INTO twiceproof_fan_outs (tenant, event, deadline_at, created_at)
                     SELECT r.value ->> 'tenant', r.value ->> 'id', $3, $2 FROM jsonb_each($1) r
                     WHERE (SELECT count(*) FROM (SELECT 1 FROM twiceproof_endpoints e
                            WHERE e.tenant = r.value ->> 'tenant' LIMIT 501)) > 500
                        OR (r.value ->> 'ordering_key' IS NOT NULL AND EXISTS (
                            SELECT 1 FROM twiceproof_fan_outs f WHERE f.tenant = r.value ->> 'tenant'))
                     ORDER BY r.value ->> 'n'",
                    &args,
                )
                .await?;
            let made = conn
                .execute(
                    concat!(
                        delivery!("$2", "$3"),
                        "FROM (SELECT value ->> 'n' AS n, value ->> 'tenant' AS tenant, value ->> 'id' AS id,
                             value ->> 'event_type' AS event_type, value ->> 'channels' AS channels,
                             value ->> 'ordering_key' AS ordering_key, value ->> 'expires_at' AS expires_at
                         FROM jsonb_each($1)) v
                         JOIN twiceproof_endpoints e ON e.tenant = v.tenant
                         WHERE NOT EXISTS (
                             SELECT 1 FROM twiceproof_fan_outs f WHERE f.tenant = v.tenant AND f.event = v.id)
                         AND ",
                        takes!(sqlite),
                        " ORDER BY v.n, e.id"
                    ),
                    &args,
                )
                .await?;
            Ok(left + made)
        }
        // Differs because PostgreSQL does it in one round trip.
        Database::Postgres => {
            let (rows,): (i64,) = conn
                .fetch_one(
                    concat!(
                        "WITH v AS MATERIALIZED (
                             SELECT r.*, (SELECT count(*) FROM (SELECT 1 FROM twiceproof_endpoints e
                                 WHERE e.tenant = r.tenant LIMIT 501) few) > 500
                                 OR (r.ordering_key IS NOT NULL AND EXISTS (
                                     SELECT 1 FROM twiceproof_fan_outs f WHERE f.tenant = r.tenant)) AS is_wide
                             FROM json_to_recordset($1::json) AS r (n bigint, tenant text, id text, event_type text,
                                 channels text, ordering_key text, expires_at bigint)),
                         left_over AS (
                             INSERT INTO twiceproof_fan_outs (tenant, event, deadline_at, created_at)
                             SELECT v.tenant, v.id, $3, $2 FROM v WHERE v.is_wide ORDER BY v.n RETURNING 1),
                         made AS (",
                        delivery!("$2", "$3"),
                        "FROM v JOIN twiceproof_endpoints e ON e.tenant = v.tenant WHERE NOT v.is_wide AND ",
                        takes!(postgres),
                        " ORDER BY v.n, e.id RETURNING 1)
                         SELECT (SELECT count(*) FROM left_over) + (SELECT count(*) FROM made)"
                    ),
                    &args,
                )
                .await?;
            Ok(u64::try_from(rows).unwrap_or(0))
        }
    }
}

#[derive(Serialize)]
struct Numbered<'a> {
    n: usize,
    #[serde(flatten)]
    event: &'a FreshEvent<'a>,
}

/// How many endpoints one transaction looks at: as many as a publish does.
const PAGE: i64 = 500;

/// A fan-out on its way.
#[derive(Debug, sqlx::FromRow)]
struct FanOut {
    tenant: String,
    event: String,
    /// Endpoints up to this one have their deliveries.
    after_endpoint: String,
    /// Until when deliveries are tried, where the endpoint has no horizon of its own.
    deadline_at: i64,
}

/// Makes one page of the fan-out that is first in turn: of the tenant behind `after`, round and round. Returns the tenant; none:
/// nothing is on its way.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn spread(conn: &mut Conn<'_>, after: &str, now: Timestamp) -> Result<Option<String>, StoreError> {
    let sql = "SELECT tenant FROM twiceproof_fan_outs WHERE tenant > $1 ORDER BY tenant LIMIT 1";
    let mut found: Option<(String,)> = conn.fetch_optional(sql, &[after.into()]).await?;
    if found.is_none() && !after.is_empty() {
        found = conn.fetch_optional(sql, &["".into()]).await?;
    }
    let Some((tenant,)) = found else { return Ok(None) };
    if let Some(fan_out) = hold_first(conn, &tenant).await? {
        page(conn, &fan_out, now).await?;
    }
    Ok(Some(tenant))
}

/// The first fan-out of a tenant, held until the end of the transaction; none where another worker is at it.
async fn hold_first(conn: &mut Conn<'_>, tenant: &str) -> Result<Option<FanOut>, StoreError> {
    let sql = "SELECT tenant, event, after_endpoint, deadline_at FROM twiceproof_fan_outs
         WHERE tenant = $1 ORDER BY seq LIMIT 1";
    let Some(first): Option<FanOut> = conn.fetch_optional(sql, &[tenant.into()]).await? else { return Ok(None) };
    let sql = match conn.database() {
        Database::Sqlite => return Ok(Some(first)),
        // Differs because several workers look at once. It is looked up again by its key: a search that skipped what is held
        // would come back with the second of the tenant.
        Database::Postgres => {
            "SELECT tenant, event, after_endpoint, deadline_at FROM twiceproof_fan_outs
             WHERE tenant = $1 AND event = $2 FOR UPDATE SKIP LOCKED"
        }
    };
    conn.fetch_optional(sql, &[tenant.into(), Arg::from(&first.event)]).await
}

/// Makes the deliveries of a fan-out for the endpoints of its next page, those that take the event and are older than it, and
/// marks how far it has come; its row goes with the last page.
async fn page(conn: &mut Conn<'_>, fan_out: &FanOut, now: Timestamp) -> Result<(), StoreError> {
    let FanOut { tenant, event, after_endpoint, deadline_at } = fan_out;
    let (tenant, event): (Arg<'_>, Arg<'_>) = (tenant.into(), event.into());
    let sql = "SELECT max(id), count(*) FROM (
             SELECT id FROM twiceproof_endpoints WHERE tenant = $1 AND id > $2 ORDER BY id LIMIT $3) page";
    let (last, count): (Option<String>, i64) =
        conn.fetch_one(sql, &[tenant, after_endpoint.into(), PAGE.into()]).await?;
    if let Some(last) = &last {
        let sql = match conn.database() {
            // Differs because each database has its own way to read JSON.
            Database::Sqlite => concat!(
                delivery!("$5", "$6"),
                "FROM twiceproof_events v JOIN twiceproof_endpoints e ON e.tenant = v.tenant AND e.id > $3 AND e.id <= $4
                 WHERE v.tenant = $1 AND v.id = $2 AND v.expunged_at IS NULL AND e.created_at <= v.created_at AND ",
                takes!(sqlite),
                " ORDER BY e.id ON CONFLICT DO NOTHING"
            ),
            // Differs because each database has its own way to read JSON.
            Database::Postgres => concat!(
                delivery!("$5", "$6"),
                "FROM twiceproof_events v JOIN twiceproof_endpoints e ON e.tenant = v.tenant AND e.id > $3 AND e.id <= $4
                 WHERE v.tenant = $1 AND v.id = $2 AND v.expunged_at IS NULL AND e.created_at <= v.created_at AND ",
                takes!(postgres),
                " ORDER BY e.id ON CONFLICT DO NOTHING"
            ),
        };
        let args = [tenant, event, after_endpoint.into(), last.into(), now.into(), (*deadline_at).into()];
        conn.execute(sql, &args).await?;
    }
    match last.filter(|_| count == PAGE) {
        Some(last) => {
            let sql = "UPDATE twiceproof_fan_outs SET after_endpoint = $3 WHERE tenant = $1 AND event = $2";
            conn.execute(sql, &[tenant, event, (&last).into()]).await?;
        }
        None => {
            conn.execute("DELETE FROM twiceproof_fan_outs WHERE tenant = $1 AND event = $2", &[tenant, event]).await?;
        }
    }
    Ok(())
}
