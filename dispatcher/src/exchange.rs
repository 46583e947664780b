//! What came of one attempt: an answer, certainty that nothing was sent, or no knowledge.
//!
//! Place in the path: [`send`](crate::send) makes it, [`decide`](crate::decide) judges it, record stores it.
//! Invariants: plain data. Where any byte of the request may have reached the receiver and no status came back, the
//! exchange is unknown, never "not sent". No text in here holds a URL's path or query.

use bytes::Bytes;

use crate::guard::Refused;

/// What came of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange {
    /// The receiver answered with a status.
    Answered(Answer),
    /// No byte of the request left.
    NotSent(NotSent),
    /// The request left, wholly or in part, and no answer came: it may or may not have had its effect.
    Unknown(Unknown),
}

/// The receiver's answer, as far as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The values of all `Retry-After` headers that are text.
    pub retry_after: Vec<String>,
    /// The `Date` header, if it is text.
    pub date: Option<String>,
    /// The first bytes of the body, as they came.
    pub body: Bytes,
    /// Whether there was, or may have been, more of the body than is kept.
    pub body_cut: bool,
}

impl Answer {
    /// An answer that is nothing but its status.
    pub fn of_status(status: u16) -> Self {
        Self { status, retry_after: Vec::new(), date: None, body: Bytes::new(), body_cut: false }
    }

    /// Whether the status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Why nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotSent {
    /// The URL or its address is not allowed.
    #[error("blocked: {0}")]
    Blocked(Refused),
    /// The host's name could not be resolved.
    #[error("dns_error: {0}")]
    Dns(String),
    /// No connection was made.
    #[error("connect_error: {0}")]
    Connect(String),
    /// The receiver did not prove who it is, or does not speak TLS.
    #[error("tls_error: {0}")]
    Tls(String),
    /// The deadline ended before a connection stood.
    #[error("timeout: no connection within the deadline")]
    Deadline,
    /// The endpoint has no live secret to sign with, or the request could not be built.
    #[error("not_signed: {0}")]
    NotSigned(String),
    /// The event is no longer stored.
    #[error("event_missing: the event is no longer stored")]
    EventMissing,
    /// The event expired before it could be sent.
    #[error("expired: the event expired before it was sent")]
    Expired,
    /// The worker was stopped first.
    #[error("shutdown: the worker was stopped before the request left")]
    Shutdown,
}

/// Why the outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unknown {
    /// The deadline ended before a status came.
    #[error("timeout: no answer within the deadline")]
    Deadline,
    /// The connection was closed or broke before a status came.
    #[error("connection_lost: {0}")]
    ConnectionLost(String),
    /// What came back is not an HTTP response, or one with too many or too large headers.
    #[error("invalid_response: {0}")]
    InvalidResponse(String),
    /// The attempt broke inside the worker.
    #[error("panicked: the attempt broke inside the worker")]
    Panicked,
    /// The worker was stopped while the request was under way.
    #[error("shutdown: the worker was stopped while the request was under way")]
    Shutdown,
}

impl Exchange {
    /// The outcome as the attempts table names it: `delivered`, `refused`, `not_sent` or `unknown`.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Answered(answer) if answer.is_success() => "delivered",
            Self::Answered(_) => "refused",
            Self::NotSent(_) => "not_sent",
            Self::Unknown(_) => "unknown",
        }
    }

    /// The receiver's status, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Answered(answer) => Some(answer.status),
            Self::NotSent(_) | Self::Unknown(_) => None,
        }
    }

    /// What went wrong on the way, in one line that begins with a fixed word; none where an answer came.
    pub fn error(&self) -> Option<String> {
        match self {
            Self::Answered(_) => None,
            Self::NotSent(reason) => Some(reason.to_string()),
            Self::Unknown(reason) => Some(reason.to_string()),
        }
    }
}
