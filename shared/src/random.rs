//! Randomness enters the program here and nowhere else.
//!
//! Place in the path: ids, secrets, jitter and the demo's faults are handed a [`Random`].
//! Invariants: one seed gives one sequence; a system source is a cryptographic generator seeded by the operating
//! system, so that it is fit for secrets.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

/// A source of randomness. Clones draw from the same sequence.
#[derive(Clone)]
pub struct Random(Arc<Mutex<StdRng>>);

impl Random {
    /// Seeded by the operating system.
    ///
    /// # Panics
    ///
    /// If the operating system gives no randomness: no secret or id could be trusted.
    pub fn from_system() -> Self {
        Self(Arc::new(Mutex::new(rand::make_rng())))
    }

    /// The same sequence for the same seed: for tests and for runs that can be repeated. Never for secrets.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// Fills the whole buffer.
    pub fn fill(&self, buffer: &mut [u8]) {
        self.generator().fill_bytes(buffer);
    }

    /// A number in [0, 1), evenly spread.
    pub fn unit(&self) -> f64 {
        self.generator().random()
    }

    /// A whole number below `n`, evenly spread; 0 if `n` is 0.
    pub fn below(&self, n: u64) -> u64 {
        match n {
            0 => 0,
            n => self.generator().random_range(0..n),
        }
    }

    fn generator(&self) -> MutexGuard<'_, StdRng> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_sequence() {
        let draw = |random: Random| (random.unit(), random.below(1_000_000), random.below(7));
        assert_eq!(draw(Random::seeded(7)), draw(Random::seeded(7)));
        assert_ne!(draw(Random::seeded(7)), draw(Random::seeded(8)));
    }

    #[test]
    fn clones_share_the_sequence() {
        let one = Random::seeded(1);
        let other = one.clone();
        assert_ne!(one.below(u64::MAX), other.below(u64::MAX));
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let random = Random::seeded(3);
        let mut seen = [false; 5];
        for _ in 0..1_000 {
            assert!((0.0..1.0).contains(&random.unit()));
            seen[random.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn the_system_source_does_not_repeat_itself() {
        let mut one = [0; 32];
        let mut other = [0; 32];
        Random::from_system().fill(&mut one);
        Random::from_system().fill(&mut other);
        assert_ne!(one, other);
    }
}
