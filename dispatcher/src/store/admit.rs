//! What a claim may take of endpoints that are limited: by a rate of their own or their tenant's, or by a breaker that lets one
//! probe through.
//!
//! Place in the path: between the look for lanes and the lease; where no lane is limited it costs no statement.
//! Invariants: the rows that say what is left are read under their locks and written before the claim commits, so that all
//! workers together keep to a limit. Nobody waits for them: what another worker's claim or record holds gets nothing this time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::json;
use super::lanes::{Lane, shares};
use crate::breaker::Allowed;
use crate::rate::Rate;

/// What may be taken of each lane that is limited.
#[derive(Debug, Default)]
pub(super) struct Admission {
    endpoints: HashMap<String, Grant>,
    tenants: BTreeMap<String, Rate>,
    limited_tenants: BTreeSet<String>,
}

#[derive(Debug)]
struct Grant {
    tenant: String,
    rate: Option<Rate>,
    is_probe: bool,
}

/// Asks for what these lanes may take, and locks what says so.
pub(super) async fn ask(conn: &mut Conn<'_>, lanes: &[Lane], now: Timestamp) -> Result<Admission, StoreError> {
    let asks = |lane: &&Lane| match lane.allowed(now) {
        Allowed::Nothing => false,
        Allowed::Probe => true,
        Allowed::All | Allowed::Some(_) => lane.rate_limit().is_some(),
    };
    let mut admission = Admission::default();
    let asking: Vec<&Lane> = lanes.iter().filter(asks).collect();
    if !asking.is_empty() {
        let keys = asking.iter().map(|lane| Key { tenant: &lane.tenant, endpoint: &lane.endpoint });
        let mut held = endpoints(conn, &json(&keys.collect::<Vec<_>>())?).await?;
        for lane in asking {
            let Some(row) = held.remove(&lane.endpoint) else { continue };
            // Another worker's claim may have come between.
            let is_probe = lane.allowed(now) == Allowed::Probe;
            if is_probe && row.probe_until.is_some_and(|until| now.as_millis() < until) {
                continue;
            }
            let rate = lane.rate_limit().map(|per_second| Rate { per_second, next_free_us: row.next_free_us });
            admission.endpoints.insert(lane.endpoint.clone(), Grant { tenant: lane.tenant.clone(), rate, is_probe });
        }
    }
    admission.limited_tenants =
        lanes.iter().filter(|lane| lane.tenant_limit.is_some()).map(|lane| lane.tenant.clone()).collect();
    if !admission.limited_tenants.is_empty() {
        let ids: Vec<&String> = admission.limited_tenants.iter().collect();
        admission.tenants = tenants(conn, &json(&ids)?).await?;
    }
    Ok(admission)
}

impl Admission {
    /// At most this much of `room` may be taken of each lane.
    pub(super) fn limit(&self, lanes: &[Lane], rooms: &mut [u32], now: Timestamp) {
        for (lane, room) in lanes.iter().zip(rooms.iter_mut()) {
            *room = (*room).min(self.allows(lane, now));
        }
        for tenant in &self.limited_tenants {
            let left = self.tenants.get(tenant).map_or(0, |rate| rate.allows(now));
            let own = || lanes.iter().enumerate().filter(|(_, lane)| lane.tenant == *tenant).map(|(at, _)| at);
            let wanted: Vec<u32> = own().filter_map(|at| rooms.get(at).copied()).collect();
            for (at, share) in own().zip(shares(&wanted, left)) {
                if let Some(room) = rooms.get_mut(at) {
                    *room = share;
                }
            }
        }
    }

    fn allows(&self, lane: &Lane, now: Timestamp) -> u32 {
        let grant = self.endpoints.get(&lane.endpoint);
        let rate = grant.and_then(|grant| grant.rate).map_or(0, |rate| rate.allows(now));
        match (lane.allowed(now), lane.rate_limit()) {
            (Allowed::Nothing, _) => 0,
            (Allowed::Probe, None) => u32::from(grant.is_some()),
            (Allowed::Probe, Some(_)) => rate.min(1),
            (Allowed::All | Allowed::Some(_), None) => u32::MAX,
            (Allowed::All | Allowed::Some(_), Some(_)) => rate,
        }
    }

    /// Writes what was taken: how many of each lane, and until when their leases last.
    pub(super) async fn spend(
        self,
        conn: &mut Conn<'_>,
        taken: &HashMap<&str, Taken>,
        lanes: &[Lane],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut spent = Vec::new();
        for (endpoint, grant) in &self.endpoints {
            let Some(taken) = taken.get(endpoint.as_str()) else { continue };
            let next_free_us = grant.rate.map(|rate| rate.after(taken.count, now).next_free_us);
            let probe_until = grant.is_probe.then_some(taken.lease_until);
            spent.push(Spent { tenant: &grant.tenant, endpoint: Some(endpoint), next_free_us, probe_until });
        }
        if !spent.is_empty() {
            write_endpoints(conn, &json(&spent)?).await?;
        }
        let mut spent = Vec::new();
        for (tenant, rate) in &self.tenants {
            let own = lanes.iter().filter(|lane| lane.tenant == *tenant);
            let count = own.filter_map(|lane| taken.get(lane.endpoint.as_str())).map(|taken| taken.count).sum::<u32>();
            if count > 0 {
                let next_free_us = Some(rate.after(count, now).next_free_us);
                spent.push(Spent { tenant, endpoint: None, next_free_us, probe_until: None });
            }
        }
        if !spent.is_empty() {
            write_tenants(conn, &json(&spent)?).await?;
        }
        Ok(())
    }
}

/// What was taken of a lane.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    pub(super) count: u32,
    pub(super) lease_until: i64,
}

#[derive(Serialize)]
struct Key<'a> {
    tenant: &'a str,
    endpoint: &'a str,
}

#[derive(Serialize)]
struct Spent<'a> {
    tenant: &'a str,
    endpoint: Option<&'a str>,
    next_free_us: Option<i64>,
    probe_until: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct Held {
    id: String,
    next_free_us: i64,
    probe_until: Option<i64>,
}

/// The rows of these endpoints that nobody else holds, by id.
async fn endpoints(conn: &mut Conn<'_>, keys: &str) -> Result<HashMap<String, Held>, StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "SELECT e.id, e.next_free_us, e.probe_until FROM jsonb_each($1) k
             CROSS JOIN twiceproof_endpoints e ON e.tenant = k.value ->> 'tenant' AND e.id = k.value ->> 'endpoint'"
        }
        // Differs because other workers claim: what one of them holds is skipped.
        Database::Postgres => {
            "SELECT e.id, e.next_free_us, e.probe_until
             FROM json_to_recordset($1::json) AS k (tenant text, endpoint text)
             JOIN twiceproof_endpoints e ON e.tenant = k.tenant AND e.id = k.endpoint
             FOR UPDATE OF e SKIP LOCKED"
        }
    };
    let rows: Vec<Held> = conn.fetch_all(sql, &[Arg::from(keys)]).await?;
    Ok(rows.into_iter().map(|row| (row.id.clone(), row)).collect())
}

/// The limits of these tenants, where nobody else holds their rows.
async fn tenants(conn: &mut Conn<'_>, ids: &str) -> Result<BTreeMap<String, Rate>, StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "SELECT t.id, t.rate_limit, t.next_free_us FROM json_each($1) k
             CROSS JOIN twiceproof_tenants t ON t.id = k.value AND t.rate_limit IS NOT NULL"
        }
        // Differs because other workers claim: what one of them holds is skipped.
        Database::Postgres => {
            "SELECT t.id, t.rate_limit, t.next_free_us FROM json_array_elements_text($1::json) AS k (id)
             JOIN twiceproof_tenants t ON t.id = k.id AND t.rate_limit IS NOT NULL
             FOR UPDATE OF t SKIP LOCKED"
        }
    };
    let rows: Vec<(String, i64, i64)> = conn.fetch_all(sql, &[Arg::from(ids)]).await?;
    let rate = |(id, limit, next_free_us)| {
        let per_second = u32::try_from(limit).unwrap_or(u32::MAX);
        (id, Rate { per_second, next_free_us })
    };
    Ok(rows.into_iter().map(rate).collect())
}

async fn write_endpoints(conn: &mut Conn<'_>, rows: &str) -> Result<(), StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "UPDATE twiceproof_endpoints AS e SET
                 next_free_us = coalesce(r.value ->> 'next_free_us', e.next_free_us),
                 probe_until = coalesce(r.value ->> 'probe_until', e.probe_until)
             FROM jsonb_each($1) r WHERE e.tenant = r.value ->> 'tenant' AND e.id = r.value ->> 'endpoint'"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "UPDATE twiceproof_endpoints e SET
                 next_free_us = coalesce(r.next_free_us, e.next_free_us),
                 probe_until = coalesce(r.probe_until, e.probe_until)
             FROM json_to_recordset($1::json) AS r
                 (tenant text, endpoint text, next_free_us bigint, probe_until bigint)
             WHERE e.tenant = r.tenant AND e.id = r.endpoint"
        }
    };
    conn.execute(sql, &[Arg::from(rows)]).await?;
    Ok(())
}

async fn write_tenants(conn: &mut Conn<'_>, rows: &str) -> Result<(), StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "UPDATE twiceproof_tenants AS t SET next_free_us = r.value ->> 'next_free_us'
             FROM jsonb_each($1) r WHERE t.id = r.value ->> 'tenant' AND t.rate_limit IS NOT NULL"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "UPDATE twiceproof_tenants t SET next_free_us = r.next_free_us
             FROM json_to_recordset($1::json) AS r (tenant text, next_free_us bigint)
             WHERE t.id = r.tenant AND t.rate_limit IS NOT NULL"
        }
    };
    conn.execute(sql, &[Arg::from(rows)]).await?;
    Ok(())
}
