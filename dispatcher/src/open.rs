//! How much is open, and what nobody moves: for metrics and for whoever looks whether all is well.

use std::time::Duration;

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Conn, StoreError};

use crate::store::counts;

/// A minute longer than it should take: a worker moves such rows within a second.
const OVERDUE: Duration = Duration::from_secs(60);
/// How far each is counted.
const MOST: i64 = 100_000;

/// Open deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Open {
    /// How many are in each state that is not final, counted to 100,000.
    pub by_state: [(&'static str, u64); 5],
    /// How many should have been moved on a minute ago: due retries, and leases that are over.
    pub overdue: [(&'static str, u64); 2],
}

/// Counts what is open along the indexes of what waits, whatever lies around it.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn open(conn: &mut Conn<'_>, now: Timestamp) -> Result<Open, StoreError> {
    let [pending, backoff, leased, parked, blocked] = counts::open(conn, MOST).await?;
    let [due, ended] = counts::overdue(conn, now.minus(OVERDUE), MOST).await?;
    Ok(Open {
        by_state: [
            ("pending", pending),
            ("backoff", backoff),
            ("leased", leased),
            ("parked", parked),
            ("blocked", blocked),
        ],
        overdue: [("backoff", due), ("leased", ended)],
    })
}
