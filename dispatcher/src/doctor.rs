//! A look at the whole installation: is everything where somebody will move it on?
//!
//! Place in the path: beside it; `twiceproof doctor` and hosts call [`examine`]. It is the reconciler of the queue: what was accepted
//! is pending, in backoff, leased, parked, blocked, on its way to many endpoints, or final, and whatever is not final has an
//! owner that has moved it within the last minute where it was due.
//! Invariants: reads only; a finding says what is wrong, where, and what to do about it, and names no secret and no URL.

use std::time::Duration;

use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Conn, Database, Store, StoreError};

use crate::manage::sealing;
use crate::store::{counts, doctor as look};

/// A worker moves what is due within a second; this is a minute longer than it should take.
const LATE: Duration = Duration::from_secs(60);
/// Clocks that differ by more make stamps hard to read; nothing goes by this machine's where the database has one.
const SKEW_MS: i64 = 1_000;
/// How far each state is counted.
const MOST: i64 = 100_000;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing; nothing is held up or lost by it.
    Note,
    /// Something is held up, or could be lost.
    Wrong,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// A fixed word for scripts, such as `overdue`.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub what: String,
    /// Which ones: ids, at most twenty.
    pub which: Vec<String>,
    /// What to do about it.
    pub remedy: &'static str,
}

/// What a look found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Examination {
    /// Deliveries by state, each counted to 100,000; of a deep look all of them, final ones too.
    pub deliveries: Vec<(&'static str, u64)>,
    /// What is not as it should be.
    pub findings: Vec<Finding>,
}

impl Examination {
    /// Whether nothing is wrong; notes may be there.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity != Severity::Wrong)
    }
}

/// Looks at everything that can be looked at along indexes; `deep` reads whole tables as well, and says what no index could.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn examine(store: &Store, deep: bool) -> Result<Examination, StoreError> {
    let mut findings = Vec::new();
    findings.extend(schema(store).await?);
    if !findings.is_empty() {
        // The other questions may name columns that are not there yet.
        return Ok(Examination { deliveries: Vec::new(), findings });
    }
    if let Some(skew) = store.clock_skew_ms().filter(|skew| skew.abs() > SKEW_MS) {
        let what =
            format!("this machine's clock is {} ms away from the database's, which is the one that counts", -skew);
        findings.push(note("clock", what, "synchronise this machine's clock, or read its logs with that in mind"));
    }
    if let Err(missing) = sealing::check(store).await? {
        let remedy = "start the program with that key too (`secrets.master_key`), or give the endpoints new secrets";
        findings.push(wrong("sealed", missing.to_string(), missing.missing, remedy));
    }
    let now = store.now();
    let mut reader = store.read().await?;
    let conn = &mut reader.conn();
    findings.extend(queue(conn, now).await?);
    findings.extend(owners(conn, now).await?);
    let mut deliveries = by_state(conn).await?;
    if deep {
        findings.extend(deeply(conn, now).await?);
        let counts = counts::counts(conn, None).await?;
        deliveries.extend([("delivered", counts.delivered), ("dead", counts.dead)]);
    }
    Ok(Examination { deliveries, findings })
}

async fn schema(store: &Store) -> Result<Option<Finding>, StoreError> {
    let missing = store.pending_migrations().await?;
    if missing.is_empty() {
        return Ok(None);
    }
    let which = missing.iter().map(ToString::to_string).collect();
    let what = format!("{} migrations were not applied", missing.len());
    Ok(Some(wrong("schema", what, which, "run `twiceproof migrate`, or start `twiceproof serve`, which runs them")))
}

async fn by_state(conn: &mut Conn<'_>) -> Result<Vec<(&'static str, u64)>, StoreError> {
    let [pending, backoff, leased, parked, blocked] = counts::open(conn, MOST).await?;
    Ok(vec![("pending", pending), ("backoff", backoff), ("leased", leased), ("parked", parked), ("blocked", blocked)])
}

/// What is due and was not moved.
async fn queue(conn: &mut Conn<'_>, now: Timestamp) -> Result<Vec<Finding>, StoreError> {
    let late = now.minus(LATE);
    let mut findings = Vec::new();
    let remedy =
        "start a worker (`twiceproof serve` or `twiceproof worker`); if one runs, its log says what holds it up";
    let [due, ended] = counts::overdue(conn, late, MOST).await?;
    for (count, what) in [(due, "retries have been due"), (ended, "leases have been over")] {
        if count > 0 {
            findings.push(wrong("overdue", format!("{count} {what} for more than a minute"), Vec::new(), remedy));
        }
    }
    if let Some((due_at, event, endpoint)) = look::oldest_pending(conn).await?
        && due_at < late.as_millis()
    {
        let seconds = now.since(Timestamp::from_millis(due_at)).as_secs();
        let what = format!("a delivery has been pending for {seconds} s");
        let remedy = "if many wait, there are too few workers or slots, or its endpoint is throttled, limited or closed by its \
                      breaker (`twiceproof endpoint show`); if no worker runs, start one";
        let severity = if look::workers(conn).await? == 0 { Severity::Wrong } else { Severity::Note };
        findings.push(Finding {
            check: "waiting",
            severity,
            what,
            which: vec![format!("{event} at {endpoint}")],
            remedy,
        });
    }
    let slow = pairs(look::slow_fan_outs(conn, late).await?);
    if !slow.is_empty() {
        let what = "events have been on their way to many endpoints for more than a minute".to_owned();
        findings.push(wrong("fan_out", what, slow, remedy));
    }
    let slow = pairs(look::slow_replays(conn, late).await?);
    if !slow.is_empty() {
        let what = "replays have not moved for more than a minute".to_owned();
        findings.push(wrong("replay", what, slow, remedy));
    }
    Ok(findings)
}

/// What waits for somebody who will not come.
async fn owners(conn: &mut Conn<'_>, now: Timestamp) -> Result<Vec<Finding>, StoreError> {
    let late = now.minus(LATE);
    let mut findings = Vec::new();
    let blocked = pairs(look::left_blocked(conn).await?);
    if !blocked.is_empty() {
        let what = "deliveries wait behind others of their ordering key, and there are none".to_owned();
        let remedy = "send them again (`resend` of the API), and please report this: it is a defect";
        findings.push(wrong("blocked", what, blocked, remedy));
    }
    let parked = pairs(look::left_parked(conn, late).await?);
    if !parked.is_empty() {
        let what = "deliveries are parked at endpoints that are not disabled".to_owned();
        findings.push(wrong("parked", what, parked, "start a worker: it moves them within seconds"));
    }
    let failing = pairs(look::failing_endpoints(conn).await?);
    if !failing.is_empty() {
        let what = "endpoints were disabled because they only failed; what they are owed is parked".to_owned();
        findings.push(Finding {
            which: failing,
            ..note("failing", what, "enable them once their owners have repaired them: nothing is lost")
        });
    }
    if conn.database() == Database::Postgres {
        let silent: Vec<String> = look::silent_workers(conn, late).await?.into_iter().map(|(id,)| id).collect();
        if !silent.is_empty() {
            let what = "workers have given no sign of life for more than a minute".to_owned();
            let remedy = "any living worker takes over what they hold and forgets them: start one";
            findings.push(wrong("workers", what, silent, remedy));
        }
    }
    Ok(findings)
}

/// What only whole tables tell.
async fn deeply(conn: &mut Conn<'_>, now: Timestamp) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let counts = look::torn_deliveries(conn).await?;
    let names = [
        "deliveries are final and do not say since when",
        "deliveries are open and say that they are final",
        "deliveries are leased to nobody",
        "deliveries are not leased and have a holder",
    ];
    let remedy = "somebody else has written to these tables; please report it if nobody has";
    for (count, name) in counts.into_iter().zip(names) {
        if count > 0 {
            findings.push(wrong("torn", format!("{count} {name}"), Vec::new(), remedy));
        }
    }
    let orphans = pairs(look::without_event(conn).await?);
    if !orphans.is_empty() {
        let what = "deliveries are open whose event is not there".to_owned();
        findings.push(wrong("event_missing", what, orphans, "a worker ends them as dead; find out who deletes events"));
    }
    let nobody = pairs(look::not_fanned_out(conn, now.minus(Duration::from_secs(24 * 3600))).await?);
    if !nobody.is_empty() {
        let what = "events of the last day have no delivery, though an endpoint that is older takes them".to_owned();
        let remedy = "whoever published them wrote the event without its deliveries (see the guide on SQL); a replay of what is \
                      missing makes them";
        findings.push(wrong("not_fanned_out", what, nobody, remedy));
    }
    Ok(findings)
}

fn wrong(check: &'static str, what: String, which: Vec<String>, remedy: &'static str) -> Finding {
    Finding { check, severity: Severity::Wrong, what, which, remedy }
}

fn note(check: &'static str, what: String, remedy: &'static str) -> Finding {
    Finding { check, severity: Severity::Note, what, which: Vec::new(), remedy }
}

fn pairs(rows: Vec<(String, String)>) -> Vec<String> {
    rows.into_iter().map(|(one, other)| format!("{one} {other}")).collect()
}
