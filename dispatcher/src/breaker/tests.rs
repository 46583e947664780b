use twiceproof_shared::random::Random;

use super::*;

const START: Timestamp = Timestamp::from_secs(1_700_000_000);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn sign(verdict: Verdict, at: Timestamp) -> Sign {
    Sign { verdict, started_at: at, ended_at: at.plus(Duration::from_millis(20)) }
}

fn feed(state: &mut State, verdict: Verdict, at: Timestamp) {
    state.learn(sign(verdict, at), &Rule::default(), 32);
}

fn opened() -> State {
    let mut state = State::default();
    (0..10).for_each(|_| feed(&mut state, Verdict::Ill, START));
    state
}

#[test]
fn it_opens_after_ten_failures_in_a_row_and_a_success_begins_the_row_anew() {
    let mut state = State::default();
    (0..9).for_each(|_| feed(&mut state, Verdict::Ill, START));
    feed(&mut state, Verdict::Well, START);
    (0..9).for_each(|_| feed(&mut state, Verdict::Ill, START));
    assert_eq!(state.allowed(START), Allowed::All);
    feed(&mut state, Verdict::Ill, START);
    assert_eq!(state.allowed(START.plus(secs(10))), Allowed::Nothing);
    assert_eq!(state.allowed(START.plus(secs(11))), Allowed::Probe);
}

#[test]
fn send_r17_one_failing_batch_of_fifty_opens_the_first_step_only() {
    let mut state = State::default();
    (0..50).for_each(|_| feed(&mut state, Verdict::Ill, START));
    assert_eq!((state.step, state.failures_in_row), (1, 50));
    assert!(state.open_until.unwrap().since(START) < secs(11));
}

#[test]
fn send_r18_two_thousand_failures_neither_overflow_nor_open_for_nothing() {
    let rule = Rule::default();
    let (mut state, mut now) = (opened(), START);
    let mut lengths = vec![state.open_until.unwrap().since(now)];
    for _ in 0..2_000 {
        now = state.open_until.unwrap();
        assert_eq!(state.allowed(now), Allowed::Probe);
        feed(&mut state, Verdict::Ill, now);
        lengths.push(state.open_until.unwrap().since(now));
    }
    let wanted: Vec<_> =
        [10, 20, 40, 80, 160, 320, 640, 900, 900].map(|wait| secs(wait) + Duration::from_millis(20)).into();
    assert_eq!(lengths[..9], wanted);
    assert!(lengths.iter().skip(7).all(|length| *length == rule.cap + Duration::from_millis(20)));
    assert_eq!(Rule { cap: Duration::MAX, ..rule }.open_for(u32::MAX), secs(10) * u32::MAX);
    state.step = u32::MAX;
    let probe = state.open_until.unwrap();
    feed(&mut state, Verdict::Ill, probe);
    assert_eq!(state.step, u32::MAX);
}

#[test]
fn what_was_under_way_when_it_opened_neither_closes_it_nor_opens_it_further() {
    let mut state = opened();
    let before = state;
    for verdict in [Verdict::Well, Verdict::Ill, Verdict::Throttled(START)] {
        feed(&mut state, verdict, START);
        assert_eq!((state.step, state.open_until, state.ramp), (before.step, before.open_until, 0));
    }
}

#[test]
fn it_comes_back_with_one_request_two_four_and_so_on() {
    let mut state = opened();
    let mut now = state.open_until.unwrap();
    feed(&mut state, Verdict::Well, now);
    let mut widths = Vec::new();
    while let Allowed::Some(width) = state.allowed(now) {
        widths.push(width);
        now = now.plus(secs(1));
        (0..width).for_each(|_| feed(&mut state, Verdict::Well, now));
    }
    assert_eq!(widths, [2, 4, 8, 16]);
    assert_eq!(state, State::default());
}

#[test]
fn a_failure_while_it_comes_back_opens_it_for_twice_as_long_as_before() {
    let mut state = opened();
    let probe = state.open_until.unwrap();
    feed(&mut state, Verdict::Well, probe);
    feed(&mut state, Verdict::Ill, probe.plus(secs(1)));
    assert_eq!(state.step, 2);
    assert_eq!(state.allowed(probe.plus(secs(20))), Allowed::Nothing);
}

#[test]
fn who_asks_for_patience_gets_it_and_comes_back_slowly_without_having_failed() {
    let mut state = State::default();
    let until = START.plus(secs(2));
    (0..50).for_each(|_| feed(&mut state, Verdict::Throttled(until), START));
    assert_eq!((state.step, state.failures_in_row), (0, 0));
    assert_eq!(state.allowed(until.minus(Duration::from_millis(1))), Allowed::Nothing);
    assert_eq!(state.allowed(until), Allowed::Some(1));
    feed(&mut state, Verdict::Throttled(START), until);
    assert_eq!(state.throttled_until, Some(until), "a shorter wish does not undo a longer one");
}

#[test]
fn only_failures_for_five_days_are_long_enough() {
    let rule = Rule::default();
    let mut state = State::default();
    feed(&mut state, Verdict::Ill, START);
    let end = START.plus(secs(5 * 86_400)).plus(Duration::from_millis(20));
    assert!(!state.has_failed_long_enough(&rule, end.minus(Duration::from_millis(1))));
    assert!(state.has_failed_long_enough(&rule, end));
    assert!(!state.has_failed_long_enough(&Rule { disable_after: None, ..rule }, end));
    feed(&mut state, Verdict::Well, START.plus(secs(60)));
    assert!(!state.has_failed_long_enough(&rule, end));
}

#[test]
fn a_breaker_of_no_failures_never_opens() {
    let mut state = State::default();
    let rule = Rule { failures: 0, ..Rule::default() };
    (0..100).for_each(|_| state.learn(sign(Verdict::Ill, START), &rule, 32));
    assert_eq!(state.allowed(START), Allowed::All);
}

/// Whatever comes in whatever order: it is never open for longer than the cap, it always lets something through in the end,
/// and successes alone always close it.
#[test]
fn whatever_happens_it_lets_a_probe_through_and_successes_close_it() {
    let random = Random::seeded(7);
    let unit = || random.unit();
    for _ in 0..300 {
        let (mut state, mut now) = (State::default(), START);
        for _ in 0..200 {
            now = now.plus(Duration::from_millis((unit() * 60_000.0) as u64));
            let verdict = match (unit() * 4.0) as u32 {
                0 => Verdict::Well,
                1 => Verdict::Throttled(now.plus(secs(5))),
                _ => Verdict::Ill,
            };
            let started_at = now.minus(Duration::from_millis((unit() * 15_000.0) as u64));
            state.learn(Sign { verdict, started_at, ended_at: now }, &Rule::default(), 32);
            assert!(state.open_until.is_none_or(|until| until.since(now) <= Rule::default().cap));
            assert!(state.step == 0 || state.open_until.is_some() || state.ramp > 0, "{state:?}");
        }
        now = now.plus(Rule::default().cap);
        assert_ne!(state.allowed(now), Allowed::Nothing);
        for _ in 0..40 {
            feed(&mut state, Verdict::Well, now);
        }
        assert_eq!(state.allowed(now), Allowed::All, "{state:?}");
    }
}
