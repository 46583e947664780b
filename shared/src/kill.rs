//! Places where a test build of the program ends itself, as `kill -9` would, for crash tests.
//!
//! `TWICEPROOF_TEST_KILL_AT=name` ends the process at the first passage of that place, `name:N` at the N-th. Only the
//! cargo feature `kill-points` compiles this in: in any other build a passage is no code at all.

/// A place where a process can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Point {
    /// Its name in `TWICEPROOF_TEST_KILL_AT`.
    pub name: &'static str,
    /// Whose process passes there.
    pub part: Part,
    /// What has happened before it, and what has not.
    pub moment: &'static str,
}

/// Whose process it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Publishes events.
    Publisher,
    /// Delivers them.
    Worker,
    /// Takes them in.
    Receiver,
}

/// Where tables are made: not in the path of an event, and passed once in the life of a database.
pub const MIGRATION: Point = point("migration_before_commit", Part::Worker, "the tables are made, not committed");

/// Every place in the path of an event, in its order.
pub const POINTS: &[Point] = &[
    point("publish_before_commit", Part::Publisher, "event and deliveries are written, not committed"),
    point("publish_after_commit", Part::Publisher, "the event is committed, nobody was told"),
    point("claim_before_commit", Part::Worker, "deliveries are leased, not committed"),
    point("after_claim", Part::Worker, "the leases are committed, nothing was sent"),
    point("before_request", Part::Worker, "the event is loaded, its request is not begun"),
    point("request_left", Part::Worker, "the answer has come, it is not recorded"),
    point("record_before_commit", Part::Worker, "attempts and states are written, not committed"),
    point("record_after_commit", Part::Worker, "attempts and states are committed"),
    point("body_read", Part::Receiver, "the request is read, not verified"),
    point("verified", Part::Receiver, "the request is verified, the ledger was not asked"),
    point("ledger_before_effect", Part::Receiver, "the key is written, the handler has not run"),
    point("effect_before_commit", Part::Receiver, "the effect is written, its outcome is not"),
    point("outcome_before_commit", Part::Receiver, "effect and outcome are written, not committed"),
    point("commit_before_answer", Part::Receiver, "effect and outcome are committed, the answer has not left"),
];

/// Whether this build ends at these places when it is told to.
pub const ARE_BUILT_IN: bool = cfg!(feature = "kill-points");

const fn point(name: &'static str, part: Part, moment: &'static str) -> Point {
    Point { name, part, moment }
}

/// Ends the process here if the environment says so.
#[cfg(not(feature = "kill-points"))]
#[inline(always)]
pub fn at(_place: &str) {}

/// Ends the process here if the environment says so.
#[cfg(feature = "kill-points")]
pub fn at(place: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ORDER: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    debug_assert!(POINTS.iter().chain([&MIGRATION]).any(|point| point.name == place), "{place} is not in the table");
    let order = ORDER.get_or_init(|| {
        let text = std::env::var("TWICEPROOF_TEST_KILL_AT").ok()?;
        let (name, passage) = text.split_once(':').unwrap_or((&text, "1"));
        Some((name.to_owned(), passage.parse().ok()?))
    });
    let Some((name, passage)) = order else { return };
    if name == place && PASSED.fetch_add(1, Ordering::AcqRel) + 1 == *passage {
        std::process::abort();
    }
}
