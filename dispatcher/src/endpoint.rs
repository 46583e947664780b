//! An endpoint: where a tenant's events go, with its filter, limits and health.
//!
//! Invariants: plain data; `Debug` shows no more of the URL than its destination.

use std::fmt;
use std::time::Duration;

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::key::Key;
use twiceproof_shared::signature::SigningKey;
use twiceproof_shared::store::StoreError;
use url::Url;

use crate::destination::Destination;
use crate::endpoint_policy::EndpointPolicy;
use crate::headers::CustomHeaders;
use crate::manage::tenants::Metadata;
use crate::signing::Signing;
use crate::store::endpoints::EndpointRow;

/// An endpoint to be created.
#[derive(Clone)]
pub struct NewEndpoint {
    /// Whose endpoint it is.
    pub tenant: Key,
    /// Where events are sent.
    pub url: String,
    /// The caller's own id.
    pub uid: Option<Key>,
    /// What it is for.
    pub description: String,
    /// The event types that it gets; empty for all.
    pub event_types: Vec<String>,
    /// The channels that it takes; empty for events of all channels and of none.
    pub channels: Vec<Key>,
    /// Headers that it wants to see on every request.
    pub headers: CustomHeaders,
    /// Whatever the caller wants to keep with it.
    pub metadata: Metadata,
    /// Deliveries per second; none: as many as there are.
    pub rate_limit: Option<u32>,
    /// What differs from the worker's policy.
    pub policy: EndpointPolicy,
    /// The names of the signature headers, and signatures of other styles beside them.
    pub signing: Signing,
    /// Whether it is sent events; if not, they are parked until it is enabled.
    pub enabled: bool,
    /// What signs first, a shared secret or a private key; a secret is generated if there is none.
    pub secret: Option<SigningKey>,
    /// The deadline of one attempt; the policy's if there is none.
    pub timeout: Option<Duration>,
    /// How many requests a worker may have under way to it; the policy's if there is none.
    pub slots: Option<u32>,
}

impl NewEndpoint {
    /// An endpoint that gets all events, with a generated secret and the policy's limits.
    pub fn new(tenant: Key, url: impl Into<String>) -> Self {
        Self {
            tenant,
            url: url.into(),
            uid: None,
            description: String::new(),
            event_types: Vec::new(),
            channels: Vec::new(),
            headers: CustomHeaders::default(),
            metadata: Metadata::default(),
            rate_limit: None,
            policy: EndpointPolicy::default(),
            signing: Signing::default(),
            enabled: true,
            secret: None,
            timeout: None,
            slots: None,
        }
    }
}

/// An endpoint as it is stored.
#[derive(Clone)]
pub struct Endpoint {
    /// Whose endpoint it is.
    pub tenant: String,
    /// The minted id.
    pub id: String,
    /// The caller's own id.
    pub uid: Option<String>,
    /// What it is for.
    pub description: String,
    /// Whether it is sent events; if not, they are parked.
    pub enabled: bool,
    /// Why it is disabled: `manual`, `gone` after a 410, or `failing` after days of only failures.
    pub state_reason: Option<String>,
    /// The event types that it gets; empty for all.
    pub event_types: Vec<String>,
    /// The channels that it takes, sorted; empty for events of all channels and of none.
    pub channels: Vec<String>,
    /// Headers that it wants to see on every request.
    pub headers: CustomHeaders,
    /// Whatever the caller keeps with it.
    pub metadata: Metadata,
    /// Deliveries per second; none: as many as there are.
    pub rate_limit: Option<u32>,
    /// What differs from the worker's policy, its horizon for one.
    pub policy: EndpointPolicy,
    /// The names of the signature headers, and signatures of other styles beside them.
    pub signing: Signing,
    /// The deadline of one attempt.
    pub timeout: Duration,
    /// How many requests a worker may have under way to it.
    pub slots: u32,
    /// When it last answered 2xx, to the second.
    pub last_success_at: Option<Timestamp>,
    /// When it last failed.
    pub last_failure_at: Option<Timestamp>,
    /// How often it failed since it last answered 2xx; answers that ask for patience are not counted.
    pub failures_in_row: u64,
    /// Since when it failed and nothing else.
    pub failing_since: Option<Timestamp>,
    /// Nothing is sent to it before: its breaker is open, or it asked for patience. May lie in the past.
    pub closed_until: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    url: String,
}

impl Endpoint {
    /// # Errors
    /// [`StoreError::Refused`] where a column holds what this program does not write.
    pub(crate) fn new(row: EndpointRow, event_types: Vec<String>) -> Result<Self, StoreError> {
        let broken =
            |_| StoreError::Refused(format!("what is stored of the endpoint {} cannot be read", row.id).into());
        Ok(Self {
            channels: serde_json::from_str(&row.channels).map_err(broken)?,
            headers: serde_json::from_str(&row.headers).map_err(broken)?,
            metadata: serde_json::from_str(&row.metadata).map_err(broken)?,
            policy: serde_json::from_str(&row.policy).map_err(broken)?,
            signing: serde_json::from_str(&row.signing).map_err(broken)?,
            failing_since: row.failing_since.map(Timestamp::from_millis),
            closed_until: row.breaker_until.max(row.throttled_until).map(Timestamp::from_millis),
            rate_limit: row.rate_limit.and_then(|limit| u32::try_from(limit).ok()),
            tenant: row.tenant,
            id: row.id,
            uid: row.uid,
            description: row.description,
            enabled: row.state == "enabled",
            state_reason: row.state_reason,
            event_types,
            timeout: Duration::from_millis(u64::try_from(row.timeout_ms).unwrap_or(0)),
            slots: u32::try_from(row.slots).unwrap_or(u32::MAX),
            last_success_at: row.last_success_at.map(Timestamp::from_millis),
            last_failure_at: row.last_failure_at.map(Timestamp::from_millis),
            failures_in_row: u64::try_from(row.failures_in_row).unwrap_or(0),
            created_at: Timestamp::from_millis(row.created_at),
            updated_at: Timestamp::from_millis(row.updated_at),
            url: row.url,
        })
    }

    /// The URL in full: a credential, never to be logged.
    pub fn expose_url(&self) -> &str {
        &self.url
    }

    /// Where it leads, as logs may show it.
    pub fn destination(&self) -> Option<Destination> {
        Url::parse(&self.url).ok().map(|url| Destination::of(&url))
    }
}

impl fmt::Debug for NewEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewEndpoint").field("tenant", &self.tenant).field("uid", &self.uid).finish_non_exhaustive()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let destination = self.destination().map(|destination| destination.to_string());
        f.debug_struct("Endpoint")
            .field("id", &self.id)
            .field("destination", &destination)
            .field("enabled", &self.enabled)
            .finish_non_exhaustive()
    }
}
