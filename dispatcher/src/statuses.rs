//! What the answers of a receiver mean, by status.
//!
//! Place in the path: part of the [`Policy`](crate::schedule::Policy) that [`decide`](crate::decide) reads.
//! Invariants: pure; 2xx is success whatever anybody writes; an unknown status goes by its class.

use serde::{Deserialize, Serialize};

/// What happens after an answer that is not 2xx.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// The delivery is tried again by its schedule.
    Retry,
    /// It is not tried again.
    GiveUp,
    /// It is tried again, and where the answer says after how long (`Retry-After`), the endpoint is sent nothing before.
    Throttle,
    /// The endpoint is disabled and what waits for it is parked.
    Disable,
}

/// A name that is neither a status nor a class that can be given a meaning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a status from 300 to 999 nor a class from 3xx to 9xx")]
pub struct InvalidStatus(pub String);

/// Meanings by status. The default: 410 disables, 429, 502, 503 and 504 throttle, and all others are tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statuses(Vec<(Range, Action)>);

/// From one status to another, both included. Of those that hold a status the last one counts.
type Range = (u16, u16);

impl Statuses {
    /// Meanings by status (`404`) or class (`4xx`), in any order: a status goes before its class.
    ///
    /// # Errors
    /// [`InvalidStatus`] names what is none.
    pub fn new<'a>(meanings: impl IntoIterator<Item = (&'a str, Action)>) -> Result<Self, InvalidStatus> {
        let mut ranges = Vec::new();
        for (name, action) in meanings {
            ranges.push((range(name).ok_or_else(|| InvalidStatus(name.to_owned()))?, action));
        }
        ranges.sort_by_key(|((from, to), _)| std::cmp::Reverse(to - from));
        Ok(Self(ranges))
    }

    /// Puts these before its own.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// What this status means.
    pub fn of(&self, status: u16) -> Action {
        let found = self.0.iter().rev().find(|((from, to), _)| (*from..=*to).contains(&status));
        found.map_or(Action::Retry, |(_, action)| *action)
    }
}

impl Default for Statuses {
    fn default() -> Self {
        let known = [
            ("410", Action::Disable),
            ("429", Action::Throttle),
            ("502", Action::Throttle),
            ("503", Action::Throttle),
            ("504", Action::Throttle),
        ];
        Self::new(known).unwrap_or(Self(Vec::new()))
    }
}

fn range(name: &str) -> Option<Range> {
    let (digits, width) = name.strip_suffix("xx").map_or((name, 1), |class| (class, 100));
    let is_number = digits.len() == if width == 1 { 3 } else { 1 } && digits.bytes().all(|byte| byte.is_ascii_digit());
    let from = digits.parse::<u16>().ok().filter(|_| is_number)? * width;
    (300..=999).contains(&from).then_some((from, from + width - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_goes_before_its_class_in_whatever_order_they_come() {
        let one = [("4xx", Action::GiveUp), ("404", Action::Retry), ("503", Action::Disable)];
        let two = [one[2], one[1], one[0]];
        for meanings in [one, two] {
            let statuses = Statuses::new(meanings).unwrap();
            assert_eq!(statuses.of(404), Action::Retry);
            assert_eq!(statuses.of(400), Action::GiveUp);
            assert_eq!(statuses.of(499), Action::GiveUp);
            assert_eq!(statuses.of(503), Action::Disable);
            assert_eq!(statuses.of(500), Action::Retry);
        }
    }

    #[test]
    fn only_statuses_and_classes_have_a_meaning() {
        for name in ["300", "3xx", "999", "9xx", "410"] {
            assert!(range(name).is_some(), "{name}");
        }
        for name in ["", "2xx", "200", "299", "1xx", "xx", "4xxx", "44xx", "4x", "1000", "0410", "+410", "-1", "４xx"]
        {
            assert!(range(name).is_none(), "{name}");
        }
    }
}
