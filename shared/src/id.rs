//! Ids: a prefix that says what it names, then a millisecond KSUID in 27 base-62 characters.
//!
//! Place in the path: minted when a row is made, never changed after.
//! Invariants: ids compare as bytes, on both databases and here; one id has one spelling. The time in an id has steps
//! of 4 ms, so the order of ids is no order of rows (rows that need one carry `seq`).

use std::fmt;

use serde::{Serialize, Serializer};
use svix_ksuid::{KSUID_EPOCH, KsuidLike, KsuidMs};

use crate::clock::Timestamp;
use crate::random::Random;

/// What an id names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prefix {
    /// `org_`
    Organisation,
    /// `app_`
    Tenant,
    /// `msg_`
    Event,
    /// `ep_`
    Endpoint,
    /// `atmpt_`
    Attempt,
    /// `wrk_`: one incarnation of a worker process.
    Worker,
    /// `rply_`
    Replay,
}

impl Prefix {
    /// The text in front of the KSUID, with its underscore.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Organisation => "org_",
            Self::Tenant => "app_",
            Self::Event => "msg_",
            Self::Endpoint => "ep_",
            Self::Attempt => "atmpt_",
            Self::Worker => "wrk_",
            Self::Replay => "rply_",
        }
    }
}

/// A prefixed KSUID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(String);

impl Id {
    /// A new id. Times outside of what a KSUID can hold (May 2014 to 2150) are moved to the nearest one that it can.
    pub fn mint(prefix: Prefix, now: Timestamp, random: &Random) -> Self {
        let mut payload = [0; KsuidMs::PAYLOAD_BYTES];
        random.fill(&mut payload);
        let millis = now.as_millis().clamp(FIRST_MILLIS, LAST_MILLIS);
        let ksuid = KsuidMs::from_millis(Some(millis), Some(&payload));
        Self(format!("{}{}", prefix.as_str(), ksuid.to_base62()))
    }

    /// The lowest id that can be minted at this time: every id that was minted 4 ms or more before it is lower.
    pub fn lowest_at(prefix: Prefix, time: Timestamp) -> Self {
        let millis = time.as_millis().clamp(FIRST_MILLIS, LAST_MILLIS);
        let ksuid = KsuidMs::from_millis(Some(millis), Some(&[0; KsuidMs::PAYLOAD_BYTES]));
        Self(format!("{}{}", prefix.as_str(), ksuid.to_base62()))
    }

    /// Reads an id of one kind.
    ///
    /// # Errors
    ///
    /// [`InvalidId`] if the prefix is another one, or what follows is not a KSUID in its one spelling.
    pub fn parse(prefix: Prefix, text: &str) -> Result<Self, InvalidId> {
        text.strip_prefix(prefix.as_str())
            .and_then(decode)
            .map(|_| Self(text.to_owned()))
            .ok_or(InvalidId { expected: prefix.as_str() })
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// When the id was minted, in steps of 4 ms.
    pub fn minted_at(&self) -> Timestamp {
        let ksuid = self.0.rsplit('_').next().and_then(decode).unwrap_or_default();
        let [a, b, c, d, quarter, ..] = ksuid;
        let secs = i64::from(u32::from_be_bytes([a, b, c, d])) + KSUID_EPOCH;
        Timestamp::from_millis(secs * 1_000 + i64::from(quarter) * 4)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Id {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// The text is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an id of this kind: expected `{expected}` and 27 base-62 characters")]
pub struct InvalidId {
    /// The prefix that was expected.
    pub expected: &'static str,
}

const KSUID_CHARS: usize = 27;
const KSUID_BYTES: usize = 20;
const FIRST_MILLIS: i64 = KSUID_EPOCH * 1_000;
const LAST_MILLIS: i64 = (KSUID_EPOCH + u32::MAX as i64) * 1_000 + 999;

/// The bytes of a KSUID in its one spelling. The library's own decoder drops overflow (two spellings of one id) and
/// refuses leading zero bytes, so it is not used for reading.
fn decode(text: &str) -> Option<[u8; KSUID_BYTES]> {
    if text.len() != KSUID_CHARS {
        return None;
    }
    let mut bytes = [0_u8; KSUID_BYTES];
    for character in text.bytes() {
        let mut carry = u32::from(match character {
            b'0'..=b'9' => character - b'0',
            b'A'..=b'Z' => character - b'A' + 10,
            b'a'..=b'z' => character - b'a' + 36,
            _ => return None,
        });
        for byte in bytes.iter_mut().rev() {
            carry += u32::from(*byte) * 62;
            *byte = (carry & 0xff) as u8;
            carry >>= 8;
        }
        if carry != 0 {
            return None;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_its_prefix_and_27_characters() {
        let random = Random::seeded(1);
        for (prefix, length) in [
            (Prefix::Organisation, 31),
            (Prefix::Tenant, 31),
            (Prefix::Event, 31),
            (Prefix::Endpoint, 30),
            (Prefix::Attempt, 33),
            (Prefix::Worker, 31),
        ] {
            let id = Id::mint(prefix, Timestamp::from_secs(1_800_000_000), &random);
            assert_eq!(id.as_str().len(), length, "{id}");
            assert_eq!(Id::parse(prefix, id.as_str()), Ok(id.clone()));
            assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{id}\""));
        }
    }

    #[test]
    fn an_id_remembers_its_time_in_steps_of_4_ms() {
        let random = Random::seeded(2);
        for millis in [FIRST_MILLIS, 1_700_000_000_000, 1_700_000_000_999, LAST_MILLIS] {
            let id = Id::mint(Prefix::Event, Timestamp::from_millis(millis), &random);
            assert_eq!(id.minted_at().as_millis(), millis / 4 * 4);
            assert_eq!(Id::parse(Prefix::Event, id.as_str()), Ok(id));
        }
    }

    #[test]
    fn times_that_a_ksuid_cannot_hold_move_to_the_nearest_one() {
        let random = Random::seeded(3);
        for (millis, held) in [(0, FIRST_MILLIS), (i64::MIN, FIRST_MILLIS), (i64::MAX, LAST_MILLIS)] {
            let id = Id::mint(Prefix::Event, Timestamp::from_millis(millis), &random);
            assert_eq!(id.minted_at().as_millis(), held / 4 * 4);
            assert!(Id::parse(Prefix::Event, id.as_str()).is_ok());
        }
    }

    #[test]
    fn later_ids_compare_greater_as_bytes() {
        let random = Random::seeded(4);
        let mut before = Id::mint(Prefix::Event, Timestamp::from_secs(1_700_000_000), &random);
        for step in 1..500 {
            let now = Timestamp::from_millis(1_700_000_000_000 + step * 4);
            let id = Id::mint(Prefix::Event, now, &random);
            assert!(before.as_str().as_bytes() < id.as_str().as_bytes());
            assert!(before < id);
            before = id;
        }
    }

    #[test]
    fn what_svix_spells_is_read_to_the_same_bytes() {
        let random = Random::seeded(5);
        let mut bytes = [0; KSUID_BYTES];
        for _ in 0..200 {
            random.fill(&mut bytes);
            assert_eq!(decode(&KsuidMs::from_bytes(bytes).to_base62()), Some(bytes));
        }
        let known = "24CtFf3hyVZHdSkQy0nMBa1OjOA";
        assert_eq!(KsuidMs::from_bytes(decode(known).unwrap()).to_base62(), known);
        assert_eq!(decode("aWgEPTl1tmebfsQzFP4bxwgy80V"), Some([0xff; KSUID_BYTES]));
        assert_eq!(decode("000000000000000000000000000"), Some([0; KSUID_BYTES]));
    }

    #[test]
    fn other_spellings_and_other_kinds_are_refused() {
        for text in [
            "",
            "msg_",
            "24CtFf3hyVZHdSkQy0nMBa1OjOA",
            "ep_24CtFf3hyVZHdSkQy0nMBa1OjOA",
            "MSG_24CtFf3hyVZHdSkQy0nMBa1OjOA",
            "msg_24CtFf3hyVZHdSkQy0nMBa1OjO",
            "msg_24CtFf3hyVZHdSkQy0nMBa1OjOAA",
            "msg_24CtFf3hyVZHdSkQy0nMBa1Oj-A",
            "msg_24CtFf3hyVZHdSkQy0nMBa1OjO ",
            // One more than the greatest, and a multi-byte character at the right length in bytes.
            "msg_aWgEPTl1tmebfsQzFP4bxwgy80W",
            "msg_zzzzzzzzzzzzzzzzzzzzzzzzzzz",
            "msg_24CtFf3hyVZHdSkQy0nMBa1Ojé",
        ] {
            assert!(Id::parse(Prefix::Event, text).is_err(), "{text}");
        }
    }
}
