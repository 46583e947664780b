//! The ledger asked for many requests at once, for those whose effects share a transaction.
//!
//! Invariants: as for one: the unique index decides, an outcome is written last. What is not new is left to be asked for
//! alone. Both statements reach their rows as inserts do, by the unique index, whatever the planner thinks of the table.

use std::collections::HashSet;

use serde::Serialize;

use super::sql::lease_until;
use super::{Claim, Outcome, Request};
use crate::clock::Timestamp;
use crate::store::bulk::{Pool, to_json};
use crate::store::{Arg, Conn, Database, StoreError};

/// Asks for requests with different keys of **one tenant and scope**: of each, the claim where it is new.
///
/// # Errors
/// As [`super::accept`].
pub async fn accept_all(
    conn: &mut Conn<'_>,
    requests: &[&Request],
    now: Timestamp,
) -> Result<Vec<Option<Claim>>, StoreError> {
    let mut pool = Pool::default();
    let rows = to_json(&requests.iter().map(|request| Row::of(request, now, &mut pool)).collect::<Vec<_>>())?;
    let args = [Arg::from(&rows), pool.as_bytes().into(), now.into()];
    let new = match conn.database() {
        // Differs because SQLite has one writer, and a row that it returns costs as much as to insert it.
        Database::Sqlite => {
            let inserted = conn
                .execute(
                    "INSERT INTO twiceproof_ledger (tenant, scope, key, state, key_rule, parameters, digest, fingerprint,
                         fingerprint_version, token, lease_until, first_seen_at, expires_at)
                     SELECT value ->> 'tenant', value ->> 'scope', value ->> 'key', 'claimed', value ->> 'key_rule',
                            value ->> 'parameters', substr($2, value ->> 'digest_at', 32),
                            substr($2, value ->> 'fingerprint_at', 32), value ->> 'fingerprint_version', 1,
                            value ->> 'lease_until', $3, value ->> 'expires_at'
                     FROM jsonb_each($1) WHERE true
                     ON CONFLICT (tenant, scope, key) DO NOTHING",
                    &args,
                )
                .await?;
            if inserted == requests.len() as u64 { None } else { Some(last(conn, inserted).await?) }
        }
        // Differs because on PostgreSQL an insert would wait for a twin that is still running; asking for a lock does not.
        Database::Postgres => {
            let keys: Vec<(String,)> = conn
                .fetch_all(
                    "INSERT INTO twiceproof_ledger (tenant, scope, key, state, key_rule, parameters, digest, fingerprint,
                         fingerprint_version, token, lease_until, first_seen_at, expires_at)
                     SELECT r.tenant, r.scope, r.key, 'claimed', r.key_rule, r.parameters,
                            substring($2::bytea from r.digest_at for 32),
                            substring($2::bytea from r.fingerprint_at for 32), r.fingerprint_version, 1, r.lease_until, $3,
                            r.expires_at
                     FROM json_to_recordset($1::json) AS r
                         (tenant text, scope text, key text, key_rule text, parameters text, digest_at int,
                          fingerprint_at int, fingerprint_version bigint, lease_until bigint, expires_at bigint,
                          lock_number bigint)
                     WHERE pg_try_advisory_xact_lock(r.lock_number # 'twiceproof_ledger'::regclass::oid::bigint)
                     ON CONFLICT (tenant, scope, key) DO NOTHING RETURNING key",
                    &args,
                )
                .await?;
            Some(keys.into_iter().map(|(key,)| key).collect())
        }
    };
    let claim = |request: &&Request| {
        let is_new = new.as_ref().is_none_or(|new: &HashSet<String>| new.contains(request.key.key.as_str()));
        is_new.then(|| Claim { key: request.key.clone(), token: 1, retention: request.retention })
    };
    Ok(requests.iter().map(claim).collect())
}

/// The keys that this connection's last statement inserted: their row numbers follow one another.
async fn last(conn: &mut Conn<'_>, count: u64) -> Result<HashSet<String>, StoreError> {
    if count == 0 {
        return Ok(HashSet::new());
    }
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let sql = "SELECT key FROM twiceproof_ledger
               WHERE rowid > last_insert_rowid() - $1 AND rowid <= last_insert_rowid()";
    let keys: Vec<(String,)> = conn.fetch_all(sql, &[count.into()]).await?;
    Ok(keys.into_iter().map(|(key,)| key).collect())
}

/// Writes the outcomes of claims that [`accept_all`] handed out in this transaction. It must be the last statement of it.
///
/// # Errors
/// As [`super::finish`]: roll back.
pub async fn finish_all(
    conn: &mut Conn<'_>,
    done: &[(&Request, Claim, &Outcome)],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut pool = Pool::default();
    let mut rows = Vec::with_capacity(done.len());
    for (request, claim, outcome) in done {
        rows.push(Done {
            row: Row::of(request, now, &mut pool),
            token: claim.token,
            status: outcome.status,
            headers: to_json(&outcome.headers)?,
            body_at: pool.add(&outcome.body),
            body_len: outcome.body.len(),
        });
    }
    let rows = to_json(&rows)?;
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "INSERT INTO twiceproof_ledger AS l (tenant, scope, key, state, key_rule, digest, fingerprint,
                 fingerprint_version, token, lease_until, first_seen_at, expires_at, outcome_status, outcome_headers,
                 outcome_body, done_at)
             SELECT value ->> 'tenant', value ->> 'scope', value ->> 'key', 'done', value ->> 'key_rule',
                    substr($2, value ->> 'digest_at', 32), substr($2, value ->> 'fingerprint_at', 32),
                    value ->> 'fingerprint_version', value ->> 'token', value ->> 'lease_until', $3, value ->> 'expires_at',
                    value ->> 'status', value ->> 'headers', substr($2, value ->> 'body_at', value ->> 'body_len'), $3
             FROM jsonb_each($1) WHERE true
             ON CONFLICT (tenant, scope, key) DO UPDATE SET state = 'done', outcome_status = excluded.outcome_status,
                 outcome_headers = excluded.outcome_headers, outcome_body = excluded.outcome_body,
                 done_at = excluded.done_at, expires_at = excluded.expires_at
             WHERE l.state = 'claimed' AND l.token = excluded.token"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "INSERT INTO twiceproof_ledger AS l (tenant, scope, key, state, key_rule, digest, fingerprint,
                 fingerprint_version, token, lease_until, first_seen_at, expires_at, outcome_status, outcome_headers,
                 outcome_body, done_at)
             SELECT r.tenant, r.scope, r.key, 'done', r.key_rule, substring($2::bytea from r.digest_at for 32),
                    substring($2::bytea from r.fingerprint_at for 32), r.fingerprint_version, r.token, r.lease_until, $3,
                    r.expires_at, r.status, r.headers, substring($2::bytea from r.body_at for r.body_len), $3
             FROM json_to_recordset($1::json) AS r
                 (tenant text, scope text, key text, key_rule text, digest_at int, fingerprint_at int,
                  fingerprint_version bigint, token bigint, lease_until bigint, expires_at bigint, status bigint,
                  headers text, body_at int, body_len int)
             ON CONFLICT (tenant, scope, key) DO UPDATE SET state = 'done', outcome_status = excluded.outcome_status,
                 outcome_headers = excluded.outcome_headers, outcome_body = excluded.outcome_body,
                 done_at = excluded.done_at, expires_at = excluded.expires_at
             WHERE l.state = 'claimed' AND l.token = excluded.token"
        }
    };
    let written = conn.execute(sql, &[Arg::from(&rows), pool.as_bytes().into(), now.into()]).await?;
    if written == done.len() as u64 { Ok(()) } else { Err(StoreError::LeaseLost) }
}

#[derive(Serialize)]
struct Row<'a> {
    tenant: &'a str,
    scope: &'a str,
    key: &'a str,
    key_rule: &'a str,
    parameters: Option<&'a str>,
    digest_at: usize,
    fingerprint_at: usize,
    fingerprint_version: i64,
    lease_until: i64,
    expires_at: i64,
    lock_number: i64,
}

impl<'a> Row<'a> {
    fn of(request: &'a Request, now: Timestamp, pool: &mut Pool) -> Self {
        Self {
            tenant: request.key.tenant.as_str(),
            scope: request.key.scope.as_str(),
            key: request.key.key.as_str(),
            key_rule: &request.key_rule,
            parameters: request.parameters.as_deref(),
            digest_at: pool.add(&request.digest),
            fingerprint_at: pool.add(&request.fingerprint.hash),
            fingerprint_version: request.fingerprint.version,
            lease_until: lease_until(request, now).as_millis(),
            expires_at: now.plus(request.retention).as_millis(),
            lock_number: request.key.lock_number(),
        }
    }
}

#[derive(Serialize)]
struct Done<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    token: i64,
    status: u16,
    headers: String,
    body_at: usize,
    body_len: usize,
}
