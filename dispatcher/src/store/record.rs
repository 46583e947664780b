//! The record: what came of attempts, one transaction for each batch.
//!
//! Place in the path: the end of deliver's path; takes the [`ClaimedDelivery`] back.
//! Invariants: a delivery changes only where it is still leased under the token of its claim; an attempt whose token was
//! lost is kept as late and changes nothing. An attempt is known by its id, so a batch that is recorded a second time,
//! because its first commit was unknown, changes nothing and marks nothing as late.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::Id;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::claim::ClaimedDelivery;
use super::health::{self, Change, Sign, Turn};
use super::ordering::{self, Ended};
use super::{DeliveryKey, attempts, from_json, json, resend, waiting};
use crate::breaker::{self, Verdict};
use crate::decide::{DeadReason, Decision};
use crate::exchange::{Exchange, NotSent, Unknown};
use crate::operational::{self, Telling, What};
use crate::send::Timings;

/// An attempt that has ended, with what was decided.
#[derive(Debug)]
pub struct Finished {
    pub(super) claimed: ClaimedDelivery,
    pub(super) attempt: Id,
    pub(super) exchange: Exchange,
    decision: Decision,
    /// The endpoint asked to be sent nothing before.
    throttled_until: Option<Timestamp>,
    pub(super) started_at: Timestamp,
    pub(super) ended_at: Timestamp,
    pub(super) timings: Timings,
}

/// When an attempt began and ended.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// When the request was begun.
    pub started_at: Timestamp,
    /// When its exchange had ended.
    pub ended_at: Timestamp,
}

impl ClaimedDelivery {
    /// Ends the attempt. The claim is given up to be recorded.
    pub fn finish(self, attempt: Id, exchange: Exchange, decision: Decision, span: Span) -> Finished {
        let Span { started_at, ended_at } = span;
        let timings = Timings::default();
        Finished { claimed: self, attempt, exchange, decision, throttled_until: None, started_at, ended_at, timings }
    }
}

impl Finished {
    /// The same, where the endpoint asked to be sent nothing before a time.
    #[must_use]
    pub fn throttled(self, until: Option<Timestamp>) -> Self {
        Self { throttled_until: until, ..self }
    }

    /// The same, with where the time went.
    #[must_use]
    pub fn timed(self, timings: Timings) -> Self {
        Self { timings, ..self }
    }

    /// Which delivery it is.
    pub fn key(&self) -> &DeliveryKey {
        &self.claimed.key
    }

    /// When the lease of its claim is over.
    pub fn lease_until(&self) -> Timestamp {
        self.claimed.lease_until
    }

    /// Whether the endpoint took it.
    pub fn is_success(&self) -> bool {
        self.decision == Decision::Delivered
    }

    /// Whether what may have been sent is not sent again.
    pub fn is_at_most_once(&self) -> bool {
        self.claimed.at_most_once
    }

    /// Whether the schedule has no further attempt for it.
    fn has_ended(&self) -> bool {
        match self.decision {
            Decision::Delivered | Decision::Dead { .. } => true,
            Decision::Retry { .. } => false,
            Decision::DisableEndpoint => self.claimed.at_most_once,
        }
    }

    /// What waits behind it, if it has an ordering key.
    fn ended(&self) -> Ended {
        let DeliveryKey { tenant, endpoint, .. } = &self.claimed.key;
        Ended {
            tenant: tenant.clone(),
            endpoint: endpoint.clone(),
            ordering_key: self.claimed.ordering_key.clone(),
            deadline_at: self.claimed.deadline_at.as_millis(),
        }
    }

    /// What the organisation is told of it: that it fails, has come to its end in vain, or is well again after it failed.
    fn telling(&self) -> Option<Telling> {
        let attempt = || operational::Attempt {
            id: self.attempt.to_string(),
            event: self.claimed.key.event.clone(),
            status: self.exchange.status(),
            at: self.started_at,
        };
        let made = self.claimed.attempts.saturating_add(1);
        let what = match self.decision {
            Decision::Delivered if self.claimed.attempts >= operational::FAILING_AT => What::Recovered(attempt()),
            // By hand it goes back to what it was.
            _ if self.claimed.by_hand => return None,
            Decision::Retry { .. } if made == operational::FAILING_AT => What::Failing(attempt()),
            Decision::Dead { reason: DeadReason::EventMissing } => return None,
            Decision::Dead { .. } => What::Exhausted(attempt()),
            Decision::DisableEndpoint if self.claimed.at_most_once => What::Exhausted(attempt()),
            _ => return None,
        };
        let DeliveryKey { tenant, endpoint, .. } = &self.claimed.key;
        Some(Telling { tenant: tenant.clone(), endpoint: endpoint.clone(), what })
    }

    /// How long the attempt took.
    pub fn took(&self) -> Duration {
        self.ended_at.since(self.started_at)
    }
}

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
    let signs: Vec<Sign<'_>> = fresh.iter().filter_map(|one| sign(one)).collect();
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

/// What an attempt says about its endpoint: nothing where it failed on our side.
fn sign(one: &Finished) -> Option<Sign<'_>> {
    let verdict = match (&one.exchange, one.decision) {
        (
            Exchange::NotSent(NotSent::NotSigned(_) | NotSent::EventMissing | NotSent::Expired | NotSent::Shutdown),
            _,
        ) => return None,
        // A worker that is restarted must not open the breakers of those it was sending to.
        (Exchange::Unknown(Unknown::Shutdown | Unknown::Panicked), _) => return None,
        (_, Decision::Delivered) => Verdict::Well,
        (_, Decision::DisableEndpoint) => Verdict::Gone,
        (_, Decision::Retry { .. } | Decision::Dead { .. }) => {
            one.throttled_until.map_or(Verdict::Ill, Verdict::Throttled)
        }
    };
    let DeliveryKey { tenant, endpoint, .. } = &one.claimed.key;
    let said = breaker::Sign { verdict, started_at: one.started_at, ended_at: one.ended_at };
    Some(Sign { tenant, endpoint, said })
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
