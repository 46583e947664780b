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
        self.pending + self.backoff + self.leased + self.parked
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

fn by_state(rows: Vec<(String, i64)>) -> Counts {
    let mut counts = Counts::default();
    for (state, count) in rows {
        let count = u64::try_from(count).unwrap_or(0);
        match state.as_str() {
            "pending" => counts.pending = count,
            "backoff" => counts.backoff = count,
            "leased" => counts.leased = count,
            "parked" => counts.parked = count,
            "delivered" => counts.delivered = count,
            // The table's CHECK leaves no other state.
            _ => counts.dead = count,
        }
    }
    counts
}
