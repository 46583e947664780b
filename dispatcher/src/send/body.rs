//! A request body that tells when it was taken, so that "not sent" can be told from "unknown".
//!
//! Place in the path: wraps the payload on its way into the client.
//! Invariants: the connection asks for the body after it has queued the head and before it writes the first byte. So a body
//! that was not asked for proves that no byte left; one that was asked for proves nothing. An empty body is never asked
//! for and counts as taken from the start.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Whether a request may have left.
#[derive(Debug, Clone, Default)]
pub(super) struct Departure(Arc<AtomicBool>);

impl Departure {
    pub(super) fn has_left(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn leave(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The payload, in one frame.
#[derive(Debug)]
pub(super) struct TrackedBody {
    payload: Option<Bytes>,
    departure: Departure,
}

impl TrackedBody {
    pub(super) fn new(payload: Bytes, departure: Departure) -> Self {
        if payload.is_empty() {
            departure.leave();
        }
        Self { payload: Some(payload), departure }
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.departure.leave();
        Poll::Ready(self.payload.take().map(|payload| Ok(Frame::data(payload))))
    }

    fn is_end_stream(&self) -> bool {
        self.payload.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.payload.as_ref().map_or(0, |payload| payload.len() as u64))
    }
}
