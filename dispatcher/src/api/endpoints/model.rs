//! Endpoints on the wire.
//!
//! The SDKs have had two names for the filter (`eventTypes`, before `filterTypes`) and for the rate (`throttleRate`, before
//! `rateLimit`): both are read, and both are written.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use twiceproof_shared::id::Prefix;
use twiceproof_shared::key::Key;
use twiceproof_shared::signature::SigningKey;
use utoipa::ToSchema;

use crate::api::applications::key;
use crate::api::body::patched;
use crate::api::error::ApiError;
use crate::api::time::DateTime;
use crate::endpoint::{Endpoint, NewEndpoint};
use crate::endpoint_policy::EndpointPolicy;
use crate::event::NewEvent;
use crate::headers::CustomHeaders;
use crate::manage::change::EndpointChange;
use crate::manage::event_types::EventType;
use crate::manage::tenants::{Metadata, check_uid};
use crate::signing::Signing;
use crate::store::counts::Counts;

/// An endpoint to be created.
#[derive(Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct EndpointIn {
    url: String,
    /// Your own id, which works wherever the id does.
    uid: Option<String>,
    #[serde(default)]
    description: String,
    /// The event types that it gets; all if it is left out.
    #[serde(alias = "filterTypes")]
    event_types: Option<Vec<String>>,
    /// It gets messages with one of these channels; if it is left out, those of all channels and of none.
    channels: Option<Vec<String>>,
    /// Paused: its messages are kept.
    #[serde(default)]
    disabled: bool,
    /// Messages per second.
    #[serde(alias = "rateLimit")]
    throttle_rate: Option<u32>,
    #[serde(default)]
    metadata: Metadata,
    /// What signs: `whsec_…` (v1) or `whsk_…` (v1a); made if it is left out.
    secret: Option<String>,
    /// Headers that it wants to see on every request.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    headers: Option<std::collections::BTreeMap<String, String>>,
    /// What differs from the server's policy: schedule, horizon, what answers mean, breaker.
    policy: Option<EndpointPolicy>,
    /// The names of the signature headers, and signatures in the styles of other senders beside them.
    signing: Option<Signing>,
}

/// What an endpoint becomes.
#[derive(Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct EndpointUpdate {
    url: String,
    uid: Option<String>,
    #[serde(default)]
    description: String,
    #[serde(alias = "filterTypes")]
    event_types: Option<Vec<String>>,
    channels: Option<Vec<String>>,
    #[serde(default)]
    disabled: bool,
    #[serde(alias = "rateLimit")]
    throttle_rate: Option<u32>,
    #[serde(default)]
    metadata: Metadata,
    /// All that differs from the server's policy; if it is left out, what differs stays.
    policy: Option<EndpointPolicy>,
    /// How it is signed for, as a whole; if it is left out, that stays.
    signing: Option<Signing>,
}

/// What changes of an endpoint; what is left out stays.
#[derive(Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct EndpointPatch {
    url: Option<String>,
    #[serde(default, deserialize_with = "patched::nullable")]
    uid: Option<Option<String>>,
    description: Option<String>,
    #[serde(default, alias = "filterTypes", deserialize_with = "patched::nullable")]
    event_types: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "patched::nullable")]
    channels: Option<Option<Vec<String>>>,
    disabled: Option<bool>,
    #[serde(default, alias = "rateLimit", deserialize_with = "patched::nullable")]
    throttle_rate: Option<Option<u32>>,
    metadata: Option<Metadata>,
    /// All that differs from the server's policy; what it leaves out is the server's again.
    policy: Option<EndpointPolicy>,
    /// How it is signed for, as a whole.
    signing: Option<Signing>,
}

/// An endpoint.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct EndpointOut {
    pub(in crate::api) id: String,
    pub(in crate::api) uid: Option<String>,
    pub(in crate::api) url: String,
    pub(in crate::api) description: String,
    pub(in crate::api) event_types: Option<Vec<String>>,
    /// `eventTypes`, as older SDKs call it.
    pub(in crate::api) filter_types: Option<Vec<String>>,
    pub(in crate::api) channels: Option<Vec<String>>,
    pub(in crate::api) disabled: bool,
    /// Why it is disabled: `manual`, `gone` after a 410, or `failing`.
    pub(in crate::api) disabled_reason: Option<String>,
    pub(in crate::api) throttle_rate: Option<u32>,
    /// `throttleRate`, as older SDKs call it.
    pub(in crate::api) rate_limit: Option<u32>,
    pub(in crate::api) metadata: Metadata,
    /// What differs from the server's policy.
    pub(in crate::api) policy: EndpointPolicy,
    /// The names of the signature headers, and signatures in the styles of other senders beside them.
    pub(in crate::api) signing: Signing,
    /// Always 1: endpoints have no versions. Older SDKs want to read it.
    pub(in crate::api) version: u8,
    #[schema(value_type = String, format = DateTime)]
    pub(in crate::api) created_at: DateTime,
    #[schema(value_type = String, format = DateTime)]
    pub(in crate::api) updated_at: DateTime,
}

/// An endpoint's messages, by what became of them.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct EndpointStats {
    success: u64,
    /// Waiting: for their turn, their next attempt, or the endpoint to be resumed.
    pending: u64,
    sending: u64,
    fail: u64,
    /// Always 0: nothing is cancelled.
    canceled: u64,
}

/// Which example.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct EventExampleIn {
    pub(in crate::api) event_type: String,
}

impl EndpointIn {
    /// Reads the fields. Whose it is shows later.
    pub(in crate::api) fn endpoint(self) -> Result<NewEndpoint, ApiError> {
        let mut new = NewEndpoint::new(nobody()?, self.url);
        new.uid = self.uid.map(|uid| key("uid", "body", uid)).transpose()?;
        new.description = self.description;
        new.event_types = listed("eventTypes", self.event_types)?;
        new.channels = channels(self.channels)?;
        new.enabled = !self.disabled;
        new.rate_limit = self.throttle_rate;
        new.metadata = self.metadata;
        new.headers = CustomHeaders::new(self.headers.unwrap_or_default())
            .map_err(|invalid| ApiError::body("headers", invalid.to_string()))?;
        new.policy = self.policy.unwrap_or_default();
        new.signing = self.signing.unwrap_or_default();
        new.secret = self.secret.as_deref().map(secret).transpose()?;
        Ok(new)
    }
}

impl EndpointUpdate {
    /// Everything but headers and secret.
    pub(in crate::api) fn change(self) -> Result<EndpointChange, ApiError> {
        Ok(EndpointChange {
            url: Some(self.url),
            uid: Some(self.uid.map(|uid| key("uid", "body", uid)).transpose()?),
            description: Some(self.description),
            event_types: Some(listed("eventTypes", self.event_types)?),
            channels: Some(channels(self.channels)?),
            metadata: Some(self.metadata),
            rate_limit: Some(self.throttle_rate),
            enabled: Some(!self.disabled),
            policy: self.policy,
            signing: self.signing,
            ..EndpointChange::default()
        })
    }

    /// A new endpoint with the uid of the path; none where that can be no uid.
    pub(in crate::api) fn endpoint(self, uid: &str) -> Result<Option<NewEndpoint>, ApiError> {
        let uid = key("endpoint_id", "path", uid.to_owned()).ok();
        let Some(uid) = uid.filter(|uid| check_uid(Prefix::Endpoint, Some(uid)).is_ok()) else { return Ok(None) };
        let mut new = NewEndpoint::new(nobody()?, self.url);
        new.uid = Some(uid);
        new.description = self.description;
        new.event_types = listed("eventTypes", self.event_types)?;
        new.channels = channels(self.channels)?;
        new.enabled = !self.disabled;
        new.rate_limit = self.throttle_rate;
        new.metadata = self.metadata;
        new.policy = self.policy.unwrap_or_default();
        new.signing = self.signing.unwrap_or_default();
        Ok(Some(new))
    }
}

impl EndpointPatch {
    /// Reads the fields that are there.
    pub(in crate::api) fn change(self) -> Result<EndpointChange, ApiError> {
        Ok(EndpointChange {
            url: self.url,
            uid: self.uid.map(|uid| uid.map(|uid| key("uid", "body", uid)).transpose()).transpose()?,
            description: self.description,
            event_types: self.event_types.map(|types| listed("eventTypes", types)).transpose()?,
            channels: self.channels.map(channels).transpose()?,
            metadata: self.metadata,
            rate_limit: self.throttle_rate,
            enabled: self.disabled.map(|disabled| !disabled),
            policy: self.policy,
            signing: self.signing,
            ..EndpointChange::default()
        })
    }
}

impl EventExampleIn {
    /// The example of the event type's newest schema, or else one that says what it is.
    pub(in crate::api) fn event(&self, tenant: &Key, event_type: Option<&EventType>) -> NewEvent {
        let example = event_type.and_then(EventType::example);
        // A text always can be written as JSON.
        let made = || serde_json::json!({ "example": true, "eventType": self.event_type }).to_string();
        let payload = example.map_or_else(made, |example: Box<RawValue>| example.get().to_owned());
        NewEvent::json(tenant.clone(), &self.event_type, payload)
    }
}

impl From<Endpoint> for EndpointOut {
    fn from(endpoint: Endpoint) -> Self {
        let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
        let url = endpoint.expose_url().to_owned();
        let event_types = some(endpoint.event_types);
        Self {
            filter_types: event_types.clone(),
            event_types,
            rate_limit: endpoint.rate_limit,
            url,
            id: endpoint.id,
            uid: endpoint.uid,
            description: endpoint.description,
            channels: some(endpoint.channels),
            disabled: !endpoint.enabled,
            disabled_reason: endpoint.state_reason,
            throttle_rate: endpoint.rate_limit,
            metadata: endpoint.metadata,
            policy: endpoint.policy,
            signing: endpoint.signing,
            version: 1,
            created_at: DateTime(endpoint.created_at),
            updated_at: DateTime(endpoint.updated_at),
        }
    }
}

impl From<Counts> for EndpointStats {
    fn from(counts: Counts) -> Self {
        Self {
            success: counts.delivered,
            pending: counts.pending + counts.backoff + counts.parked + counts.blocked,
            sending: counts.leased,
            fail: counts.dead,
            canceled: 0,
        }
    }
}

/// Reads a secret that a caller brings. It is not repeated.
pub(in crate::api) fn secret(text: &str) -> Result<SigningKey, ApiError> {
    SigningKey::parse(text).map_err(|invalid| ApiError::body("secret", invalid.to_string()))
}

/// Stands for the tenant until it is known.
fn nobody() -> Result<Key, ApiError> {
    Key::new("-").map_err(|_| ApiError::not_found())
}

/// A list that is either left out or has something in it: an empty filter would be taken for *none* by some, for *all* by others.
fn listed(field: &str, list: Option<Vec<String>>) -> Result<Vec<String>, ApiError> {
    match list {
        Some(list) if list.is_empty() => Err(ApiError::body(field, "has one entry or more; leave it out for all")),
        list => Ok(list.unwrap_or_default()),
    }
}

fn channels(list: Option<Vec<String>>) -> Result<Vec<Key>, ApiError> {
    let keys = listed("channels", list)?.into_iter().enumerate();
    keys.map(|(place, text)| key(&format!("channels.{place}"), "body", text)).collect()
}
