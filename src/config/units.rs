//! Durations and sizes as people write them: `15s`, `12h`, `30d`, `1MiB`.

use std::time::Duration;

/// Longest duration a setting may have: a hundred years, so that sums of them never overflow.
const LONGEST_MS: u64 = 36_500 * DAY_MS;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Units of time with their length in milliseconds, longest first.
const TIME_UNITS: &[(&str, u64)] = &[("d", DAY_MS), ("h", 60 * 60 * 1000), ("m", 60 * 1000), ("s", 1000), ("ms", 1)];

/// Units of size with their length in bytes, largest first.
const SIZE_UNITS: &[(&str, usize)] = &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads a whole number with a unit of time: `ms`, `s`, `m`, `h` or `d`.
///
/// # Errors
/// A sentence that says how a duration is written.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let Some((_, length)) = TIME_UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err("write a whole number and a unit, one of ms, s, m, h, d: `15s`, `12h`, `30d`".to_owned());
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*length))
        .filter(|millis| *millis <= LONGEST_MS)
        .map(Duration::from_millis)
        .ok_or_else(|| "write a whole number before the unit, at most a hundred years: `15s`".to_owned())
}

/// Reads a whole number with a unit of size: `B`, `KiB`, `MiB` or `GiB`.
pub(super) fn parse_size(text: &str) -> Result<usize, String> {
    let (number, unit) = split(text);
    let Some((_, length)) = SIZE_UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err("write a whole number and a unit, one of B, KiB, MiB, GiB: `64KiB`, `1MiB`".to_owned());
    };
    number
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(*length))
        .ok_or_else(|| "write a whole number before the unit: `1MiB`".to_owned())
}

/// A duration in the longest unit that holds it without a remainder.
pub(super) fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    TIME_UNITS
        .iter()
        .find(|(_, length)| millis > 0 && millis.is_multiple_of(u128::from(*length)))
        .map_or_else(|| "0s".to_owned(), |(unit, length)| format!("{}{unit}", millis / u128::from(*length)))
}

/// Splits before the first byte that is not a digit.
fn split(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_back_as_they_were_written() {
        for text in ["250ms", "15s", "5m", "12h", "30d", "400d", "0s"] {
            assert_eq!(show_duration(parse_duration(text).unwrap()), text);
        }
        assert_eq!(show_duration(Duration::from_secs(72 * 3600)), "3d");
        assert_eq!(show_duration(Duration::from_secs(90)), "90s");
    }

    #[test]
    fn a_duration_needs_a_number_and_a_known_unit() {
        for text in ["", "15", "s", "-1s", "1.5h", "15 s", "15S", "1w", "99999999999999999999s", "36501d", "١s"] {
            assert!(parse_duration(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn sizes_are_counted_in_powers_of_two() {
        assert_eq!(parse_size("1MiB").unwrap(), 1_048_576);
        assert_eq!(parse_size("64KiB").unwrap(), 65_536);
        assert_eq!(parse_size("17B").unwrap(), 17);
        for text in ["", "1", "1MB", "1mib", "MiB", "-1B", "99999999999999999999GiB"] {
            assert!(parse_size(text).is_err(), "{text:?} was taken");
        }
    }
}
