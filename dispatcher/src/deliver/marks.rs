//! Where the queue begins, as far as this worker knows.
//!
//! While any reader keeps an old snapshot, PostgreSQL cannot take the entries of what was delivered out of the indexes of
//! what waits, and every look from their beginning walks over all of them. So where looks have become dear, the worker looks
//! from where its last look at each lane ended, and from the beginning only now and then: for a twentieth of the time at
//! most. Until then it does not see endpoints that are new to it, nor what was put back to the front of a lane.
//! Invariant: where a full look is cheap, every look is a full one.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use twiceproof_shared::clock::Timestamp;

use crate::store::claim::{Claimed, Known};

/// A full look that takes longer is not made every time.
const DEAR: Duration = Duration::from_millis(20);
/// So many times as long as a full look took is the pause until the next.
const PAUSE: u32 = 20;
/// How far before the last look one begins to look for what has become due, so that clocks may differ a little. Both lie
/// seconds ahead when they are written, so no commit comes too late; each second more is one of ended leases to walk over.
const SLACK: Duration = Duration::from_millis(100);
/// Endpoints that are remembered at most; above it the memory begins anew, with a full look.
const MOST_LANES: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Marks {
    /// For each endpoint that ever had something pending, the number from which its lane goes on.
    lanes: BTreeMap<String, i64>,
    /// When what is due was last looked for.
    looked_at: Option<Timestamp>,
    /// How long the last full look took, and when it ended.
    full: Option<(Duration, Instant)>,
}

impl Marks {
    /// Whether full looks have become dear.
    pub(super) fn are_dear(&self) -> bool {
        self.full.is_some_and(|(took, _)| took > DEAR)
    }

    /// What a look may begin from; none where a full one is due.
    pub(super) fn known(&self, at: Instant) -> Option<Known> {
        let (took, ended) = self.full.filter(|_| self.are_dear())?;
        if at.duration_since(ended) >= took * PAUSE {
            return None;
        }
        Some(Known { lanes: self.lanes.clone(), since: self.looked_at?.minus(SLACK) })
    }

    /// Learns from a claim that ended at `at`, and looked for what is due at `moved_at`, if it did.
    pub(super) fn learn(&mut self, claimed: &Claimed, was_full: bool, moved_at: Option<Timestamp>, at: Instant) {
        self.looked_at = moved_at.or(self.looked_at);
        if was_full {
            self.full = Some((claimed.looked, at));
        }
        for (endpoint, from_seq) in &claimed.lanes {
            match self.lanes.get_mut(endpoint) {
                Some(mark) => *mark = *from_seq,
                None => drop(self.lanes.insert(endpoint.clone(), *from_seq)),
            }
        }
        if self.lanes.len() > MOST_LANES {
            self.lanes.clear();
            self.full = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(millis: u64) -> Claimed {
        let lanes = vec![("ep_1".to_owned(), 7)];
        Claimed { looked: Duration::from_millis(millis), lanes, ..Claimed::default() }
    }

    #[test]
    fn a_dear_full_look_is_made_for_a_twentieth_of_the_time() {
        let mut marks = Marks::default();
        let (now, at) = (Timestamp::from_secs(1_700_000_000), Instant::now());
        assert!(marks.known(at).is_none(), "the first look is a full one");
        marks.learn(&claimed(5), true, Some(now), at);
        assert!(marks.known(at).is_none(), "while it is cheap, each is");
        marks.learn(&claimed(500), true, Some(now), at);
        assert!(marks.are_dear());
        assert_eq!(marks.known(at).unwrap().since, now.minus(SLACK));
        assert_eq!(marks.known(at).unwrap().lanes, BTreeMap::from([("ep_1".to_owned(), 7)]));
        let later = at + Duration::from_millis(9_900);
        marks.learn(&claimed(1), false, Some(now.plus(SLACK)), later);
        assert_eq!(marks.known(later).unwrap().since, now);
        assert!(marks.known(at + Duration::from_secs(10)).is_none());
        marks.learn(&claimed(1), true, Some(now), later);
        assert!(!marks.are_dear(), "the reader has gone");
    }
}
