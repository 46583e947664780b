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
use twiceproof_shared::store::Database;

pub use builder::{SourceBuilder, SourceError};

use crate::body::BodyLimits;
use crate::schemes::{HmacScheme, Provider};
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
    /// Said by the host; else as the database suggests.
    pub(crate) share_transactions: Option<bool>,
}

impl Source {
    /// A source that follows Standard Webhooks 1.0.0, with shared secrets or public keys. The name is 1 to 100 of
    /// `A-Z a-z 0-9 _ -`.
    pub fn standard_webhooks(name: impl Into<String>) -> SourceBuilder {
        SourceBuilder::of(name.into(), Provider::standard("standard-webhooks", false))
    }

    /// GitHub: `X-Hub-Signature-256`. The key is hook and delivery; neither is signed, and no time is.
    pub fn github(name: impl Into<String>) -> SourceBuilder {
        SourceBuilder::of(name.into(), Provider::github())
    }

    /// Stripe: `Stripe-Signature`, with the whole `whsec_…` text as the secret. The key is the id in the body.
    pub fn stripe(name: impl Into<String>) -> SourceBuilder {
        SourceBuilder::of(name.into(), Provider::stripe())
    }

    /// Slack: `X-Slack-Signature`. The key is the event's id; of commands and actions, which have none, the body.
    pub fn slack(name: impl Into<String>) -> SourceBuilder {
        SourceBuilder::of(name.into(), Provider::slack())
    }

    /// Shopify: `X-Shopify-Hmac-Sha256` or its newer name. The key is topic and event; neither is signed, and no time is.
    pub fn shopify(name: impl Into<String>) -> SourceBuilder {
        SourceBuilder::of(name.into(), Provider::shopify())
    }

    /// A sender whose scheme is described by the host.
    pub fn hmac(name: impl Into<String>, scheme: HmacScheme) -> SourceBuilder {
        SourceBuilder::of(name.into(), Provider::from(scheme))
    }

    /// A source with a verifier of the host's own; it holds its secrets itself.
    pub fn with_verifier(name: impl Into<String>, verifier: impl Verifier) -> SourceBuilder {
        SourceBuilder::with(name.into(), Arc::new(verifier))
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

    /// Whether events that come at the same time share a transaction.
    pub(crate) fn shares_transactions(&self, database: Database) -> bool {
        self.limits.share_transactions.unwrap_or(match database {
            // Differs because handlers run one after another on SQLite anyhow, and share a commit.
            Database::Sqlite => true,
            // Differs because they run side by side on PostgreSQL, which a host may rely on.
            Database::Postgres => false,
        })
    }

    pub(crate) fn ledger_key(&self, event: &Key) -> LedgerKey {
        LedgerKey { tenant: self.tenant.clone(), scope: self.scope.clone(), key: event.clone() }
    }
}
