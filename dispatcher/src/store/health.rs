//! An endpoint's health: when it last answered, how often it failed since, and its circuit breaker.
//!
//! Place in the path: part of the record; the last rows that it locks.
//! Invariants: only attempts under a live lease count. A success that changes nothing is written once a second at most, so
//! that a busy endpoint's row does not become the place where all workers meet. The row is read under its lock, so that
//! workers that record at once add to one another.

use std::collections::BTreeMap;

use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, Database, StoreError};

use super::json;
use crate::breaker::{self, State, Verdict};
use crate::endpoint_policy::EndpointPolicy;

/// What one attempt says about its endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sign<'a> {
    pub(super) tenant: &'a str,
    pub(super) endpoint: &'a str,
    pub(super) said: breaker::Sign,
}

/// How an endpoint's health turned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Whose endpoint it is.
    pub tenant: String,
    /// The endpoint.
    pub endpoint: String,
    /// What happened to it.
    pub turn: Turn,
}

/// What happened to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Its breaker opened, or opened again.
    Opened {
        /// How often in a row.
        step: u32,
        /// Nothing is sent to it before.
        until: Timestamp,
    },
    /// Its breaker closed.
    Recovered,
    /// It said that it is gone: it is disabled.
    Gone,
    /// It failed and nothing else for too long: it is disabled.
    Failing {
        /// Since when.
        since: Timestamp,
    },
}

impl Turn {
    pub(super) fn is_disabled(self) -> bool {
        matches!(self, Self::Gone | Self::Failing { .. })
    }
}

/// Writes what a batch says about its endpoints, and tells how their health turned; those that are gone, or have failed for
/// too long, are disabled.
pub(super) async fn update(conn: &mut Conn<'_>, signs: &[Sign<'_>], now: Timestamp) -> Result<Vec<Change>, StoreError> {
    if signs.is_empty() {
        return Ok(Vec::new());
    }
    let mut by_endpoint: BTreeMap<(&str, &str), Vec<breaker::Sign>> = BTreeMap::new();
    for sign in signs {
        by_endpoint.entry((sign.tenant, sign.endpoint)).or_default().push(sign.said);
    }
    let mut rows = touched(conn, &by_endpoint).await?;
    let mut changes = Vec::new();
    rows.sort_unstable_by(|a, b| (&a.tenant, &a.id).cmp(&(&b.tenant, &b.id)));
    for ((tenant, endpoint), mut signs) in by_endpoint {
        let Ok(found) = rows.binary_search_by(|row| (row.tenant.as_str(), row.id.as_str()).cmp(&(tenant, endpoint)))
        else {
            continue;
        };
        signs.sort_by_key(|sign| sign.ended_at);
        let turn = rows.get_mut(found).and_then(|row| row.learn(&signs, now));
        changes.extend(turn.map(|turn| Change { tenant: tenant.to_owned(), endpoint: endpoint.to_owned(), turn }));
    }
    if !rows.is_empty() {
        write(conn, &rows, now).await?;
    }
    Ok(changes)
}

/// What is stored of an endpoint's health.
#[derive(Debug, Serialize, sqlx::FromRow)]
struct Row {
    tenant: String,
    id: String,
    state: String,
    state_reason: Option<String>,
    #[serde(skip)]
    slots: i64,
    #[serde(skip)]
    policy: String,
    last_success_at: Option<i64>,
    last_failure_at: Option<i64>,
    failures_in_row: i64,
    failing_since: Option<i64>,
    breaker_step: i64,
    breaker_until: Option<i64>,
    breaker_ramp: i64,
    throttled_until: Option<i64>,
    probe_until: Option<i64>,
    #[sqlx(skip)]
    is_changed: bool,
}

impl Row {
    /// Takes in what attempts say, in the order of their ends.
    fn learn(&mut self, signs: &[breaker::Sign], now: Timestamp) -> Option<Turn> {
        // Checked when it was stored; what cannot be read is as if it were not there.
        let rule = serde_json::from_str::<EndpointPolicy>(&self.policy).unwrap_or_default().rule();
        let slots = u32::try_from(self.slots).unwrap_or(u32::MAX);
        let mut state = self.state();
        let before = state;
        for sign in signs {
            state.learn(*sign, &rule, slots);
            let at = sign.ended_at.as_millis();
            match sign.verdict {
                Verdict::Well => self.last_success_at = self.last_success_at.max(Some(at)),
                Verdict::Ill | Verdict::Throttled(_) | Verdict::Gone => self.last_failure_at = Some(at),
            }
        }
        self.set_state(state);
        if state.open_until != before.open_until {
            // The probe has been answered; the next one need not wait for its lease.
            self.probe_until = None;
        }
        let is_gone = signs.iter().any(|sign| sign.verdict == Verdict::Gone);
        let fails = state.has_failed_long_enough(&rule, now);
        if (is_gone || fails) && self.state == "enabled" {
            "disabled".clone_into(&mut self.state);
            self.state_reason = Some(if is_gone { "gone" } else { "failing" }.to_owned());
            self.is_changed = true;
            return Some(if is_gone {
                Turn::Gone
            } else {
                Turn::Failing { since: state.failing_since.unwrap_or(now) }
            });
        }
        match state.open_until {
            Some(until) if state.step > before.step => Some(Turn::Opened { step: state.step, until }),
            _ if state.step == 0 && before.step > 0 => Some(Turn::Recovered),
            _ => None,
        }
    }

    fn state(&self) -> State {
        let count = |stored: i64| u32::try_from(stored).unwrap_or(u32::MAX);
        State {
            failures_in_row: count(self.failures_in_row),
            failing_since: self.failing_since.map(Timestamp::from_millis),
            step: count(self.breaker_step),
            open_until: self.breaker_until.map(Timestamp::from_millis),
            ramp: count(self.breaker_ramp),
            throttled_until: self.throttled_until.map(Timestamp::from_millis),
        }
    }

    fn set_state(&mut self, state: State) {
        self.failures_in_row = i64::from(state.failures_in_row);
        self.failing_since = state.failing_since.map(Timestamp::as_millis);
        self.breaker_step = i64::from(state.step);
        self.breaker_until = state.open_until.map(Timestamp::as_millis);
        self.breaker_ramp = i64::from(state.ramp);
        self.throttled_until = state.throttled_until.map(Timestamp::as_millis);
    }
}

#[derive(Serialize)]
struct Touch<'a> {
    tenant: &'a str,
    endpoint: &'a str,
    well_at: Option<i64>,
    fails: bool,
}

/// The rows for which these attempts change something, locked.
async fn touched(
    conn: &mut Conn<'_>,
    signs: &BTreeMap<(&str, &str), Vec<breaker::Sign>>,
) -> Result<Vec<Row>, StoreError> {
    let touches = signs.iter().map(|((tenant, endpoint), signs)| {
        let well = signs.iter().filter(|sign| sign.verdict == Verdict::Well);
        let well_at = well.map(|sign| sign.ended_at.as_millis()).max();
        Touch { tenant, endpoint, well_at, fails: signs.iter().any(|sign| sign.verdict != Verdict::Well) }
    });
    let touches = json(&touches.collect::<Vec<_>>())?;
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "SELECT e.tenant, e.id, e.state, e.state_reason, e.slots, e.policy, e.last_success_at, e.last_failure_at,
                 e.failures_in_row, e.failing_since, e.breaker_step, e.breaker_until, e.breaker_ramp, e.throttled_until,
                 e.probe_until
             FROM jsonb_each($1) r
             CROSS JOIN twiceproof_endpoints e ON e.tenant = r.value ->> 'tenant' AND e.id = r.value ->> 'endpoint'
             WHERE r.value ->> 'fails' OR e.failing_since IS NOT NULL OR e.failures_in_row > 0 OR e.breaker_step > 0
                 OR e.breaker_ramp > 0 OR coalesce(e.last_success_at, 0) < r.value ->> 'well_at' - 1000"
        }
        // Differs because workers meet here: the rows are locked in the order of their keys.
        Database::Postgres => {
            "SELECT e.tenant, e.id, e.state, e.state_reason, e.slots, e.policy, e.last_success_at, e.last_failure_at,
                 e.failures_in_row, e.failing_since, e.breaker_step, e.breaker_until, e.breaker_ramp, e.throttled_until,
                 e.probe_until
             FROM json_to_recordset($1::json) AS r (tenant text, endpoint text, well_at bigint, fails boolean)
             JOIN twiceproof_endpoints e ON e.tenant = r.tenant AND e.id = r.endpoint
             WHERE r.fails OR e.failing_since IS NOT NULL OR e.failures_in_row > 0 OR e.breaker_step > 0
                 OR e.breaker_ramp > 0 OR coalesce(e.last_success_at, 0) < r.well_at - 1000
             ORDER BY e.tenant, e.id FOR UPDATE OF e"
        }
    };
    conn.fetch_all(sql, &[Arg::from(&touches)]).await
}

async fn write(conn: &mut Conn<'_>, rows: &[Row], now: Timestamp) -> Result<(), StoreError> {
    let sql = match conn.database() {
        // Differs because each database has its own way to read rows out of JSON.
        Database::Sqlite => {
            "UPDATE twiceproof_endpoints AS e SET
                 state = r.value ->> 'state', state_reason = r.value ->> 'state_reason',
                 last_success_at = r.value ->> 'last_success_at', last_failure_at = r.value ->> 'last_failure_at',
                 failures_in_row = r.value ->> 'failures_in_row', failing_since = r.value ->> 'failing_since',
                 breaker_step = r.value ->> 'breaker_step', breaker_until = r.value ->> 'breaker_until',
                 breaker_ramp = r.value ->> 'breaker_ramp', throttled_until = r.value ->> 'throttled_until',
                 probe_until = r.value ->> 'probe_until',
                 updated_at = iif(r.value ->> 'is_changed', $2, e.updated_at)
             FROM jsonb_each($1) r WHERE e.tenant = r.value ->> 'tenant' AND e.id = r.value ->> 'id'"
        }
        // Differs because each database has its own way to read rows out of JSON.
        Database::Postgres => {
            "UPDATE twiceproof_endpoints e SET
                 state = r.state, state_reason = r.state_reason, last_success_at = r.last_success_at,
                 last_failure_at = r.last_failure_at, failures_in_row = r.failures_in_row,
                 failing_since = r.failing_since, breaker_step = r.breaker_step, breaker_until = r.breaker_until,
                 breaker_ramp = r.breaker_ramp, throttled_until = r.throttled_until,
                 probe_until = r.probe_until,
                 updated_at = CASE WHEN r.is_changed THEN $2 ELSE e.updated_at END
             FROM json_to_recordset($1::json) AS r
                 (tenant text, id text, state text, state_reason text, last_success_at bigint, last_failure_at bigint,
                  failures_in_row bigint, failing_since bigint, breaker_step bigint, breaker_until bigint,
                  breaker_ramp bigint, throttled_until bigint, probe_until bigint, is_changed boolean)
             WHERE e.tenant = r.tenant AND e.id = r.id"
        }
    };
    conn.execute(sql, &[Arg::from(&json(rows)?), now.into()]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fixtures::bed::{Bed, tenant};

    #[tokio::test]
    async fn an_endpoint_that_is_gone_is_disabled_even_where_a_later_answer_of_the_batch_was_a_success() {
        let bed = Bed::new().await;
        let endpoint = bed.endpoint("http://127.0.0.1:9/hooks").await;
        let tenant = tenant();
        let now = bed.store.now();
        let sign = |verdict, millis| {
            let at = now.plus(Duration::from_millis(millis));
            let said = breaker::Sign { verdict, started_at: at, ended_at: at };
            Sign { tenant: tenant.as_str(), endpoint: &endpoint, said }
        };
        let mut tx = bed.store.begin().await.unwrap();
        update(&mut tx.conn(), &[sign(Verdict::Well, 0)], now).await.unwrap();
        update(&mut tx.conn(), &[sign(Verdict::Gone, 1), sign(Verdict::Well, 2)], now).await.unwrap();
        tx.commit().await.unwrap();
        let mut reader = bed.store.read().await.unwrap();
        assert!(!bed.manager().get(&mut reader.conn(), &tenant, &endpoint).await.unwrap().enabled);
    }
}
