//! How long must be remembered what was accepted, so that a late copy of it is still recognised.
//!
//! Place in the path: receivers, dispatchers and the program's settings are checked by it when they start.

use std::time::Duration;

/// The shortest safe retention: 1.2 × the sender's retry horizon plus the time in which it still resends by hand.
#[must_use]
pub fn shortest_retention(horizon: Duration, resends: Duration) -> Duration {
    horizon.saturating_add(horizon / 5).saturating_add(resends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_more_than_the_horizon_and_all_of_the_resends() {
        let (horizon, resends) = (Duration::from_secs(10), Duration::from_secs(1));
        assert_eq!(shortest_retention(horizon, resends), Duration::from_secs(13));
        assert_eq!(shortest_retention(Duration::MAX, resends), Duration::MAX);
    }
}
