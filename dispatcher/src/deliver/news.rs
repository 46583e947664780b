//! What an operator hears of failing deliveries without asking: each end without success, and of retries the first of an
//! endpoint's and then one a minute, so that an outage does not flood the log.
//!
//! Place in the path: after `decide`. Every attempt is also in the table of attempts, and in the log at debug level.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use twiceproof_shared::clock::Timestamp;

use crate::decide::Decision;
use crate::exchange::Exchange;
use crate::store::claim::ClaimedDelivery;
use crate::store::health::{Change, Turn};

/// How long an endpoint that was reported is not reported again.
const QUIET: Duration = Duration::from_secs(60);
/// Endpoints that are remembered at most; above it the memory begins anew, and some are reported again.
const MOST_ENDPOINTS: usize = 10_000;

/// Which endpoints were reported as failing, and when.
#[derive(Debug, Default)]
pub(super) struct News(Mutex<HashMap<String, Timestamp>>);

impl News {
    /// Logs what an operator should know of this attempt.
    pub(super) fn tell(
        &self,
        claimed: &ClaimedDelivery,
        attempts: u32,
        exchange: &Exchange,
        decision: Decision,
        now: Timestamp,
    ) {
        let key = claimed.key();
        let (event, endpoint) = (&key.event, &key.endpoint);
        let (status, error) = (exchange.status(), exchange.error());
        match decision {
            Decision::Delivered => {}
            Decision::Retry { due_at } => {
                if self.is_due(endpoint, now) {
                    let next_in_s = due_at.since(now).as_secs();
                    tracing::warn!(%event, %endpoint, attempts, status, error, next_in_s, "a delivery failed and is tried again");
                }
            }
            Decision::Dead { reason } => {
                let reason = reason.as_str();
                tracing::warn!(%event, %endpoint, attempts, status, error, reason, "a delivery is dead");
            }
            Decision::DisableEndpoint => {
                tracing::warn!(%event, %endpoint, "the endpoint says that it is gone: it is disabled, its deliveries are parked");
            }
        }
    }

    fn is_due(&self, endpoint: &str, now: Timestamp) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.get(endpoint).is_some_and(|last| now.since(*last) < QUIET) {
            return false;
        }
        if told.len() >= MOST_ENDPOINTS {
            told.clear();
        }
        told.insert(endpoint.to_owned(), now);
        true
    }
}

/// Logs how the health of endpoints turned. Called after the commit, so that each turn is told once, whichever worker saw it.
pub(super) fn tell_changes(changes: &[Change]) {
    for Change { tenant, endpoint, turn } in changes {
        match turn {
            Turn::Opened { step, until } => {
                let until = until.as_millis();
                tracing::warn!(%tenant, %endpoint, step, until, "the endpoint only fails: nothing is sent to it for a while");
            }
            Turn::Recovered => tracing::info!(%tenant, %endpoint, "the endpoint answers again"),
            // Told with the attempt.
            Turn::Gone => {}
            Turn::Failing { since } => {
                let since = since.as_millis();
                tracing::warn!(%tenant, %endpoint, since, "the endpoint has only failed for days: it is disabled, its deliveries are parked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{News, QUIET, Timestamp};

    #[test]
    fn a_failing_endpoint_is_reported_at_once_and_then_once_a_minute() {
        let news = News::default();
        let now = Timestamp::from_secs(1_700_000_000);
        assert!(news.is_due("ep_1", now));
        assert!(!news.is_due("ep_1", now.plus(QUIET / 2)));
        assert!(news.is_due("ep_2", now));
        assert!(news.is_due("ep_1", now.plus(QUIET)));
    }
}
