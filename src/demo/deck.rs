//! Which order meets which fault: dealt from a shuffled deck, so that a seed tells the whole story.

use twiceproof_shared::random::Random;

/// What goes wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The receiver committed and answered; the answer never arrives.
    AnswerLost,
    /// The handler fails after it wrote its invoice.
    HandlerFails,
    /// The order is rolled back after its event was published.
    RolledBack,
    /// The network answers 500 and the receiver sees nothing.
    ServerError,
    /// The answer comes after the dispatcher's timeout.
    SlowAnswer,
    /// The same request arrives several times at once.
    Concurrent,
    /// The request is overtaken by younger ones.
    Reordered,
    /// The request arrives again, long after it was answered.
    Replayed,
    /// A copy arrives with one byte of its body changed.
    Tampered,
    /// A copy arrives that was signed ten minutes ago.
    Stale,
    /// Another payload arrives under the id, rightly signed.
    OtherPayload,
}

impl Fault {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 11] = [
        Self::AnswerLost,
        Self::HandlerFails,
        Self::RolledBack,
        Self::ServerError,
        Self::SlowAnswer,
        Self::Concurrent,
        Self::Reordered,
        Self::Replayed,
        Self::Tampered,
        Self::Stale,
        Self::OtherPayload,
    ];

    /// Its name in the demo's tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AnswerLost => "answer_lost",
            Self::HandlerFails => "handler_fails",
            Self::RolledBack => "rolled_back",
            Self::ServerError => "server_error",
            Self::SlowAnswer => "slow_answer",
            Self::Concurrent => "concurrent",
            Self::Reordered => "reordered",
            Self::Replayed => "replayed",
            Self::Tampered => "tampered",
            Self::Stale => "stale",
            Self::OtherPayload => "other_payload",
        }
    }

    /// What a reader of the report sees.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::AnswerLost => "answers lost after the commit",
            Self::HandlerFails => "handlers that failed after their write",
            Self::RolledBack => "orders rolled back after publishing",
            Self::ServerError => "500 answers",
            Self::SlowAnswer => "answers slower than the timeout",
            Self::Concurrent => "concurrent duplicates",
            Self::Reordered => "requests overtaken by younger ones",
            Self::Replayed => "replays after the answer",
            Self::Tampered => "tampered bodies",
            Self::Stale => "stale timestamps",
            Self::OtherPayload => "other payloads under a used id",
        }
    }
}

/// Each fault is dealt this often; some cards do not bite (nobody happened to overtake), so it is more than is asked.
const CARDS: usize = 30;

/// Deals a fault, or none, to each of `orders` orders.
pub fn deal(orders: usize, random: &Random) -> Vec<Option<Fault>> {
    let mut deck: Vec<Option<Fault>> = Fault::ALL.iter().flat_map(|fault| [Some(*fault); CARDS]).collect();
    deck.resize(deck.len().max(orders), None);
    // Fisher–Yates, so that the seed alone decides.
    for last in (1..deck.len()).rev() {
        let other = random.below(last as u64 + 1) as usize;
        deck.swap(last, other);
    }
    deck.truncate(orders);
    deck
}

#[cfg(test)]
mod tests {
    use super::{CARDS, Fault, deal};
    use twiceproof_shared::random::Random;

    #[test]
    fn a_seed_deals_the_same_cards_and_every_fault_is_in_the_deck() {
        let dealt = deal(600, &Random::seeded(7));
        assert_eq!(dealt, deal(600, &Random::seeded(7)));
        assert_ne!(dealt, deal(600, &Random::seeded(8)));
        for fault in Fault::ALL {
            assert_eq!(dealt.iter().filter(|card| **card == Some(fault)).count(), CARDS, "{fault:?}");
        }
    }
}
