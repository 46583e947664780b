//! The values that our statements take: one closed set, the same on both databases, with typed NULLs.

use crate::clock::Timestamp;

/// One parameter of a statement.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Arg<'a> {
    /// A text.
    Text(&'a str),
    /// A text or a NULL of type text.
    TextOrNull(Option<&'a str>),
    /// A 64-bit integer; times are milliseconds since the Unix epoch.
    Int(i64),
    /// An integer or a NULL of type integer.
    IntOrNull(Option<i64>),
    /// Raw bytes.
    Bytes(&'a [u8]),
    /// Raw bytes or a NULL of type bytes.
    BytesOrNull(Option<&'a [u8]>),
}

macro_rules! from {
    ($($type:ty => $variant:ident),* $(,)?) => {$(
        impl<'a> From<$type> for Arg<'a> {
            fn from(value: $type) -> Self { Self::$variant(value) }
        }
    )*};
}

from! {
    &'a str => Text,
    Option<&'a str> => TextOrNull,
    i64 => Int,
    Option<i64> => IntOrNull,
    &'a [u8] => Bytes,
    Option<&'a [u8]> => BytesOrNull,
}

impl<'a> From<&'a String> for Arg<'a> {
    fn from(value: &'a String) -> Self {
        Self::Text(value)
    }
}

impl<'a> From<&'a crate::key::Key> for Arg<'a> {
    fn from(value: &'a crate::key::Key) -> Self {
        Self::Text(value.as_ref())
    }
}

impl<'a> From<&'a crate::id::Id> for Arg<'a> {
    fn from(value: &'a crate::id::Id) -> Self {
        Self::Text(value.as_ref())
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Arg<'a> {
    fn from(value: &'a [u8; N]) -> Self {
        Self::Bytes(value)
    }
}

impl From<Timestamp> for Arg<'_> {
    fn from(value: Timestamp) -> Self {
        Self::Int(value.as_millis())
    }
}

impl From<Option<Timestamp>> for Arg<'_> {
    fn from(value: Option<Timestamp>) -> Self {
        Self::IntOrNull(value.map(Timestamp::as_millis))
    }
}

/// Binds the arguments in order; the same for both databases.
macro_rules! bind {
    ($query:expr, $args:expr) => {
        $args.iter().fold($query, |query, arg| match *arg {
            $crate::store::Arg::Text(value) => query.bind(value),
            $crate::store::Arg::TextOrNull(value) => query.bind(value),
            $crate::store::Arg::Int(value) => query.bind(value),
            $crate::store::Arg::IntOrNull(value) => query.bind(value),
            $crate::store::Arg::Bytes(value) => query.bind(value),
            $crate::store::Arg::BytesOrNull(value) => query.bind(value),
        })
    };
}
pub(crate) use bind;
