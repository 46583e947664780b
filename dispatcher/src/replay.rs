//! Replays: much of the past sent again to one endpoint, under the same event ids.
//!
//! Place in the path: a host or the API asks for one in its own transaction; beside every running worker
//! [`Replayer::run`] makes what is asked for pending, a piece at a time, and the worker delivers it.
//! Invariants: a replay that is cut off goes on where it was; it can be cancelled between two pieces; it adds no more while
//! much waits at the endpoint, so that new events do not stand behind all of the past; schedules stay as they are.

use std::sync::Arc;
use std::time::Duration;

use twiceproof_shared::causes::chain;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::{Conn, Store, StoreError, Wake};

use crate::schedule::Policy;
use crate::store::replays::{self, ReplayRow};

/// How many events one piece looks at.
const PIECE: i64 = 500;
/// With so many waiting at the endpoint nothing is added.
const MUCH: i64 = 1_000;
/// Until it is looked again whether there is room.
const ROOM_WAIT: Duration = Duration::from_millis(200);
/// Between two looks for replays.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Which events are sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum What {
    /// Those that are not tried any more.
    Failed,
    /// Those that the endpoint takes and never was to get: published before it was there, or while its filter was another.
    Missing,
    /// Both, and those that were delivered.
    Everything,
}

/// A replay to be made.
#[derive(Debug, Clone)]
pub struct NewReplay {
    /// Whose endpoint it is.
    pub tenant: Key,
    /// The endpoint.
    pub endpoint: String,
    /// Which events.
    pub what: What,
    /// Events that were accepted at this time or later.
    pub since: Timestamp,
    /// Events that were accepted before this time.
    pub until: Timestamp,
    /// The most per second; none: as fast as the endpoint takes them.
    pub rate_limit: Option<u32>,
}

/// How far a replay has come.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replay {
    /// Its id.
    pub id: String,
    /// Which events.
    pub what: What,
    /// Whether it goes on.
    pub state: State,
    /// How many events were made pending.
    pub sent: u64,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it last moved.
    pub updated_at: Timestamp,
}

/// Whether a replay goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// It does.
    Running,
    /// All is pending or sent.
    Done,
    /// It was ended before.
    Cancelled,
}

/// Sends the pieces of replays. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Replayer {
    store: Store,
    horizon: Duration,
}

/// Asks for a replay in the caller's transaction, under an id that was minted before.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn ask(conn: &mut Conn<'_>, id: &Id, new: &NewReplay, now: Timestamp) -> Result<Replay, StoreError> {
    let row = row(id, new, now);
    replays::insert(conn, &row).await?;
    Ok(Replay::from(row))
}

/// A fresh id for a replay.
#[must_use]
pub fn mint(store: &Store) -> Id {
    Id::mint(Prefix::Replay, store.now(), store.random())
}

/// A replay of an endpoint.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn find(conn: &mut Conn<'_>, tenant: &Key, endpoint: &str, id: &str) -> Result<Option<Replay>, StoreError> {
    Ok(replays::find(conn, tenant.as_str(), endpoint, id).await?.map(Replay::from))
}

/// Ends a replay that runs; what is pending already is sent. False: it does not run.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn cancel(conn: &mut Conn<'_>, tenant: &Key, id: &str, now: Timestamp) -> Result<bool, StoreError> {
    replays::cancel(conn, tenant.as_str(), id, now).await
}

/// How many events a replay would send now.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn preview(conn: &mut Conn<'_>, new: &NewReplay) -> Result<u64, StoreError> {
    let (from, until) = bounds(new);
    let (lane, span) = ((new.tenant.as_str(), new.endpoint.as_str()), (from.as_str(), until.as_str()));
    let mut count = 0;
    if new.what != What::Missing {
        count += replays::count_again(conn, lane, span, new.what == What::Everything).await?;
    }
    if new.what != What::Failed {
        count += replays::count_missing(conn, lane, span).await?;
    }
    Ok(u64::try_from(count).unwrap_or(0))
}

impl Replayer {
    /// For one store; events that the endpoint never was to get are tried as long as the policy says.
    #[must_use]
    pub fn new(store: &Store, policy: &Policy) -> Self {
        Self { store: store.clone(), horizon: policy.horizon }
    }

    /// Sends the next piece of one replay. False: none is due.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    pub async fn step(&self) -> Result<bool, StoreError> {
        if !replays::any_due(&mut self.store.read().await?.conn(), self.store.now()).await? {
            return Ok(false);
        }
        let this = Arc::new(self.clone());
        let (found, wake) = self
            .store
            .run(move |conn| {
                let this = Arc::clone(&this);
                Box::pin(async move { this.piece(conn).await })
            })
            .await?;
        wake.send();
        Ok(found)
    }

    /// Sends pieces until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let pause = match self.step().await {
                Ok(true) => Duration::ZERO,
                Ok(false) => LOOK_EVERY,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "replays stand still for a moment");
                    LOOK_EVERY * 10
                }
            };
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn piece(&self, conn: &mut Conn<'_>) -> Result<(bool, Wake), StoreError> {
        let now = self.store.now();
        let Some(mut row) = replays::next_due(conn, now).await? else { return Ok((false, Wake::none())) };
        row.updated_at = now.as_millis();
        if replays::waiting(conn, &row.endpoint, MUCH).await? >= MUCH {
            row.due_at = now.plus(ROOM_WAIT).as_millis();
            replays::advance(conn, &row).await?;
            return Ok((true, Wake::none()));
        }
        let limit = row.rate_limit.map_or(PIECE, |limit| limit.clamp(1, PIECE));
        let span = (row.from_event.as_str(), row.until_event.as_str());
        let events = replays::events_after(conn, &row.tenant, span, limit).await?;
        let mut sent = 0;
        if let Some((last,)) = events.last() {
            let (lane, span) = ((row.tenant.as_str(), row.endpoint.as_str()), (row.from_event.as_str(), last.as_str()));
            if row.what != "missing" {
                sent += replays::send_again(conn, lane, span, row.what == "everything", now).await?;
            }
            if row.what != "failed" {
                sent += replays::owe_missing(conn, lane, span, (now, now.plus(self.horizon))).await?;
            }
            row.from_event.clone_from(last);
        }
        row.sent += i64::try_from(sent).unwrap_or(i64::MAX);
        if (events.len() as i64) < limit {
            row.state = "done".to_owned();
        } else if let Some(per_second) = row.rate_limit {
            let pause = sent.saturating_mul(1_000) / u64::try_from(per_second.max(1)).unwrap_or(1);
            row.due_at = now.plus(Duration::from_millis(pause)).as_millis();
        }
        replays::advance(conn, &row).await?;
        let wake = if sent > 0 { self.store.waker().owed() } else { Wake::none() };
        Ok((true, wake))
    }
}

fn bounds(new: &NewReplay) -> (String, String) {
    let lowest = |time| Id::lowest_at(Prefix::Event, time).to_string();
    (lowest(new.since), lowest(new.until))
}

fn row(id: &Id, new: &NewReplay, now: Timestamp) -> ReplayRow {
    let (from_event, until_event) = bounds(new);
    let what = match new.what {
        What::Failed => "failed",
        What::Missing => "missing",
        What::Everything => "everything",
    };
    ReplayRow {
        tenant: new.tenant.to_string(),
        id: id.to_string(),
        endpoint: new.endpoint.clone(),
        what: what.to_owned(),
        state: "running".to_owned(),
        from_event,
        until_event,
        rate_limit: new.rate_limit.filter(|limit| *limit > 0).map(i64::from),
        sent: 0,
        due_at: now.as_millis(),
        created_at: now.as_millis(),
        updated_at: now.as_millis(),
    }
}

impl From<ReplayRow> for Replay {
    fn from(row: ReplayRow) -> Self {
        Self {
            id: row.id,
            // The table's CHECKs leave no other words.
            what: match row.what.as_str() {
                "failed" => What::Failed,
                "missing" => What::Missing,
                _ => What::Everything,
            },
            state: match row.state.as_str() {
                "running" => State::Running,
                "done" => State::Done,
                _ => State::Cancelled,
            },
            sent: u64::try_from(row.sent).unwrap_or(0),
            created_at: Timestamp::from_millis(row.created_at),
            updated_at: Timestamp::from_millis(row.updated_at),
        }
    }
}
