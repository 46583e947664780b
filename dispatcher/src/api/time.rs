//! Times on the wire: RFC 3339 in UTC with milliseconds.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use twiceproof_shared::clock::Timestamp;

/// A point in time as the API writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DateTime(pub(super) Timestamp);

impl DateTime {
    /// From milliseconds since the Unix epoch, as the database has them.
    pub(super) fn from_millis(millis: i64) -> Self {
        Self(Timestamp::from_millis(millis))
    }

    /// Reads RFC 3339 with any offset; what is finer than a millisecond is cut off.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let read = OffsetDateTime::parse(text, &Rfc3339);
        let time = read.map_err(|_| "is no RFC 3339 time such as 2026-11-30T12:00:00Z".to_owned())?;
        let millis = time.unix_timestamp_nanos().div_euclid(1_000_000);
        i64::try_from(millis).map(Self::from_millis).map_err(|_| "is no time that can be stored".to_owned())
    }

    fn to_text(self) -> Option<String> {
        let nanos = i128::from(self.0.as_millis()) * 1_000_000;
        OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?.format(&Rfc3339).ok()
    }
}

impl Serialize for DateTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.to_text().ok_or_else(|| ser::Error::custom("a stored time is outside of years 0 to 9999"))?;
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for DateTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_any_offset_and_written_in_utc() {
        let time = DateTime::parse("2026-11-30T14:00:00.1239+02:00").unwrap();
        assert_eq!(time.0, Timestamp::from_millis(1_796_040_000_123));
        assert_eq!(serde_json::to_string(&time).unwrap(), r#""2026-11-30T12:00:00.123Z""#);
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "now", "2026-11-30", "2026-11-30T12:00:00", "2026-13-30T12:00:00Z", "1796040000"] {
            assert!(DateTime::parse(text).is_err(), "{text:?}");
        }
    }
}
