//! What claimed deliveries are made of: payloads, URLs and live secrets, read in bulk after the claim.
//!
//! Place in the path: deliver reads it on a connection outside any transaction, before it signs. An event's bytes never
//! change; URL and secrets are those of this moment.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use twiceproof_shared::causes::chain;
use twiceproof_shared::signature::SigningKey;
use twiceproof_shared::store::{Arg, Conn, Database, Store, StoreError};
use url::Url;

use super::claim::ClaimedDelivery;
use super::json;
use super::secrets::SecretRow;
use crate::endpoint_policy::EndpointPolicy;
use crate::headers::CustomHeaders;
use crate::signing::Signing;

/// Tenant and id.
type Key = (String, String);

/// The parts of a batch of claimed deliveries.
#[derive(Debug, Default)]
pub struct Cargo {
    events: HashMap<Key, Content>,
    endpoints: HashMap<Key, Arc<Target>>,
}

/// What is sent.
#[derive(Debug, Clone)]
pub struct Content {
    /// The media type, as it was published.
    pub content_type: String,
    /// The bytes, as they were published.
    pub payload: Bytes,
}

/// Where it is sent, and what signs it.
pub struct Target {
    /// The URL, unless what is stored is none.
    pub url: Option<Url>,
    /// How many requests may be under way to it.
    pub slots: usize,
    /// The deadline of one attempt.
    pub timeout: Duration,
    /// The live secrets and private keys, newest first.
    pub secrets: Vec<SigningKey>,
    /// Headers that its owner wants to see.
    pub headers: CustomHeaders,
    /// What differs from the worker's policy.
    pub policy: EndpointPolicy,
    /// How it is signed for.
    pub signing: Signing,
}

impl Cargo {
    /// The content of a claimed delivery, unless its event is no longer stored.
    pub fn content(&self, claimed: &ClaimedDelivery) -> Option<Content> {
        self.events.get(&(claimed.key.tenant.clone(), claimed.key.event.clone())).cloned()
    }

    /// The target of a claimed delivery, unless its endpoint is no longer stored.
    pub fn target(&self, claimed: &ClaimedDelivery) -> Option<Arc<Target>> {
        self.endpoints.get(&(claimed.key.tenant.clone(), claimed.key.endpoint.clone())).cloned()
    }
}

/// Reads the parts of these deliveries.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn load(conn: &mut Conn<'_>, claimed: &[ClaimedDelivery], store: &Store) -> Result<Cargo, StoreError> {
    if claimed.is_empty() {
        return Ok(Cargo::default());
    }
    let events = claimed.iter().map(|one| Part { tenant: &one.key.tenant, id: &one.key.event });
    let endpoints = claimed.iter().map(|one| Part { tenant: &one.key.tenant, id: &one.key.endpoint });
    let events = contents(conn, &distinct(events)?).await?;
    let endpoints = targets(conn, &distinct(endpoints)?, store).await?;
    Ok(Cargo { events, endpoints })
}

#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct Part<'a> {
    tenant: &'a str,
    id: &'a str,
}

fn distinct<'a>(parts: impl Iterator<Item = Part<'a>>) -> Result<String, StoreError> {
    let parts: BTreeSet<Part<'a>> = parts.collect();
    json(&parts.into_iter().collect::<Vec<_>>())
}

async fn contents(conn: &mut Conn<'_>, keys: &str) -> Result<HashMap<Key, Content>, StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "SELECT v.tenant, v.id, v.content_type, v.payload, v.expunged_at FROM jsonb_each($1) k
             CROSS JOIN twiceproof_events v ON v.tenant = k.value ->> 'tenant' AND v.id = k.value ->> 'id'"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "SELECT v.tenant, v.id, v.content_type, v.payload, v.expunged_at
             FROM json_to_recordset($1::json) AS k (tenant text, id text)
             JOIN twiceproof_events v ON v.tenant = k.tenant AND v.id = k.id"
        }
    };
    type Row = (String, String, String, Vec<u8>, Option<i64>);
    let rows: Vec<Row> = conn.fetch_all(sql, &[Arg::from(keys)]).await?;
    // What was expunged is no longer there to be sent.
    let rows = rows.into_iter().filter(|(.., expunged_at)| expunged_at.is_none());
    let contents = rows.map(|(tenant, id, content_type, payload, _)| {
        let content = Content { content_type, payload: Bytes::from(payload) };
        ((tenant, id), content)
    });
    Ok(contents.collect())
}

async fn targets(conn: &mut Conn<'_>, keys: &str, store: &Store) -> Result<HashMap<Key, Arc<Target>>, StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "SELECT e.tenant, e.id, e.url, e.slots, e.timeout_ms, e.headers, e.policy, e.signing, s.key_id, s.kind, s.secret, s.sealed_by FROM jsonb_each($1) k
             CROSS JOIN twiceproof_endpoints e ON e.tenant = k.value ->> 'tenant' AND e.id = k.value ->> 'id'
             LEFT JOIN twiceproof_endpoint_secrets s
                 ON s.tenant = e.tenant AND s.endpoint = e.id AND (s.expires_at IS NULL OR s.expires_at > $2)
             ORDER BY s.created_at DESC, s.key_id"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "SELECT e.tenant, e.id, e.url, e.slots, e.timeout_ms, e.headers, e.policy, e.signing, s.key_id, s.kind, s.secret, s.sealed_by
             FROM json_to_recordset($1::json) AS k (tenant text, id text)
             JOIN twiceproof_endpoints e ON e.tenant = k.tenant AND e.id = k.id
             LEFT JOIN twiceproof_endpoint_secrets s
                 ON s.tenant = e.tenant AND s.endpoint = e.id AND (s.expires_at IS NULL OR s.expires_at > $2)
             ORDER BY s.created_at DESC, s.key_id"
        }
    };
    let rows: Vec<TargetRow> = conn.fetch_all(sql, &[Arg::from(keys), store.now().into()]).await?;
    let mut targets: HashMap<Key, Target> = HashMap::new();
    for mut row in rows {
        let secret = row.secret();
        let target = targets.entry((row.tenant.clone(), row.id.clone())).or_insert_with(|| row.target());
        // Secrets were checked when they were stored; one that cannot be read does not sign.
        match secret.map(|secret| secret.open(store.seal(), &row.tenant, &row.id)) {
            Some(Ok(secret)) => target.secrets.push(secret),
            Some(Err(error)) => tracing::error!(endpoint = %row.id, error = %chain(&error), "a secret does not sign"),
            None => {}
        }
    }
    Ok(targets.into_iter().map(|(key, target)| (key, Arc::new(target))).collect())
}

/// An endpoint with one of its live secrets, if it has any.
#[derive(sqlx::FromRow)]
struct TargetRow {
    tenant: String,
    id: String,
    url: String,
    slots: i64,
    timeout_ms: i64,
    headers: String,
    policy: String,
    signing: String,
    key_id: Option<String>,
    kind: Option<String>,
    secret: Option<Vec<u8>>,
    sealed_by: Option<String>,
}

impl TargetRow {
    fn secret(&mut self) -> Option<SecretRow> {
        let (key_id, kind) = self.key_id.take().zip(self.kind.take())?;
        Some(SecretRow::new(key_id, kind, self.secret.take()?, self.sealed_by.take()))
    }

    fn target(&self) -> Target {
        Target {
            url: Url::parse(&self.url).ok(),
            slots: usize::try_from(self.slots).unwrap_or(0),
            timeout: Duration::from_millis(u64::try_from(self.timeout_ms).unwrap_or(0)),
            secrets: Vec::new(),
            // Checked when they were stored; what cannot be read is left out.
            headers: serde_json::from_str(&self.headers).unwrap_or_default(),
            policy: serde_json::from_str(&self.policy).unwrap_or_default(),
            signing: serde_json::from_str(&self.signing).unwrap_or_default(),
        }
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
