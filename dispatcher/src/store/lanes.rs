//! Lanes: endpoints with pending deliveries, and how a worker's free slots are divided among them.
//!
//! Place in the path: the first part of the claim.
//! Invariants: each lane is found by a seek from the one before, so the cost does not grow with the backlog; no lane gets
//! more than its endpoint's slots leave, and none is passed over for ever: a claim begins behind the last lane served.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::json;
use crate::breaker::{Allowed, State};

/// How many endpoints one claim looks at.
pub(super) const MOST_LANES: i64 = 256;

/// How many times its slots a quick endpoint may have waiting for them: enough for the time that a claim takes.
const AHEAD: u32 = 3;

/// An endpoint with pending deliveries.
#[derive(Debug, sqlx::FromRow)]
pub(super) struct Lane {
    pub(super) tenant: String,
    pub(super) endpoint: String,
    /// The number of its oldest pending delivery.
    pub(super) seq: i64,
    pub(super) state: Option<String>,
    timeout_ms: Option<i64>,
    slots: Option<i64>,
    breaker_step: Option<i64>,
    breaker_until: Option<i64>,
    breaker_ramp: Option<i64>,
    throttled_until: Option<i64>,
    probe_until: Option<i64>,
    rate_limit: Option<i64>,
    /// Deliveries per second over all of its tenant's endpoints.
    pub(super) tenant_limit: Option<i64>,
}

impl Lane {
    /// How many more deliveries may be claimed for it: as many as it has slots, and [`AHEAD`] times as many again where it
    /// is quick. While its breaker comes back, as many as that says.
    pub(super) fn room(&self, busy: &HashMap<String, u32>, quick: &HashSet<String>, now: Timestamp) -> u32 {
        let slots = self.slots.and_then(|slots| u32::try_from(slots).ok()).unwrap_or(0);
        let (slots, may_wait) = match self.allowed(now) {
            Allowed::All => (slots, quick.contains(&self.endpoint)),
            Allowed::Some(most) => (slots.min(most), false),
            // What is left of before it opened does not keep the probe from going.
            Allowed::Probe => return 1,
            Allowed::Nothing => return 0,
        };
        let ahead = if may_wait { slots.saturating_mul(AHEAD) } else { 0 };
        slots.saturating_add(ahead).saturating_sub(busy.get(&self.endpoint).copied().unwrap_or(0))
    }

    /// What its breaker and its own wishes let through.
    pub(super) fn allowed(&self, now: Timestamp) -> Allowed {
        let count = |stored: Option<i64>| stored.and_then(|stored| u32::try_from(stored).ok()).unwrap_or(0);
        let at = |stored: Option<i64>| stored.map(Timestamp::from_millis);
        let state = State {
            step: count(self.breaker_step),
            open_until: at(self.breaker_until),
            ramp: count(self.breaker_ramp),
            throttled_until: at(self.throttled_until),
            ..State::default()
        };
        match state.allowed(now) {
            Allowed::Probe if at(self.probe_until).is_some_and(|until| now < until) => Allowed::Nothing,
            allowed => allowed,
        }
    }

    /// Deliveries per second.
    pub(super) fn rate_limit(&self) -> Option<u32> {
        self.rate_limit.and_then(|limit| u32::try_from(limit).ok())
    }

    /// The deadline of one attempt.
    pub(super) fn timeout(&self) -> Duration {
        let millis = self.timeout_ms.and_then(|millis| u64::try_from(millis).ok());
        Duration::from_millis(millis.unwrap_or(0))
    }
}

/// Endpoints with pending deliveries: those behind `after`, then those up to it.
pub(super) async fn find(conn: &mut Conn<'_>, after: &str) -> Result<Vec<Lane>, StoreError> {
    // Mostly there are fewer than one look finds, and then one is enough.
    let mut found = scan(conn, "", MOST_LANES).await?;
    if found.len() < MOST_LANES as usize {
        let behind = found.partition_point(|lane| lane.endpoint.as_str() <= after);
        found.rotate_left(behind);
        return Ok(found);
    }
    found = scan(conn, after, MOST_LANES).await?;
    let left = MOST_LANES - found.len() as i64;
    if !after.is_empty() && left > 0 {
        let from_the_start = scan(conn, "", left).await?;
        found.extend(from_the_start.into_iter().take_while(|lane| lane.endpoint.as_str() <= after));
    }
    Ok(found)
}

/// Those of the known endpoints with pending deliveries from their number on, in the same order. PostgreSQL alone has dead
/// entries to be passed over.
pub(super) async fn find_known(
    conn: &mut Conn<'_>,
    known: &BTreeMap<String, i64>,
    after: &str,
) -> Result<Vec<Lane>, StoreError> {
    let behind = |endpoint: &str| endpoint <= after;
    let (before, behind): (Vec<_>, Vec<_>) = known.iter().partition(|(endpoint, _)| behind(endpoint));
    let turn: Vec<KnownLane<'_>> = behind
        .into_iter()
        .chain(before)
        .map(|(endpoint, from_seq)| KnownLane { endpoint, from_seq: *from_seq })
        .collect();
    let sql = "SELECT f.tenant, k.endpoint, f.seq, e.state, e.timeout_ms, e.slots, e.breaker_step,
                 e.breaker_until, e.breaker_ramp, e.throttled_until, e.probe_until, e.rate_limit,
                 (SELECT min(t.rate_limit) FROM twiceproof_tenants t WHERE t.id = e.tenant AND t.rate_limit IS NOT NULL)
                     AS tenant_limit
         FROM json_to_recordset($1::json) AS k (endpoint text, from_seq bigint)
         CROSS JOIN LATERAL (
             SELECT p.tenant, p.seq FROM twiceproof_deliveries p
             WHERE p.state = 'pending' AND p.endpoint = k.endpoint AND p.seq >= k.from_seq ORDER BY p.seq LIMIT 1) f
         LEFT JOIN twiceproof_endpoints e ON e.tenant = f.tenant AND e.id = k.endpoint LIMIT $2";
    let mut lanes: Vec<Lane> = conn.fetch_all(sql, &[Arg::from(&json(&turn)?), MOST_LANES.into()]).await?;
    lanes.sort_by(|a, b| (a.endpoint.as_str() <= after, &a.endpoint).cmp(&(b.endpoint.as_str() <= after, &b.endpoint)));
    Ok(lanes)
}

#[derive(Serialize)]
struct KnownLane<'a> {
    endpoint: &'a str,
    from_seq: i64,
}

async fn scan(conn: &mut Conn<'_>, after: &str, limit: i64) -> Result<Vec<Lane>, StoreError> {
    let sql = match conn.database() {
        // Differs because SQLite's recursive part cannot hold a LIMIT of its own but in a scalar subquery.
        Database::Sqlite => {
            "WITH RECURSIVE lane (endpoint) AS (
                 SELECT (SELECT endpoint FROM twiceproof_deliveries WHERE state = 'pending' AND endpoint > $1
                         ORDER BY endpoint LIMIT 1)
                 UNION ALL
                 SELECT (SELECT d.endpoint FROM twiceproof_deliveries d
                         WHERE d.state = 'pending' AND d.endpoint > lane.endpoint ORDER BY d.endpoint LIMIT 1)
                 FROM lane WHERE lane.endpoint IS NOT NULL LIMIT $2)
             SELECT d.tenant, d.endpoint, d.seq, e.state, e.timeout_ms, e.slots, e.breaker_step,
                 e.breaker_until, e.breaker_ramp, e.throttled_until, e.probe_until, e.rate_limit,
                 (SELECT min(t.rate_limit) FROM twiceproof_tenants t WHERE t.id = e.tenant AND t.rate_limit IS NOT NULL)
                     AS tenant_limit
             FROM lane
             CROSS JOIN twiceproof_deliveries d ON d.seq = (
                 SELECT min(p.seq) FROM twiceproof_deliveries p WHERE p.state = 'pending' AND p.endpoint = lane.endpoint)
             LEFT JOIN twiceproof_endpoints e ON e.tenant = d.tenant AND e.id = d.endpoint
             WHERE lane.endpoint IS NOT NULL"
        }
        // Differs because PostgreSQL finds the next endpoint and its tenant with one LATERAL seek.
        Database::Postgres => {
            "WITH RECURSIVE lane AS (
                 (SELECT endpoint, tenant, seq FROM twiceproof_deliveries WHERE state = 'pending' AND endpoint > $1
                  ORDER BY endpoint, seq LIMIT 1)
                 UNION ALL
                 SELECT next.endpoint, next.tenant, next.seq FROM lane CROSS JOIN LATERAL (
                     SELECT d.endpoint, d.tenant, d.seq FROM twiceproof_deliveries d
                     WHERE d.state = 'pending' AND d.endpoint > lane.endpoint ORDER BY d.endpoint, d.seq LIMIT 1) next)
             SELECT l.tenant, l.endpoint, l.seq, e.state, e.timeout_ms, e.slots, e.breaker_step,
                 e.breaker_until, e.breaker_ramp, e.throttled_until, e.probe_until, e.rate_limit,
                 (SELECT min(t.rate_limit) FROM twiceproof_tenants t WHERE t.id = e.tenant AND t.rate_limit IS NOT NULL)
                     AS tenant_limit
             FROM (SELECT tenant, endpoint, seq FROM lane LIMIT $2) l
             LEFT JOIN twiceproof_endpoints e ON e.tenant = l.tenant AND e.id = l.endpoint
             ORDER BY l.endpoint"
        }
    };
    conn.fetch_all(sql, &[after.into(), limit.into()]).await
}

/// Divides `free` slots among lanes by turns of their tenants: first among the tenants, then among the lanes of each. A tenant
/// with ten thousand endpoints gets no more than one with a single one, while both have work.
pub(super) fn shares_by_tenant(lanes: &[Lane], rooms: &[u32], free: u32) -> Vec<u32> {
    let mut place: HashMap<&str, usize> = HashMap::new();
    let mut own: Vec<Vec<u32>> = Vec::new();
    for (lane, room) in lanes.iter().zip(rooms) {
        let at = *place.entry(&lane.tenant).or_insert_with(|| {
            own.push(Vec::new());
            own.len() - 1
        });
        own.get_mut(at).into_iter().for_each(|own| own.push(*room));
    }
    let wanted: Vec<u32> = own.iter().map(|own| own.iter().copied().fold(0, u32::saturating_add)).collect();
    let mut shared: Vec<_> =
        own.iter().zip(shares(&wanted, free)).map(|(own, free)| shares(own, free).into_iter()).collect();
    let next = |lane: &Lane| place.get(lane.tenant.as_str()).and_then(|at| shared.get_mut(*at)?.next()).unwrap_or(0);
    lanes.iter().map(next).collect()
}

/// Divides `free` slots among lanes that can take `rooms`: as evenly as they can take them, never more than there are.
pub(super) fn shares(rooms: &[u32], free: u32) -> Vec<u32> {
    let mut shares = vec![0; rooms.len()];
    let mut left = free;
    loop {
        let open = shares.iter().zip(rooms).filter(|(share, room)| share < room).count();
        let Ok(open @ 1..) = u32::try_from(open) else { return shares };
        let each = (left / open).max(1);
        for (share, room) in shares.iter_mut().zip(rooms) {
            let more = each.min(room - *share).min(left);
            *share += more;
            left -= more;
        }
        if left == 0 {
            return shares;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn send_d13_no_more_is_claimed_than_there_are_free_slots() {
        for free in 0..70 {
            for rooms in [&[][..], &[0], &[5], &[32, 32], &[1, 0, 3, 32], &[1; 40]] {
                let shares = shares(rooms, free);
                let room: u32 = rooms.iter().sum();
                assert_eq!(shares.iter().sum::<u32>(), room.min(free), "{rooms:?} {free}");
                assert!(shares.iter().zip(rooms).all(|(share, room)| share <= room));
            }
        }
    }

    #[test]
    fn slots_are_shared_evenly_and_what_one_lane_cannot_take_goes_to_the_others() {
        assert_eq!(shares(&[32, 32, 32], 30), [10, 10, 10]);
        assert_eq!(shares(&[2, 32, 32], 30), [2, 14, 14]);
        assert_eq!(shares(&[32, 32, 32], 2), [1, 1, 0]);
        assert_eq!(shares(&[32, 32], 512), [32, 32]);
    }
}
