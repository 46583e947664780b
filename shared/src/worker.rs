//! The pace of a worker: at once while there is work, adaptive polling while there is none, backing off while the
//! database does not answer.
//!
//! A wake-up ends a pause early. It is only a hint; the poll finds whatever a lost wake-up left.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use crate::causes::chain;
use crate::store::{Sleeper, StoreError};

/// How often a worker looks for work that nothing told it of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Polling {
    /// Just after work: 20 ms.
    pub shortest: Duration,
    /// After a long idle time: 500 ms.
    pub longest: Duration,
}

impl Default for Polling {
    fn default() -> Self {
        Self { shortest: Duration::from_millis(20), longest: Duration::from_millis(500) }
    }
}

/// Between two batches of housekeeping, so that everybody else gets at the database.
const BETWEEN_BATCHES: Duration = Duration::from_millis(50);
/// Between two sweeps: what is kept for days is not looked at every second.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(600);
/// After a batch that failed.
const AFTER_TROUBLE: Duration = Duration::from_secs(10);

/// Does housekeeping until `shutdown` resolves: batch after batch with a short pause, and a long one where `step` says
/// that there is no more for now. A batch that fails is logged and tried again later.
pub async fn keep_house<S, F>(what: &'static str, mut step: S, shutdown: impl Future<Output = ()> + Send)
where
    S: FnMut() -> F + Send,
    F: Future<Output = Result<bool, StoreError>> + Send,
{
    let work = async {
        loop {
            let pause = match step().await {
                Ok(true) => BETWEEN_BATCHES,
                Ok(false) => BETWEEN_SWEEPS,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), what, "housekeeping failed; it is tried again");
                    AFTER_TROUBLE
                }
            };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = shutdown => {}
    }
}

/// What a worker does between two looks for work.
#[derive(Debug)]
pub struct Pace {
    sleeper: Sleeper,
    polling: Polling,
    idle: Duration,
    trouble: Option<ExponentialBackoff>,
}

impl Pace {
    /// The pace of a worker that is woken by this sleeper.
    #[must_use]
    pub fn new(sleeper: Sleeper) -> Self {
        Self { sleeper, polling: Polling::default(), idle: Polling::default().shortest, trouble: None }
    }

    /// The same with other times between two looks.
    #[must_use]
    pub fn with_polling(mut self, polling: Polling) -> Self {
        (self.polling, self.idle) = (polling, polling.shortest);
        self
    }

    /// Call it before each look for work: a wake-up that comes after it ends the next pause.
    pub fn look(&mut self) {
        self.sleeper.begin();
    }

    /// There was work: the next pause is short.
    pub fn found(&mut self) {
        self.idle = self.polling.shortest;
        self.trouble = None;
    }

    /// There was none: waits for a wake-up, at most the current poll interval, which doubles.
    pub async fn rest(&mut self) {
        self.trouble = None;
        let woken = tokio::time::timeout(self.idle, self.sleeper.woken()).await.is_ok();
        // Only a pause that was slept through makes the next one longer: a busy worker gives up many.
        self.idle = if woken { self.polling.shortest } else { (self.idle * 2).min(self.polling.longest) };
    }

    /// The look failed: waits longer each time, up to 5 s, whatever wakes it.
    pub async fn back_off(&mut self) {
        let delays = self.trouble.get_or_insert_with(|| {
            ExponentialBuilder::default()
                .with_min_delay(Duration::from_millis(50))
                .with_max_delay(Duration::from_secs(5))
                .without_max_times()
                .build()
        });
        let delay = delays.next().unwrap_or(Duration::from_secs(5));
        tokio::time::sleep(delay).await;
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Pace, Polling};
    use crate::store::Waker;

    #[tokio::test(start_paused = true)]
    async fn a_wake_up_between_the_look_and_the_pause_is_not_lost() {
        let waker = Waker::new();
        let mut pace = Pace::new(waker.sleeper());
        pace.look();
        waker.wake();
        let started = tokio::time::Instant::now();
        pace.rest().await;
        assert!(started.elapsed() < Polling::default().shortest);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_is_given_up_makes_the_next_one_no_longer() {
        let mut pace = Pace::new(Waker::new().sleeper());
        for _ in 0..10 {
            pace.look();
            tokio::select! {
                biased;
                () = pace.rest() => panic!("nothing woke it"),
                () = std::future::ready(()) => {}
            }
        }
        let started = tokio::time::Instant::now();
        pace.rest().await;
        assert!(started.elapsed() <= Polling::default().shortest + Duration::from_millis(1), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn polling_slows_down_while_idle_and_trouble_backs_off() {
        let mut pace = Pace::new(Waker::new().sleeper());
        let started = tokio::time::Instant::now();
        for _ in 0..5 {
            pace.look();
            pace.rest().await;
        }
        // Each timer may round up by a millisecond.
        assert!((620..=625).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
        let started = tokio::time::Instant::now();
        for _ in 0..3 {
            pace.back_off().await;
        }
        assert!((350..=353).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
    }
}
