//! Judges a history of concurrent requests under one idempotency key: is there an order, in keeping with real time, in which
//! the answers are those of a service that does one thing at a time?

use std::collections::HashSet;
use std::fmt;

use crate::harness::Suite;

pub fn register(suite: &mut Suite) {
    suite.plain("linear::histories_that_one_at_a_time_could_have_made_pass", sound);
    suite.plain("linear::histories_that_it_could_not_have_made_do_not", unsound);
}

/// What a client learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// It ran, and the effect is its own.
    Ran,
    /// The stored answer of this request.
    Replayed(usize),
    /// The key was used with another payload.
    Refused,
    /// Another request with the key is running.
    Busy,
    /// It ran and nothing of it was kept.
    Failed,
    /// Nothing.
    Unknown,
}

/// One request: its payload, when it began and ended in the order of all that was seen, and what came of it.
#[derive(Clone, Copy)]
pub struct Op {
    pub payload: u64,
    pub began: u64,
    pub ended: u64,
    pub seen: Seen,
}

impl Op {
    /// What nobody saw the end of may take effect as late as it likes.
    fn last(&self) -> u64 {
        if self.seen == Seen::Unknown { u64::MAX } else { self.ended }
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.began < other.last() && other.began < self.last()
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}] {} → {:?}", self.began, self.ended, self.payload, self.seen)
    }
}

/// Judges the requests of one key, of which these have an effect in the end.
pub fn judge(ops: &[Op], effects: &[usize]) -> Result<(), String> {
    assert!(ops.len() <= 64);
    if effects.len() > 1 {
        return Err(format!("{} effects", effects.len()));
    }
    for (n, op) in ops.iter().enumerate() {
        let overlaps = |(m, other): (usize, &Op)| m != n && op.overlaps(other);
        if op.seen == Seen::Busy && !ops.iter().enumerate().any(overlaps) {
            return Err(format!("{n} was told that another is running, and none was"));
        }
    }
    let mut search = Search { ops, last: effects.first().copied(), seen: HashSet::new() };
    if search.goes_on(0, None) { Ok(()) } else { Err("no order explains the answers and what stands".to_owned()) }
}

struct Search<'a> {
    ops: &'a [Op],
    /// Whose effect stands in the end.
    last: Option<usize>,
    seen: HashSet<(u64, Option<usize>)>,
}

impl Search<'_> {
    /// Whether what is left can be put in order, after those of `done`; the key was used by `by`.
    fn goes_on(&mut self, done: u64, by: Option<usize>) -> bool {
        if !self.seen.insert((done, by)) {
            return false;
        }
        let ops = self.ops;
        let left = || (0..ops.len()).filter(|n| done & 1 << n == 0);
        if left().all(|n| ops[n].seen == Seen::Unknown) && by == self.last {
            return true;
        }
        // What began after another's end comes after it.
        let first_end = left().map(|n| ops[n].last()).min().unwrap_or(u64::MAX);
        left().filter(|n| ops[*n].began <= first_end).any(|n| {
            let same = by.is_some_and(|by| ops[by].payload == ops[n].payload);
            let next = match ops[n].seen {
                Seen::Ran if by.is_none() => Some(n),
                Seen::Unknown if by.is_none() => Some(n),
                Seen::Replayed(of) if same && by == Some(of) => by,
                Seen::Refused if by.is_some() && !same => by,
                Seen::Busy | Seen::Failed | Seen::Unknown => by,
                _ => return false,
            };
            let done = done | 1 << n;
            self.goes_on(done, next) || (ops[n].seen == Seen::Unknown && self.goes_on(done, by))
        })
    }
}

fn op(payload: u64, began: u64, ended: u64, seen: Seen) -> Op {
    Op { payload, began, ended, seen }
}

fn sound() {
    use Seen::{Busy, Failed, Ran, Refused, Replayed, Unknown};
    let histories: [(&[Op], &[usize]); 7] = [
        (&[], &[]),
        (&[op(0, 1, 2, Ran), op(0, 3, 4, Replayed(0)), op(1, 5, 6, Refused)], &[0]),
        // The later one to begin may be the first to take effect.
        (&[op(0, 1, 6, Replayed(1)), op(0, 2, 5, Ran), op(0, 3, 4, Busy)], &[1]),
        (&[op(0, 1, 2, Failed), op(0, 3, 4, Ran)], &[1]),
        // An unknown one may have happened, also later, or not.
        (&[op(0, 1, 2, Unknown), op(0, 3, 4, Busy), op(0, 5, 6, Replayed(0))], &[0]),
        (&[op(0, 1, 2, Unknown), op(0, 3, 4, Ran)], &[1]),
        (&[op(0, 1, 2, Unknown)], &[0]),
    ];
    for (ops, effects) in histories {
        assert_eq!(judge(ops, effects), Ok(()), "{ops:?}");
    }
}

fn unsound() {
    use Seen::{Busy, Failed, Ran, Refused, Replayed, Unknown};
    let histories: [(&[Op], &[usize]); 12] = [
        (&[op(0, 1, 4, Ran), op(0, 2, 3, Ran)], &[0, 1]),
        (&[op(0, 1, 4, Ran), op(0, 2, 3, Ran)], &[0]),
        (&[op(0, 1, 2, Ran)], &[]),
        (&[op(0, 1, 2, Failed)], &[0]),
        (&[op(0, 1, 2, Busy)], &[]),
        (&[op(0, 1, 2, Ran), op(0, 3, 4, Busy)], &[0]),
        // Before anything had happened.
        (&[op(0, 1, 2, Replayed(1)), op(0, 3, 4, Ran)], &[1]),
        (&[op(1, 1, 2, Refused), op(0, 3, 4, Ran)], &[1]),
        // Of the same payload, of another payload, of another request.
        (&[op(0, 1, 2, Ran), op(0, 3, 4, Refused)], &[0]),
        (&[op(0, 1, 2, Ran), op(1, 3, 4, Replayed(0))], &[0]),
        (&[op(0, 1, 2, Ran), op(0, 3, 4, Replayed(2)), op(0, 5, 6, Failed)], &[0]),
        // It cannot happen twice, whether known or not.
        (&[op(0, 1, 2, Unknown), op(0, 3, 4, Replayed(0)), op(0, 5, 6, Ran)], &[2]),
    ];
    for (ops, effects) in histories {
        assert!(judge(ops, effects).is_err(), "{ops:?} {effects:?}");
    }
}
