//! Points in time as the commands print them.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Milliseconds since the Unix epoch in RFC 3339, in UTC.
pub(super) fn rfc3339(millis: i64) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000)
        .ok()
        .and_then(|time| time.format(&Rfc3339).ok())
        // Outside of the years 0 to 9999.
        .unwrap_or_else(|| format!("{millis} ms"))
}
