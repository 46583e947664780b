//! Attempts: what was tried, one row for each HTTP try.
//!
//! Place in the path: written by the record, also for attempts that came too late.
//! Invariants: an attempt is known by its id; a row is written once and never changed.

use std::collections::HashSet;

use serde::Serialize;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::record::Finished;
use super::{DeliveryKey, hex, json};
use crate::exchange::Exchange;

#[derive(Serialize)]
struct AttemptRow<'a> {
    #[serde(flatten)]
    key: &'a DeliveryKey,
    id: &'a str,
    number: u32,
    token: i64,
    outcome: &'static str,
    late: u8,
    status: Option<u16>,
    error: Option<String>,
    response: Option<String>,
    started_at: i64,
    ended_at: i64,
}

/// Keeps the attempts; the ids of those that were not there already.
pub(super) async fn insert(
    conn: &mut Conn<'_>,
    batch: &[&Finished],
    is_held: &(dyn Fn(&Finished) -> bool + Sync),
) -> Result<HashSet<String>, StoreError> {
    let rows: Vec<AttemptRow<'_>> = batch
        .iter()
        .map(|one| AttemptRow {
            key: &one.claimed.key,
            id: one.attempt.as_str(),
            number: one.claimed.attempts.saturating_add(1),
            token: one.claimed.token,
            outcome: one.exchange.outcome(),
            late: u8::from(!is_held(one)),
            status: one.exchange.status(),
            // PostgreSQL's texts cannot hold a NUL.
            error: one.exchange.error().map(|text| text.replace('\0', "\u{fffd}")),
            response: match &one.exchange {
                Exchange::Answered(answer) => Some(hex(&answer.body)),
                _ => None,
            },
            started_at: one.started_at.as_millis(),
            ended_at: one.ended_at.as_millis(),
        })
        .collect();
    let rows = json(&rows)?;
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "INSERT INTO twiceproof_attempts
                 (tenant, id, event, endpoint, number, token, outcome, late, status, error, response, started_at, ended_at)
             SELECT value ->> 'tenant', value ->> 'id', value ->> 'event', value ->> 'endpoint', value ->> 'number',
                    value ->> 'token', value ->> 'outcome', value ->> 'late', value ->> 'status', value ->> 'error',
                    unhex(value ->> 'response'), value ->> 'started_at', value ->> 'ended_at'
             FROM json_each($1) WHERE true
             ON CONFLICT DO NOTHING RETURNING id"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "INSERT INTO twiceproof_attempts
                 (tenant, id, event, endpoint, number, token, outcome, late, status, error, response, started_at, ended_at)
             SELECT r.tenant, r.id, r.event, r.endpoint, r.number, r.token, r.outcome, r.late, r.status, r.error,
                    decode(r.response, 'hex'), r.started_at, r.ended_at
             FROM json_to_recordset($1::json) AS r
                 (tenant text, id text, event text, endpoint text, number bigint, token bigint, outcome text, late bigint,
                  status bigint, error text, response text, started_at bigint, ended_at bigint)
             ON CONFLICT DO NOTHING RETURNING id"
        }
    };
    let ids: Vec<(String,)> = conn.fetch_all(sql, &[Arg::from(&rows)]).await?;
    Ok(ids.into_iter().map(|(id,)| id).collect())
}
