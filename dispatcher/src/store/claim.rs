//! The claim: which worker delivers what, fairly across endpoints.
//!
//! Place in the path: deliver asks for as many deliveries as it has free slots; each comes back as a [`ClaimedDelivery`].
//! Invariants: a claim raises the fencing token and sets the end of the lease to its own time, the endpoint's timeout and
//! the margin, so that a lease always outlasts its request. Only [`claim`] makes a [`ClaimedDelivery`]; only `record`
//! takes it back. The cost does not grow with the backlog: endpoints with pending rows are found by seeks, each from the
//! one before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::Id;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::admit::{self, Taken};
use super::lanes::{self, Lane, MOST_LANES};
use super::{DeliveryKey, fan_outs, from_json, json, ordering, overdue, waiting};
use crate::breaker::Allowed;

/// What a worker can take.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The worker's incarnation.
    pub worker: Id,
    /// The worker's free slots.
    pub free: u32,
    /// How many requests the worker has under way, by endpoint.
    pub busy: HashMap<String, u32>,
    /// The endpoint that the last claim ended with: this one begins behind it.
    pub after: String,
    /// The tenant whose fan-out the last claim went on with: this one goes on with the next.
    pub spread_after: String,
    /// How much longer than the endpoint's timeout the lease lasts.
    pub margin: Duration,
    /// Endpoints that answer so quickly that more deliveries than they have slots may be claimed, to wait for these.
    pub quick: HashSet<String>,
    /// Move on what is due and whose lease is over, first. A worker that claims all the time does so now and then.
    pub moves: bool,
    /// Where to look from; none: from the beginning. Only PostgreSQL heeds it.
    pub known: Option<Known>,
}

impl ClaimRequest {
    /// For a worker that has nothing under way.
    #[must_use]
    pub fn new(worker: Id, free: u32, margin: Duration) -> Self {
        let (busy, quick) = (HashMap::new(), HashSet::new());
        let (after, spread_after) = (String::new(), String::new());
        Self { worker, free, busy, after, spread_after, margin, quick, moves: true, known: None }
    }
}

/// What an earlier look has left behind it.
#[derive(Debug, Clone)]
pub struct Known {
    /// The lanes to look at, each from this number on.
    pub lanes: BTreeMap<String, i64>,
    /// What was due before this is no longer looked for.
    pub since: Timestamp,
}

/// What came of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The deliveries, in the order in which they were made.
    pub deliveries: Vec<ClaimedDelivery>,
    /// Where the next claim begins.
    pub after: String,
    /// The tenant whose fan-out it went on with.
    pub spread_after: String,
    /// There is more that free slots could take: claim again at once.
    pub again: bool,
    /// There may be more once a slot becomes free.
    pub hungry: bool,
    /// How long it took to find what is due, and the lanes.
    pub looked: Duration,
    /// For each lane that was found, the number from which it goes on; on PostgreSQL alone.
    pub lanes: Vec<(String, i64)>,
}

/// A delivery under this worker's lease.
#[derive(Debug)]
pub struct ClaimedDelivery {
    /// Its number, by which SQLite finds it.
    pub(crate) seq: i64,
    pub(crate) key: DeliveryKey,
    pub(crate) token: i64,
    pub(crate) attempts: u32,
    pub(crate) deadline_at: Timestamp,
    pub(crate) lease_until: Timestamp,
    /// Somebody asked for this attempt; whatever the schedule had in mind stays.
    pub(crate) by_hand: bool,
    /// What is owed to the same endpoint with the same key waits for this one.
    pub(crate) ordering_key: Option<String>,
    /// From then on it is not sent any more.
    pub(crate) expires_at: Option<Timestamp>,
    /// What may have been sent is not sent again.
    pub(crate) at_most_once: bool,
}

impl ClaimedDelivery {
    /// Which delivery it is.
    pub fn key(&self) -> &DeliveryKey {
        &self.key
    }

    /// The fencing token of the lease.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// Attempts made before this one.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// When the lease is over.
    pub fn lease_until(&self) -> Timestamp {
        self.lease_until
    }
}

/// Moves on what is due, has expired, is to be fanned out or waits for its place, and claims at most `request.free` pending deliveries.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn claim(conn: &mut Conn<'_>, request: &ClaimRequest, now: Timestamp) -> Result<Claimed, StoreError> {
    let began = Instant::now();
    let known = request.known.as_ref().filter(|_| conn.database() == Database::Postgres);
    let since = known.map_or(Timestamp::from_millis(-1), |known| known.since);
    let (mut moved_all, mut spread_after) = (true, request.spread_after.clone());
    if request.moves {
        let due = overdue::due(conn, since, now).await?;
        if due.retries == 1 {
            moved_all &= waiting::promote_due(conn, since, now, MOST_MOVED).await? < MOST_MOVED as u64;
        }
        if due.leases == 1 {
            moved_all &= waiting::return_expired(conn, since, now, MOST_MOVED).await? < MOST_MOVED as u64;
        }
        if due.leases == 1 || due.expiry == 1 {
            moved_all &= overdue::end(conn, since, now, MOST_ENDED).await?;
        }
        if due.fan_outs == 1
            && let Some(tenant) = fan_outs::spread(conn, &request.spread_after, now).await?
        {
            (spread_after, moved_all) = (tenant, false);
        }
        if due.unplaced == 1 || due.fan_outs == 1 {
            moved_all &= ordering::place(conn).await?;
        }
    }
    let lanes = match known {
        None => lanes::find(conn, &request.after).await?,
        Some(known) => lanes::find_known(conn, &known.lanes, &request.after).await?,
    };
    let looked = began.elapsed();
    let all_lanes = lanes.len() < MOST_LANES as usize;
    let last_lane = lanes.last().map_or_else(String::new, |lane| lane.endpoint.clone());
    let (open, closed): (Vec<_>, Vec<_>) = lanes.into_iter().partition(|lane| lane.state.as_deref() == Some("enabled"));
    // All of them together, or the transaction would grow with the number of closed lanes.
    let mut left = MOST_MOVED;
    for lane in &closed {
        if left > 0 {
            left -= settle(conn, lane, now, left).await? as i64;
        }
    }
    moved_all &= left > 0;
    let admission = admit::ask(conn, &open, now).await?;
    let slots: Vec<u32> = open.iter().map(|lane| lane.room(&request.busy, &request.quick, now)).collect();
    let mut rooms = slots.clone();
    admission.limit(&open, &mut rooms, now);
    let shares = lanes::shares_by_tenant(&open, &rooms, request.free);
    let orders: Vec<Order<'_>> = open
        .iter()
        .zip(&shares)
        .filter(|(_, share)| **share > 0)
        .map(|(lane, share)| Order {
            endpoint: &lane.endpoint,
            share: *share,
            from_seq: known.and_then(|known| known.lanes.get(&lane.endpoint)).copied().unwrap_or(0),
            lease_until: now.plus(lane.timeout()).plus(request.margin).as_millis(),
        })
        .collect();
    let rows = take(conn, &orders, &request.worker).await?;
    // Slots that ran out end the turn before the first lane that got none of them; else all these lanes had theirs.
    let ran_out = shares.iter().sum::<u32>() == request.free;
    let passed_over = rooms.iter().zip(&shares).position(|(room, share)| *share == 0 && *room > 0);
    let after = match passed_over.and_then(|at| open.get(at.checked_sub(1)?)) {
        Some(lane) if ran_out => lane.endpoint.clone(),
        _ if ran_out && passed_over == Some(0) => request.after.clone(),
        _ => last_lane,
    };
    let mut taken: HashMap<&str, Taken> = HashMap::new();
    let mut ends: HashMap<&str, i64> = HashMap::new();
    for row in &rows {
        let taken = taken.entry(&row.endpoint).or_default();
        *taken = Taken { count: taken.count + 1, lease_until: row.lease_until };
        ends.insert(&row.endpoint, row.seq + 1);
    }
    admission.spend(conn, &taken, &open, now).await?;
    let goes_on = |lane: &Lane| (lane.endpoint.clone(), ends.get(lane.endpoint.as_str()).copied().unwrap_or(lane.seq));
    let goes_on = match conn.database() {
        // Differs because SQLite has no dead entries to be passed over.
        Database::Sqlite => Vec::new(),
        Database::Postgres => open.iter().map(goes_on).collect(),
    };
    let took = |lane: &Lane| taken.get(lane.endpoint.as_str()).map_or(0, |taken| taken.count);
    let lanes = || open.iter().zip(rooms.iter().zip(&shares));
    let slots_left = (rows.len() as u64) < u64::from(request.free);
    let cut_short = lanes().any(|(lane, (room, share))| share < room && took(lane) == *share);
    // Lanes that wait for a time have no use for a slot that becomes free.
    let waits: Vec<bool> = rooms.iter().zip(&slots).map(|(room, slots)| *room == 0 && *slots > 0).collect();
    let filled = lanes()
        .zip(&waits)
        .any(|((lane, (_, share)), waits)| took(lane) == *share && !waits && lane.allowed(now) != Allowed::Nothing);
    Ok(Claimed {
        again: !moved_all || (slots_left && (!all_lanes || cut_short)),
        hungry: filled || !all_lanes,
        looked,
        lanes: goes_on,
        after,
        spread_after,
        deliveries: rows.into_iter().map(ClaimedDelivery::from).collect(),
    })
}

/// How many rows one claim moves on of each kind.
const MOST_MOVED: i64 = 1_000;
/// How many rows one claim ends of each kind: each may hold the lock of an ordering key until the commit.
const MOST_ENDED: i64 = 128;

/// Pending rows of an endpoint that is disabled or gone.
async fn settle(conn: &mut Conn<'_>, lane: &Lane, now: Timestamp, limit: i64) -> Result<u64, StoreError> {
    match lane.state {
        Some(_) => waiting::park_pending(conn, &lane.tenant, &lane.endpoint, now, limit).await,
        None => {
            let blocked = ordering::bury(conn, &lane.tenant, &lane.endpoint, now, limit).await?;
            let left = limit - blocked as i64;
            Ok(blocked + waiting::bury(conn, &lane.tenant, &lane.endpoint, now, left).await?)
        }
    }
}

#[derive(Debug, Serialize)]
struct Order<'a> {
    endpoint: &'a str,
    share: u32,
    from_seq: i64,
    lease_until: i64,
}

#[derive(Debug, Deserialize, sqlx::FromRow)]
struct Row {
    seq: i64,
    tenant: String,
    event: String,
    endpoint: String,
    token: i64,
    attempts: i64,
    deadline_at: i64,
    lease_until: i64,
    by_hand: i64,
    ordering_key: Option<String>,
    expires_at: Option<i64>,
    at_most_once: i64,
}

impl From<Row> for ClaimedDelivery {
    fn from(row: Row) -> Self {
        Self {
            seq: row.seq,
            key: DeliveryKey { tenant: row.tenant, event: row.event, endpoint: row.endpoint },
            token: row.token,
            attempts: u32::try_from(row.attempts).unwrap_or(u32::MAX),
            deadline_at: Timestamp::from_millis(row.deadline_at),
            lease_until: Timestamp::from_millis(row.lease_until),
            by_hand: row.by_hand != 0,
            ordering_key: row.ordering_key,
            expires_at: row.expires_at.map(Timestamp::from_millis),
            at_most_once: row.at_most_once != 0,
        }
    }
}

/// Leases the oldest pending rows of each lane.
async fn take(conn: &mut Conn<'_>, orders: &[Order<'_>], worker: &Id) -> Result<Vec<Row>, StoreError> {
    if orders.is_empty() {
        return Ok(Vec::new());
    }
    let orders = json(orders)?;
    let mut rows: Vec<Row> = match conn.database() {
        // Differs because SQLite has no LATERAL: each row of a lane is found by a seek from the one before. The rows are
        // gathered into one, which costs less than many; it has one writer, so that nothing changes until they are leased.
        Database::Sqlite => {
            let (picked,): (String,) = conn
                .fetch_one(
                    "WITH RECURSIVE pick (endpoint, seq, room, lease_until) AS (
                         SELECT value ->> 'endpoint',
                             (SELECT min(d.seq) FROM twiceproof_deliveries d
                              WHERE d.state = 'pending' AND d.endpoint = value ->> 'endpoint'),
                             value ->> 'share', value ->> 'lease_until'
                         FROM jsonb_each($1)
                         UNION ALL
                         SELECT pick.endpoint,
                             (SELECT min(d.seq) FROM twiceproof_deliveries d
                              WHERE d.state = 'pending' AND d.endpoint = pick.endpoint AND d.seq > pick.seq),
                             pick.room - 1, pick.lease_until
                         FROM pick WHERE pick.seq IS NOT NULL AND pick.room > 1)
                     SELECT json_group_array(json_object('seq', d.seq, 'tenant', d.tenant, 'event', d.event,
                         'endpoint', d.endpoint, 'token', d.token + 1, 'attempts', d.attempts,
                         'deadline_at', d.deadline_at, 'lease_until', pick.lease_until,
                         'by_hand', d.resume_state IS NOT NULL, 'ordering_key', d.ordering_key,
                         'expires_at', d.expires_at, 'at_most_once', d.at_most_once))
                     FROM pick CROSS JOIN twiceproof_deliveries d ON d.seq = pick.seq",
                    &[Arg::from(&orders)],
                )
                .await?;
            conn.execute(
                "UPDATE twiceproof_deliveries AS d
                 SET state = 'leased', token = r.value ->> 'token', lease_owner = $2, lease_until = r.value ->> 'lease_until'
                 FROM jsonb_each($1) r WHERE d.seq = r.value ->> 'seq'",
                &[Arg::from(&picked), worker.into()],
            )
            .await?;
            from_json(&picked)?
        }
        // Differs because several workers claim at once: rows that one of them holds are skipped by the others.
        Database::Postgres => {
            conn.fetch_all(
                "WITH picked AS MATERIALIZED (
                     SELECT d.tenant, d.event, d.endpoint, o.lease_until
                     FROM json_to_recordset($1::json) AS o
                         (endpoint text, share bigint, from_seq bigint, lease_until bigint)
                     CROSS JOIN LATERAL (
                         SELECT p.tenant, p.event, p.endpoint FROM twiceproof_deliveries p
                         WHERE p.state = 'pending' AND p.endpoint = o.endpoint AND p.seq >= o.from_seq
                         ORDER BY p.seq LIMIT o.share FOR UPDATE SKIP LOCKED) d)
                 UPDATE twiceproof_deliveries d
                 SET state = 'leased', token = d.token + 1, lease_owner = $2, lease_until = picked.lease_until
                 FROM picked WHERE d.tenant = picked.tenant AND d.event = picked.event AND d.endpoint = picked.endpoint
                 RETURNING d.seq, d.tenant, d.event, d.endpoint, d.token, d.attempts, d.deadline_at, d.lease_until,
                     CAST(d.resume_state IS NOT NULL AS INTEGER)::bigint AS by_hand, d.ordering_key, d.expires_at,
                     d.at_most_once",
                &[Arg::from(&orders), worker.into()],
            )
            .await?
        }
    };
    rows.sort_unstable_by_key(|row| row.seq);
    Ok(rows)
}
