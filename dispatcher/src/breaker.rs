//! The circuit breaker of an endpoint: when nothing is sent to it for a while, and how it comes back.
//!
//! ```text
//! closed ──N failures in a row──► open ──its time──► half-open: one probe ──success──► ramping: 1, 2, 4, … ──► closed
//!                                  ▲                        │ failure                      │ failure
//!                                  └──── for twice as long ─┴──────────────────────────────┘
//! ```
//!
//! Place in the path: the record feeds it what attempts say ([`State::learn`]) and stores it in the endpoint's row, which all
//! workers share; the claim asks it how many may be sent ([`State::allowed`]).
//! Invariants: pure; opened once for failures that were under way together, however many; times are bounded by the rule's
//! cap and never wrap; while it is open nothing is claimed, so that waiting costs no attempts.

use std::time::Duration;

use twiceproof_shared::clock::Timestamp;

/// When it opens and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// It opens after so many failures in a row: 10. With 0 it never does.
    pub failures: u32,
    /// For how long at first: 10 seconds.
    pub first: Duration,
    /// For how long at most: 15 minutes.
    pub cap: Duration,
    /// After how long of only failures the endpoint is disabled: 5 days, longer than the horizon of any delivery that failed
    /// first. None: never.
    pub disable_after: Option<Duration>,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            failures: 10,
            first: Duration::from_secs(10),
            cap: Duration::from_secs(15 * 60),
            disable_after: Some(Duration::from_secs(5 * 86_400)),
        }
    }
}

impl Rule {
    /// For how long it is open after it opened `step` times in a row (1 for the first): twice as long each time, up to the
    /// cap.
    pub fn open_for(&self, step: u32) -> Duration {
        let doubled = 1_u32.checked_shl(step.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(doubled).min(self.cap)
    }
}

/// What is known of an endpoint's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// Failures since the last success; answers that only ask for patience are none.
    pub failures_in_row: u32,
    /// When the first attempt failed since the last success.
    pub failing_since: Option<Timestamp>,
    /// How often it opened in a row; 0: it is closed.
    pub step: u32,
    /// Open until then.
    pub open_until: Option<Timestamp>,
    /// While it ramps up: how many requests may be under way at once. 0: it does not.
    pub ramp: u32,
    /// Asked for patience until then: nothing is sent before.
    pub throttled_until: Option<Timestamp>,
}

/// What one attempt says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sign {
    /// How it went.
    pub verdict: Verdict,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
}

/// How an attempt went for the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It answered 2xx.
    Well,
    /// It failed.
    Ill,
    /// It asked to be sent nothing before this time.
    Throttled(Timestamp),
    /// It answered that it is gone: it is disabled.
    Gone,
}

/// What an endpoint may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// As much as it has slots.
    All,
    /// So many requests at once.
    Some(u32),
    /// One probe, and nothing beside it.
    Probe,
    /// Nothing.
    Nothing,
}

impl State {
    /// Takes in what an attempt says, for an endpoint with so many slots.
    pub fn learn(&mut self, sign: Sign, rule: &Rule, slots: u32) {
        match sign.verdict {
            Verdict::Well => self.succeeded(sign, slots),
            Verdict::Throttled(until) => self.throttled(sign, until),
            Verdict::Ill | Verdict::Gone => self.failed(sign, rule),
        }
    }

    /// What may be sent to it at `now`.
    pub fn allowed(&self, now: Timestamp) -> Allowed {
        if self.throttled_until.is_some_and(|until| now < until) {
            return Allowed::Nothing;
        }
        match (self.ramp, self.open_until) {
            (1.., _) => Allowed::Some(self.ramp),
            (0, None) => Allowed::All,
            (0, Some(until)) if now < until => Allowed::Nothing,
            (0, Some(_)) => Allowed::Probe,
        }
    }

    /// Whether it has failed, and nothing else, for as long as the rule allows.
    pub fn has_failed_long_enough(&self, rule: &Rule, now: Timestamp) -> bool {
        rule.disable_after.zip(self.failing_since).is_some_and(|(after, since)| now.since(since) >= after)
    }

    fn succeeded(&mut self, sign: Sign, slots: u32) {
        self.failures_in_row = 0;
        self.failing_since = None;
        // A success of before it opened, or asked for patience, says nothing of now.
        if self.open_until.max(self.throttled_until).is_some_and(|until| sign.started_at < until) {
            return;
        }
        if self.open_until.take().is_some() {
            self.ramp = 1;
        }
        if self.ramp > 0 {
            self.ramp = self.ramp.saturating_add(1);
            if self.ramp >= slots {
                (self.ramp, self.step) = (0, 0);
            }
        }
    }

    fn throttled(&mut self, sign: Sign, until: Timestamp) {
        self.failing_since.get_or_insert(sign.ended_at);
        self.throttled_until = self.throttled_until.max(Some(until));
        // It is there, and comes back slowly; so does a probe that was asked to wait.
        if self.open_until.is_none_or(|open| sign.started_at >= open) {
            (self.open_until, self.ramp) = (None, 1);
        }
    }

    fn failed(&mut self, sign: Sign, rule: &Rule) {
        self.failures_in_row = self.failures_in_row.saturating_add(1);
        self.failing_since.get_or_insert(sign.ended_at);
        if rule.failures == 0 {
            return;
        }
        let opens = match self.open_until {
            // The probe. What was under way when it opened has no more to say.
            Some(until) => sign.started_at >= until,
            None if self.step > 0 => true,
            None => self.failures_in_row >= rule.failures,
        };
        if opens {
            self.step = self.step.saturating_add(1);
            self.ramp = 0;
            self.open_until = Some(sign.ended_at.plus(rule.open_for(self.step)));
        }
    }
}

#[cfg(test)]
mod tests;
