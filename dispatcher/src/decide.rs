//! What happens to a delivery after one attempt.
//!
//! Place in the path: deliver calls [`decide`] after [`send`](crate::send), and records the [`Decision`].
//! Invariants: pure; no I/O, no clock and no randomness of its own, so that any run can be simulated and repeated. Only
//! 2xx is a success. A retry is never due later than the delivery's deadline, nor earlier than the schedule allows.

use std::time::Duration;

use twiceproof_shared::clock::Timestamp;

use crate::exchange::{Answer, Exchange, NotSent};
use crate::retry_after;
use crate::schedule::Policy;
use crate::statuses::Action;

/// What the decision needs to know of the delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryState {
    /// Attempts made so far, the one decided on included: 1 or more.
    pub attempts: u32,
    /// The end of the retry horizon.
    pub deadline_at: Timestamp,
    /// From then on it is not sent any more.
    pub expires_at: Option<Timestamp>,
    /// What may have been sent is not sent again.
    pub at_most_once: bool,
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The receiver took it.
    Delivered,
    /// It is tried again at this time.
    Retry {
        /// Not before this time.
        due_at: Timestamp,
    },
    /// It is not tried again by itself.
    Dead {
        /// Why not.
        reason: DeadReason,
    },
    /// The receiver is gone for good (410, or what its policy says): the endpoint is disabled, this and its other waiting deliveries
    /// are parked; this one ends instead where it is made at most once.
    DisableEndpoint,
}

/// Why a delivery is not tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadReason {
    /// The next attempt would lie past the retry horizon.
    Horizon,
    /// The receiver asked for a wait that ends past the retry horizon.
    AskedPastHorizon,
    /// The schedule has no further attempt.
    ScheduleEnded,
    /// The endpoint's policy gives up at this status.
    GivenUp,
    /// The event is no longer stored.
    EventMissing,
    /// The event expired, or would have expired before the next attempt.
    Expired,
    /// It is made at most once, and was refused.
    AtMostOnce,
    /// It is made at most once, and may or may not have been taken.
    UnknownOutcome,
}

impl DeadReason {
    /// The reason as the database and the API name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Horizon => "horizon",
            Self::AskedPastHorizon => "asked_past_horizon",
            Self::ScheduleEnded => "schedule_ended",
            Self::GivenUp => "given_up",
            Self::EventMissing => "event_missing",
            Self::Expired => "expired",
            Self::AtMostOnce => "at_most_once",
            Self::UnknownOutcome => "unknown_outcome",
        }
    }
}

/// Decides what happens after `exchange`, which ended at `now`. `unit` is a random number from 0 to 1 that spreads the
/// wait.
pub fn decide(delivery: &DeliveryState, exchange: &Exchange, policy: &Policy, now: Timestamp, unit: f64) -> Decision {
    let asked = match exchange {
        Exchange::Answered(answer) if answer.is_success() => return Decision::Delivered,
        Exchange::Answered(answer) => match policy.statuses.of(answer.status) {
            Action::Disable => return Decision::DisableEndpoint,
            Action::GiveUp => return dead(DeadReason::GivenUp),
            Action::Retry | Action::Throttle if delivery.at_most_once => return dead(DeadReason::AtMostOnce),
            Action::Retry | Action::Throttle => asked_wait(answer, now),
        },
        Exchange::NotSent(NotSent::EventMissing) => return dead(DeadReason::EventMissing),
        Exchange::NotSent(NotSent::Expired) => return dead(DeadReason::Expired),
        Exchange::Unknown(_) if delivery.at_most_once => return dead(DeadReason::UnknownOutcome),
        Exchange::NotSent(_) | Exchange::Unknown(_) => None,
    };
    let Some(scheduled) = policy.schedule.wait(delivery.attempts, unit) else {
        return dead(DeadReason::ScheduleEnded);
    };
    let asked = asked.unwrap_or(Duration::ZERO);
    let due_at = now.plus(scheduled.max(asked));
    if delivery.expires_at.is_some_and(|expires_at| expires_at <= due_at) {
        dead(DeadReason::Expired)
    } else if due_at <= delivery.deadline_at {
        Decision::Retry { due_at }
    } else if asked > scheduled {
        dead(DeadReason::AskedPastHorizon)
    } else {
        dead(DeadReason::Horizon)
    }
}

/// Until when an answer that came at `now` asks to be sent nothing, where its status may ask for that; never past the
/// delivery's deadline, so that one odd header does not close an endpoint for years.
pub fn throttle(delivery: &DeliveryState, exchange: &Exchange, policy: &Policy, now: Timestamp) -> Option<Timestamp> {
    match exchange {
        Exchange::Answered(answer) if !answer.is_success() && policy.statuses.of(answer.status) == Action::Throttle => {
            asked_wait(answer, now).map(|asked| now.plus(asked).min(delivery.deadline_at)).filter(|until| *until > now)
        }
        _ => None,
    }
}

fn dead(reason: DeadReason) -> Decision {
    Decision::Dead { reason }
}

fn asked_wait(answer: &Answer, now: Timestamp) -> Option<Duration> {
    let values = answer.retry_after.iter().map(String::as_str);
    retry_after::longest(values, answer.date.as_deref(), now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Unknown;
    use crate::schedule::Schedule;

    const CREATED: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn delivery(attempts: u32) -> DeliveryState {
        let deadline_at = CREATED.plus(Policy::default().horizon);
        DeliveryState { attempts, deadline_at, expires_at: None, at_most_once: false }
    }

    fn answered(status: u16) -> Exchange {
        Exchange::Answered(Answer::of_status(status))
    }

    fn answered_with(status: u16, retry_after: &[&str]) -> Exchange {
        let mut answer = Answer::of_status(status);
        answer.retry_after = retry_after.iter().map(|value| (*value).to_owned()).collect();
        Exchange::Answered(answer)
    }

    fn first(exchange: &Exchange) -> Decision {
        decide(&delivery(1), exchange, &Policy::default(), CREATED, 1.0)
    }

    fn retry_in(seconds: u64) -> Decision {
        Decision::Retry { due_at: CREATED.plus(Duration::from_secs(seconds)) }
    }

    #[test]
    fn every_status_has_its_decision() {
        for status in 100..=999 {
            let expected = match status {
                200..=299 => Decision::Delivered,
                410 => Decision::DisableEndpoint,
                _ => retry_in(5),
            };
            assert_eq!(first(&answered(status)), expected, "{status}");
        }
    }

    #[test]
    fn redirects_are_failures() {
        for status in [300, 301, 302, 303, 304, 307, 308] {
            assert_eq!(first(&answered(status)), retry_in(5));
        }
    }

    #[test]
    fn what_was_not_sent_and_what_is_unknown_is_tried_again() {
        for exchange in [
            Exchange::NotSent(NotSent::Deadline),
            Exchange::NotSent(NotSent::Connect("refused".to_owned())),
            Exchange::Unknown(Unknown::Deadline),
            Exchange::Unknown(Unknown::ConnectionLost("reset".to_owned())),
        ] {
            assert_eq!(first(&exchange), retry_in(5), "{exchange:?}");
        }
    }

    #[test]
    fn the_wait_is_spread_between_half_and_the_whole_delay() {
        let policy = Policy::default();
        for (attempts, base_ms) in [(1, 5_000), (2, 15_000), (5, 405_000), (10, 43_200_000)] {
            for (unit, share) in [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)] {
                let decision = decide(&delivery(attempts), &answered(500), &policy, CREATED, unit);
                let wait = Duration::from_millis(base_ms).mul_f64(share);
                assert_eq!(decision, Decision::Retry { due_at: CREATED.plus(wait) });
            }
        }
    }

    #[test]
    fn retry_after_is_honoured_in_full() {
        for status in [301, 400, 429, 500, 502, 503, 504] {
            assert_eq!(first(&answered_with(status, &["120"])), retry_in(120));
            assert_eq!(first(&answered_with(status, &["86400"])), retry_in(86_400));
        }
        assert_eq!(first(&answered_with(503, &["60", "120"])), retry_in(120));
    }

    #[test]
    fn retry_after_never_brings_an_attempt_forward() {
        assert_eq!(first(&answered_with(503, &["1"])), retry_in(5));
        for value in ["", "-1", "0", "1e300", "soon", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(first(&answered_with(503, &[value])), retry_in(5), "{value:?}");
        }
    }

    #[test]
    fn retry_after_past_the_horizon_ends_the_delivery() {
        let expected = dead(DeadReason::AskedPastHorizon);
        let endless = "9".repeat(100);
        for value in ["99999999999", "315360000", "259201", endless.as_str()] {
            assert_eq!(first(&answered_with(503, &[value])), expected, "{value:?}");
        }
        assert_eq!(first(&answered_with(503, &["259200"])), retry_in(259_200));
    }

    #[test]
    fn retry_after_does_not_change_a_success_or_a_410() {
        assert_eq!(first(&answered_with(200, &["120"])), Decision::Delivered);
        assert_eq!(first(&answered_with(410, &["120"])), Decision::DisableEndpoint);
    }

    #[test]
    fn a_retry_that_would_lie_past_the_horizon_ends_the_delivery() {
        let policy = Policy::default();
        let at = |seconds| CREATED.plus(Duration::from_secs(seconds));
        let decide_at = |now| decide(&delivery(10), &answered(500), &policy, now, 1.0);
        assert_eq!(decide_at(at(216_000)), Decision::Retry { due_at: at(259_200) });
        assert_eq!(decide_at(at(216_001)), dead(DeadReason::Horizon));
        assert_eq!(decide_at(at(999_999)), dead(DeadReason::Horizon));
    }

    #[test]
    fn a_schedule_of_one_attempt_ends_after_it() {
        let policy = Policy { schedule: Schedule::once(), ..Policy::default() };
        let decision = decide(&delivery(1), &answered(500), &policy, CREATED, 0.5);
        assert_eq!(decision, dead(DeadReason::ScheduleEnded));
        let decision = decide(&delivery(1), &answered(204), &policy, CREATED, 0.5);
        assert_eq!(decision, Decision::Delivered);
    }

    #[test]
    fn a_retry_that_would_come_after_the_event_has_expired_ends_the_delivery() {
        let expires = |seconds| Some(CREATED.plus(Duration::from_secs(seconds)));
        let decide_with = |expires_at, exchange: &Exchange| {
            let delivery = DeliveryState { expires_at, ..delivery(1) };
            decide(&delivery, exchange, &Policy::default(), CREATED, 1.0)
        };
        assert_eq!(decide_with(expires(6), &answered(500)), retry_in(5));
        assert_eq!(decide_with(expires(5), &answered(500)), dead(DeadReason::Expired));
        assert_eq!(decide_with(expires(1), &answered(200)), Decision::Delivered);
        assert_eq!(decide_with(expires(60), &Exchange::NotSent(NotSent::Expired)), dead(DeadReason::Expired));
    }

    #[test]
    fn at_most_once_nothing_that_may_have_been_sent_is_tried_again() {
        let decide_once = |exchange: &Exchange| {
            let delivery = DeliveryState { at_most_once: true, ..delivery(1) };
            decide(&delivery, exchange, &Policy::default(), CREATED, 1.0)
        };
        assert_eq!(decide_once(&answered(200)), Decision::Delivered);
        for status in [301, 400, 404, 429, 500, 503] {
            assert_eq!(decide_once(&answered_with(status, &["1"])), dead(DeadReason::AtMostOnce), "{status}");
        }
        for unknown in [Unknown::Deadline, Unknown::ConnectionLost("reset".to_owned()), Unknown::Shutdown] {
            assert_eq!(decide_once(&Exchange::Unknown(unknown)), dead(DeadReason::UnknownOutcome));
        }
        // No byte of it left.
        assert_eq!(decide_once(&Exchange::NotSent(NotSent::Connect("refused".to_owned()))), retry_in(5));
    }

    #[test]
    fn an_endpoint_that_never_answers_is_tried_until_the_horizon_and_no_longer() {
        let policy = Policy::default();
        for unit in [0.0, 0.5, 1.0] {
            let (mut now, mut attempts) = (CREATED, 1);
            let exchange = Exchange::Unknown(Unknown::Deadline);
            while let Decision::Retry { due_at } = decide(&delivery(attempts), &exchange, &policy, now, unit) {
                assert!(due_at > now && due_at <= delivery(1).deadline_at);
                now = due_at.plus(policy.timeout);
                attempts += 1;
            }
            assert!((14..=20).contains(&attempts), "{unit}: {attempts} attempts");
            assert!(now.since(CREATED) > Duration::from_secs(60 * 3600));
        }
    }
}
