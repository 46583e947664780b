//! An endpoint's health: when it last answered, and how often it failed since.
//!
//! Place in the path: part of the record; the last rows that it locks.
//! Invariants: only attempts under a live lease count. A success that changes nothing is written once a second at most, so
//! that a busy endpoint's row does not become the place where all workers meet.

use std::collections::BTreeMap;

use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::json;

/// What one attempt says about its endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sign<'a> {
    pub(super) tenant: &'a str,
    pub(super) endpoint: &'a str,
    pub(super) verdict: Verdict,
    pub(super) at: Timestamp,
}

/// How the attempt went for the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It answered 2xx.
    Well,
    /// It failed.
    Ill,
    /// It answered 410: it is disabled.
    Gone,
}

/// Writes what a batch says about its endpoints; those that are gone are disabled.
pub(super) async fn update(conn: &mut Conn<'_>, signs: &[Sign<'_>], now: Timestamp) -> Result<(), StoreError> {
    if signs.is_empty() {
        return Ok(());
    }
    let rows = json(&summaries(signs))?;
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "UPDATE twiceproof_endpoints AS e SET
                 last_success_at = max(coalesce(e.last_success_at, 0), coalesce(r.value ->> 'well_at', e.last_success_at)),
                 last_failure_at = coalesce(r.value ->> 'ill_at', e.last_failure_at),
                 failures_in_row = (r.value ->> 'failures') + iif(r.value ->> 'well_at' IS NULL, e.failures_in_row, 0),
                 state_reason = iif(r.value ->> 'gone' AND e.state = 'enabled', 'gone', e.state_reason),
                 updated_at = iif(r.value ->> 'gone' AND e.state = 'enabled', $2, e.updated_at),
                 state = iif(r.value ->> 'gone', 'disabled', e.state)
             FROM jsonb_each($1) r
             WHERE e.tenant = r.value ->> 'tenant' AND e.id = r.value ->> 'endpoint'
               AND (r.value ->> 'gone' OR r.value ->> 'failures' > 0 OR e.failures_in_row > 0
                    OR coalesce(e.last_success_at, 0) < r.value ->> 'well_at' - 1000)"
        }
        // Differs because workers meet here: the rows are locked in the order of their keys.
        Database::Postgres => {
            "WITH touched AS MATERIALIZED (
                 SELECT e.tenant, e.id, r.well_at, r.ill_at, r.failures, r.gone
                 FROM json_to_recordset($1::json) AS r
                     (tenant text, endpoint text, well_at bigint, ill_at bigint, failures bigint, gone boolean)
                 JOIN twiceproof_endpoints e ON e.tenant = r.tenant AND e.id = r.endpoint
                 WHERE r.gone OR r.failures > 0 OR e.failures_in_row > 0
                     OR coalesce(e.last_success_at, 0) < r.well_at - 1000
                 ORDER BY e.tenant, e.id FOR UPDATE OF e)
             UPDATE twiceproof_endpoints e SET
                 last_success_at = greatest(e.last_success_at, t.well_at),
                 last_failure_at = coalesce(t.ill_at, e.last_failure_at),
                 failures_in_row = t.failures + CASE WHEN t.well_at IS NULL THEN e.failures_in_row ELSE 0 END,
                 state_reason = CASE WHEN t.gone AND e.state = 'enabled' THEN 'gone' ELSE e.state_reason END,
                 updated_at = CASE WHEN t.gone AND e.state = 'enabled' THEN $2 ELSE e.updated_at END,
                 state = CASE WHEN t.gone THEN 'disabled' ELSE e.state END
             FROM touched t WHERE e.tenant = t.tenant AND e.id = t.id"
        }
    };
    conn.execute(sql, &[Arg::from(&rows), now.into()]).await?;
    Ok(())
}

#[derive(Serialize)]
struct Summary<'a> {
    tenant: &'a str,
    endpoint: &'a str,
    well_at: Option<i64>,
    ill_at: Option<i64>,
    /// Failures since the last success of the batch.
    failures: u32,
    gone: bool,
}

fn summaries<'a>(signs: &[Sign<'a>]) -> Vec<Summary<'a>> {
    let mut signs = signs.to_vec();
    signs.sort_by_key(|sign| sign.at);
    let mut summaries: BTreeMap<(&str, &str), Summary<'a>> = BTreeMap::new();
    for sign in signs {
        let Sign { tenant, endpoint, verdict, at } = sign;
        let empty = Summary { tenant, endpoint, well_at: None, ill_at: None, failures: 0, gone: false };
        let summary = summaries.entry((tenant, endpoint)).or_insert(empty);
        match verdict {
            Verdict::Well => {
                summary.well_at = Some(at.as_millis());
                summary.failures = 0;
            }
            Verdict::Ill | Verdict::Gone => {
                summary.ill_at = Some(at.as_millis());
                summary.failures += 1;
                summary.gone |= verdict == Verdict::Gone;
            }
        }
    }
    summaries.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fixtures::bed::{Bed, tenant};

    #[test]
    fn failures_are_counted_from_the_last_success_of_a_batch() {
        let sign =
            |endpoint, verdict, millis| Sign { tenant: "t", endpoint, verdict, at: Timestamp::from_millis(millis) };
        let summaries = summaries(&[
            sign("b", Verdict::Ill, 5),
            sign("a", Verdict::Ill, 4),
            sign("a", Verdict::Well, 3),
            sign("a", Verdict::Ill, 1),
            sign("b", Verdict::Gone, 6),
        ]);
        let seen: Vec<_> =
            summaries.iter().map(|one| (one.endpoint, one.well_at, one.ill_at, one.failures, one.gone)).collect();
        assert_eq!(seen, [("a", Some(3), Some(4), 1, false), ("b", None, Some(6), 2, true)]);
    }

    #[tokio::test]
    async fn an_endpoint_that_is_gone_is_disabled_even_where_a_later_answer_of_the_batch_was_a_success() {
        let bed = Bed::new().await;
        let endpoint = bed.endpoint("http://127.0.0.1:9/hooks").await;
        let tenant = tenant();
        let now = bed.store.now();
        let sign = |verdict, millis| {
            let at = now.plus(Duration::from_millis(millis));
            Sign { tenant: tenant.as_str(), endpoint: &endpoint, verdict, at }
        };
        let mut tx = bed.store.begin().await.unwrap();
        update(&mut tx.conn(), &[sign(Verdict::Well, 0)], now).await.unwrap();
        update(&mut tx.conn(), &[sign(Verdict::Gone, 1), sign(Verdict::Well, 2)], now).await.unwrap();
        tx.commit().await.unwrap();
        let mut reader = bed.store.read().await.unwrap();
        assert!(!bed.manager().get(&mut reader.conn(), &tenant, &endpoint).await.unwrap().enabled);
    }
}
