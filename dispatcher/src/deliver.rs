//! MAIN PATH: claim → sign → send → decide → record.
//!
//! A [`Dispatcher`] is one worker. [`Dispatcher::step`] does one round and returns; [`Dispatcher::run`] goes on until it is
//! told to stop, with requests under way all the time.
//! Invariants: no transaction is open while a request is under way; no more is claimed than there are free slots, and what
//! is claimed is sent at once; a result stays in memory until it is recorded; a delivery whose result is lost with the
//! process is sent again, under the same id, when its lease is over.

mod attempt;
mod flight;
mod marks;
mod news;
mod rounds;
mod units;
mod worker;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future;
use tokio::task::JoinSet;
use tokio::time::Instant;
use twiceproof_shared::causes::chain;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Store, StoreError};
use twiceproof_shared::worker::{Pace, Polling};

use crate::purge::{Purge, Retention, ShortRetention};
use crate::replay::Replayer;
use crate::schedule::Policy;
use crate::send::{Sender, SenderError, SenderOptions};
use crate::store::claim::{ClaimRequest, Claimed};
use crate::store::record::Recorded;
use crate::worker_lock::LockError;
use attempt::Hands;
use marks::Marks;
use rounds::Rounds;
use worker::Worker;

pub use rounds::Totals;

/// One worker: claims deliveries, sends them and records what came of them.
#[derive(Debug)]
pub struct Dispatcher {
    hands: Hands,
    grace: Duration,
    /// How long events are kept.
    keep: Duration,
    polling: Polling,
    worker: Worker,
    /// The endpoint that the last claim ended with.
    after: String,
    /// The tenant whose fan-out the last claim went on with.
    spread_after: String,
    marks: Marks,
}

/// How a [`Dispatcher`] behaves.
#[derive(Debug, Clone)]
pub struct DispatcherOptions {
    /// Schedule, horizon, lease margin and slots.
    pub policy: Policy,
    /// Where requests may go.
    pub sender: SenderOptions,
    /// How long requests under way may go on after the worker was told to stop: 20 seconds.
    pub grace: Duration,
    /// How long events are kept; what is older and has come to its end is deleted while the worker runs.
    pub retention: Retention,
    /// How often a running worker looks for work that no wake-up told it of.
    pub polling: Polling,
}

impl Default for DispatcherOptions {
    fn default() -> Self {
        let (policy, sender, retention) = (Policy::default(), SenderOptions::default(), Retention::default());
        Self { policy, sender, grace: Duration::from_secs(20), retention, polling: Polling::default() }
    }
}

/// A worker could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Another worker runs on the same SQLite file, or the lock cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Events would be forgotten too early.
    #[error(transparent)]
    Retention(#[from] ShortRetention),
    /// The sender could not be made.
    #[error(transparent)]
    Sender(#[from] SenderError),
    /// The database could not be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What one round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Step {
    /// Deliveries that were claimed.
    pub claimed: usize,
    /// Leases that were given back because too much of them had passed before anything was sent.
    pub released: usize,
    /// What was recorded.
    pub recorded: Recorded,
}

impl Dispatcher {
    /// Starts a worker: enters it under a random incarnation id. On SQLite it takes the file's worker lock, and takes the
    /// leases of earlier incarnations over at once.
    ///
    /// # Errors
    /// As [`StartError`] says.
    pub async fn start(store: &Store, options: DispatcherOptions) -> Result<Self, StartError> {
        let DispatcherOptions { policy, sender, grace, retention, polling } = options;
        let keep = retention.under(&policy)?;
        let sender = Sender::new(sender)?;
        let worker = Worker::start(store).await?;
        tracing::info!(worker = %worker.id(), "the worker has started");
        let hands = Hands { store: store.clone(), sender, policy: Arc::new(policy), news: Arc::default() };
        let (after, spread_after) = (String::new(), String::new());
        Ok(Self { hands, grace, keep, polling, worker, after, spread_after, marks: Marks::default() })
    }

    /// One round: claims what the slots can take, sends it all at once, and records it in one batch. Returns when all is
    /// recorded; a round that claimed nothing found nothing to do.
    ///
    /// # Errors
    /// When the claim fails, or when the results could not be recorded before their leases were over; they are sent again
    /// then.
    pub async fn step(&mut self) -> Result<Step, StoreError> {
        self.tidy().await?;
        // One round tells all there is, however dear the look.
        self.marks = Marks::default();
        let request = self.request(self.slots());
        let moved_at = self.store().now();
        let haul = units::claim(self.store(), request).await?;
        self.claimed(&haul.claimed, true, Some(moved_at));
        let count = haul.claimed.deliveries.len();
        let mails = units::load(self.store(), haul).await?;
        let attempts = mails.into_iter().map(|mail| self.hands.attempt(mail, future::pending()));
        let ended = future::join_all(attempts).await;
        let (recorded, released) = units::record_by_lease(self.store(), ended).await?;
        Ok(Step { claimed: count, released, recorded })
    }

    /// Delivers until `shutdown` resolves: slots that become free are filled at once, results are recorded in batches.
    /// Then nothing more is claimed, requests under way may go on for the grace, and what came of them is recorded; what
    /// had not left is given back. While the database does not answer, the worker waits for it and keeps its results.
    ///
    /// Beside it what is over and older than the retention is deleted, and replays are made, both in small batches.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Totals {
        // Ends with this future.
        let mut beside = JoinSet::new();
        beside.spawn(Purge::new(self.store(), self.keep).run(future::pending()));
        beside.spawn(Replayer::new(self.store(), &self.hands.policy).run(future::pending()));
        Rounds::new(self).run(shutdown).await
    }

    /// Ends the worker without a [`run`](Self::run). Dropping it does the same, but leaves its row for others to tidy up.
    pub async fn stop(self) {
        self.retire().await;
    }

    /// Moves on what no claim moves.
    async fn tidy(&self) -> Result<u64, StoreError> {
        worker::tidy(self.store(), &self.worker).await
    }

    /// Moves on what dead workers hold.
    async fn take_over(&self) -> Result<u64, StoreError> {
        worker::take_over(self.store(), &self.worker).await
    }

    /// Asks for deliveries for `free` slots.
    fn request(&self, free: u32) -> ClaimRequest {
        let margin = self.hands.policy.lease_margin;
        let known = self.marks.known(Instant::now());
        let (after, spread_after) = (self.after.clone(), self.spread_after.clone());
        ClaimRequest { after, spread_after, known, ..ClaimRequest::new(self.worker.id().clone(), free, margin) }
    }

    /// The next claim begins behind the endpoint that this one ended with, and where this one found each lane to go on.
    /// `moved_at` says when what is due was looked for, if it was.
    fn claimed(&mut self, claimed: &Claimed, was_full: bool, moved_at: Option<Timestamp>) {
        self.after.clone_from(&claimed.after);
        self.spread_after.clone_from(&claimed.spread_after);
        self.marks.learn(claimed, was_full, moved_at, Instant::now());
    }

    /// Whether a look at all that waits costs more than a claim of what is known to wait.
    fn looks_are_dear(&self) -> bool {
        self.marks.are_dear()
    }

    async fn retire(&self) {
        if let Err(error) = self.worker.retire(self.store()).await {
            tracing::warn!(error = %chain(&error), "the worker could not sign off; others will tidy up behind it");
        }
    }

    fn store(&self) -> &Store {
        &self.hands.store
    }

    fn hands(&self) -> &Hands {
        &self.hands
    }

    fn pace(&self) -> Pace {
        Pace::new(self.store().waker().sleeper()).with_polling(self.polling)
    }

    fn grace(&self) -> Duration {
        self.grace
    }

    fn slots(&self) -> u32 {
        self.hands.policy.slots_per_worker
    }
}
