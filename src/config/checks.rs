//! Settings held against each other.
//!
//! Architecture Invariant: what was processed is remembered longer than a copy of it can still arrive. A copy arrives
//! until the retry horizon, plus a fifth for clocks and backlogs, plus the time in which the sender resends by hand.
//! A lease is longer than an attempt by construction ([`super::Delivery::lease`]).

use std::time::Duration;

use super::units::show_duration;
use super::{Config, ConfigError, shortest_retention};

/// The setting that lets a start pass although a retention is too short.
const OVERRIDE: &str = "retention.allow_short";

pub(super) fn check(config: &Config) -> Result<Vec<String>, ConfigError> {
    if config.retry.cap < config.retry.first {
        return Err(contradiction(config, "retry.cap", config.retry.cap, "retry.first", config.retry.first));
    }
    let needed = shortest_retention(config.retry.horizon, config.retention.resend_window);
    let mut overridden = Vec::new();
    for (name, kept) in [("retention.events", config.retention.events), ("retention.ledger", config.retention.ledger)] {
        if kept >= needed {
            continue;
        }
        let finding = format!(
            "`{name}` is {} ({}), but a copy of an event can still arrive after {}: 1.2 × `retry.horizon` ({}) plus \
             `retention.resend_window` ({})",
            show_duration(kept),
            config.origin(name),
            whole_hours(needed),
            config.origin("retry.horizon"),
            config.origin("retention.resend_window"),
        );
        if !config.retention.allow_short {
            let needed = whole_hours(needed);
            return Err(ConfigError::Contradiction(format!(
                "{finding}; set `{name}` to {needed} or more, or `{OVERRIDE}` to true to start all the same"
            )));
        }
        overridden.push(format!("{finding}; allowed by `{OVERRIDE}` ({})", config.origin(OVERRIDE)));
    }
    Ok(overridden)
}

/// Rounded up to whole hours, which reads better than minutes.
fn whole_hours(duration: Duration) -> String {
    format!("{}h", duration.as_secs().div_ceil(3600))
}

fn contradiction(config: &Config, low: &str, is: Duration, high: &str, least: Duration) -> ConfigError {
    ConfigError::Contradiction(format!(
        "`{low}` is {} ({}), less than `{high}`, which is {} ({}); raise the one or lower the other",
        show_duration(is),
        config.origin(low),
        show_duration(least),
        config.origin(high),
    ))
}
