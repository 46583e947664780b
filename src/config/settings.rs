//! The one table of settings: name, default, what it is for. The loader, `config show` and the tests all read it.
//!
//! A name with a dot is a key in a section of the TOML file (`retry.first` is `first` under `[retry]`); its environment
//! variable is `TWICEPROOF_RETRY_FIRST`. Defaults are written as a user would write them and take the same way through
//! the parsers.

/// One setting of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// Name in the TOML file, sections before the dot.
    pub name: &'static str,
    /// Value when nobody sets it.
    pub default: &'static str,
    /// Whether the value may hold a secret: it is shown without it, never quoted in an error, and may be read from a
    /// file that the twin setting `…_file` names.
    pub secret: bool,
    /// What it decides.
    pub help: &'static str,
}

/// Every setting, in the order in which `config show` prints them.
pub const SETTINGS: &[Setting] = &[
    Setting {
        secret: true,
        ..plain("database", "sqlite:twiceproof.db", "where everything is stored: sqlite:FILE or postgres://…")
    },
    plain("tenant", "default", "the tenant that commands act for when none is named"),
    plain("listen", "127.0.0.1:7071", "address on which `serve` answers"),
    Setting {
        secret: true,
        ..plain(
            "api.jwt_secret",
            "",
            "signs and checks the tokens of the REST API, 32 bytes or more; without it the API is off",
        )
    },
    plain(
        "api.public_url",
        "",
        "where clients reach `serve`, for links that the API hands out: https://HOST; else http://LISTEN",
    ),
    Setting {
        secret: true,
        ..plain(
            "secrets.master_key",
            "",
            "seals endpoint secrets at rest; several, one a line: the first seals, all open",
        )
    },
    plain(
        "allow_private_addresses",
        "false",
        "deliver to private and loopback addresses too, also over http and on any port",
    ),
    Setting {
        secret: true,
        ..plain(
            "egress.proxy",
            "",
            "a forward proxy for all deliveries, http://[USER:PASSWORD@]HOST:PORT; it should refuse private addresses too",
        )
    },
    plain("retry.first", "5s", "wait before the first retry"),
    plain("retry.factor", "3", "each wait is the one before times this"),
    plain("retry.cap", "12h", "no wait is longer"),
    plain("retry.horizon", "3d", "after this time since the event was accepted, nothing is retried"),
    plain("delivery.timeout", "15s", "one deadline over name lookup, connection, TLS, headers and body"),
    plain("delivery.lease_margin", "15s", "a lease lasts the timeout plus this"),
    plain("delivery.slots_per_endpoint", "32", "deliveries that one worker has under way to one endpoint"),
    plain("delivery.slots_per_worker", "512", "deliveries that one worker has under way"),
    plain("receiver.tolerance", "5m", "how far a signed timestamp may be from now, to both sides"),
    plain("receiver.body_limit", "1MiB", "longest request body"),
    plain("receiver.in_flight_wait", "0s", "how long a second copy waits for the first before it is told to retry"),
    plain("retention.events", "30d", "how long a published event is kept"),
    plain("retention.ledger", "30d", "how long a processed key keeps its stored answer"),
    plain("retention.expired_rows", "400d", "how long an emptied ledger row still recognises a late duplicate"),
    plain("retention.conflicts", "90d", "how long a request with a known key and another payload is kept for review"),
    plain("retention.resend_window", "0s", "how long after its last retry a sender still resends by hand"),
    plain("retention.allow_short", "false", "start although a retention is shorter than redeliveries can be late"),
    plain("log.format", "human", "human or json, on standard error"),
    plain("log.level", "info", "a level, or directives such as `info,twiceproof_dispatcher=debug`"),
];

/// Prefix of every environment variable the program reads.
pub(super) const PREFIX: &str = "TWICEPROOF_";
/// Variables with this prefix belong to the tests; the program ignores them.
pub(super) const TEST_PREFIX: &str = "TWICEPROOF_TEST_";
/// Ending of the twin that names a file with the value of a secret setting.
pub(super) const FILE_TWIN: &str = "_file";

impl Setting {
    /// The environment variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        variable(self.name)
    }
}

/// The environment variable for a name of the TOML file.
pub(super) fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.replace('.', "_").to_ascii_uppercase())
}

/// Every name a file may hold: the settings and the `…_file` twins of the secret ones.
pub(super) fn names() -> impl Iterator<Item = String> {
    SETTINGS.iter().flat_map(|setting| {
        let twin = setting.secret.then(|| format!("{}{FILE_TWIN}", setting.name));
        [Some(setting.name.to_owned()), twin].into_iter().flatten()
    })
}

const fn plain(name: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { name, default, secret: false, help }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_and_variables_are_unique_and_leave_the_tests_their_prefix() {
        let names: Vec<String> = names().collect();
        let variables: BTreeSet<String> = names.iter().map(|name| variable(name)).collect();
        assert_eq!(variables.len(), names.len());
        assert!(variables.iter().all(|variable| !variable.starts_with(TEST_PREFIX)));
        assert!(!variables.contains("TWICEPROOF_CONFIG"), "this one names the file");
    }
}
