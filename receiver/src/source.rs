//! A source: where webhooks come from, how they are signed, and what the answers mean to their sender.
//!
//! Place in the path: read by every step; fixed once built.
//! Invariants: no source without a secret; the ledger remembers longer than the sender repeats itself.

mod builder;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use twiceproof_shared::key::Key;
use twiceproof_shared::ledger::LedgerKey;

pub use builder::{SourceBuilder, SourceError};

use crate::body::BodyLimits;
use crate::verify::Verifier;

/// One sender's webhooks, for one consumer.
#[derive(Debug)]
pub struct Source {
    name: Key,
    tenant: Key,
    scope: Key,
    verifier: Arc<dyn Verifier>,
    retention: Duration,
    limits: Limits,
}

/// What bounds a request of this source.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) body: BodyLimits,
    pub(crate) handler_deadline: Duration,
    pub(crate) in_flight_wait: Duration,
    pub(crate) conflict_status: StatusCode,
}

impl Source {
    /// A source that follows Standard Webhooks 1.0.0. The name is 1 to 100 of `A-Z a-z 0-9 _ -`.
    pub fn standard_webhooks(name: impl Into<String>) -> SourceBuilder {
        SourceBuilder::new(name.into(), None)
    }

    /// A source with a verifier of the host's own; it holds its secrets itself.
    pub fn with_verifier(name: impl Into<String>, verifier: impl Verifier) -> SourceBuilder {
        SourceBuilder::new(name.into(), Some(Arc::new(verifier)))
    }

    /// Its name, unique with its consumer within the tenant.
    #[must_use]
    pub fn name(&self) -> &Key {
        &self.name
    }

    /// Whose events these are.
    #[must_use]
    pub fn tenant(&self) -> &Key {
        &self.tenant
    }

    /// The ledger's scope: `source:NAME/CONSUMER`.
    #[must_use]
    pub fn scope(&self) -> &Key {
        &self.scope
    }

    /// How long answers are kept.
    #[must_use]
    pub fn retention(&self) -> Duration {
        self.retention
    }

    pub(crate) fn verifier(&self) -> &dyn Verifier {
        &*self.verifier
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn ledger_key(&self, event: &Key) -> LedgerKey {
        LedgerKey { tenant: self.tenant.clone(), scope: self.scope.clone(), key: event.clone() }
    }
}
