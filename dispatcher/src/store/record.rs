//! The record: what came of attempts, one transaction for each batch.
//!
//! Place in the path: the end of deliver's path; takes the [`ClaimedDelivery`] back.
//! Invariants: a delivery changes only where it is still leased under the token of its claim; an attempt whose token was
//! lost is kept as late and changes nothing. An attempt is known by its id, so a batch that is recorded a second time,
//! because its first commit was unknown, changes nothing and marks nothing as late.

use std::collections::{BTreeSet, HashSet};

use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::claim::ClaimedDelivery;
pub use super::finished::{Finished, Span};
use super::health::{self, Change, Sign, Turn};
use super::{DeliveryKey, attempts, from_json, json, ordering, resend, waiting};
use crate::breaker::Verdict;
use crate::decide::{DeadReason, Decision};
use crate::operational::{Telling, What};

/// What a batch changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recorded {
    /// Deliveries that were taken by their receivers.
    pub delivered: u64,
    /// Deliveries that will be tried again.
    pub retried: u64,
    /// Deliveries that ended as dead.
    pub dead: u64,
    /// Deliveries that were parked with their endpoint, those that waited included.
    pub parked: u64,
    /// Attempts whose lease was lost; they changed nothing.
    pub late: u64,
    /// Deliveries that waited for one of these because of their ordering key, and now can be claimed.
    pub unblocked: u64,
}

/// How things turned with a batch.
#[derive(Debug, Default)]
pub struct Turned {
    /// The health of endpoints.
    pub endpoints: Vec<Change>,
    /// What the organisation is told.
    pub(crate) tellings: Vec<Telling>,
}

impl Recorded {
    /// Adds what another batch changed.
    pub fn add(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.retried += other.retried;
        self.dead += other.dead;
        self.parked += other.parked;
        self.late += other.late;
        self.unblocked += other.unblocked;
    }
}

/// Records a batch.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn record(conn: &mut Conn<'_>, batch: &[Finished], now: Timestamp) -> Result<Recorded, StoreError> {
    record_and_tell(conn, batch, now).await.map(|(recorded, _)| recorded)
}

/// Records a batch; beside it, how things turned with it.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn record_and_tell(
    conn: &mut Conn<'_>,
    batch: &[Finished],
    now: Timestamp,
) -> Result<(Recorded, Turned), StoreError> {
    if batch.is_empty() {
        return Ok((Recorded::default(), Turned::default()));
    }
    let mut batch: Vec<&Finished> = batch.iter().collect();
    batch.sort_unstable_by(|a, b| a.claimed.key.cmp(&b.claimed.key));
    let (by_hand, scheduled): (Vec<&Finished>, Vec<&Finished>) = batch.iter().partition(|one| one.claimed.by_hand);
    let mut advanced = advance(conn, &scheduled, now).await?;
    for one in by_hand {
        if resend::settle(conn, &one.claimed, one.is_success(), now).await? {
            advanced.insert(one.claimed.seq);
        }
    }
    let (fresh, late): (Vec<&Finished>, Vec<&Finished>) =
        batch.into_iter().partition(|one| advanced.contains(&one.claimed.seq));
    attempts::insert(conn, &fresh, false).await?;
    // Of those that moved nothing, some are there already: an earlier run of this unit recorded them, with all that
    // followed from them.
    let late = attempts::insert(conn, &late, true).await?;
    let mut recorded = Recorded { late, ..Recorded::default() };
    let signs: Vec<Sign<'_>> = fresh.iter().filter_map(|one| one.sign()).collect();
    let changes = health::update(conn, &signs, now).await?;
    let disabled = changes.iter().filter(|change| change.turn.is_disabled());
    // Also where somebody else had disabled it meanwhile.
    let gone = signs.iter().filter(|sign| sign.said.verdict == Verdict::Gone).map(|sign| (sign.tenant, sign.endpoint));
    let parked: BTreeSet<(&str, &str)> =
        disabled.map(|change| (change.tenant.as_str(), change.endpoint.as_str())).chain(gone).collect();
    for (tenant, endpoint) in parked {
        recorded.parked += waiting::park_pending(conn, tenant, endpoint, now, MOST_PARKED).await?;
        recorded.parked += waiting::park_backoff(conn, tenant, endpoint, now, MOST_PARKED).await?;
    }
    let ended = fresh.iter().filter(|one| one.has_ended() || one.claimed.by_hand).map(|one| one.ended());
    recorded.unblocked = ordering::unblock(conn, ended.collect(), now).await?;
    let mut tellings: Vec<Telling> = fresh.iter().filter_map(|one| one.telling()).collect();
    tellings.extend(changes.iter().filter_map(|change| telling(change, now)));
    for one in fresh {
        // A delivery that was sent again by hand and failed goes back to what it was.
        match one.decision {
            _ if one.claimed.by_hand && !one.is_success() => {}
            Decision::Delivered => recorded.delivered += 1,
            Decision::Retry { .. } => recorded.retried += 1,
            Decision::Dead { .. } => recorded.dead += 1,
            Decision::DisableEndpoint if one.claimed.at_most_once => recorded.dead += 1,
            Decision::DisableEndpoint => recorded.parked += 1,
        }
    }
    Ok((recorded, Turned { endpoints: changes, tellings }))
}

/// Gives leases back whose requests were not sent: no attempt was made. Returns how many were still held.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn release(conn: &mut Conn<'_>, claimed: &[ClaimedDelivery]) -> Result<u64, StoreError> {
    let mut rows: Vec<Release<'_>> =
        claimed.iter().map(|one| Release { seq: one.seq, key: &one.key, token: one.token }).collect();
    rows.sort_unstable_by_key(|row| row.key);
    let rows = json(&rows)?;
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "UPDATE twiceproof_deliveries AS d SET state = 'pending', lease_owner = NULL, lease_until = 0
             FROM jsonb_each($1) r
             WHERE d.seq = r.value ->> 'seq' AND d.event = r.value ->> 'event'
               AND d.state = 'leased' AND d.token = r.value ->> 'token'"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "UPDATE twiceproof_deliveries d SET state = 'pending', lease_owner = NULL, lease_until = 0
             FROM json_to_recordset($1::json) AS r (tenant text, event text, endpoint text, token bigint)
             WHERE d.tenant = r.tenant AND d.event = r.event AND d.endpoint = r.endpoint
               AND d.state || '' = 'leased' AND d.token = r.token"
        }
    };
    conn.execute(sql, &[Arg::from(&rows)]).await
}

/// How many waiting deliveries are parked with their endpoint at once; what is left is parked by the claim.
const MOST_PARKED: i64 = 10_000;

/// What the organisation is told of how an endpoint's health turned.
fn telling(change: &Change, now: Timestamp) -> Option<Telling> {
    let what = match change.turn {
        Turn::Gone => What::Disabled("gone", now),
        Turn::Failing { since } => What::Disabled("failing", since),
        Turn::Opened { .. } | Turn::Recovered => return None,
    };
    Some(Telling { tenant: change.tenant.clone(), endpoint: change.endpoint.clone(), what })
}

#[derive(Serialize)]
struct Release<'a> {
    seq: i64,
    #[serde(flatten)]
    key: &'a DeliveryKey,
    token: i64,
}

#[derive(Serialize)]
struct DeliveryRow<'a> {
    seq: i64,
    #[serde(flatten)]
    key: &'a DeliveryKey,
    token: i64,
    state: &'static str,
    reason: Option<&'static str>,
    due_at: Option<i64>,
    final_at: Option<i64>,
}

/// Moves the deliveries on where the token still is the claim's; the numbers of those that were moved.
async fn advance(conn: &mut Conn<'_>, batch: &[&Finished], now: Timestamp) -> Result<HashSet<i64>, StoreError> {
    if batch.is_empty() {
        return Ok(HashSet::new());
    }
    let rows = batch.iter().map(|one| {
        let (state, reason, due_at) = match one.decision {
            Decision::Delivered => ("delivered", None, None),
            Decision::Retry { due_at } => ("backoff", None, Some(due_at.as_millis())),
            Decision::Dead { reason } => ("dead", Some(reason.as_str()), None),
            // Parked it would be sent a second time once the endpoint is enabled.
            Decision::DisableEndpoint if one.claimed.at_most_once => {
                ("dead", Some(DeadReason::AtMostOnce.as_str()), None)
            }
            Decision::DisableEndpoint => ("parked", Some("endpoint_disabled"), Some(now.as_millis())),
        };
        DeliveryRow {
            seq: one.claimed.seq,
            key: &one.claimed.key,
            token: one.claimed.token,
            state,
            reason,
            due_at,
            final_at: one.has_ended().then(|| now.as_millis()),
        }
    });
    let rows = json(&rows.collect::<Vec<_>>())?;
    match conn.database() {
        // Differs because on SQLite the number is the row's own key, and many returned rows cost more than the look for them
        // in one; it has one writer, so that nothing changes between the two.
        Database::Sqlite => {
            let (held,): (String,) = conn
                .fetch_one(
                    "SELECT json_group_array(d.seq) FROM jsonb_each($1) r
                     CROSS JOIN twiceproof_deliveries d ON d.seq = r.value ->> 'seq'
                     WHERE d.state = 'leased' AND d.token = r.value ->> 'token' AND d.event = r.value ->> 'event'",
                    &[Arg::from(&rows)],
                )
                .await?;
            conn.execute(
                "UPDATE twiceproof_deliveries AS d
                 SET state = r.value ->> 'state', state_reason = r.value ->> 'reason',
                     due_at = coalesce(r.value ->> 'due_at', d.due_at), final_at = r.value ->> 'final_at',
                     attempts = d.attempts + 1, lease_owner = NULL, lease_until = 0
                 FROM jsonb_each($1) r
                 WHERE d.seq = r.value ->> 'seq'
                   AND d.state = 'leased' AND d.token = r.value ->> 'token' AND d.event = r.value ->> 'event'",
                &[Arg::from(&rows)],
            )
            .await?;
            from_json(&held)
        }
        // Differs because PostgreSQL's key is the delivery's. The rows come in the order of their keys, so that two workers
        // seldom lock them crosswise; where they do, one is told to run again. The state is compared so that no partial
        // index fits: the planner would take the one of leases, whose dead entries are as many as there were leases since
        // the last vacuum.
        Database::Postgres => {
            let moved: Vec<(i64,)> = conn
                .fetch_all(
                    "UPDATE twiceproof_deliveries d
                     SET state = r.state, state_reason = r.reason, due_at = coalesce(r.due_at, d.due_at),
                         final_at = r.final_at, attempts = d.attempts + 1, lease_owner = NULL, lease_until = 0
                     FROM json_to_recordset($1::json) AS r
                         (tenant text, event text, endpoint text, token bigint, state text, reason text, due_at bigint,
                          final_at bigint)
                     WHERE d.tenant = r.tenant AND d.event = r.event AND d.endpoint = r.endpoint
                       AND d.state || '' = 'leased' AND d.token = r.token
                     RETURNING d.seq",
                    &[Arg::from(&rows)],
                )
                .await?;
            Ok(moved.into_iter().map(|(seq,)| seq).collect())
        }
    }
}
