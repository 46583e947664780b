//! Places where a test build of the program ends itself, as `kill -9` would, for crash tests.
//!
//! `TWICEPROOF_TEST_KILL_AT=name` ends the process at the first passage of that place, `name:N` at the N-th. Only the
//! cargo feature `kill-points` compiles this in.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ends the process here if the environment says so.
pub fn at(place: &str) {
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let Some((name, passage)) = order() else { return };
    if name == place && PASSED.fetch_add(1, Ordering::AcqRel) + 1 == *passage {
        std::process::abort();
    }
}

fn order() -> Option<&'static (String, u64)> {
    static ORDER: OnceLock<Option<(String, u64)>> = OnceLock::new();
    ORDER
        .get_or_init(|| {
            let text = std::env::var("TWICEPROOF_TEST_KILL_AT").ok()?;
            let (name, passage) = text.split_once(':').unwrap_or((&text, "1"));
            Some((name.to_owned(), passage.parse().ok()?))
        })
        .as_ref()
}
