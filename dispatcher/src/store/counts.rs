//! How many deliveries are in which state.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::store::{Conn, StoreError};

/// Deliveries by state. Their sum is what was accepted: nothing is lost between states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Claimable now.
    pub pending: u64,
    /// Waiting for their next attempt.
    pub backoff: u64,
    /// Under a worker's lease.
    pub leased: u64,
    /// Waiting for their endpoint to be enabled.
    pub parked: u64,
    /// Waiting for an earlier one with their ordering key.
    pub blocked: u64,
    /// Taken by the receiver.
    pub delivered: u64,
    /// Not tried again by themselves.
    pub dead: u64,
}

impl Counts {
    /// All deliveries that were ever accepted and are still stored.
    pub fn accepted(&self) -> u64 {
        self.open() + self.delivered + self.dead
    }

    /// Deliveries that are still to be made.
    pub fn open(&self) -> u64 {
        self.pending + self.backoff + self.leased + self.parked + self.blocked
    }
}

/// Counts what one endpoint was or is owed, of events between two times.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn of_endpoint(
    conn: &mut Conn<'_>,
    tenant: &str,
    endpoint: &str,
    since: Timestamp,
    until: Timestamp,
) -> Result<Counts, StoreError> {
    let lowest = |time| Id::lowest_at(Prefix::Event, time);
    let rows: Vec<(String, i64)> = conn
        .fetch_all(
            "SELECT state, count(*) FROM twiceproof_deliveries
             WHERE tenant = $1 AND endpoint = $2 AND event >= $3 AND event < $4 GROUP BY state",
            &[tenant.into(), endpoint.into(), (&lowest(since)).into(), (&lowest(until)).into()],
        )
        .await?;
    Ok(by_state(rows))
}

/// Counts the deliveries of a tenant, or of all. Reads every row: for reports and tests, not for hot paths.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn counts(conn: &mut Conn<'_>, tenant: Option<&str>) -> Result<Counts, StoreError> {
    let rows: Vec<(String, i64)> = match tenant {
        Some(tenant) => {
            conn.fetch_all(
                "SELECT state, count(*) FROM twiceproof_deliveries WHERE tenant = $1 GROUP BY state",
                &[tenant.into()],
            )
            .await?
        }
        None => conn.fetch_all("SELECT state, count(*) FROM twiceproof_deliveries GROUP BY state", &[]).await?,
    };
    Ok(by_state(rows))
}

/// How many deliveries are pending, in backoff, leased, parked and blocked, each counted to `most`.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn open(conn: &mut Conn<'_>, most: i64) -> Result<[u64; 5], StoreError> {
    let (pending, backoff, leased, parked, blocked): (i64, i64, i64, i64, i64) = conn
        .fetch_one(
            "SELECT
                 (SELECT count(*) FROM (SELECT 1 FROM twiceproof_deliveries WHERE state = 'pending' LIMIT $1) a),
                 (SELECT count(*) FROM (SELECT 1 FROM twiceproof_deliveries WHERE state = 'backoff' LIMIT $1) b),
                 (SELECT count(*) FROM (SELECT 1 FROM twiceproof_deliveries WHERE state = 'leased' LIMIT $1) c),
                 (SELECT count(*) FROM (SELECT 1 FROM twiceproof_deliveries WHERE state = 'parked' LIMIT $1) d),
                 (SELECT count(*) FROM (SELECT 1 FROM twiceproof_deliveries WHERE state = 'blocked' LIMIT $1) f)",
            &[most.into()],
        )
        .await?;
    Ok([pending, backoff, leased, parked, blocked].map(|count| u64::try_from(count).unwrap_or(0)))
}

/// How many retries were due before a time, and how many leases were over before it, each counted to `most`.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn overdue(conn: &mut Conn<'_>, before: Timestamp, most: i64) -> Result<[u64; 2], StoreError> {
    let (due, ended): (i64, i64) = conn
        .fetch_one(
            "SELECT
                 (SELECT count(*) FROM (SELECT 1 FROM twiceproof_deliveries
                  WHERE state = 'backoff' AND due_at < $1 LIMIT $2) a),
                 (SELECT count(*) FROM (SELECT 1 FROM twiceproof_deliveries
                  WHERE state = 'leased' AND lease_until < $1 LIMIT $2) b)",
            &[before.into(), most.into()],
        )
        .await?;
    Ok([due, ended].map(|count| u64::try_from(count).unwrap_or(0)))
}

fn by_state(rows: Vec<(String, i64)>) -> Counts {
    let mut counts = Counts::default();
    for (state, count) in rows {
        let count = u64::try_from(count).unwrap_or(0);
        match state.as_str() {
            "pending" => counts.pending = count,
            "backoff" => counts.backoff = count,
            "leased" => counts.leased = count,
            "parked" => counts.parked = count,
            "blocked" => counts.blocked = count,
            "delivered" => counts.delivered = count,
            // The table's CHECK leaves no other state.
            _ => counts.dead = count,
        }
    }
    counts
}
