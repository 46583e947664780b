use super::{Kind, check};
use crate::prove::history::{Entry, Fact};

fn history(facts: Vec<Fact>) -> Vec<Entry> {
    (0..).zip(facts).map(|(at_ms, fact)| Entry { at_ms, fact }).collect()
}

fn s(text: &str) -> String {
    text.to_owned()
}

fn offered(uid: &str) -> Fact {
    Fact::Offered { uid: s(uid), with_row: false }
}

/// One event from offer to effect, as it should be.
fn good() -> Vec<Fact> {
    vec![
        offered("a"),
        Fact::Accepted { uid: s("a"), event: s("msg_1"), fresh: true },
        Fact::Arrived { event: s("msg_1"), body: s("{}") },
        Fact::Answered { event: s("msg_1"), status: 200, replayed: false, body: s("7") },
        Fact::Stored { uid: s("a"), event: s("msg_1") },
        Fact::Effect { event: s("msg_1"), answer: Some(s("7")) },
        Fact::Processed { event: s("msg_1"), done: true, answer: Some(s("7")) },
        Fact::Delivery { event: s("msg_1"), state: s("delivered") },
        attempt(1, 1, true, false),
    ]
}

fn attempt(number: i64, token: i64, delivered: bool, late: bool) -> Fact {
    Fact::Attempt { event: s("msg_1"), number, token, delivered, late }
}

fn kinds(facts: Vec<Fact>) -> Vec<Kind> {
    check(&history(facts)).findings.into_iter().map(|finding| finding.kind).collect()
}

/// The good history with its facts changed.
fn changed(change: impl Fn(&mut Vec<Fact>)) -> Vec<Kind> {
    let mut facts = good();
    change(&mut facts);
    kinds(facts)
}

fn without(unwanted: impl Fn(&Fact) -> bool) -> Vec<Kind> {
    changed(|facts| facts.retain(|fact| !unwanted(fact)))
}

#[test]
fn a_good_history_passes() {
    let verdict = check(&history(good()));
    assert_eq!(verdict.findings, []);
    assert_eq!((verdict.offered, verdict.accepted, verdict.arrived, verdict.effects), (1, 1, 1, 1));
}

#[test]
fn faults_that_were_put_right_pass() {
    let mut facts = good();
    // The client heard nothing and asked again; the receiver was asked twice; a stopped worker came late.
    facts.splice(
        1..2,
        [
            Fact::Unknown { uid: s("a"), error: s("killed") },
            offered("a"),
            Fact::Accepted { uid: s("a"), event: s("msg_1"), fresh: false },
        ],
    );
    facts.push(Fact::Arrived { event: s("msg_1"), body: s("{}") });
    facts.push(Fact::Answered { event: s("msg_1"), status: 503, replayed: false, body: s("later") });
    facts.push(Fact::Answered { event: s("msg_1"), status: 200, replayed: true, body: s("7") });
    facts.push(attempt(2, 1, true, true));
    facts.push(Fact::Struck { fault: s("killed the worker") });
    let verdict = check(&history(facts));
    assert_eq!(verdict.findings, []);
    assert_eq!((verdict.unknown, verdict.unknown_happened, verdict.late, verdict.replayed), (1, 1, 1, 1));
}

#[test]
fn an_unknown_may_turn_out_either_way() {
    let unknown = |stored| {
        let mut facts = vec![offered("b"), Fact::Unknown { uid: s("b"), error: s("killed") }];
        if stored {
            facts.extend(good().into_iter().skip(2).map(|fact| match fact {
                Fact::Stored { event, .. } => Fact::Stored { uid: s("b"), event },
                other => other,
            }));
        }
        kinds(facts)
    };
    assert_eq!(unknown(true), []);
    assert_eq!(unknown(false), []);
}

#[test]
fn a_dead_letter_is_not_lost() {
    let facts = changed(|facts| {
        facts.truncate(2);
        facts.push(Fact::Delivery { event: s("msg_1"), state: s("dead") });
    });
    assert_eq!(facts, []);
}

#[test]
fn what_was_accepted_and_has_no_effect_is_lost() {
    let found = changed(|facts| facts.truncate(2));
    assert_eq!(found, [Kind::Lost]);
}

#[test]
fn a_second_effect_is_double() {
    assert_eq!(changed(|facts| facts.push(Fact::Effect { event: s("msg_1"), answer: Some(s("7")) })), [Kind::Double]);
}

#[test]
fn one_client_id_under_two_events_is_another_identity_and_double() {
    let found = changed(|facts| {
        let second = facts.clone().into_iter().skip(1).filter_map(|fact| match fact {
            Fact::Accepted { uid, .. } => Some(Fact::Accepted { uid, event: s("msg_2"), fresh: false }),
            Fact::Stored { uid, .. } => Some(Fact::Stored { uid, event: s("msg_2") }),
            Fact::Effect { .. } => Some(Fact::Effect { event: s("msg_2"), answer: None }),
            Fact::Processed { .. } => Some(Fact::Processed { event: s("msg_2"), done: true, answer: None }),
            _ => None,
        });
        facts.extend(second.collect::<Vec<_>>());
    });
    assert_eq!(found, [Kind::OtherIdentity, Kind::Double]);
}

#[test]
fn an_effect_of_nothing_is_a_phantom() {
    let effect = Fact::Effect { event: s("msg_9"), answer: None };
    let processed = Fact::Processed { event: s("msg_9"), done: true, answer: None };
    assert_eq!(changed(|facts| facts.extend([effect.clone(), processed.clone()])), [Kind::Phantom]);
}

#[test]
fn an_event_that_was_rolled_back_and_stands_is_a_phantom() {
    let found = changed(|facts| facts[1] = Fact::RolledBack { uid: s("a") });
    assert_eq!(found, [Kind::Phantom]);
}

#[test]
fn an_event_whose_client_was_told_that_it_failed_must_not_stand() {
    let found = changed(|facts| facts[1] = Fact::Failed { uid: s("a"), error: s("busy") });
    assert_eq!(found, [Kind::FailedYetStands]);
}

#[test]
fn a_good_answer_without_an_effect_came_too_soon() {
    let found = without(|fact| matches!(fact, Fact::Effect { .. } | Fact::Processed { .. }));
    assert_eq!(found, [Kind::Lost, Kind::AnsweredTooSoon]);
}

#[test]
fn effect_and_key_stand_together() {
    assert_eq!(
        changed(|facts| {
            facts.retain(|fact| !matches!(fact, Fact::Processed { .. }));
            facts.push(Fact::Processed { event: s("msg_0"), done: true, answer: None });
            facts.push(Fact::Effect { event: s("msg_0"), answer: None });
            facts.push(Fact::Stored { uid: String::new(), event: s("msg_0") });
        }),
        [Kind::Torn]
    );
    let found = without(|fact| matches!(fact, Fact::Effect { .. } | Fact::Answered { .. } | Fact::Attempt { .. }));
    assert_eq!(found, [Kind::Lost, Kind::Torn, Kind::UntrueRecord]);
}

#[test]
fn a_client_row_and_its_event_stand_together() {
    let with_row = Fact::Offered { uid: s("a"), with_row: true };
    let row = || Fact::Row { uid: s("a") };
    assert_eq!(changed(|facts| facts[0] = with_row.clone()), [Kind::Torn]);
    assert_eq!(changed(|facts| facts.extend([row()])), []);
    assert_eq!(changed(|facts| facts.extend([row(), row()])), [Kind::Double]);
    assert_eq!(kinds(vec![offered("a"), Fact::Unknown { uid: s("a"), error: s("killed") }, row()]), [Kind::Torn]);
}

#[test]
fn a_claimed_key_at_the_end_is_stuck() {
    let found = changed(|facts| facts[6] = Fact::Processed { event: s("msg_1"), done: false, answer: None });
    assert_eq!(found, [Kind::Stuck]);
}

#[test]
fn another_answer_is_named() {
    let other = |status, replayed| Fact::Answered { event: s("msg_1"), status, replayed, body: s("8") };
    assert_eq!(changed(|facts| facts.push(other(200, true))), [Kind::OtherAnswer; 2]);
    assert_eq!(changed(|facts| facts.push(other(503, false))), []);
    let found = changed(|facts| facts[6] = Fact::Processed { event: s("msg_1"), done: true, answer: Some(s("8")) });
    assert_eq!(found, [Kind::OtherAnswer]);
}

#[test]
fn a_record_of_an_answer_that_nobody_gave_is_untrue() {
    assert_eq!(without(|fact| matches!(fact, Fact::Answered { .. })), [Kind::UntrueRecord]);
}

#[test]
fn one_event_has_one_body() {
    let found = changed(|facts| facts.push(Fact::Arrived { event: s("msg_1"), body: s("{ }") }));
    assert_eq!(found, [Kind::OtherIdentity]);
}

#[test]
fn attempts_are_counted_without_a_gap_and_late_ones_do_not_count() {
    let attempts = |attempts: &[Fact]| {
        changed(|facts| {
            facts.pop();
            facts.extend(attempts.to_vec());
        })
    };
    assert_eq!(attempts(&[attempt(1, 1, false, false), attempt(2, 4, true, false)]), []);
    assert_eq!(attempts(&[attempt(1, 1, false, false), attempt(1, 1, false, true), attempt(2, 2, true, false)]), []);
    assert_eq!(attempts(&[attempt(1, 1, false, false), attempt(3, 2, true, false)]), [Kind::Gap]);
    assert_eq!(attempts(&[attempt(2, 2, true, false)]), [Kind::Gap]);
}

#[test]
fn a_result_under_a_lost_lease_is_named() {
    let found = changed(|facts| {
        facts.pop();
        facts.extend([attempt(1, 2, false, false), attempt(2, 1, true, false)]);
    });
    assert_eq!(found, [Kind::Unfenced]);
    assert_eq!(changed(|facts| facts.push(attempt(2, 2, false, false))), [Kind::Unfenced]);
}

#[test]
fn an_unknown_that_was_resolved_wrongly_is_named() {
    let again = |fresh| Fact::Accepted { uid: s("a"), event: s("msg_1"), fresh };
    assert_eq!(changed(|facts| facts.push(again(true))), [Kind::UnknownResolvedWrong]);
    assert_eq!(changed(|facts| facts.push(again(false))), []);
    assert_eq!(changed(|facts| facts[1] = again(false)), [Kind::UnknownResolvedWrong]);
    let refused = Fact::Failed { uid: s("a"), error: s("busy") };
    assert_eq!(changed(|facts| drop(facts.splice(1..2, [refused.clone(), again(false)]))), [Kind::FailedYetStands]);
    assert_eq!(changed(|facts| drop(facts.splice(1..2, [refused.clone(), again(true)]))), []);
}

#[test]
fn a_delivery_that_is_not_at_its_end_is_stuck() {
    for state in ["pending", "backoff", "leased", "parked"] {
        let found = changed(|facts| facts[7] = Fact::Delivery { event: s("msg_1"), state: s(state) });
        assert_eq!(found, [Kind::Stuck], "{state}");
    }
}

/// Whatever single fact of the end is left out or repeated: the only change that may pass unseen is one that no client
/// can see.
#[test]
fn no_fact_of_the_end_can_be_missing_or_double_unseen() {
    let good = good();
    for (at, fact) in good.iter().enumerate() {
        let mut missing = good.clone();
        missing.remove(at);
        let mut double = good.clone();
        double.insert(at, fact.clone());
        let (missing, double) = (kinds(missing), kinds(double));
        match fact {
            Fact::Effect { .. } => assert!(!missing.is_empty() && !double.is_empty()),
            Fact::Answered { .. } => assert!(!missing.is_empty()),
            Fact::Attempt { .. } => assert!(!double.is_empty()),
            _ => {}
        }
    }
}
