//! Round after round: what [`Dispatcher::run`](super::Dispatcher::run) does.
//!
//! Each round takes in what ended, records it and claims for the free slots side by side (one commit on SQLite), and waits
//! for whichever comes first: an attempt that ends, a wake-up, the next poll, the order to stop.
//! Invariants: attempts run in tasks of their own, so a slow database delays no request that is under way; a result that
//! cannot be recorded keeps its slot, so that a database that does not answer stops the claims, not the memory.

use std::sync::Arc;
use std::time::Duration;

use tokio::task;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use twiceproof_shared::causes::chain;
use twiceproof_shared::store::StoreError;
use twiceproof_shared::worker::Pace;

use super::Dispatcher;
use super::attempt::Ended;
use super::flight::Flight;
use super::units::{self, Haul};
use crate::store::claim::{ClaimRequest, ClaimedDelivery};
use crate::store::record::{Finished, Recorded};

/// The most results of one record.
const MOST_RECORDED: usize = 256;
/// How many claims in a row may find nothing where each said that there is more.
const MOST_VAIN: u32 = 8;
/// Between two looks for work while attempts end all the time.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Between two looks for what no claim moves.
const TIDY_EVERY: Duration = Duration::from_secs(5);
/// Between two looks for dead workers, which cost next to nothing: what they had claimed waits.
const TAKE_OVER_EVERY: Duration = Duration::from_secs(1);

/// What a worker did from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Deliveries that were claimed.
    pub claimed: u64,
    /// Leases that were given back because nothing was sent.
    pub released: u64,
    /// What was recorded, over all batches.
    pub recorded: Recorded,
    /// Results that could not be recorded; their deliveries are sent again when their leases are over.
    pub unrecorded: u64,
}

/// The state of a running worker.
pub(super) struct Rounds {
    dispatcher: Dispatcher,
    flight: Flight,
    finished: Vec<Finished>,
    unsent: Vec<ClaimedDelivery>,
    totals: Totals,
    /// How many of the finished are recorded one by one, because the database refused them together.
    suspects: usize,
    /// There may be more to claim once a slot becomes free.
    hungry: bool,
    /// The last claim found something.
    warm: bool,
    /// How many claims in a row were told to go on and found nothing.
    vain: u32,
    looked: Instant,
    /// When a claim last moved on what was due.
    moved: Option<Instant>,
}

impl Rounds {
    pub(super) fn new(dispatcher: Dispatcher) -> Self {
        Self {
            dispatcher,
            flight: Flight::new(),
            finished: Vec::new(),
            unsent: Vec::new(),
            totals: Totals::default(),
            suspects: 0,
            hungry: false,
            warm: true,
            vain: 0,
            looked: Instant::now(),
            moved: None,
        }
    }

    pub(super) async fn run(mut self, shutdown: impl Future<Output = ()> + Send) -> Totals {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut pace = self.dispatcher.pace();
        let _listening = self.dispatcher.store().listen();
        let mut tidy = interval(TIDY_EVERY);
        tidy.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut take_over = interval(TAKE_OVER_EVERY);
        take_over.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = true;
        loop {
            // Asked in every round, also while there always is more to do.
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                () = std::future::ready(()) => {}
            }
            match self.round(look, &mut pace).await {
                Ok(true) => {
                    look = true;
                    continue;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(error = %chain(&error), unrecorded = self.finished.len(), "the database does not take our work now");
                    tokio::select! {
                        () = pace.back_off() => continue,
                        () = &mut shutdown => break,
                    }
                }
            }
            tokio::select! {
                () = &mut shutdown => break,
                Some(ended) = self.flight.next() => {
                    self.take_in(ended);
                    look = self.hungry || self.looked.elapsed() >= LOOK_EVERY;
                }
                () = pace.rest(), if self.free() > 0 => look = true,
                _ = tidy.tick() => look = is_new(self.dispatcher.tidy().await),
                _ = take_over.tick() => look = is_new(self.dispatcher.take_over().await),
            }
        }
        self.wind_down().await
    }

    /// Records what ended, and claims for the free slots if it is time to `look`. True: there is more, go on at once.
    async fn round(&mut self, look: bool, pace: &mut Pace) -> Result<bool, StoreError> {
        while let Some(ended) = self.flight.try_next() {
            self.take_in(ended);
        }
        let look = look && self.free() > 0;
        if look {
            // Before the look: a wake-up that comes during it ends the next rest at once.
            pace.look();
            self.looked = Instant::now();
        }
        let store = self.dispatcher.store().clone();
        units::give_back(&store, std::mem::take(&mut self.unsent)).await;
        let batch = Arc::new(self.next_batch());
        let (recorded, claimed) = tokio::join!(units::record(&store, Arc::clone(&batch)), self.claim(look));
        let unblocked = recorded.as_ref().is_ok_and(|recorded| recorded.unblocked > 0);
        let recorded = self.settle(batch, recorded);
        let haul = claimed?;
        let claimed = &haul.claimed;
        self.vain = if claimed.deliveries.is_empty() { self.vain.saturating_add(1) } else { 0 };
        let again = claimed.again && self.vain < MOST_VAIN;
        if look {
            self.hungry = claimed.hungry;
            self.warm = !claimed.deliveries.is_empty();
        }
        if self.warm {
            pace.found();
        }
        self.launch(haul).await?;
        recorded?;
        Ok(again
            || unblocked
            || self.finished.len() >= MOST_RECORDED
            || (self.suspects > 0 && !self.finished.is_empty()))
    }

    async fn claim(&mut self, look: bool) -> Result<Haul, StoreError> {
        // An idle worker looks before it begins a write transaction.
        let looks_first = !self.warm && !self.dispatcher.looks_are_dear();
        if !look || (looks_first && !units::any(self.dispatcher.store()).await?) {
            return Ok(Haul::default());
        }
        let moves = self.moved.is_none_or(|moved| moved.elapsed() >= LOOK_EVERY);
        let (busy, quick) = (self.flight.busy(), self.flight.quick());
        let request = ClaimRequest { busy, quick, moves, ..self.dispatcher.request(self.free()) };
        let (was_full, moved_at) = (request.known.is_none(), moves.then(|| self.dispatcher.store().now()));
        let haul = units::claim(self.dispatcher.store(), request).await?;
        if moves {
            self.moved = Some(Instant::now());
        }
        self.dispatcher.claimed(&haul.claimed, was_full, moved_at);
        Ok(haul)
    }

    /// Loads what was claimed and sends it at once, each in a task of its own.
    async fn launch(&mut self, haul: Haul) -> Result<(), StoreError> {
        let count = haul.claimed.deliveries.len();
        if count == 0 {
            return Ok(());
        }
        self.totals.claimed += count as u64;
        for mail in units::load(self.dispatcher.store(), haul).await? {
            self.flight.launch(mail, self.dispatcher.hands().clone());
        }
        tracing::debug!(claimed = count, in_flight = self.flight.len(), "deliveries were claimed");
        Ok(())
    }

    fn take_in(&mut self, ended: Result<Ended, task::JoinError>) {
        match ended {
            Ok(Ended::Finished(one)) => self.finished.push(one),
            Ok(Ended::Unsent(one)) => {
                self.totals.released += 1;
                self.unsent.push(one);
            }
            Err(error) => tracing::error!(error = %chain(&error), "an attempt broke; its lease ends by its time"),
        }
    }

    fn free(&self) -> u32 {
        let taken = u32::try_from(self.flight.len() + self.finished.len()).unwrap_or(u32::MAX);
        self.dispatcher.slots().saturating_sub(taken)
    }

    fn next_batch(&mut self) -> Vec<Finished> {
        let most = if self.suspects > 0 { 1 } else { MOST_RECORDED };
        let count = self.finished.len().min(most);
        self.finished.drain(..count).collect()
    }

    /// Counts a batch that was recorded; keeps one that was not.
    fn settle(&mut self, batch: Arc<Vec<Finished>>, recorded: Result<Recorded, StoreError>) -> Result<(), StoreError> {
        let error = match recorded {
            Ok(recorded) => {
                self.suspects = self.suspects.saturating_sub(batch.len());
                self.totals.recorded.add(recorded);
                return Ok(());
            }
            Err(error) => error,
        };
        // The unit has ended, and with it the other holder of the batch.
        let batch = Arc::try_unwrap(batch).unwrap_or_default();
        if !error.is_retryable() && batch.len() <= 1 {
            self.suspects = self.suspects.saturating_sub(1);
            self.drop_refused(batch.len(), &error);
        } else {
            if !error.is_retryable() {
                self.suspects = batch.len();
            }
            self.finished.splice(..0, batch);
        }
        Err(error)
    }

    fn drop_refused(&mut self, count: usize, error: &StoreError) {
        tracing::error!(error = %chain(error), count, "results could not be recorded; their deliveries are sent again");
        self.totals.unrecorded += count as u64;
    }

    /// No more claims: requests under way get their grace, what ended is recorded, the rest is given back.
    async fn wind_down(mut self) -> Totals {
        let deadline = Instant::now() + self.dispatcher.grace();
        tracing::info!(in_flight = self.flight.len(), "the worker is stopping");
        let mut pace = self.dispatcher.pace();
        loop {
            if let Err(error) = self.round(false, &mut pace).await {
                if Instant::now() >= deadline {
                    self.drop_refused(self.finished.len(), &error);
                    self.finished.clear();
                } else {
                    pace.back_off().await;
                }
                continue;
            }
            if !self.finished.is_empty() {
                continue;
            }
            tokio::select! {
                ended = self.flight.next() => match ended {
                    Some(ended) => self.take_in(ended),
                    None => break,
                },
                () = sleep_until(deadline), if !self.flight.is_stopped() => self.flight.stop(),
            }
        }
        units::give_back(self.dispatcher.store(), std::mem::take(&mut self.unsent)).await;
        self.dispatcher.retire().await;
        self.totals
    }
}

/// Whether something was moved that can be claimed now.
fn is_new(moved: Result<u64, StoreError>) -> bool {
    match moved {
        Ok(moved) => moved > 0,
        Err(error) => {
            tracing::warn!(error = %chain(&error), "what other workers left behind was not moved");
            false
        }
    }
}
