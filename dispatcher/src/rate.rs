//! How many deliveries a rate limit allows now: one number in the row of whoever is limited says when the next one may go.
//!
//! Place in the path: asked by the claim, in whose transaction the number moves, so that all workers together keep to it.
//! Invariants: pure; of `limit` per second at most `limit` go in any second, and what a fifth of a second allows more, because
//! a worker looks for work only every so often and would never reach the limit otherwise.

use twiceproof_shared::clock::Timestamp;

/// A limit and when the next one may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many in a second.
    pub per_second: u32,
    /// When the next one may go, in microseconds since the epoch.
    pub next_free_us: i64,
}

/// How late one may come and still have its turn: a little less than a fifth of a second.
const LATE_US: i64 = 199_999;
/// How much further ahead than one step no turn can lie, with some room for the clocks of other workers.
const FAR_US: i64 = 1_000_000;

impl Rate {
    /// How many may go at `now`.
    pub fn allows(self, now: Timestamp) -> u32 {
        let (now, from) = (micros(now), self.from(now));
        if from > now { 0 } else { u32::try_from((now - from) / self.step() + 1).unwrap_or(u32::MAX) }
    }

    /// What is left after so many went at `now`.
    #[must_use]
    pub fn after(self, went: u32, now: Timestamp) -> Self {
        if went == 0 {
            return self;
        }
        let next_free_us = self.from(now).saturating_add(self.step().saturating_mul(i64::from(went)));
        Self { next_free_us, ..self }
    }

    /// The turn of the next one: not longer ago than it may be late.
    fn from(self, now: Timestamp) -> i64 {
        let now = micros(now);
        // One that lies far ahead was written under a lower limit, or by a clock that has been set back since.
        if self.next_free_us > now.saturating_add(self.step()).saturating_add(FAR_US) {
            return now;
        }
        self.next_free_us.max(now.saturating_sub(LATE_US.max(self.step() / 2)))
    }

    fn step(self) -> i64 {
        (1_000_000 / i64::from(self.per_second.max(1))).max(1)
    }
}

fn micros(at: Timestamp) -> i64 {
    at.as_millis().saturating_mul(1_000)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_000);

    /// How many go in ten seconds where somebody looks every so often.
    fn in_ten_seconds(per_second: u32, look_every_ms: u64) -> u32 {
        let (mut rate, mut went) = (Rate { per_second, next_free_us: 0 }, 0);
        for look in 0..10_000 / look_every_ms {
            let now = START.plus(Duration::from_millis(look * look_every_ms));
            let count = rate.allows(now);
            rate = rate.after(count, now);
            went += count;
        }
        went
    }

    #[test]
    fn as_many_go_as_the_limit_says_however_often_somebody_looks() {
        for (per_second, looks) in
            [(1, &[1, 20, 500][..]), (5, &[1, 7, 20, 100]), (100, &[1, 20, 150]), (1_000, &[1, 150])]
        {
            for look_every in looks {
                let (went, wanted) = (in_ten_seconds(per_second, *look_every), per_second * 10);
                let more = per_second / 5 + 1;
                assert!((wanted - more..=wanted + more).contains(&went), "{per_second} {look_every}: {went}");
            }
        }
        assert!((50..=51).contains(&in_ten_seconds(5, 20)));
    }

    #[test]
    fn a_turn_that_lies_further_ahead_than_it_can_closes_nothing() {
        let rate = Rate { per_second: 5, next_free_us: i64::MAX };
        assert_eq!(rate.allows(START), 1);
        assert_eq!(rate.after(1, START).next_free_us, micros(START) + 200_000);
        assert_eq!(Rate { per_second: 5, next_free_us: micros(START) + 200_000 }.allows(START), 0);
    }

    #[test]
    fn what_was_not_taken_stays() {
        let rate = Rate { per_second: 5, next_free_us: 0 };
        assert_eq!(rate.after(0, START), rate);
        assert_eq!(rate.after(1, START).allows(START), 0);
        assert_eq!(Rate { per_second: u32::MAX, next_free_us: i64::MIN }.allows(START), 200_000);
    }
}
