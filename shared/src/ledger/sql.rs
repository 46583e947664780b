//! The SQL of the ledger's tables.

use bytes::Bytes;

use super::{Claim, LedgerKey, Outcome, RawRequest, Replay, Request};
use crate::clock::Timestamp;
use crate::store::{Arg, Conn, Database, StoreError};

#[derive(sqlx::FromRow)]
pub(super) struct Row {
    pub(super) state: String,
    pub(super) fingerprint: Vec<u8>,
    pub(super) fingerprint_version: i64,
    pub(super) token: i64,
    pub(super) lease_until: i64,
    first_seen_at: i64,
    outcome_status: Option<i64>,
    outcome_headers: Option<String>,
    outcome_body: Option<Vec<u8>>,
}

impl Row {
    pub(super) fn into_replay(self) -> Result<Replay, StoreError> {
        let first_seen_at = Timestamp::from_millis(self.first_seen_at);
        let (Some(status), Some(headers), Some(body)) = (self.outcome_status, self.outcome_headers, self.outcome_body)
        else {
            return Ok(Replay { outcome: None, first_seen_at });
        };
        let broken = || StoreError::refused("a stored outcome in twiceproof_ledger cannot be read");
        let outcome = Outcome {
            status: u16::try_from(status).map_err(|_| broken())?,
            headers: serde_json::from_str(&headers).map_err(|_| broken())?,
            body: Bytes::from(body),
        };
        Ok(Replay { outcome: Some(outcome), first_seen_at })
    }
}

pub(super) async fn find(conn: &mut Conn<'_>, key: &LedgerKey) -> Result<Option<Row>, StoreError> {
    conn.fetch_optional(
        "SELECT state, fingerprint, fingerprint_version, token, lease_until, first_seen_at,
                outcome_status, outcome_headers, outcome_body
         FROM twiceproof_ledger WHERE tenant = $1 AND scope = $2 AND key = $3",
        &[(&key.tenant).into(), (&key.scope).into(), (&key.key).into()],
    )
    .await
}

/// A claim without a lease is done in the transaction that makes it. One that is committed all the same (a handler that
/// commits by itself) is never run again by us: that could repeat its effect. It stays in flight until somebody looks.
pub(super) fn lease_until(request: &Request, now: Timestamp) -> Timestamp {
    request.lease.map_or(Timestamp::from_millis(i64::MAX), |lease| now.plus(lease))
}

/// False: the key is there already, or a transaction that is still running holds it.
pub(super) async fn insert(conn: &mut Conn<'_>, request: &Request, now: Timestamp) -> Result<bool, StoreError> {
    let lease_until = lease_until(request, now);
    let args: [Arg<'_>; 12] = [
        (&request.key.tenant).into(),
        (&request.key.scope).into(),
        (&request.key.key).into(),
        (&request.key_rule).into(),
        request.parameters.as_deref().into(),
        (&request.digest).into(),
        (&request.fingerprint.hash).into(),
        request.fingerprint.version.into(),
        lease_until.into(),
        now.into(),
        now.plus(request.retention).into(),
        request.key.lock_number().into(),
    ];
    let inserted = match conn.database() {
        // Differs because SQLite has one writer: whoever is here holds the write lock.
        Database::Sqlite => {
            let sql =
                "INSERT INTO twiceproof_ledger (tenant, scope, key, state, key_rule, parameters, digest, fingerprint,
                 fingerprint_version, token, lease_until, first_seen_at, expires_at)
             VALUES ($1, $2, $3, 'claimed', $4, $5, $6, $7, $8, 1, $9, $10, $11)
             ON CONFLICT (tenant, scope, key) DO NOTHING";
            conn.execute(sql, &args[..11]).await?
        }
        // Differs because on PostgreSQL the insert would wait for a twin that is still running; asking for a lock does not.
        // Advisory locks are shared by all schemas of a database, so the table's own number goes in.
        Database::Postgres => {
            let sql =
                "INSERT INTO twiceproof_ledger (tenant, scope, key, state, key_rule, parameters, digest, fingerprint,
                 fingerprint_version, token, lease_until, first_seen_at, expires_at)
             SELECT $1, $2, $3, 'claimed', $4, $5, $6, $7, $8, 1, $9, $10, $11
             WHERE pg_try_advisory_xact_lock($12 # 'twiceproof_ledger'::regclass::oid::bigint)
             ON CONFLICT (tenant, scope, key) DO NOTHING";
            conn.execute(sql, &args).await?
        }
    };
    Ok(inserted == 1)
}

/// False: somebody else took the claim over first.
pub(super) async fn take_over(
    conn: &mut Conn<'_>,
    request: &Request,
    token: i64,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let lease_until = lease_until(request, now);
    let updated = conn
        .execute(
            "UPDATE twiceproof_ledger SET token = token + 1, lease_until = $5
             WHERE tenant = $1 AND scope = $2 AND key = $3 AND state = 'claimed' AND token = $4",
            &[
                (&request.key.tenant).into(),
                (&request.key.scope).into(),
                (&request.key.key).into(),
                token.into(),
                lease_until.into(),
            ],
        )
        .await?;
    Ok(updated == 1)
}

/// The new token; none: the row is not expired, or a transaction that is still running takes it.
pub(super) async fn renew(conn: &mut Conn<'_>, request: &Request, now: Timestamp) -> Result<Option<i64>, StoreError> {
    let lease_until = lease_until(request, now);
    let args: [Arg<'_>; 10] = [
        (&request.key.tenant).into(),
        (&request.key.scope).into(),
        (&request.key.key).into(),
        (&request.digest).into(),
        (&request.fingerprint.hash).into(),
        request.fingerprint.version.into(),
        lease_until.into(),
        now.into(),
        now.plus(request.retention).into(),
        request.key.lock_number().into(),
    ];
    let token: Option<(i64,)> = match conn.database() {
        // Differs because SQLite has one writer: whoever is here holds the write lock.
        Database::Sqlite => {
            let sql =
                "UPDATE twiceproof_ledger SET state = 'claimed', token = token + 1, digest = $4, fingerprint = $5,
                 fingerprint_version = $6, lease_until = $7, first_seen_at = $8, expires_at = $9, done_at = NULL
             WHERE tenant = $1 AND scope = $2 AND key = $3 AND state = 'expired' RETURNING token";
            conn.fetch_optional(sql, &args[..9]).await?
        }
        // Differs because on PostgreSQL the update would wait for a twin that takes the same row.
        Database::Postgres => {
            let sql =
                "UPDATE twiceproof_ledger SET state = 'claimed', token = token + 1, digest = $4, fingerprint = $5,
                 fingerprint_version = $6, lease_until = $7, first_seen_at = $8, expires_at = $9, done_at = NULL
             WHERE tenant = $1 AND scope = $2 AND key = $3 AND state = 'expired'
                 AND pg_try_advisory_xact_lock($10 # 'twiceproof_ledger'::regclass::oid::bigint) RETURNING token";
            conn.fetch_optional(sql, &args).await?
        }
    };
    Ok(token.map(|(token,)| token))
}

/// False: the claim is somebody else's now.
pub(super) async fn finish(
    conn: &mut Conn<'_>,
    claim: &Claim,
    outcome: &Outcome,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let headers = serde_json::to_string(&outcome.headers)
        .map_err(|_| StoreError::refused("the headers of an outcome cannot be written as JSON"))?;
    let updated = conn
        .execute(
            "UPDATE twiceproof_ledger
             SET state = 'done', outcome_status = $5, outcome_headers = $6, outcome_body = $7, done_at = $8, expires_at = $9
             WHERE tenant = $1 AND scope = $2 AND key = $3 AND state = 'claimed' AND token = $4",
            &[
                (&claim.key.tenant).into(),
                (&claim.key.scope).into(),
                (&claim.key.key).into(),
                claim.token.into(),
                i64::from(outcome.status).into(),
                headers.as_str().into(),
                outcome.body.as_ref().into(),
                now.into(),
                now.plus(claim.retention).into(),
            ],
        )
        .await?;
    Ok(updated == 1)
}

pub(super) async fn keep_conflict(
    conn: &mut Conn<'_>,
    request: &Request,
    raw: &RawRequest<'_>,
    now: Timestamp,
) -> Result<(), StoreError> {
    conn.execute(
        "INSERT INTO twiceproof_conflicts (tenant, scope, key, digest, request_headers, request_body, state,
             seen_count, first_seen_at, last_seen_at)
         VALUES ($1, $2, $3, $4, $5, $6, 'open', 1, $7, $7)
         ON CONFLICT (tenant, scope, key, digest)
         DO UPDATE SET seen_count = twiceproof_conflicts.seen_count + 1, last_seen_at = excluded.last_seen_at",
        &[
            (&request.key.tenant).into(),
            (&request.key.scope).into(),
            (&request.key.key).into(),
            (&request.digest).into(),
            raw.headers.into(),
            raw.body.into(),
            now.into(),
        ],
    )
    .await?;
    Ok(())
}
