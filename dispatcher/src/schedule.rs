//! When a delivery is tried again, and the other limits that one delivery lives under.
//!
//! Place in the path: [`decide`](crate::decide) asks the [`Schedule`] for the wait after a failed attempt; publish takes
//! the horizon and claim the timeout and margin from the same [`Policy`].
//! Invariants: pure, no clock and no randomness of its own; a wait is never longer than its base delay nor shorter than
//! half of it; what applies is readable as data.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use twiceproof_shared::retention::shortest_retention;

use crate::statuses::Statuses;

/// The limits of a delivery. The default is the project's table of defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The waits between attempts.
    pub schedule: Schedule,
    /// What answers mean.
    pub statuses: Statuses,
    /// How long after its creation a delivery may still be tried: 72 hours. Receivers must remember ids for longer.
    pub horizon: Duration,
    /// The deadline of one attempt, from name look-up to the last byte of the response: 15 seconds.
    pub timeout: Duration,
    /// How much longer than the timeout a lease lasts: 15 seconds, in which the result must be recorded.
    pub lease_margin: Duration,
    /// How many requests one worker has under way to one endpoint at most: 32.
    pub slots_per_endpoint: u32,
    /// How many requests one worker has under way at most: 512.
    pub slots_per_worker: u32,
}

impl Policy {
    /// The shortest time for which events must be remembered: 1.2 × the horizon.
    #[must_use]
    pub fn shortest_retention(&self) -> Duration {
        shortest_retention(self.horizon, Duration::ZERO)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            schedule: Schedule::default(),
            statuses: Statuses::default(),
            horizon: Duration::from_secs(72 * 3600),
            timeout: Duration::from_secs(15),
            lease_margin: Duration::from_secs(15),
            slots_per_endpoint: 32,
            slots_per_worker: 512,
        }
    }
}

/// The base delays between the attempts of one delivery. The default starts at 5 seconds, grows threefold up to 12
/// hours, and stays there until the horizon ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    delays: Vec<Duration>,
    repeats_last: bool,
}

impl Schedule {
    /// Delays that start at `first`, are multiplied by `factor` each time up to `cap`, and stay at their last value.
    /// A factor of one or less means equal delays.
    pub fn exponential(first: Duration, factor: f32, cap: Duration) -> Self {
        let first = first.min(cap);
        let growing = ExponentialBuilder::default()
            .with_min_delay(first)
            .with_factor(if factor > 1.0 { factor } else { 1.0 })
            .with_max_delay(cap)
            .with_max_times(MOST_DELAYS)
            .build();
        let mut delays = Vec::new();
        for delay in growing {
            if delays.last().is_some_and(|last| delay <= *last) {
                break;
            }
            delays.push(delay);
        }
        Self { delays, repeats_last: true }
    }

    /// Exactly these delays: one attempt more than the list is long.
    pub fn list(delays: impl Into<Vec<Duration>>) -> Self {
        Self { delays: delays.into(), repeats_last: false }
    }

    /// A single attempt, no retry.
    pub fn once() -> Self {
        Self::list([])
    }

    /// The base delays in their order.
    pub fn delays(&self) -> &[Duration] {
        &self.delays
    }

    /// Whether the last delay repeats until the horizon ends.
    pub fn repeats_last(&self) -> bool {
        self.repeats_last
    }

    /// The base delay after `failed` failed attempts (1 for the first), or none if the schedule has ended.
    pub fn base_delay(&self, failed: u32) -> Option<Duration> {
        let index = usize::try_from(failed.saturating_sub(1)).unwrap_or(usize::MAX);
        match self.delays.get(index) {
            Some(delay) => Some(*delay),
            None if self.repeats_last => self.delays.last().copied(),
            None => None,
        }
    }

    /// The wait after `failed` failed attempts: uniform between half the base delay and all of it, as `unit` (from 0
    /// to 1) says. The spread keeps deliveries that failed together from coming back together.
    pub fn wait(&self, failed: u32, unit: f64) -> Option<Duration> {
        let half = self.base_delay(failed)? / 2;
        let unit = if unit.is_nan() { 0.0 } else { unit.clamp(0.0, 1.0) };
        // The product cannot overflow: half a duration times at most one.
        Some(half.saturating_add(half.mul_f64(unit)))
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self::exponential(Duration::from_secs(5), 3.0, Duration::from_secs(12 * 3600))
    }
}

/// Only a bound for schedules that grow very slowly.
const MOST_DELAYS: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(values: &[u64]) -> Vec<Duration> {
        values.iter().copied().map(Duration::from_secs).collect()
    }

    #[test]
    fn send_r2_the_golden_table_of_delays_for_twenty_attempts() {
        let schedule = Schedule::default();
        let base: Vec<_> = (1..=20).filter_map(|failed| schedule.base_delay(failed)).collect();
        let capped = 43_200;
        assert_eq!(
            base,
            secs(&[
                5, 15, 45, 135, 405, 1_215, 3_645, 10_935, 32_805, capped, capped, capped, capped, capped, capped,
                capped, capped, capped, capped, capped
            ])
        );
    }

    #[test]
    fn a_wait_lies_between_half_the_delay_and_the_whole_delay() {
        let schedule = Schedule::default();
        for failed in 1..=20 {
            let base = schedule.base_delay(failed).unwrap();
            assert_eq!(schedule.wait(failed, 0.0), Some(base / 2));
            assert_eq!(schedule.wait(failed, 0.5), Some(base * 3 / 4));
            assert_eq!(schedule.wait(failed, 1.0), Some(base));
            for step in 0..=1_000 {
                let wait = schedule.wait(failed, f64::from(step) / 1_000.0).unwrap();
                assert!(wait >= base / 2 && wait <= base, "{failed}: {wait:?}");
            }
        }
    }

    #[test]
    fn odd_random_units_stay_in_bounds() {
        let schedule = Schedule::default();
        for unit in [-1.0, 2.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let wait = schedule.wait(3, unit).unwrap();
            assert!(wait >= Duration::from_millis(22_500) && wait <= Duration::from_secs(45));
        }
    }

    #[test]
    fn send_r18_two_thousand_failures_neither_overflow_nor_wait_for_nothing() {
        let schedule = Schedule::default();
        assert_eq!(schedule.base_delay(2_000), Some(Duration::from_secs(43_200)));
        assert_eq!(schedule.base_delay(u32::MAX), Some(Duration::from_secs(43_200)));
    }

    #[test]
    fn a_schedule_of_one_attempt_has_no_delay() {
        assert_eq!(Schedule::once().base_delay(1), None);
        assert_eq!(Schedule::once().wait(1, 0.5), None);
    }

    #[test]
    fn a_list_ends_after_its_last_delay() {
        let schedule = Schedule::list(secs(&[1, 60]));
        assert_eq!(schedule.base_delay(1), Some(Duration::from_secs(1)));
        assert_eq!(schedule.base_delay(2), Some(Duration::from_secs(60)));
        assert_eq!(schedule.base_delay(3), None);
    }

    #[test]
    fn a_factor_that_does_not_grow_means_equal_delays() {
        for factor in [1.0, 0.5, 0.0, -3.0, f32::NAN] {
            let schedule = Schedule::exponential(Duration::from_secs(2), factor, Duration::from_secs(10));
            assert_eq!(schedule.delays(), secs(&[2]));
            assert_eq!(schedule.base_delay(9), Some(Duration::from_secs(2)));
        }
    }

    #[test]
    fn a_first_delay_above_the_cap_is_capped() {
        let schedule = Schedule::exponential(Duration::from_secs(60), 2.0, Duration::from_secs(10));
        assert_eq!(schedule.delays(), secs(&[10]));
    }
}
