//! What an endpoint is, checked: when it is created and when it is changed.
//!
//! Invariants: what is stored has passed the same rules, whichever way it came; what is not named stays as it is.

use std::time::Duration;

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::{Conn, StoreError, Wake};

use super::tenants::{Metadata, check_uid, metadata_json};
use super::{MAX_DESCRIPTION_BYTES, MAX_TIMEOUT, ManageError, Manager, found, tell, with_event_types};
use crate::endpoint::{Endpoint, NewEndpoint};
use crate::endpoint_policy::EndpointPolicy;
use crate::event::{MAX_CHANNELS, check_event_type};
use crate::headers::CustomHeaders;
use crate::operational::What;
use crate::signing::{InvalidSigning, Signing};
use crate::store::endpoints::{self, EndpointRow};
use crate::store::secrets;

/// What changes of an endpoint; what is not given stays.
#[derive(Clone, Default)]
pub struct EndpointChange {
    /// Where events are sent.
    pub url: Option<String>,
    /// The caller's own id; given as none, it is taken away.
    pub uid: Option<Option<Key>>,
    /// What it is for.
    pub description: Option<String>,
    /// The event types that it gets; empty for all.
    pub event_types: Option<Vec<String>>,
    /// The channels that it takes; empty for events of all channels and of none.
    pub channels: Option<Vec<Key>>,
    /// Headers that it wants to see.
    pub headers: Option<CustomHeaders>,
    /// Whatever the caller keeps with it.
    pub metadata: Option<Metadata>,
    /// Deliveries per second; given as none, there is no limit.
    pub rate_limit: Option<Option<u32>>,
    /// What differs from the worker's policy, as a whole. Deliveries that were made keep their horizon.
    pub policy: Option<EndpointPolicy>,
    /// The names of the signature headers, and signatures of other styles beside them, as a whole.
    pub signing: Option<Signing>,
    /// The deadline of one attempt.
    pub timeout: Option<Duration>,
    /// How many requests a worker may have under way to it.
    pub slots: Option<u32>,
    /// Whether it is sent events.
    pub enabled: Option<bool>,
}

impl std::fmt::Debug for EndpointChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointChange").finish_non_exhaustive()
    }
}

impl EndpointChange {
    /// Whether anything but the state is named.
    fn is_more_than_state(&self) -> bool {
        let Self {
            url,
            uid,
            description,
            event_types,
            channels,
            headers,
            metadata,
            rate_limit,
            policy,
            signing,
            timeout,
            slots,
            enabled: _,
        } = self;
        url.is_some()
            || uid.is_some()
            || description.is_some()
            || event_types.is_some()
            || channels.is_some()
            || headers.is_some()
            || metadata.is_some()
            || rate_limit.is_some()
            || policy.is_some()
            || signing.is_some()
            || timeout.is_some()
            || slots.is_some()
    }
}

/// An endpoint that was changed, and the wake-up that is owed after the commit.
#[derive(Debug)]
pub struct Changed {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Send it after the commit.
    pub wake: Wake,
}

impl Manager {
    /// Changes an endpoint. What is under way to it goes on as it was; what waits goes where the endpoint is now.
    ///
    /// # Errors
    /// As [`ManageError`] says.
    pub async fn change(
        &self,
        conn: &mut Conn<'_>,
        tenant: &Key,
        id: &str,
        change: EndpointChange,
    ) -> Result<Changed, ManageError> {
        let now = self.store.now();
        // Held until the end of the transaction: of two changes at once the second builds on the first.
        found(endpoints::touch(conn, tenant.as_str(), id, now).await?)?;
        let row = endpoints::find(conn, tenant.as_str(), id).await?.ok_or(ManageError::NotFound)?;
        let new = self.changed(&row, &change, now)?;
        if change.signing.as_ref().is_some_and(Signing::needs_shared_secret)
            && !secrets::has_lasting_shared(conn, tenant.as_str(), id).await?
        {
            return Err(InvalidSigning::NoSharedSecret.into());
        }
        if let Some(uid) = new.uid.as_deref()
            && new.uid != row.uid
        {
            endpoints::hold_uid(conn, tenant.as_str(), uid).await?;
            if let Some((holder,)) = endpoints::id_of_uid(conn, tenant.as_str(), uid).await? {
                return Err(ManageError::UidTaken(holder));
            }
        }
        found(endpoints::update(conn, &new).await?)?;
        if let Some(event_types) = &change.event_types {
            endpoints::delete_event_types(conn, tenant.as_str(), id).await?;
            endpoints::insert_event_types(conn, tenant.as_str(), id, event_types).await?;
        }
        if change.is_more_than_state() {
            tell(conn, &self.store, tenant.as_str(), id, What::Updated).await?;
        }
        let is_enabled = row.state == "enabled";
        let wake = match change.enabled {
            Some(true) if !is_enabled => self.enable(conn, tenant, id).await?,
            Some(false) if is_enabled => {
                self.disable(conn, tenant, id).await?;
                Wake::none()
            }
            _ => Wake::none(),
        };
        let row = endpoints::find(conn, tenant.as_str(), id).await?.ok_or(ManageError::NotFound)?;
        Ok(Changed { endpoint: with_event_types(conn, row).await?, wake })
    }

    /// Deletes an endpoint with its secrets. Its open deliveries come to their end; what was tried stays until its retention
    /// is over.
    ///
    /// # Errors
    /// [`ManageError::NotFound`], or as [`ManageError::Store`] says.
    pub async fn delete(&self, conn: &mut Conn<'_>, tenant: &Key, id: &str) -> Result<(), ManageError> {
        let row = endpoints::find(conn, tenant.as_str(), id).await?.ok_or(ManageError::NotFound)?;
        found(endpoints::delete(conn, tenant.as_str(), id).await?)?;
        tell(conn, &self.store, tenant.as_str(), id, What::Deleted(row.uid)).await
    }

    /// The row of a new endpoint.
    pub(super) fn row(&self, new: &NewEndpoint, id: Id) -> Result<EndpointRow, ManageError> {
        let now = self.store.now();
        let blank = EndpointRow {
            tenant: new.tenant.to_string(),
            id: id.into(),
            uid: None,
            url: String::new(),
            description: String::new(),
            state: if new.enabled { "enabled" } else { "disabled" }.to_owned(),
            state_reason: (!new.enabled).then(|| "manual".to_owned()),
            all_event_types: 1,
            timeout_ms: millis(self.policy.timeout),
            slots: i64::from(self.policy.slots_per_endpoint),
            last_success_at: None,
            last_failure_at: None,
            failures_in_row: 0,
            created_at: now.as_millis(),
            updated_at: now.as_millis(),
            channels: "[]".to_owned(),
            headers: "{}".to_owned(),
            metadata: "{}".to_owned(),
            rate_limit: None,
            policy: "{}".to_owned(),
            signing: "{}".to_owned(),
            horizon_ms: None,
            failing_since: None,
            breaker_until: None,
            throttled_until: None,
        };
        let change = EndpointChange {
            url: Some(new.url.clone()),
            uid: Some(new.uid.clone()),
            description: Some(new.description.clone()),
            event_types: Some(new.event_types.clone()),
            channels: Some(new.channels.clone()),
            headers: Some(new.headers.clone()),
            metadata: Some(new.metadata.clone()),
            rate_limit: Some(new.rate_limit),
            policy: Some(new.policy.clone()),
            signing: Some(new.signing.clone()),
            timeout: new.timeout,
            slots: new.slots,
            enabled: None,
        };
        self.changed(&blank, &change, now)
    }

    /// Checks what changes.
    fn changed(&self, row: &EndpointRow, change: &EndpointChange, now: Timestamp) -> Result<EndpointRow, ManageError> {
        let mut row = EndpointRow { updated_at: now.as_millis(), ..row.clone() };
        if let Some(url) = &change.url {
            row.url = self.addresses.parse_url(url)?.into();
        }
        if let Some(uid) = &change.uid {
            check_uid(Prefix::Endpoint, uid.as_ref())?;
            row.uid = uid.as_ref().map(Key::to_string);
        }
        if let Some(description) = &change.description {
            if description.len() > MAX_DESCRIPTION_BYTES || description.contains('\0') {
                return Err(ManageError::Limit("a description has at most 1024 bytes and no NUL"));
            }
            row.description.clone_from(description);
        }
        if let Some(event_types) = &change.event_types {
            event_types.iter().try_for_each(|name| check_event_type(name))?;
            row.all_event_types = i64::from(event_types.is_empty());
        }
        if let Some(channels) = &change.channels {
            row.channels = channels_json(channels)?;
        }
        if let Some(headers) = &change.headers {
            // Texts always can be written as JSON.
            row.headers = serde_json::to_string(headers).unwrap_or_default();
        }
        if let Some(metadata) = &change.metadata {
            row.metadata = metadata_json(metadata)?;
        }
        if let Some(rate_limit) = change.rate_limit {
            if rate_limit == Some(0) {
                return Err(ManageError::Limit("a rate limit is 1 or more per second"));
            }
            row.rate_limit = rate_limit.map(i64::from);
        }
        if let Some(policy) = &change.policy {
            policy.check(&self.policy)?;
            // Numbers and texts always can be written as JSON.
            row.policy = serde_json::to_string(policy).unwrap_or_default();
            row.horizon_ms = policy.horizon().map(millis);
        }
        if let Some(signing) = &change.signing {
            // Texts always can be written as JSON.
            row.signing = serde_json::to_string(signing).unwrap_or_default();
        }
        if change.signing.is_some() || change.headers.is_some() {
            let broken = |_| StoreError::Refused("how the endpoint is signed for cannot be read".into());
            let signing: Signing = serde_json::from_str(&row.signing).map_err(broken)?;
            signing.check(&serde_json::from_str(&row.headers).map_err(broken)?)?;
        }
        if let Some(timeout) = change.timeout {
            if timeout < Duration::from_millis(1) || timeout > MAX_TIMEOUT {
                return Err(ManageError::Limit("a timeout lies between 1 ms and 5 minutes"));
            }
            row.timeout_ms = millis(timeout);
        }
        if let Some(slots) = change.slots {
            if slots == 0 {
                return Err(ManageError::Limit("an endpoint needs at least one slot"));
            }
            row.slots = i64::from(slots);
        }
        Ok(row)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Channels as a sorted set.
fn channels_json(channels: &[Key]) -> Result<String, ManageError> {
    let mut sorted: Vec<&Key> = channels.iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() > MAX_CHANNELS {
        return Err(ManageError::Limit("an endpoint has at most 10 channels"));
    }
    // A list of texts always can be written as JSON.
    Ok(serde_json::to_string(&sorted).unwrap_or_default())
}

#[cfg(test)]
mod tests;
