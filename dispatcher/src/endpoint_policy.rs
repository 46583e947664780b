//! What an endpoint wants otherwise than the worker: its schedule, horizon, and what the answers of its host mean.
//!
//! Place in the path: checked when an endpoint is written, stored as JSON beside it, laid over the worker's own [`Policy`]
//! before [`decide`](crate::decide) reads it, and asked by the record for the breaker's rule.
//! Invariants: pure data; what is not named stays the worker's; what passes [`EndpointPolicy::check`] cannot overflow.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::breaker::Rule;
use crate::schedule::{Policy, Schedule};
use crate::statuses::{Action, InvalidStatus, Statuses};

/// The longest horizon: its 1.2-fold is the 30 days for which receivers remember keys.
pub const MAX_HORIZON: Duration = Duration::from_secs(25 * 86_400);
/// The most waits of a schedule.
pub const MAX_WAITS: usize = 100;

/// What differs for one endpoint. All times are whole seconds. `{}` in JSON: nothing does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EndpointPolicy {
    /// The waits between attempts; each is spread between half of it and the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Waits>,
    /// How long after its creation a delivery may still be tried, in seconds: at most 25 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<u64>,
    /// What answers mean, by status (`"404"`) or class (`"4xx"`); a status goes before its class.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub statuses: BTreeMap<String, Action>,
    /// When nothing is sent for a while because everything fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker: Option<Breaker>,
    /// After how many seconds of only failures the endpoint is disabled; 0: never. The default is 5 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_after: Option<u64>,
}

/// A schedule as it is written down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum Waits {
    /// Exactly these waits, in seconds: one attempt more than the list is long.
    List(Vec<u64>),
    /// Waits that grow until the horizon ends.
    Exponential(Growth),
}

/// Waits that grow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// The first wait in seconds.
    pub first: u64,
    /// By what each wait is longer than the one before: 1 to 100.
    pub factor: f32,
    /// The longest wait in seconds.
    pub cap: u64,
}

/// A breaker as it is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    /// It opens after so many failures in a row; 0: never.
    pub failures: u32,
    /// For so many seconds at first; each time that the probe fails, for twice as long.
    pub first: u64,
    /// For so many seconds at most.
    pub cap: u64,
}

/// Why a policy is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPolicy {
    /// A schedule with too many waits, or one of nothing or of more than the longest horizon.
    #[error("a schedule has at most {MAX_WAITS} waits, each of 1 second to 25 days")]
    Waits,
    /// A factor that is none.
    #[error("a schedule's factor lies between 1 and 100, and its first wait is not above its cap")]
    Growth,
    /// A horizon of nothing, or one that outlasts the memory of receivers.
    #[error("a horizon lies between 1 second and 25 days")]
    Horizon,
    /// A status that is none.
    #[error(transparent)]
    Status(#[from] InvalidStatus),
    /// A breaker whose times are none.
    #[error("a breaker opens for 1 second to 1 day, at first not for longer than its cap")]
    Breaker,
    /// A time after which an endpoint is disabled that is shorter than its deliveries may take.
    #[error("an endpoint is disabled after 0 (never) or at least its horizon, at most 365 days")]
    DisableAfter,
}

impl EndpointPolicy {
    /// The worker's policy, but for the breaker, which never opens: for endpoints that are made to fail.
    #[must_use]
    pub fn without_breaker() -> Self {
        Self { breaker: Some(Breaker { failures: 0, first: 1, cap: 1 }), ..Self::default() }
    }

    /// Checks it; `worker` says what holds where it says nothing.
    ///
    /// # Errors
    /// [`InvalidPolicy`] names what is wrong.
    pub fn check(&self, worker: &Policy) -> Result<(), InvalidPolicy> {
        let most = MAX_HORIZON.as_secs();
        match &self.schedule {
            Some(Waits::List(waits))
                if waits.len() > MAX_WAITS || waits.iter().any(|wait| !(1..=most).contains(wait)) =>
            {
                return Err(InvalidPolicy::Waits);
            }
            Some(Waits::Exponential(Growth { first, factor, cap })) => {
                if !(1..=most).contains(first) || !(1..=most).contains(cap) {
                    return Err(InvalidPolicy::Waits);
                }
                if !(1.0..=100.0).contains(factor) || first > cap {
                    return Err(InvalidPolicy::Growth);
                }
            }
            Some(Waits::List(_)) | None => {}
        }
        if self.horizon.is_some_and(|horizon| !(1..=most).contains(&horizon)) {
            return Err(InvalidPolicy::Horizon);
        }
        Statuses::new(self.statuses.iter().map(|(name, action)| (name.as_str(), *action)))?;
        if let Some(Breaker { first, cap, .. }) = self.breaker
            && (first == 0 || first > cap || cap > 86_400)
        {
            return Err(InvalidPolicy::Breaker);
        }
        let horizon = self.horizon().unwrap_or(worker.horizon);
        match self.disable_after {
            Some(after) if after != 0 && (after < horizon.as_secs() || after > 365 * 86_400) => {
                Err(InvalidPolicy::DisableAfter)
            }
            _ => Ok(()),
        }
    }

    /// How long after its creation a delivery may still be tried, where it differs.
    pub fn horizon(&self) -> Option<Duration> {
        self.horizon.map(Duration::from_secs)
    }

    /// The worker's policy with what differs here.
    pub fn over<'p>(&self, worker: &'p Policy) -> Cow<'p, Policy> {
        if self.schedule.is_none() && self.horizon.is_none() && self.statuses.is_empty() {
            return Cow::Borrowed(worker);
        }
        let mut policy = worker.clone();
        match &self.schedule {
            Some(Waits::List(waits)) => {
                let waits: Vec<_> = waits.iter().copied().map(Duration::from_secs).collect();
                policy.schedule = Schedule::list(waits);
            }
            Some(Waits::Exponential(Growth { first, factor, cap })) => {
                let (first, cap) = (Duration::from_secs(*first), Duration::from_secs(*cap));
                policy.schedule = Schedule::exponential(first, *factor, cap);
            }
            None => {}
        }
        policy.horizon = self.horizon().unwrap_or(policy.horizon);
        policy.statuses.extend(self.statuses());
        Cow::Owned(policy)
    }

    /// What answers mean here.
    pub fn statuses(&self) -> Statuses {
        // Checked when they were stored; what cannot be read is left out.
        Statuses::new(self.statuses.iter().map(|(name, action)| (name.as_str(), *action))).unwrap_or_default()
    }

    /// The breaker's rule.
    pub fn rule(&self) -> Rule {
        let mut rule = Rule::default();
        if let Some(Breaker { failures, first, cap }) = self.breaker {
            rule.failures = failures;
            (rule.first, rule.cap) = (Duration::from_secs(first), Duration::from_secs(cap));
        }
        match self.disable_after {
            Some(0) => rule.disable_after = None,
            Some(after) => rule.disable_after = Some(Duration::from_secs(after)),
            // Never before its deliveries had the whole of their horizon.
            None => rule.disable_after = rule.disable_after.map(|after| after.max(self.horizon().unwrap_or_default())),
        }
        rule
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> EndpointPolicy {
        serde_json::from_str(json).unwrap()
    }

    fn check(json: &str) -> Result<(), InvalidPolicy> {
        read(json).check(&Policy::default())
    }

    #[test]
    fn an_empty_policy_changes_nothing() {
        let worker = Policy::default();
        assert!(matches!(read("{}").over(&worker), Cow::Borrowed(_)));
        assert_eq!(serde_json::to_string(&EndpointPolicy::default()).unwrap(), "{}");
        assert_eq!(read("{}").rule(), Rule::default());
        assert!(Rule::default().disable_after.unwrap() > worker.horizon, "no delivery is cut short by it");
    }

    #[test]
    fn what_is_named_differs_and_the_rest_is_the_workers() {
        let policy = read(
            r#"{"schedule": [1, 60], "horizon": 3600, "statuses": {"4xx": "giveUp", "404": "retry"},
                "breaker": {"failures": 3, "first": 1, "cap": 8}, "disableAfter": 0}"#,
        );
        assert_eq!(policy.check(&Policy::default()), Ok(()));
        let worker = Policy::default();
        let over = policy.over(&worker);
        assert_eq!(over.schedule, Schedule::list([Duration::from_secs(1), Duration::from_secs(60)]));
        assert_eq!((over.horizon, over.timeout), (Duration::from_secs(3600), worker.timeout));
        assert_eq!((over.statuses.of(404), over.statuses.of(400)), (Action::Retry, Action::GiveUp));
        assert_eq!(over.statuses.of(410), Action::GiveUp, "its own class goes before the default of a status");
        let rule =
            Rule { failures: 3, first: Duration::from_secs(1), cap: Duration::from_secs(8), disable_after: None };
        assert_eq!(policy.rule(), rule);
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(read(&text), policy);
        let growing = read(r#"{"schedule": {"first": 2, "factor": 2, "cap": 8}}"#);
        assert_eq!(growing.over(&worker).schedule.delays(), [2, 4, 8].map(Duration::from_secs));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let long = format!(r#"{{"schedule": {:?}}}"#, vec![1; MAX_WAITS + 1]);
        for (json, error) in [
            (r#"{"schedule": [0]}"#, InvalidPolicy::Waits),
            (r#"{"schedule": [2160001]}"#, InvalidPolicy::Waits),
            (long.as_str(), InvalidPolicy::Waits),
            (r#"{"schedule": {"first": 0, "factor": 2, "cap": 8}}"#, InvalidPolicy::Waits),
            (r#"{"schedule": {"first": 9, "factor": 2, "cap": 8}}"#, InvalidPolicy::Growth),
            (r#"{"schedule": {"first": 1, "factor": 0.5, "cap": 8}}"#, InvalidPolicy::Growth),
            (r#"{"horizon": 0}"#, InvalidPolicy::Horizon),
            (r#"{"horizon": 18446744073709551615}"#, InvalidPolicy::Horizon),
            (r#"{"statuses": {"teapot": "retry"}}"#, InvalidStatus("teapot".to_owned()).into()),
            (r#"{"statuses": {"200": "retry"}}"#, InvalidStatus("200".to_owned()).into()),
            (r#"{"breaker": {"failures": 1, "first": 0, "cap": 1}}"#, InvalidPolicy::Breaker),
            (r#"{"breaker": {"failures": 1, "first": 9, "cap": 1}}"#, InvalidPolicy::Breaker),
            (r#"{"disableAfter": 3600}"#, InvalidPolicy::DisableAfter),
        ] {
            assert_eq!(check(json), Err(error), "{json}");
        }
        for json in [r#"{"retries": 3}"#, r#"{"statuses": {"404": "ignore"}}"#, r#"{"schedule": "daily"}"#] {
            assert!(serde_json::from_str::<EndpointPolicy>(json).is_err(), "{json}");
        }
        assert_eq!(check(r#"{"schedule": [], "horizon": 60, "disableAfter": 3600}"#), Ok(()));
    }
}
