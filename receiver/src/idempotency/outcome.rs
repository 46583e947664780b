//! From the handler's answer to what the ledger stores, and what becomes of the transaction.
//!
//! Invariants: an answer that cannot be given again is not stored, and then nothing is; what belongs to one client or one
//! connection is not stored.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, StatusCode, response};
use twiceproof_shared::ledger::Outcome;

use super::rule::Policy;
use super::sealed::MARK;
use crate::answer::REPLAYED;
use crate::body;
use crate::reply::LEFT_OUT;

/// What becomes of the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// The effect and the answer.
    Both,
    /// The answer alone.
    Answer,
    /// Nothing; the key is as new.
    Nothing,
}

impl Keep {
    /// `is_used`: the handler has worked in the transaction.
    pub(super) fn of(policy: Policy, status: StatusCode, is_used: bool) -> Self {
        let asks_to_come_again = matches!(status.as_u16(), 408 | 425 | 429 | 503);
        match policy {
            _ if status.as_u16() < 400 => Self::Both,
            Policy::Off | Policy::ReplaySuccesses => Self::Nothing,
            Policy::ReplayAll if asks_to_come_again || (status.is_client_error() && !is_used) => Self::Nothing,
            Policy::ReplayAll => Self::Answer,
        }
    }
}

/// An answer whose body has been read, and what of it is stored.
#[derive(Debug)]
pub(super) struct Whole {
    head: response::Parts,
    outcome: Outcome,
}

impl Whole {
    /// Reads an answer of at most `limit` bytes.
    pub(super) async fn read(response: Response, limit: usize) -> Result<Self, Unstorable> {
        let (head, body) = response.into_parts();
        let body = body::collect(body, limit).await.map_err(|error| match error {
            body::BodyError::TooLarge => Unstorable::TooLarge,
            _ => Unstorable::Broken,
        })?;
        let outcome = Outcome { status: head.status.as_u16(), headers: headers(&head.headers)?, body };
        Ok(Self { head, outcome })
    }

    /// What the ledger stores.
    pub(super) fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The answer as the handler gave it.
    pub(super) fn into_response(self) -> Response {
        Response::from_parts(self.head, Body::from(self.outcome.body))
    }
}

fn headers(headers: &HeaderMap) -> Result<Vec<(String, String)>, Unstorable> {
    let kept =
        headers.iter().filter(|(name, _)| !LEFT_OUT.contains(name) && ![REPLAYED, MARK].contains(&name.as_str()));
    kept.map(|(name, value)| match std::str::from_utf8(value.as_bytes()) {
        Ok(value) => Ok((name.to_string(), value.to_owned())),
        Err(_) => Err(Unstorable::Header),
    })
    .collect()
}

/// Why an answer cannot be stored. All of them are mistakes of the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unstorable {
    #[error("the answer is larger than the layer's limit for answers")]
    TooLarge,
    #[error("the answer's body ended with an error")]
    Broken,
    #[error("a header of the answer is not UTF-8")]
    Header,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_follows_from_policy_status_and_use() {
        use Keep::{Answer, Both, Nothing};
        for (status, used, successes, all) in [
            (200, false, Both, Both),
            (204, true, Both, Both),
            (303, true, Both, Both),
            (400, false, Nothing, Nothing),
            (422, true, Nothing, Answer),
            (409, true, Nothing, Answer),
            (429, true, Nothing, Nothing),
            (500, false, Nothing, Answer),
            (500, true, Nothing, Answer),
            (503, true, Nothing, Nothing),
        ] {
            let code = StatusCode::from_u16(status).unwrap();
            assert_eq!(Keep::of(Policy::ReplaySuccesses, code, used), successes, "{status}");
            assert_eq!(Keep::of(Policy::ReplayAll, code, used), all, "{status}");
        }
    }
}
