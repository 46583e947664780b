//! The tables of twiceproof, as numbered SQL files.
//!
//! Both databases have the same numbers and the same names; a test compares them. `twiceproof_shared::store` applies
//! them in order, once, under a lock. A file that was released is never edited: forward only.

/// One numbered step of the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Position in the order, from 1.
    pub version: i64,
    /// What the step is for; the same on both databases.
    pub name: &'static str,
    /// The statements.
    pub sql: &'static str,
}

/// The steps for SQLite, in order.
pub const SQLITE: &[Migration] = &[
    Migration { version: 1, name: "first", sql: include_str!("../sqlite/0001_first.sql") },
    Migration { version: 2, name: "growth", sql: include_str!("../sqlite/0002_growth.sql") },
    Migration { version: 3, name: "secret_kinds", sql: include_str!("../sqlite/0003_secret_kinds.sql") },
    Migration { version: 4, name: "service", sql: include_str!("../sqlite/0004_service.sql") },
    Migration { version: 5, name: "sealed", sql: include_str!("../sqlite/0005_sealed.sql") },
    Migration { version: 6, name: "functions", sql: include_str!("../sqlite/0006_functions.sql") },
    Migration { version: 7, name: "replays", sql: include_str!("../sqlite/0007_replays.sql") },
    Migration { version: 8, name: "policy", sql: include_str!("../sqlite/0008_policy.sql") },
    Migration { version: 9, name: "order", sql: include_str!("../sqlite/0009_order.sql") },
];

/// The steps for PostgreSQL, in order.
pub const POSTGRES: &[Migration] = &[
    Migration { version: 1, name: "first", sql: include_str!("../postgres/0001_first.sql") },
    Migration { version: 2, name: "growth", sql: include_str!("../postgres/0002_growth.sql") },
    Migration { version: 3, name: "secret_kinds", sql: include_str!("../postgres/0003_secret_kinds.sql") },
    Migration { version: 4, name: "service", sql: include_str!("../postgres/0004_service.sql") },
    Migration { version: 5, name: "sealed", sql: include_str!("../postgres/0005_sealed.sql") },
    Migration { version: 6, name: "functions", sql: include_str!("../postgres/0006_functions.sql") },
    Migration { version: 7, name: "replays", sql: include_str!("../postgres/0007_replays.sql") },
    Migration { version: 8, name: "policy", sql: include_str!("../postgres/0008_policy.sql") },
    Migration { version: 9, name: "order", sql: include_str!("../postgres/0009_order.sql") },
];

#[cfg(test)]
mod tests {
    use super::{POSTGRES, SQLITE};

    #[test]
    fn both_databases_have_the_same_numbers_and_names() {
        let key = |list: &[super::Migration]| list.iter().map(|step| (step.version, step.name)).collect::<Vec<_>>();
        assert_eq!(key(SQLITE), key(POSTGRES));
        assert!(SQLITE.iter().map(|step| step.version).eq((1..).take(SQLITE.len())));
    }
}
