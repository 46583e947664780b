//! Checks a source before it exists.
//!
//! Place in the path: at start, once for each source.
//! Invariants: a mistake in the configuration is an error here, never a request that passes unchecked later.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use twiceproof_shared::key::Key;
use twiceproof_shared::retention::shortest_retention;
use twiceproof_shared::secret::{InvalidSecret, Secret};
use twiceproof_shared::signature::{self, PublicKey};
use zeroize::Zeroizing;

use super::{Limits, Source};
use crate::body::BodyLimits;
use crate::schemes::{KeySource, Provider, SchemeError};
use crate::verify::Verifier;

/// Collects what a [`Source`] needs; [`SourceBuilder::build`] checks it.
#[derive(Debug)]
#[must_use = "finish with `build`"]
pub struct SourceBuilder {
    name: String,
    tenant: String,
    consumer: String,
    judge: Judge,
    keys: Vec<KeySource>,
    tolerance: Duration,
    retention: Option<Duration>,
    sender_horizon: Duration,
    sender_resends: Duration,
    short_retention: bool,
    limits: Limits,
}

/// Who judges the requests.
#[derive(Debug)]
enum Judge {
    Provider(Provider),
    Host(Arc<dyn Verifier>),
}

impl SourceBuilder {
    pub(super) fn of(name: String, provider: Provider) -> Self {
        let (horizon, resends, bytes) = (provider.horizon(), provider.resends(), provider.body_limit());
        Self::new(name, Judge::Provider(provider)).sender_horizon(horizon).sender_resends(resends).body_limit(bytes)
    }

    pub(super) fn with(name: String, verifier: Arc<dyn Verifier>) -> Self {
        Self::new(name, Judge::Host(verifier))
    }

    fn new(name: String, judge: Judge) -> Self {
        Self {
            name,
            tenant: "default".to_owned(),
            consumer: "default".to_owned(),
            judge,
            keys: Vec::new(),
            tolerance: signature::TOLERANCE,
            retention: None,
            sender_horizon: 72 * HOUR,
            sender_resends: Duration::ZERO,
            short_retention: false,
            limits: Limits {
                body: BodyLimits { bytes: 1024 * 1024, time: Duration::from_secs(30) },
                handler_deadline: Duration::from_secs(2),
                in_flight_wait: Duration::ZERO,
                conflict_status: StatusCode::ACCEPTED,
                share_transactions: None,
            },
        }
    }

    /// Whose events these are. Default: `default`.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Who consumes them: two consumers of one source each act once. Default: `default`. The same alphabet as the name.
    pub fn consumer(mut self, consumer: impl Into<String>) -> Self {
        self.consumer = consumer.into();
        self
    }

    /// Adds a secret. Several are live at once while one is rotated, at most [`crate::schemes::StandardWebhooks::MAX_SECRETS`].
    pub fn secret(mut self, secret: Secret) -> Self {
        self.keys.push(KeySource::Secret(secret));
        self
    }

    /// Adds a secret in its text form, or a public key, `whpk_…`, where the sender signs with one. How the text is read is
    /// up to the provider; [`SourceBuilder::build`] reports what is wrong with it.
    pub fn secret_text(mut self, text: &str) -> Self {
        self.keys.push(KeySource::Text(Zeroizing::new(text.to_owned())));
        self
    }

    /// Adds a public key. Only signatures of its kind count for it (Standard Webhooks 1.0.0, `v1a`).
    pub fn public_key(mut self, key: PublicKey) -> Self {
        self.keys.push(KeySource::Public(key));
        self
    }

    /// The sender's headers are `svix-…` and not `webhook-…`.
    pub fn svix_headers(mut self) -> Self {
        if let Judge::Provider(provider) = &mut self.judge {
            provider.use_svix_headers();
        }
        self
    }

    /// How far a signed time may lie from ours, in both directions. Default: 5 minutes.
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// The most bytes of a body. Default: 1 MiB; 25 MiB for GitHub.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.limits.body.bytes = bytes;
        self
    }

    /// How long a body may take to arrive. Default: 30 s.
    pub fn body_deadline(mut self, deadline: Duration) -> Self {
        self.limits.body.time = deadline;
        self
    }

    /// How long the handler may take; after that its effect is rolled back and the sender is asked to come again.
    /// Default: 2 s. On SQLite, other writers wait meanwhile.
    pub fn handler_deadline(mut self, deadline: Duration) -> Self {
        self.limits.handler_deadline = deadline;
        self
    }

    /// How long a redelivery waits for the first delivery, where both are in this process, before it is told to come
    /// again. Default: 0. At most a minute.
    pub fn in_flight_wait(mut self, wait: Duration) -> Self {
        self.limits.in_flight_wait = wait;
        self
    }

    /// What a request is answered that uses a known event key with another payload; it is kept for review in each case.
    /// Default: 202, so that the sender does not repeat what will never be applied by itself.
    pub fn conflict_status(mut self, status: StatusCode) -> Self {
        self.limits.conflict_status = status;
        self
    }

    /// Whether events that come at the same time share one transaction and its commit, as long as their handlers are quick and
    /// do well; else each goes alone, which may run a handler again whose effect was rolled back. Default: on SQLite, where
    /// handlers run one after another in any case. On PostgreSQL it makes short handlers several times as fast, at the price
    /// of running one after another; a handler must not end its transaction by itself, which would hold the keys of all that
    /// share it.
    pub fn share_transactions(mut self, share: bool) -> Self {
        self.limits.share_transactions = Some(share);
        self
    }

    /// How long the sender repeats a delivery by itself. Default: what is known of the provider, else 72 h.
    pub fn sender_horizon(mut self, horizon: Duration) -> Self {
        self.sender_horizon = horizon;
        self
    }

    /// How long after that the sender still lets somebody deliver an event again by hand. Default: what is known of the
    /// provider, else 0.
    pub fn sender_resends(mut self, time: Duration) -> Self {
        self.sender_resends = time;
        self
    }

    /// How long answers are kept. Default: 30 days, or longer where the sender's times ask for it.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Accepts a retention under which a late redelivery may act a second time.
    pub fn accept_short_retention(mut self) -> Self {
        self.short_retention = true;
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// [`SourceError`] says what to change.
    pub fn build(self) -> Result<Source, SourceError> {
        let name = label("name", &self.name)?;
        let consumer = label("consumer", &self.consumer)?;
        let tenant = Key::new(self.tenant.as_str()).map_err(|_| SourceError::Label { field: "tenant" })?;
        let scope = Key::new(format!("source:{name}/{consumer}")).map_err(|_| SourceError::Label { field: "name" })?;
        check_limits(&self.limits, self.tolerance)?;
        let needed = self.needed_retention();
        let retention = self.retention.unwrap_or_else(|| needed.max(30 * DAY));
        if retention < needed {
            if !self.short_retention {
                return Err(SourceError::Retention { retention, needed });
            }
            tracing::warn!(source = %name, ?retention, ?needed, "answers are kept too shortly; late redeliveries may act again");
        }
        let verifier = match self.judge {
            Judge::Host(verifier) => verifier,
            Judge::Provider(provider) if !provider.has_id() => return Err(SchemeError::Id.into()),
            Judge::Provider(provider) => provider.verifier(self.keys, self.tolerance)?,
        };
        Ok(Source { name, tenant, scope, verifier, retention, limits: self.limits })
    }

    /// 1.2 × the sender's horizon + the time in which it allows resends; and never shorter than a signature is valid.
    fn needed_retention(&self) -> Duration {
        shortest_retention(self.sender_horizon, self.sender_resends).max(self.tolerance.saturating_mul(2))
    }
}

/// Why a source cannot be used as it was described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A name that is empty, too long or has characters it must not have.
    #[error("the {field} of the source must be 1 to 100 of the characters A-Z a-z 0-9 _ - (a tenant: visible ASCII)")]
    Label {
        /// Which one.
        field: &'static str,
    },
    /// Nothing to verify with: every request would have to be refused, or worse.
    #[error("the source has no secret")]
    NoSecret,
    /// More than [`crate::schemes::StandardWebhooks::MAX_SECRETS`].
    #[error("the source has {count} secrets; at most 4 may be live at once")]
    TooManySecrets {
        /// How many there are.
        count: usize,
    },
    /// A secret that cannot be used.
    #[error("a secret of the source cannot be used")]
    Secret(#[from] InvalidSecret),
    /// A description of a scheme that does not fit together.
    #[error("the scheme of the source cannot be used: {0}")]
    Scheme(SchemeError),
    /// A time or size of zero, or beyond what makes sense.
    #[error("the {field} of the source is out of range")]
    Limit {
        /// Which one.
        field: &'static str,
    },
    /// Answers would be forgotten while the sender still repeats itself.
    #[error(
        "answers are kept for {} s, but this sender may repeat itself for {} s: raise `retention`, or accept it with \
         `accept_short_retention`", retention.as_secs(), needed.as_secs()
    )]
    Retention {
        /// What was asked for.
        retention: Duration,
        /// 1.2 × the sender's horizon + its time for resends.
        needed: Duration,
    },
}

/// A name that fits a path segment and the ledger's scope.
fn label(field: &'static str, text: &str) -> Result<Key, SourceError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if text.len() > 100 || !text.bytes().all(allowed) {
        return Err(SourceError::Label { field });
    }
    Key::new(text).map_err(|_| SourceError::Label { field })
}

fn check_limits(limits: &Limits, tolerance: Duration) -> Result<(), SourceError> {
    let day = Duration::ZERO..=DAY;
    let minute = Duration::ZERO..=Duration::from_secs(60);
    let checks = [
        ("tolerance", !tolerance.is_zero() && day.contains(&tolerance)),
        ("body limit", limits.body.bytes > 0),
        ("body deadline", !limits.body.time.is_zero()),
        ("handler deadline", !limits.handler_deadline.is_zero() && minute.contains(&limits.handler_deadline)),
        ("in-flight wait", minute.contains(&limits.in_flight_wait)),
        ("conflict status", (200..600).contains(&limits.conflict_status.as_u16())),
    ];
    match checks.into_iter().find(|(_, right)| !right) {
        Some((field, _)) => Err(SourceError::Limit { field }),
        None => Ok(()),
    }
}

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

#[cfg(test)]
mod tests;
