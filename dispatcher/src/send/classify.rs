//! Turns the client's error into what it means for the delivery.
//!
//! Place in the path: called by `send` when no status came.
//! Invariants: whether a byte may have left is known from the body, not guessed from the error; texts hold the innermost
//! cause only, which knows hosts and addresses but no path and no query.

use std::error::Error;
use std::io;

use super::resolve::ResolveError;
use crate::exchange::{Exchange, NotSent, Unknown};

/// What a failed request means. `has_left`: whether a byte of it may have reached the receiver.
pub(super) fn failure(error: &reqwest::Error, has_left: bool) -> Exchange {
    if has_left && !error.is_connect() {
        return Exchange::Unknown(unknown(error));
    }
    Exchange::NotSent(not_sent(error))
}

fn not_sent(error: &reqwest::Error) -> NotSent {
    if let Some(error) = find::<ResolveError>(error) {
        return match error {
            ResolveError::Refused(refused) => NotSent::Blocked(refused.clone()),
            ResolveError::Failed(_) | ResolveError::NoAddress => NotSent::Dns(innermost(error)),
        };
    }
    if let Some(error) = find::<rustls::Error>(error) {
        return NotSent::Tls(error.to_string());
    }
    if error.is_timeout() {
        return NotSent::Deadline;
    }
    NotSent::Connect(innermost(error))
}

fn unknown(error: &reqwest::Error) -> Unknown {
    match find::<hyper::Error>(error) {
        Some(error) if error.is_parse() => Unknown::InvalidResponse(innermost(error)),
        _ => Unknown::ConnectionLost(innermost(error)),
    }
}

/// The first cause of this type. Looks into I/O errors too, which hide what they wrap.
fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = wrapped(error).or_else(|| error.source());
    }
    None
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(next) = wrapped(last).or_else(|| last.source()) {
        last = next;
    }
    let mut text = last.to_string();
    let end = text.char_indices().nth(MOST_CHARACTERS).map_or(text.len(), |(at, _)| at);
    text.truncate(end);
    text
}

const MOST_CHARACTERS: usize = 200;

fn wrapped<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let inner = error.downcast_ref::<io::Error>()?.get_ref()?;
    Some(inner)
}
