//! Attempts: what was tried, one row for each HTTP try.
//!
//! Place in the path: written by the record, also for attempts that came too late.
//! Invariants: an attempt is known by its id; a row is written once and never changed.

use std::time::Duration;

use serde::Serialize;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::record::Finished;
use super::{DeliveryKey, Pool, json};
use crate::exchange::Exchange;

#[derive(Serialize)]
struct AttemptRow<'a> {
    #[serde(flatten)]
    key: &'a DeliveryKey,
    id: &'a str,
    number: u32,
    token: i64,
    outcome: &'static str,
    status: Option<u16>,
    error: Option<String>,
    response_at: Option<usize>,
    response_len: Option<usize>,
    started_at: i64,
    ended_at: i64,
    by_hand: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connected_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_ms: Option<u64>,
}

/// Keeps these attempts, all of them in time or all of them late; how many were not there already.
pub(super) async fn insert(conn: &mut Conn<'_>, batch: &[&Finished], are_late: bool) -> Result<u64, StoreError> {
    if batch.is_empty() {
        return Ok(0);
    }
    let mut pool = Pool::default();
    let rows = batch.iter().map(|one| {
        let response = match &one.exchange {
            Exchange::Answered(answer) => Some(&answer.body),
            _ => None,
        };
        AttemptRow {
            key: &one.claimed.key,
            id: one.attempt.as_str(),
            number: one.claimed.attempts.saturating_add(1),
            token: one.claimed.token,
            outcome: one.exchange.outcome(),
            status: one.exchange.status(),
            // PostgreSQL's texts cannot hold a NUL.
            error: one.exchange.error().map(|text| text.replace('\0', "\u{fffd}")),
            response_at: response.map(|body| pool.add(body)),
            response_len: response.map(|body| body.len()),
            started_at: one.started_at.as_millis(),
            ended_at: one.ended_at.as_millis(),
            by_hand: one.claimed.by_hand.into(),
            resolved_ms: one.timings.resolved.map(millis),
            connected_ms: one.timings.connected.map(millis),
            answered_ms: one.timings.answered.map(millis),
        }
    });
    let rows = json(&rows.collect::<Vec<_>>())?;
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "INSERT INTO twiceproof_attempts
                 (tenant, id, event, endpoint, number, token, outcome, late, status, error, response, started_at, ended_at,
                  by_hand, resolved_ms, connected_ms, answered_ms)
             SELECT value ->> 'tenant', value ->> 'id', value ->> 'event', value ->> 'endpoint', value ->> 'number',
                    value ->> 'token', value ->> 'outcome', $3, value ->> 'status', value ->> 'error',
                    substr($2, value ->> 'response_at', value ->> 'response_len'),
                    value ->> 'started_at', value ->> 'ended_at', value ->> 'by_hand',
                    value ->> 'resolved_ms', value ->> 'connected_ms', value ->> 'answered_ms'
             FROM jsonb_each($1) WHERE true
             ON CONFLICT DO NOTHING"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "INSERT INTO twiceproof_attempts
                 (tenant, id, event, endpoint, number, token, outcome, late, status, error, response, started_at, ended_at,
                  by_hand, resolved_ms, connected_ms, answered_ms)
             SELECT r.tenant, r.id, r.event, r.endpoint, r.number, r.token, r.outcome, $3, r.status, r.error,
                    substring($2::bytea from r.response_at for r.response_len), r.started_at, r.ended_at, r.by_hand,
                    r.resolved_ms, r.connected_ms, r.answered_ms
             FROM json_to_recordset($1::json) AS r
                 (tenant text, id text, event text, endpoint text, number bigint, token bigint, outcome text,
                  status bigint, error text, response_at int, response_len int, started_at bigint, ended_at bigint,
                  by_hand bigint, resolved_ms bigint, connected_ms bigint, answered_ms bigint)
             ON CONFLICT DO NOTHING"
        }
    };
    conn.execute(sql, &[Arg::from(&rows), pool.as_bytes().into(), i64::from(are_late).into()]).await
}

fn millis(since_start: Duration) -> u64 {
    u64::try_from(since_start.as_millis()).unwrap_or(u64::MAX)
}
