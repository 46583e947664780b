//! The statements that ran, so that a test can ask the database how it would run them: nothing is written down twice, and
//! none is forgotten.
//!
//! Kept for each thread: a test that records runs everything on a current-thread runtime, and the store's own thread keeps
//! what it runs for it with the rest.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::store::Arg;

type Seen = Arc<Mutex<HashMap<&'static str, Vec<OwnedArg>>>>;

thread_local! {
    static SEEN: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

/// A statement that ran, with the longest of the arguments that it ran with.
#[derive(Debug, Clone)]
pub struct Statement {
    /// Its text.
    pub sql: &'static str,
    /// Its arguments.
    pub args: Vec<OwnedArg>,
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedArg {
    /// A text.
    Text(Option<String>),
    /// An integer.
    Int(Option<i64>),
    /// Bytes.
    Bytes(Option<Vec<u8>>),
}

impl OwnedArg {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.as_deref().map_or(0, str::len),
            Self::Int(int) => usize::from(int.is_some()),
            Self::Bytes(bytes) => bytes.as_deref().map_or(0, <[u8]>::len),
        }
    }
}

impl From<Arg<'_>> for OwnedArg {
    fn from(arg: Arg<'_>) -> Self {
        match arg {
            Arg::Text(text) => Self::Text(Some(text.to_owned())),
            Arg::TextOrNull(text) => Self::Text(text.map(str::to_owned)),
            Arg::Int(int) => Self::Int(Some(int)),
            Arg::IntOrNull(int) => Self::Int(int),
            Arg::Bytes(bytes) => Self::Bytes(Some(bytes.to_vec())),
            Arg::BytesOrNull(bytes) => Self::Bytes(bytes.map(<[u8]>::to_vec)),
        }
    }
}

/// From now on the statements of this thread are kept.
pub fn record() {
    SEEN.set(Some(Seen::default()));
}

/// What was kept; no more is.
#[must_use]
pub fn recorded() -> Vec<Statement> {
    let seen = SEEN.take().unwrap_or_default();
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    let mut seen: Vec<Statement> = seen.into_iter().map(|(sql, args)| Statement { sql, args }).collect();
    seen.sort_by_key(|statement| statement.sql);
    seen
}

/// Where this thread keeps its statements, for another thread to [`follow`].
#[cfg(feature = "postgres")]
pub(crate) fn place() -> Option<Seen> {
    SEEN.with_borrow(Clone::clone)
}

/// From now on the statements of this thread are kept there.
#[cfg(feature = "postgres")]
pub(crate) fn follow(place: Option<Seen>) {
    SEEN.set(place);
}

/// A statement runs.
pub(crate) fn note(sql: &'static str, args: &[Arg<'_>]) {
    SEEN.with_borrow(|seen| {
        let Some(seen) = seen else { return };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let args: Vec<OwnedArg> = args.iter().copied().map(OwnedArg::from).collect();
        let length = |args: &[OwnedArg]| args.iter().map(OwnedArg::len).sum::<usize>();
        let kept = seen.entry(sql).or_default();
        if length(&args) >= length(kept) {
            *kept = args;
        }
    });
}
