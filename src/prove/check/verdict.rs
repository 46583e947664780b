//! What a history came to.

use std::fmt;

use serde::Serialize;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// Accepted, and neither an effect nor a dead letter stands.
    Lost,
    /// More than one effect of one event, or of one client's id.
    Double,
    /// An effect of something that was never published, or was rolled back.
    Phantom,
    /// A 2xx was answered, and its effect does not stand.
    AnsweredTooSoon,
    /// Effect and key do not stand together.
    Torn,
    /// Two answers for one effect, or an answer that is not the effect's.
    OtherAnswer,
    /// Recorded as delivered, and the receiver never answered 2xx.
    UntrueRecord,
    /// One event came with two bodies, or one client's id with two events.
    OtherIdentity,
    /// An attempt is missing in the count of a delivery, or counted twice.
    Gap,
    /// A result was recorded under a lease that somebody else held by then.
    Unfenced,
    /// The client was told that nothing happened, and it had.
    FailedYetStands,
    /// What was unknown was resolved wrongly: told *accepted before* where it was not, or the other way round.
    UnknownResolvedWrong,
    /// It is not at its end.
    Stuck,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::Lost,
        Self::Double,
        Self::Phantom,
        Self::AnsweredTooSoon,
        Self::Torn,
        Self::OtherAnswer,
        Self::UntrueRecord,
        Self::OtherIdentity,
        Self::Gap,
        Self::Unfenced,
        Self::FailedYetStands,
        Self::UnknownResolvedWrong,
        Self::Stuck,
    ];

    /// In words.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Double => "double",
            Self::Phantom => "phantom effect",
            Self::AnsweredTooSoon => "answered before it was committed",
            Self::Torn => "effect and key torn apart",
            Self::OtherAnswer => "other answer",
            Self::UntrueRecord => "untrue record",
            Self::OtherIdentity => "other identity",
            Self::Gap => "gap in the attempts",
            Self::Unfenced => "recorded under a lost lease",
            Self::FailedYetStands => "told that it failed, and it stands",
            Self::UnknownResolvedWrong => "unknown commit resolved wrongly",
            Self::Stuck => "stuck",
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which kind.
    pub kind: Kind,
    /// The event's id, or the client's own where it has none.
    pub event: String,
    /// What is wrong with it.
    pub text: String,
}

/// What a history came to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Verdict {
    /// Clients' ids that were offered.
    pub offered: u64,
    /// Of these, accepted.
    pub accepted: u64,
    /// Clients' ids of which their client was at some time told nothing, or that nobody knows …
    pub unknown: u64,
    /// … of which, as was found out later, it had happened.
    pub unknown_happened: u64,
    /// Requests at the receiver.
    pub arrived: u64,
    /// Of these, answered as repeats.
    pub replayed: u64,
    /// Effects that stand.
    pub effects: u64,
    /// Deliveries that ended as dead letters.
    pub dead: u64,
    /// Attempts that were kept as late.
    pub late: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

impl Verdict {
    /// How many findings of this kind there are.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        self.findings.iter().filter(|finding| finding.kind == kind).count()
    }

    /// Adds what another history came to.
    pub fn add(&mut self, other: Self) {
        self.offered += other.offered;
        self.accepted += other.accepted;
        self.unknown += other.unknown;
        self.unknown_happened += other.unknown_happened;
        self.arrived += other.arrived;
        self.replayed += other.replayed;
        self.effects += other.effects;
        self.dead += other.dead;
        self.late += other.late;
        self.findings.extend(other.findings);
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.kind.title(), self.event, self.text)
    }
}
