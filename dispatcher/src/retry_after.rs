//! Reads `Retry-After` (RFC 9110, section 10.2.3): how long the receiver asks to be left alone.
//!
//! Place in the path: [`send`](crate::send) keeps the header's text, [`decide`](crate::decide) asks for the wait.
//! Invariants: pure; what cannot be read, is negative or lies in the past asks for nothing; nothing overflows, however
//! large the number.

use std::time::{Duration, UNIX_EPOCH};

use twiceproof_shared::clock::Timestamp;

/// The wait that a `Retry-After` value asks for, or none.
///
/// Seconds may have a fraction, which is rounded up. A date is counted from the response's own `Date` where it can be
/// read, so that a receiver with a wrong clock still gets the wait it meant; else from `now`.
pub fn parse(value: &str, date: Option<&str>, now: Timestamp) -> Option<Duration> {
    let value = value.trim_matches([' ', '\t']);
    if let Some(seconds) = seconds(value) {
        return (seconds > 0).then(|| Duration::from_secs(seconds));
    }
    let until = http_date(value)?;
    let from = date.and_then(http_date).unwrap_or(now);
    Some(until.since(from)).filter(|wait| !wait.is_zero())
}

/// The longest wait of several header values. Two headers are an error of the receiver; the longer wait harms nobody.
pub fn longest<'a>(values: impl IntoIterator<Item = &'a str>, date: Option<&str>, now: Timestamp) -> Option<Duration> {
    let waits = values.into_iter().filter_map(|value| parse(value, date, now));
    waits.max()
}

/// Digits, or digits with a fraction; saturates.
fn seconds(value: &str) -> Option<u64> {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    // All digits: the only way to fail is a number too large to hold.
    let whole = whole.parse().unwrap_or(u64::MAX);
    let rounds_up = fraction.bytes().any(|byte| byte != b'0');
    Some(whole.saturating_add(u64::from(rounds_up)))
}

fn http_date(text: &str) -> Option<Timestamp> {
    let date = httpdate::parse_http_date(text.trim_matches([' ', '\t'])).ok()?;
    let after = date.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::EPOCH.plus(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wed, 21 Oct 2015 07:28:00 GMT
    const NOW: Timestamp = Timestamp::from_secs(1_445_412_480);

    fn wait(value: &str) -> Option<u64> {
        parse(value, None, NOW).map(|wait| wait.as_secs())
    }

    #[test]
    fn send_r4_seconds_are_taken_in_full() {
        assert_eq!(wait("120"), Some(120));
        assert_eq!(wait(" 120\t"), Some(120));
        assert_eq!(wait("0120"), Some(120));
        assert_eq!(wait("99999999999"), Some(99_999_999_999));
        assert_eq!(wait("315360000"), Some(315_360_000));
    }

    #[test]
    fn send_r4_fractions_are_rounded_up() {
        assert_eq!(wait("1.5"), Some(2));
        assert_eq!(wait("1.0"), Some(1));
        assert_eq!(wait("0.001"), Some(1));
    }

    #[test]
    fn send_r4_numbers_beyond_all_bounds_saturate() {
        let endless = "9".repeat(400);
        assert_eq!(wait(&endless), Some(u64::MAX));
        assert_eq!(wait(&format!("{endless}.5")), Some(u64::MAX));
        assert_eq!(wait("18446744073709551615.5"), Some(u64::MAX));
    }

    #[test]
    fn send_r4_zero_negatives_and_garbage_ask_for_nothing() {
        for value in [
            "", " ", "0", "0.0", "-1", "+1", "1e300", "1e3", "1,5", "120, 60", "120;", "0x10", "1.", ".5", "1.2.3",
            "soon", "\u{660}", "NaN", "inf", "Infinity", "1 2", "1_000", "\0",
        ] {
            assert_eq!(wait(value), None, "{value:?}");
        }
    }

    #[test]
    fn send_r4_a_date_counts_from_now() {
        assert_eq!(wait("Wed, 21 Oct 2015 07:30:00 GMT"), Some(120));
        assert_eq!(wait("Wednesday, 21-Oct-15 07:30:00 GMT"), Some(120));
        assert_eq!(wait("Wed Oct 21 07:30:00 2015"), Some(120));
    }

    #[test]
    fn send_r4_a_date_in_the_past_or_present_asks_for_nothing() {
        assert_eq!(wait("Wed, 21 Oct 2015 07:28:00 GMT"), None);
        assert_eq!(wait("Tue, 20 Oct 2015 07:28:00 GMT"), None);
        assert_eq!(wait("Thu, 01 Jan 1970 00:00:00 GMT"), None);
    }

    #[test]
    fn send_r4_impossible_dates_ask_for_nothing() {
        for value in [
            "Wed, 41 Oct 2015 07:30:00 GMT",
            "Wed, 21 Oct 2015 07:30:00 CET",
            "Wed, 21 Oct 2015",
            "2015-10-21T07:30:00Z",
        ] {
            assert_eq!(wait(value), None, "{value:?}");
        }
    }

    #[test]
    fn a_date_counts_from_the_responses_own_date() {
        let skewed = Some("Wed, 21 Oct 2015 08:28:00 GMT");
        let asked = "Wed, 21 Oct 2015 08:30:00 GMT";
        assert_eq!(parse(asked, skewed, NOW), Some(Duration::from_secs(120)));
        assert_eq!(parse(asked, Some("yesterday"), NOW), Some(Duration::from_secs(3_720)));
        // Seconds are not affected by anybody's clock.
        assert_eq!(parse("5", skewed, NOW), Some(Duration::from_secs(5)));
    }

    #[test]
    fn send_r4_of_two_headers_the_longer_wait_counts() {
        let longest = |values: &[&str]| longest(values.iter().copied(), None, NOW);
        assert_eq!(longest(&["60", "120"]), Some(Duration::from_secs(120)));
        assert_eq!(longest(&["120", "soon"]), Some(Duration::from_secs(120)));
        assert_eq!(longest(&["-1", ""]), None);
        assert_eq!(longest(&[]), None);
    }
}
