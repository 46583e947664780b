//! A new event, and the rules that it must keep.
//!
//! Place in the path: the caller builds a [`NewEvent`], publish checks it before any SQL.
//! Invariants: pure; what passes can be stored on both databases and sent as it is.

use bytes::Bytes;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::key::Key;

/// An event to be published.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// Whose event it is.
    pub tenant: Key,
    /// The caller's own id: the same uid is the same event.
    pub uid: Option<Key>,
    /// The event type, as `invoice.paid`.
    pub event_type: String,
    /// The media type of the payload.
    pub content_type: String,
    /// The bytes; they are stored, signed and sent as they are.
    pub payload: Bytes,
    /// Channels, as a set: their order and repetitions do not count.
    pub channels: Vec<Key>,
    /// Events of a tenant with the same key are delivered to each endpoint in the order in which they were committed, each after the
    /// one before was taken or given up.
    pub ordering_key: Option<Key>,
    /// From then on it is not sent any more.
    pub expires_at: Option<Timestamp>,
}

impl NewEvent {
    /// An event with a JSON payload and nothing else. The payload's text is not looked at.
    pub fn json(tenant: Key, event_type: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            tenant,
            uid: None,
            event_type: event_type.into(),
            content_type: "application/json".to_owned(),
            payload: payload.into(),
            channels: Vec::new(),
            ordering_key: None,
            expires_at: None,
        }
    }

    /// The same event under the caller's own id.
    #[must_use]
    pub fn with_uid(mut self, uid: Key) -> Self {
        self.uid = Some(uid);
        self
    }
}

/// Why an event is not accepted. Repeats nothing of the payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// Not made of `A-Z`, `a-z`, `0-9`, `_` and `-`, in parts between dots.
    #[error("an event type is made of A-Z, a-z, 0-9, _ and -, in parts between dots, at most {MAX_NAME_BYTES} bytes")]
    EventType,
    /// Not a media type that can be sent as a header.
    #[error("a content type is a media type of visible ASCII characters, at most {MAX_NAME_BYTES} bytes")]
    ContentType,
    /// A payload above the limit.
    #[error("the payload has {bytes} bytes, at most {limit} are accepted")]
    PayloadTooLarge {
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        limit: usize,
    },
    /// Too many channels.
    #[error("an event has at most {MAX_CHANNELS} channels")]
    TooManyChannels,
}

/// The longest event type and content type, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// The most channels of an event.
pub const MAX_CHANNELS: usize = 10;

/// Checks an event type.
///
/// # Errors
/// [`InvalidEvent::EventType`].
pub fn check_event_type(name: &str) -> Result<(), InvalidEvent> {
    let part =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if name.len() <= MAX_NAME_BYTES && name.split('.').all(part) { Ok(()) } else { Err(InvalidEvent::EventType) }
}

/// Checks an event against the rules and the limit of its payload, in bytes.
///
/// # Errors
/// [`InvalidEvent`] says which rule is broken.
pub fn check(event: &NewEvent, payload_limit: usize) -> Result<(), InvalidEvent> {
    check_event_type(&event.event_type)?;
    let visible = |text: &str| text.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) && text.trim() == text;
    let content_type = event.content_type.as_str();
    if content_type.len() > MAX_NAME_BYTES || !content_type.contains('/') || !visible(content_type) {
        return Err(InvalidEvent::ContentType);
    }
    let bytes = event.payload.len();
    if bytes > payload_limit {
        return Err(InvalidEvent::PayloadTooLarge { bytes, limit: payload_limit });
    }
    if event.channels.len() > MAX_CHANNELS { Err(InvalidEvent::TooManyChannels) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> NewEvent {
        NewEvent::json(Key::new("default").unwrap(), "invoice.paid", "{}")
    }

    #[test]
    fn event_types_are_names_in_parts_between_dots() {
        for name in ["a", "invoice", "invoice.paid", "Invoice_2.paid.v1", "0.1", "a-b", &"a".repeat(255)] {
            assert_eq!(check_event_type(name), Ok(()), "{name}");
        }
        for name in ["", ".", "a.", ".a", "a..b", "a b", "a/b", "ä", "a\0", "a\n", "а", &"a".repeat(256)] {
            assert_eq!(check_event_type(name), Err(InvalidEvent::EventType), "{name:?}");
        }
    }

    #[test]
    fn send_c3_a_payload_may_have_the_limit_and_not_a_byte_more() {
        let sized = |bytes: usize| NewEvent { payload: vec![b' '; bytes].into(), ..event() };
        assert_eq!(check(&sized(0), 100), Ok(()));
        assert_eq!(check(&sized(99), 100), Ok(()));
        assert_eq!(check(&sized(100), 100), Ok(()));
        assert_eq!(check(&sized(101), 100), Err(InvalidEvent::PayloadTooLarge { bytes: 101, limit: 100 }));
    }

    #[test]
    fn content_types_can_be_sent_as_a_header() {
        let typed = |content_type: &str| NewEvent { content_type: content_type.to_owned(), ..event() };
        for content_type in ["application/json", "application/json; charset=utf-8", "text/plain", "a/b"] {
            assert_eq!(check(&typed(content_type), 100), Ok(()), "{content_type}");
        }
        for content_type in ["", "json", " a/b", "a/b\r\nx: y", "a/b\0", "ä/b", "a/b\t"] {
            assert_eq!(check(&typed(content_type), 100), Err(InvalidEvent::ContentType), "{content_type:?}");
        }
    }

    #[test]
    fn an_event_has_a_bounded_number_of_channels() {
        let channel = |n: usize| Key::new(format!("c{n}")).unwrap();
        let with = |count| NewEvent { channels: (0..count).map(channel).collect(), ..event() };
        assert_eq!(check(&with(10), 100), Ok(()));
        assert_eq!(check(&with(11), 100), Err(InvalidEvent::TooManyChannels));
    }
}
