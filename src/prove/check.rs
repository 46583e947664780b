//! The judge of a history: what was lost, doubled, answered too soon, or told wrongly.
//!
//! Pure: facts in, [`Verdict`] out. It knows nothing of how the facts came about, so it judges anybody's.
//! Invariants: an *unknown* may turn out either way, but never twice; every finding names its event and says in a
//! sentence what is wrong with it.

mod index;
mod verdict;

use std::collections::BTreeSet;

use super::history::Entry;
use index::{Event, Index, Told, Uid};

pub use verdict::{Finding, Kind, Verdict};

/// Judges a history.
#[must_use]
pub fn check(history: &[Entry]) -> Verdict {
    let index = Index::of(history);
    let mut findings = Findings(Vec::new());
    for (uid, seen) in &index.uids {
        client(&mut findings, &index, uid, seen);
    }
    for (id, event) in &index.events {
        identity(&mut findings, id, event);
        effects(&mut findings, &index, id, event);
        answers(&mut findings, id, event);
        records(&mut findings, id, event);
    }
    let events = || index.events.values();
    Verdict {
        offered: index.uids.len() as u64,
        accepted: index.uids.values().filter(|uid| uid.accepted().next().is_some()).count() as u64,
        unknown: index.uids.values().map(|uid| u64::from(uid.unknown > 0)).sum(),
        unknown_happened: index.uids.values().map(|uid| u64::from(uid.unknown > 0 && !uid.stored.is_empty())).sum(),
        arrived: events().map(|event| event.bodies.len() as u64).sum(),
        replayed: events().map(|event| event.answers.iter().filter(|answer| answer.replayed).count() as u64).sum(),
        effects: events().map(|event| event.effects.len() as u64).sum(),
        dead: events().map(|event| event.states.iter().filter(|state| *state == "dead").count() as u64).sum(),
        late: events().map(|event| event.attempts.iter().filter(|attempt| attempt.late).count() as u64).sum(),
        findings: findings.0,
    }
}

/// What the client was told of its event, beside what stands.
fn client(findings: &mut Findings, index: &Index, uid: &str, seen: &Uid) {
    let accepted: BTreeSet<&str> = seen.accepted().collect();
    let stored: BTreeSet<&str> = seen.stored.iter().map(String::as_str).collect();
    for event in &accepted {
        let effect = index.events.get(*event).is_some_and(|event| !event.effects.is_empty() || event.is_dead());
        if !effect {
            findings.add(
                Kind::Lost,
                event,
                format!("{uid} was accepted, and neither an effect nor a dead letter stands"),
            );
        }
    }
    if accepted.union(&stored).count() > 1 {
        let all: Vec<&str> = accepted.union(&stored).copied().collect();
        findings.add(
            Kind::OtherIdentity,
            uid,
            format!("one client's id became {} events: {}", all.len(), all.join(", ")),
        );
    }
    let effects: usize =
        accepted.union(&stored).filter_map(|event| index.events.get(*event)).map(|e| e.effects.len()).sum();
    if effects > 1 && accepted.union(&stored).count() > 1 {
        findings.add(Kind::Double, uid, format!("one client's id had {effects} effects under different events"));
    }
    let fresh = seen.told.iter().filter(|told| matches!(told, Told::Accepted { fresh: true, .. })).count();
    if fresh > 1 {
        findings.add(Kind::UnknownResolvedWrong, uid, format!("it was newly accepted {fresh} times"));
    }
    let first = seen.told.iter().position(|told| matches!(told, Told::Accepted { .. }));
    if let Some((at, Told::Accepted { event, fresh: false })) = first.and_then(|at| Some((at, seen.told.get(at)?)))
        && seen.unknown == 0
    {
        let (kind, text) = match at {
            0 => (Kind::UnknownResolvedWrong, "had never been offered, and was accepted before"),
            _ => (Kind::FailedYetStands, "had been refused each time, and was accepted before"),
        };
        findings.add(kind, event, format!("{uid} {text}"));
    }
    rows(findings, uid, seen);
    let only_failures =
        !seen.told.is_empty() && seen.told.iter().all(|told| matches!(told, Told::Failed | Told::RolledBack));
    if only_failures && seen.unknown == 0 && seen.offered as usize == seen.told.len() {
        for event in &stored {
            let (kind, text) = match seen.told.last() {
                Some(Told::RolledBack) => (Kind::Phantom, "was rolled back by its client, and is stored"),
                _ => (Kind::FailedYetStands, "was refused each time, and is stored"),
            };
            findings.add(kind, event, format!("{uid} {text}"));
        }
    }
}

/// The client's own row and its event: both or neither.
fn rows(findings: &mut Findings, uid: &str, seen: &Uid) {
    match (seen.rows, seen.stored.is_empty()) {
        (0, false) if seen.with_row => findings.add(Kind::Torn, uid, "its event is stored without the row beside it"),
        (1.., true) => findings.add(Kind::Torn, uid, "the row beside its event is stored without the event"),
        (2.., false) => {
            findings.add(Kind::Double, uid, format!("the row beside its event is stored {} times", seen.rows))
        }
        _ => {}
    }
}

/// One event is one body.
fn identity(findings: &mut Findings, id: &str, event: &Event) {
    let bodies: BTreeSet<&String> = event.bodies.iter().collect();
    if bodies.len() > 1 {
        findings.add(Kind::OtherIdentity, id, format!("it arrived with {} different bodies", bodies.len()));
    }
}

/// Once, and together with the key.
fn effects(findings: &mut Findings, index: &Index, id: &str, event: &Event) {
    let count = event.effects.len();
    if count > 1 {
        findings.add(Kind::Double, id, format!("{count} effects stand"));
    }
    if count > 0 && index.has_clients && !event.is_known {
        findings.add(Kind::Phantom, id, "an effect stands, and no such event is stored or was accepted");
    }
    match (&event.processed[..], count) {
        ([], 0) => {}
        ([], _) if index.has_ledger => findings.add(Kind::Torn, id, "an effect stands without its key"),
        ([], _) => {}
        ([processed, ..], _) if !processed.done => {
            findings.add(Kind::Stuck, id, "the ledger holds its key as claimed, and nobody works on it");
        }
        ([_, ..], 0) => findings.add(Kind::Torn, id, "its key is done, and no effect stands"),
        ([processed, ..], _) => {
            let known = event.effects.iter().flatten().next();
            if let (Some(stored), Some(effect)) = (&processed.answer, known)
                && stored != effect
            {
                findings.add(Kind::OtherAnswer, id, format!("the stored answer is {stored}, the effect's is {effect}"));
            }
        }
    }
}

/// What the receiver said.
fn answers(findings: &mut Findings, id: &str, event: &Event) {
    let good: Vec<_> = event.answers.iter().filter(|answer| (200..300).contains(&answer.status)).collect();
    if !good.is_empty() && event.effects.is_empty() {
        findings.add(Kind::AnsweredTooSoon, id, "2xx was answered, and no effect stands");
    }
    let said: BTreeSet<&str> = good.iter().map(|answer| answer.body.as_str()).collect();
    if said.len() > 1 {
        findings.add(Kind::OtherAnswer, id, format!("2xx was answered with {} different bodies", said.len()));
    }
    if let [Some(effect)] = &event.effects[..]
        && let Some(other) = said.iter().find(|said| *said != effect)
    {
        findings.add(Kind::OtherAnswer, id, format!("{other} was answered, the effect's answer is {effect}"));
    }
    let delivered = event.attempts.iter().any(|attempt| attempt.delivered) || event.states.contains("delivered");
    if delivered && good.is_empty() {
        findings.add(Kind::UntrueRecord, id, "it is recorded as delivered, and the receiver never answered 2xx");
    }
}

/// What the dispatcher recorded.
fn records(findings: &mut Findings, id: &str, event: &Event) {
    for state in event.states.iter().filter(|state| !["delivered", "dead"].contains(&state.as_str())) {
        findings.add(Kind::Stuck, id, format!("its delivery is {state}"));
    }
    let counted: Vec<_> = event.attempts.iter().filter(|attempt| !attempt.late).collect();
    for (expected, attempt) in (1..).zip(&counted) {
        if attempt.number != expected {
            findings.add(Kind::Gap, id, format!("attempt {expected} in the order is numbered {}", attempt.number));
            break;
        }
    }
    for (earlier, later) in counted.iter().zip(counted.iter().skip(1)) {
        if later.token <= earlier.token {
            let text = format!("a result of token {} was taken after one of token {}", later.token, earlier.token);
            findings.add(Kind::Unfenced, id, text);
        }
    }
    if let Some(after) = counted.iter().position(|attempt| attempt.delivered)
        && after + 1 < counted.len()
    {
        findings.add(Kind::Unfenced, id, "it was sent on after it was recorded as delivered");
    }
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, kind: Kind, event: &str, text: impl Into<String>) {
        self.0.push(Finding { kind, event: event.to_owned(), text: text.into() });
    }
}

#[cfg(test)]
mod tests;
