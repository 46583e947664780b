//! Operational webhooks: whoever runs the service hears of what happens to the endpoints of its tenants.
//!
//! They are ordinary events of one tenant of the organisation, the one with the id or uid [`TENANT`]; its endpoints, with their
//! filters, secrets, retries and limits, are ordinary endpoints. Without that tenant nothing is written.
//! Place in the path: `manage` and the record call [`tell`] in the transaction of what they tell of, where something has turned; a
//! delivery that goes well costs nothing.
//! Invariants: rolled back with it, committed with it; a unit that runs again tells nothing twice, since the uid says what is
//! told; nothing is told of the tenant's own endpoints, so nothing goes round in circles.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::store::{Conn, Store, StoreError};

use crate::store::events::{self, EventRow};
use crate::store::fan_outs::{self, FreshEvent};
use crate::store::operational::{self as look, Home};

/// The id or uid of the tenant whose endpoints get them.
pub const TENANT: &str = "operational-webhooks";
/// How long they are tried, where an endpoint has no horizon of its own: 72 hours.
pub const HORIZON: Duration = Duration::from_secs(72 * 3600);
/// With this attempt a delivery that fails is told as failing.
pub const FAILING_AT: u32 = 4;

/// What has happened.
#[derive(Debug, Clone)]
pub(crate) struct Telling {
    /// Whose endpoint it is.
    pub(crate) tenant: String,
    /// The endpoint.
    pub(crate) endpoint: String,
    pub(crate) what: What,
}

/// What has happened to an endpoint, or to a delivery at it.
#[derive(Debug, Clone)]
pub(crate) enum What {
    /// It was created.
    Created,
    /// Something of it was changed, but for its state.
    Updated,
    /// It was deleted; it had this uid.
    Deleted(Option<String>),
    /// It was enabled.
    Enabled,
    /// It was disabled: `manual`, `gone` or `failing`, since when it failed or was disabled.
    Disabled(&'static str, Timestamp),
    /// A delivery came to its end without being taken.
    Exhausted(Attempt),
    /// A delivery has failed [`FAILING_AT`] times.
    Failing(Attempt),
    /// A delivery that was failing was taken.
    Recovered(Attempt),
}

/// The attempt that is told of.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) status: Option<u16>,
    pub(crate) at: Timestamp,
}

impl What {
    fn event_type(&self) -> &'static str {
        match self {
            Self::Created => "endpoint.created",
            Self::Updated => "endpoint.updated",
            Self::Deleted(_) => "endpoint.deleted",
            Self::Enabled => "endpoint.enabled",
            Self::Disabled(..) => "endpoint.disabled",
            Self::Exhausted(_) => "message.attempt.exhausted",
            Self::Failing(_) => "message.attempt.failing",
            Self::Recovered(_) => "message.attempt.recovered",
        }
    }

    /// What tells it from the next of its kind at the same endpoint: an endpoint is created and deleted once, an attempt is
    /// one, and whatever else happened at its time.
    fn occasion(&self, now: Timestamp) -> String {
        match self {
            Self::Created | Self::Deleted(_) => String::new(),
            Self::Updated | Self::Enabled | Self::Disabled(..) => format!(":{}", now.as_millis()),
            Self::Exhausted(attempt) | Self::Failing(attempt) | Self::Recovered(attempt) => format!(":{}", attempt.id),
        }
    }
}

/// Tells what has happened, in the transaction in which it did; how many events were published.
pub(crate) async fn tell(conn: &mut Conn<'_>, store: &Store, tellings: Vec<Telling>) -> Result<u64, StoreError> {
    let mut homes: HashMap<String, Option<Home>> = HashMap::new();
    let mut told = 0;
    for telling in tellings {
        if !homes.contains_key(&telling.tenant) {
            let home = look::home(conn, &telling.tenant, TENANT).await?;
            homes.insert(telling.tenant.clone(), home);
        }
        if let Some(Some(home)) = homes.get(&telling.tenant) {
            told += publish(conn, store, home, &telling).await?;
        }
    }
    Ok(told)
}

async fn publish(conn: &mut Conn<'_>, store: &Store, home: &Home, telling: &Telling) -> Result<u64, StoreError> {
    let now = store.now();
    let event_type = telling.what.event_type();
    let uid = format!("{event_type}:{}{}", telling.endpoint, telling.what.occasion(now));
    let payload = json!({ "type": event_type, "data": data(conn, home, telling).await? }).to_string();
    let (id, digest) = (Id::mint(Prefix::Event, now, store.random()), Sha256::digest(&payload).into());
    let row = EventRow {
        tenant: &home.tenant,
        id: id.as_str(),
        uid: Some(&uid),
        event_type,
        content_type: "application/json",
        payload: payload.as_bytes(),
        digest: &digest,
        channels: "[]",
        ordering_key: None,
        expires_at: None,
    };
    if !events::insert(conn, &row, now).await? {
        // An earlier run of this unit told it.
        return Ok(0);
    }
    let fresh = FreshEvent {
        tenant: &home.tenant,
        id: id.as_str(),
        event_type,
        channels: "[]",
        ordering_key: None,
        expires_at: None,
    };
    fan_outs::fan_out(conn, &[fresh], now, now.plus(HORIZON)).await?;
    Ok(1)
}

/// What the payload says, in the names that the SDKs read.
async fn data(conn: &mut Conn<'_>, home: &Home, telling: &Telling) -> Result<Map<String, Value>, StoreError> {
    let Telling { tenant, endpoint, what } = telling;
    let mut data = Map::new();
    let mut put = |name: &str, value: Value| drop(data.insert(name.to_owned(), value));
    put("appId", json!(tenant));
    put("appUid", json!(home.about_uid));
    put("endpointId", json!(endpoint));
    let endpoint_uid = match what {
        What::Deleted(uid) => uid.clone(),
        _ => look::endpoint_uid(conn, tenant, endpoint).await?,
    };
    put("endpointUid", json!(endpoint_uid));
    match what {
        What::Created | What::Updated | What::Deleted(_) | What::Enabled => {}
        What::Disabled(reason, since) => {
            put("reason", json!(reason));
            put("failSince", json!(rfc3339(*since)));
        }
        What::Exhausted(attempt) | What::Failing(attempt) | What::Recovered(attempt) => {
            put("msgId", json!(attempt.event));
            put("msgEventId", json!(look::event_uid(conn, tenant, &attempt.event).await?));
            put(
                "lastAttempt",
                json!({
                    "id": attempt.id,
                    "responseStatusCode": attempt.status.unwrap_or(0),
                    "timestamp": rfc3339(attempt.at),
                }),
            );
        }
    }
    Ok(data)
}

fn rfc3339(time: Timestamp) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(time.as_millis()) * 1_000_000)
        .ok()
        .and_then(|time| time.format(&Rfc3339).ok())
        // Outside of the years 0 to 9999.
        .unwrap_or_default()
}
