//! Time enters the program here and nowhere else.
//!
//! Place in the path: every query, signature and decision is handed a `now` that came from a [`Clock`].
//! Invariants: a [`Timestamp`] is milliseconds since the Unix epoch, as the database stores it; its arithmetic
//! saturates, so that no header or clock can make it overflow.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point in time: milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// From milliseconds since the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// From seconds since the Unix epoch; saturates at what milliseconds can hold.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000))
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded down.
    pub const fn as_secs(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// This much later; saturates.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    /// This much earlier; saturates.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }

    /// How long after `earlier` this is; zero if `earlier` is in fact later.
    pub fn since(self, earlier: Self) -> Duration {
        let millis = self.0.saturating_sub(earlier.0);
        Duration::from_millis(u64::try_from(millis).unwrap_or(0))
    }
}

/// What time it is. Implementations are shared between tasks and must not block.
pub trait Clock: Send + Sync + Debug {
    /// The present, as this clock sees it.
    fn now(&self) -> Timestamp;
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place where the system's time is read")]
    fn now(&self) -> Timestamp {
        let system = std::time::SystemTime::now();
        match system.duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp::EPOCH.plus(after),
            Err(before) => Timestamp::EPOCH.minus(before.duration()),
        }
    }
}

/// A clock that stands still until it is moved. Clones show the same time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(now.as_millis())))
    }

    /// Moves to `now`, forwards or backwards.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_millis(), Ordering::SeqCst);
    }

    /// Moves forwards; saturates.
    pub fn advance(&self, by: Duration) {
        let step = |now: i64| Some(Timestamp(now).plus(by).as_millis());
        // The closure never refuses, so the update never fails.
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let last = Timestamp::from_millis(i64::MAX);
        let first = Timestamp::from_millis(i64::MIN);
        assert_eq!(last.plus(Duration::MAX), last);
        assert_eq!(first.minus(Duration::MAX), first);
        assert_eq!(Timestamp::from_secs(i64::MAX), last);
        assert_eq!(Timestamp::from_secs(i64::MIN), first);
        assert_eq!(first.since(last), Duration::ZERO);
        assert_eq!(last.since(first), Duration::from_millis(i64::MAX as u64));
    }

    #[test]
    fn since_a_later_time_is_zero() {
        let earlier = Timestamp::from_secs(10);
        let later = Timestamp::from_millis(10_250);
        assert_eq!(later.since(earlier), Duration::from_millis(250));
        assert_eq!(earlier.since(later), Duration::ZERO);
    }

    #[test]
    fn seconds_are_rounded_down_before_the_epoch_too() {
        assert_eq!(Timestamp::from_millis(1_999).as_secs(), 1);
        assert_eq!(Timestamp::from_millis(-1).as_secs(), -1);
    }

    #[test]
    fn clones_of_a_manual_clock_show_the_same_time() {
        let clock = ManualClock::new(Timestamp::from_secs(100));
        let other = clock.clone();
        clock.advance(Duration::from_secs(5));
        assert_eq!(other.now(), Timestamp::from_secs(105));
        other.set(Timestamp::EPOCH);
        assert_eq!(clock.now(), Timestamp::EPOCH);
    }

    #[test]
    fn the_system_clock_is_in_this_century() {
        let now = SystemClock.now();
        assert!(now > Timestamp::from_secs(1_700_000_000), "{now:?}");
        assert!(now < Timestamp::from_secs(4_102_444_800), "{now:?}");
    }
}
