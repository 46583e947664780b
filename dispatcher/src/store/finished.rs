//! An attempt that has ended: what came of it, and what that means for its delivery, its endpoint and whoever is told.
//!
//! Place in the path: deliver makes it of a claim, the record takes it. Invariants: only a claim can become one, and only once.

use std::time::Duration;

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::Id;

use super::DeliveryKey;
use super::claim::ClaimedDelivery;
use super::health::Sign;
use super::ordering::Ended;
use crate::breaker::{self, Verdict};
use crate::decide::{DeadReason, Decision};
use crate::exchange::{Exchange, NotSent, Unknown};
use crate::operational::{self, Telling, What};
use crate::send::Timings;

/// An attempt that has ended, with what was decided.
#[derive(Debug)]
pub struct Finished {
    pub(super) claimed: ClaimedDelivery,
    pub(super) attempt: Id,
    pub(super) exchange: Exchange,
    pub(super) decision: Decision,
    /// The endpoint asked to be sent nothing before.
    throttled_until: Option<Timestamp>,
    pub(super) started_at: Timestamp,
    pub(super) ended_at: Timestamp,
    pub(super) timings: Timings,
}

/// When an attempt began and ended.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// When the request was begun.
    pub started_at: Timestamp,
    /// When its exchange had ended.
    pub ended_at: Timestamp,
}

impl ClaimedDelivery {
    /// Ends the attempt. The claim is given up to be recorded.
    pub fn finish(self, attempt: Id, exchange: Exchange, decision: Decision, span: Span) -> Finished {
        let Span { started_at, ended_at } = span;
        let timings = Timings::default();
        Finished { claimed: self, attempt, exchange, decision, throttled_until: None, started_at, ended_at, timings }
    }
}

impl Finished {
    /// The same, where the endpoint asked to be sent nothing before a time.
    #[must_use]
    pub fn throttled(self, until: Option<Timestamp>) -> Self {
        Self { throttled_until: until, ..self }
    }

    /// The same, with where the time went.
    #[must_use]
    pub fn timed(self, timings: Timings) -> Self {
        Self { timings, ..self }
    }

    /// Which delivery it is.
    pub fn key(&self) -> &DeliveryKey {
        &self.claimed.key
    }

    /// When the lease of its claim is over.
    pub fn lease_until(&self) -> Timestamp {
        self.claimed.lease_until
    }

    /// Whether the endpoint took it.
    pub fn is_success(&self) -> bool {
        self.decision == Decision::Delivered
    }

    /// Whether what may have been sent is not sent again.
    pub fn is_at_most_once(&self) -> bool {
        self.claimed.at_most_once
    }

    /// Whether the schedule has no further attempt for it.
    pub(super) fn has_ended(&self) -> bool {
        match self.decision {
            Decision::Delivered | Decision::Dead { .. } => true,
            Decision::Retry { .. } => false,
            Decision::DisableEndpoint => self.claimed.at_most_once,
        }
    }

    /// What waits behind it, if it has an ordering key.
    pub(super) fn ended(&self) -> Ended {
        let DeliveryKey { tenant, endpoint, .. } = &self.claimed.key;
        Ended {
            tenant: tenant.clone(),
            endpoint: endpoint.clone(),
            ordering_key: self.claimed.ordering_key.clone(),
            deadline_at: self.claimed.deadline_at.as_millis(),
        }
    }

    /// What the organisation is told of it: that it fails, has come to its end in vain, or is well again after it failed.
    pub(super) fn telling(&self) -> Option<Telling> {
        let attempt = || operational::Attempt {
            id: self.attempt.to_string(),
            event: self.claimed.key.event.clone(),
            status: self.exchange.status(),
            at: self.started_at,
        };
        let made = self.claimed.attempts.saturating_add(1);
        let what = match self.decision {
            Decision::Delivered if self.claimed.attempts >= operational::FAILING_AT => What::Recovered(attempt()),
            // By hand it goes back to what it was.
            _ if self.claimed.by_hand => return None,
            Decision::Retry { .. } if made == operational::FAILING_AT => What::Failing(attempt()),
            Decision::Dead { reason: DeadReason::EventMissing } => return None,
            Decision::Dead { .. } => What::Exhausted(attempt()),
            Decision::DisableEndpoint if self.claimed.at_most_once => What::Exhausted(attempt()),
            _ => return None,
        };
        let DeliveryKey { tenant, endpoint, .. } = &self.claimed.key;
        Some(Telling { tenant: tenant.clone(), endpoint: endpoint.clone(), what })
    }

    /// What it says about its endpoint: nothing where it failed on our side.
    pub(super) fn sign(&self) -> Option<Sign<'_>> {
        let verdict = match (&self.exchange, self.decision) {
            (
                Exchange::NotSent(NotSent::NotSigned(_) | NotSent::EventMissing | NotSent::Expired | NotSent::Shutdown),
                _,
            ) => return None,
            // A worker that is restarted must not open the breakers of those it was sending to.
            (Exchange::Unknown(Unknown::Shutdown | Unknown::Panicked), _) => return None,
            (_, Decision::Delivered) => Verdict::Well,
            (_, Decision::DisableEndpoint) => Verdict::Gone,
            (_, Decision::Retry { .. } | Decision::Dead { .. }) => {
                self.throttled_until.map_or(Verdict::Ill, Verdict::Throttled)
            }
        };
        let DeliveryKey { tenant, endpoint, .. } = &self.claimed.key;
        let said = breaker::Sign { verdict, started_at: self.started_at, ended_at: self.ended_at };
        Some(Sign { tenant, endpoint, said })
    }

    /// How long the attempt took.
    pub fn took(&self) -> Duration {
        self.ended_at.since(self.started_at)
    }
}
