//! The settings as the two halves take them.

use twiceproof_dispatcher::{AddressPolicy, Policy, Retention, Schedule};
use twiceproof_receiver::SourceBuilder;
use twiceproof_shared::ledger;

use super::{Config, Origin};

impl Config {
    /// Retry schedule, horizon, timeout, lease and slots, for the dispatcher.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            schedule: Schedule::exponential(self.retry.first, self.retry.factor, self.retry.cap),
            horizon: self.retry.horizon,
            timeout: self.delivery.timeout,
            lease_margin: self.delivery.lease_margin,
            slots_per_endpoint: self.delivery.slots_per_endpoint,
            slots_per_worker: self.delivery.slots_per_worker,
            ..Policy::default()
        }
    }

    /// How long events are kept.
    #[must_use]
    pub fn event_retention(&self) -> Retention {
        let mut retention = Retention::of_events(self.retention.events);
        retention.allow_short = self.retention.allow_short;
        retention
    }

    /// How long emptied keys and conflicts are kept.
    #[must_use]
    pub fn ledger_retention(&self) -> ledger::Retention {
        let mut retention = ledger::Retention::default();
        retention.expired_rows = self.retention.expired_rows;
        retention.conflicts = self.retention.conflicts;
        retention
    }

    /// Where deliveries may go.
    #[must_use]
    pub fn addresses(&self) -> AddressPolicy {
        if self.allow_private_addresses { AddressPolicy::AllowPrivate } else { AddressPolicy::PublicOnly }
    }

    /// A source with this tenant, these limits and this retention. What is set on it afterwards wins.
    pub fn source(&self, source: SourceBuilder) -> SourceBuilder {
        let source = source
            .tenant(self.tenant.as_str())
            .tolerance(self.receiver.tolerance)
            .body_limit(self.receiver.body_limit)
            .in_flight_wait(self.receiver.in_flight_wait)
            .sender_resends(self.retention.resend_window);
        // The default is a least: a source whose sender repeats for longer keeps its keys for longer by itself.
        let source = match self.origin("retention.ledger") {
            Origin::Default => source,
            _ => source.retention(self.retention.ledger),
        };
        if self.retention.allow_short { source.accept_short_retention() } else { source }
    }
}
