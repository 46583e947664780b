//! The ledger: one mechanism that tells a first request from a repeat. It is used for received webhooks, for requests
//! with an `Idempotency-Key`, and for action keys.
//!
//! [`accept`] is asked first, inside the transaction of the effect. [`Answer::New`] hands out a [`Claim`]; the effect
//! follows; [`finish`] writes the outcome **last**, so that a PostgreSQL transaction that failed on the way cannot
//! pass for done. Key, effect and outcome commit together or not at all.
//!
//! Invariants: the unique index on (tenant, scope, key) is the only truth; *claimed* is never taken for *done*; a
//! stored outcome is never changed; an expected refusal raises no SQL error in a host's transaction.

mod bulk;
mod purge;
mod sql;

pub use bulk::{accept_all, finish_all};

use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::clock::Timestamp;
use crate::key::Key;
use crate::store::{Conn, RunningKey, StoreError};

pub use purge::{Purged, Retention, keep, purge};

/// Asks the ledger whether this request is new.
///
/// Call it inside the transaction in which the effect will be written.
///
/// # Errors
/// As [`StoreError`] says; [`StoreError::Busy`] under REPEATABLE READ when another transaction took the key meanwhile.
pub async fn accept(conn: &mut Conn<'_>, request: &Request, now: Timestamp) -> Result<Answer, StoreError> {
    // Asked by trying: most requests are new, and for them this is the only statement.
    if sql::insert(conn, request, now).await? {
        return Ok(Answer::New(Claim { key: request.key.clone(), token: 1, retention: request.retention }));
    }
    // It is known, or somebody else holds it.
    match sql::find(conn, &request.key).await? {
        Some(row) => judge(conn, row, request, now).await,
        None => Ok(Answer::InFlight),
    }
}

/// What is already done under this key, read without a lock and outside any transaction: [`Answer::Replay`] or
/// [`Answer::Conflict`]. `None` where nothing is done yet. It writes nothing and hands out no claim.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn peek(conn: &mut Conn<'_>, request: &Request) -> Result<Option<Answer>, StoreError> {
    match sql::find(conn, &request.key).await? {
        Some(row) if row.state == "claimed" => Ok(None),
        Some(row) if differs(&row, request) => Ok(Some(Answer::Conflict)),
        Some(row) => row.into_replay().map(|replay| Some(Answer::Replay(replay))),
        None => Ok(None),
    }
}

/// Writes the outcome of a claim. It must be the last statement of the transaction.
///
/// # Errors
/// [`StoreError::LeaseLost`] when somebody else took the claim over: roll back. [`StoreError::TransactionFailed`] when an
/// earlier statement had failed on PostgreSQL.
pub async fn finish(conn: &mut Conn<'_>, claim: Claim, outcome: &Outcome, now: Timestamp) -> Result<(), StoreError> {
    if sql::finish(conn, &claim, outcome, now).await? { Ok(()) } else { Err(StoreError::LeaseLost) }
}

/// Takes a key again whose outcome has been forgotten, whatever the payload was: for callers to whom an expired key is a new
/// one. `None`: it is not expired, or somebody else takes it just now.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn renew(conn: &mut Conn<'_>, request: &Request, now: Timestamp) -> Result<Option<Claim>, StoreError> {
    let token = sql::renew(conn, request, now).await?;
    Ok(token.map(|token| Claim { key: request.key.clone(), token, retention: request.retention }))
}

/// Keeps a request that used a known key with another payload for review. Repeats of it are counted, not stored again.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn keep_conflict(
    conn: &mut Conn<'_>,
    request: &Request,
    raw: &RawRequest<'_>,
    now: Timestamp,
) -> Result<(), StoreError> {
    sql::keep_conflict(conn, request, raw, now).await
}

async fn judge(conn: &mut Conn<'_>, row: sql::Row, request: &Request, now: Timestamp) -> Result<Answer, StoreError> {
    let abandoned = row.state == "claimed" && row.lease_until <= now.as_millis();
    if row.state == "claimed" && !abandoned {
        return Ok(Answer::InFlight);
    }
    if differs(&row, request) {
        return Ok(Answer::Conflict);
    }
    if abandoned {
        // Its holder committed the claim and then died: run again, fenced against the holder's return.
        return Ok(match sql::take_over(conn, request, row.token, now).await? {
            true => Answer::New(Claim { key: request.key.clone(), token: row.token + 1, retention: request.retention }),
            false => Answer::InFlight,
        });
    }
    row.into_replay().map(Answer::Replay)
}

/// Another payload under the same key. A fingerprint of another version says nothing about this payload.
fn differs(row: &sql::Row, request: &Request) -> bool {
    row.fingerprint_version == request.fingerprint.version && row.fingerprint != request.fingerprint.hash
}

/// What the ledger answers.
#[derive(Debug)]
#[must_use]
pub enum Answer {
    /// You hold the key: write the effect, then [`finish`].
    New(Claim),
    /// It was done before; nothing runs.
    Replay(Replay),
    /// The key was used with another payload. The stored outcome is untouched.
    Conflict,
    /// The first is still running.
    InFlight,
}

/// The right to write one outcome. Only [`accept`] makes it; [`finish`] consumes it.
#[derive(Debug)]
#[must_use = "write the outcome with `finish`, or roll back"]
pub struct Claim {
    key: LedgerKey,
    token: i64,
    retention: Duration,
}

/// A repeat of a request that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replay {
    /// The stored answer, byte for byte; `None` once its retention is over and only the key is kept.
    pub outcome: Option<Outcome>,
    /// When the first request with this key came.
    pub first_seen_at: Timestamp,
}

/// An answer as it is stored: status, headers in order, body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// HTTP status, 100–999.
    pub status: u16,
    /// Header names and values, in order.
    pub headers: Vec<(String, String)>,
    /// Raw body.
    pub body: Bytes,
}

/// A request as the ledger sees it.
#[derive(Debug, Clone)]
pub struct Request {
    /// Whose request, of which kind, under which key.
    pub key: LedgerKey,
    /// SHA-256 of the raw body.
    pub digest: [u8; 32],
    /// What must be the same for two requests to be the same.
    pub fingerprint: Fingerprint,
    /// The name of the rule that built the key; empty where the sender's id is the key.
    pub key_rule: String,
    /// The business parameters that the rule names, as JSON, kept apart from the key.
    pub parameters: Option<String>,
    /// How long the outcome is kept.
    pub retention: Duration,
    /// For work that is committed as *claimed* before it is done: how long the claim holds. `None` where key, effect
    /// and outcome share one transaction.
    pub lease: Option<Duration>,
}

impl Request {
    /// A request whose equality is its raw body, whose key is the sender's id, and whose effect shares the transaction.
    #[must_use]
    pub fn of_body(key: LedgerKey, body: &[u8], retention: Duration) -> Self {
        let digest = Sha256::digest(body).into();
        Self {
            key,
            digest,
            fingerprint: Fingerprint { version: Fingerprint::BODY_V1, hash: digest },
            key_rule: String::new(),
            parameters: None,
            retention,
            lease: None,
        }
    }
}

/// A versioned hash of what makes two requests the same. Hashes of different versions are never compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    /// Which fields went in, and how.
    pub version: i64,
    /// SHA-256.
    pub hash: [u8; 32],
}

impl Fingerprint {
    /// Version 1: the raw body of a webhook.
    pub const BODY_V1: i64 = 1;
    /// Version 1 of: the members of a webhook's JSON object, without those that its provider changes between deliveries.
    pub const MEMBERS_V1: i64 = 2;
    /// Version 1 of: method, path, query, media type and body of an API request.
    pub const REQUEST_V1: i64 = 3;
}

/// A request as it came in, for review.
#[derive(Debug, Clone, Copy)]
pub struct RawRequest<'a> {
    /// Headers as a JSON list of pairs.
    pub headers: &'a str,
    /// Raw body.
    pub body: &'a [u8],
}

/// The key of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LedgerKey {
    /// Whose.
    pub tenant: Key,
    /// Source or route, **and consumer**: two handlers of one source each act once.
    pub scope: Key,
    /// The event key, idempotency key or action key.
    pub key: Key,
}

impl LedgerKey {
    /// For [`crate::store::Running`].
    #[must_use]
    pub fn running(&self) -> RunningKey {
        (self.tenant.to_string(), self.scope.to_string(), self.key.to_string())
    }

    /// The number of this key's advisory lock. Two keys that share one only refuse each other for a moment.
    fn lock_number(&self) -> i64 {
        let mut hash = Sha256::new();
        for part in [self.tenant.as_ref(), self.scope.as_ref(), self.key.as_ref()] {
            let part: &str = part;
            // The parts hold no byte below 0x21, so a zero byte separates them.
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let hash = hash.finalize();
        i64::from_be_bytes(std::array::from_fn(|index| hash[index]))
    }
}
