//! What a route wants of its keys.

use std::time::Duration;

use twiceproof_shared::key::Key;

const DAY: Duration = Duration::from_secs(86_400);

/// Which answers are kept and given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// None: keys are not looked at.
    Off,
    /// Answers below 400. After any other, everything is rolled back and the key is as new: the client's repeat runs again.
    #[default]
    ReplaySuccesses,
    /// Errors too: what the handler wrote is rolled back and its answer is kept.
    ///
    /// Two kinds of errors leave the key as new all the same: those that ask the client to come again (408, 425, 429, 503), and
    /// those of the client (4xx) before the transaction was used, such as a body that cannot be read.
    ReplayAll,
}

/// What is answered to a key whose answer has been forgotten, while the key itself is still known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expired {
    /// 422: a key is for one operation, so this is most likely a very late repeat of one that was done.
    #[default]
    Refuse,
    /// The request is run as a new one.
    New,
}

/// What a route wants of its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub(super) policy: Policy,
    pub(super) is_required: bool,
    pub(super) scope: Option<Key>,
    pub(super) retention: Duration,
    pub(super) expired: Expired,
    pub(super) keeps_conflicts: bool,
}

impl Rule {
    /// Keys are optional, answers are kept for 30 days, forgotten keys are refused, conflicts are kept for review.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            is_required: false,
            scope: None,
            retention: 30 * DAY,
            expired: Expired::Refuse,
            keeps_conflicts: true,
        }
    }

    /// A request without a key is refused with 400.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.is_required = true;
        self
    }

    /// Keeps keys under this name instead of under method and matched path: for routes that mean the same operation, or whose
    /// path will change.
    #[must_use]
    pub fn scope(mut self, name: Key) -> Self {
        self.scope = Some(name);
        self
    }

    /// How long answers are kept, at least: as long as a client may repeat itself, outages included. What is older is forgotten
    /// by [`keep`](twiceproof_shared::ledger::keep), which has to run somewhere; `serve` does it. The key itself is still
    /// known for 400 days after that.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// What is answered to a key whose answer has been forgotten.
    #[must_use]
    pub fn expired(mut self, expired: Expired) -> Self {
        self.expired = expired;
        self
    }

    /// Keeps no request that used a known key with another payload: for routes whose bodies hold secrets. It is refused all the
    /// same.
    #[must_use]
    pub fn without_review(mut self) -> Self {
        self.keeps_conflicts = false;
        self
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::new(Policy::default())
    }
}
