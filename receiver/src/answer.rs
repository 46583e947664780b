//! From what happened to what is said on the wire.
//!
//! Place in the path: last.
//! Invariants: a stored answer is given byte for byte, with one header more when it is a replay; an error says what the
//! sender can do and nothing about our insides; what may come right by itself is a 503 with `Retry-After`, never a 4xx,
//! which would stop some senders.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use serde_json::json;
use twiceproof_shared::ledger::{Outcome, Replay};
use twiceproof_shared::signature::VerifyError;
use twiceproof_shared::store::StoreError;

use crate::body::BodyError;
use crate::effect::EffectError;
use crate::ingest::IngestError;
use crate::verify::Refusal;

/// Marks an answer that was stored before.
pub(crate) const REPLAYED: &str = "idempotent-replayed";
/// Seconds after which a request in flight is worth another try.
const RETRY_IN_FLIGHT: u32 = 1;
/// Seconds after which a database or a handler that was not up to it is worth another try.
const RETRY_UNAVAILABLE: u32 = 5;

/// What came of a verified event.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The effect was committed, or refused by the host, just now.
    First(Outcome),
    /// It was done before.
    Replay(Outcome),
    /// It was done before, so long ago that the answer is gone.
    Expired,
    /// Another payload under the same key; it is kept for review.
    Conflict(StatusCode),
    /// The first delivery is still running.
    InFlight,
}

impl Answer {
    pub(crate) fn of_replay(replay: Replay) -> Self {
        replay.outcome.map_or(Self::Expired, Self::Replay)
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        match self {
            Self::First(outcome) => stored(outcome),
            Self::Replay(outcome) => replayed(stored(outcome)),
            Self::Expired => replayed(StatusCode::OK.into_response()),
            Self::Conflict(status) if status.is_success() => status.into_response(),
            Self::Conflict(status) => problem(status, "this event id was already used with another payload"),
            Self::InFlight => {
                retry(problem(StatusCode::SERVICE_UNAVAILABLE, "this event is still being processed"), RETRY_IN_FLIGHT)
            }
        }
    }
}

impl IntoResponse for IngestError {
    fn into_response(self) -> Response {
        match self {
            Self::Body(error) => problem(status_of_body(error), &error.to_string()),
            Self::Refused(refusal) => problem(status_of_refusal(&refusal), &refusal.to_string()),
            Self::TooLate => unavailable("the event could not be stored now"),
            Self::Effect(EffectError::MissedDeadline) => unavailable("the event could not be processed in time"),
            Self::Effect(EffectError::Store(error)) | Self::Store(error) if is_away(&error) => {
                unavailable("the event could not be stored now")
            }
            Self::Effect(EffectError::Failed(cause)) if cause.downcast_ref::<StoreError>().is_some_and(is_away) => {
                unavailable("the event could not be stored now")
            }
            Self::Effect(_) | Self::Store(_) => {
                problem(StatusCode::INTERNAL_SERVER_ERROR, "the event could not be processed")
            }
        }
    }
}

/// The answer to another method than POST. The router adds `Allow`.
pub(crate) fn wrong_method(method: &Method) -> Response {
    let response = problem(StatusCode::METHOD_NOT_ALLOWED, "webhooks are sent with POST");
    match *method {
        Method::HEAD => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        _ => response,
    }
}

/// True where the database was not there for us, or for the handler that handed its error on: the sender comes again.
fn is_away(error: &StoreError) -> bool {
    error.is_retryable() || matches!(error, StoreError::Closed)
}

fn status_of_body(error: BodyError) -> StatusCode {
    match error {
        BodyError::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        BodyError::TooSlow => StatusCode::REQUEST_TIMEOUT,
        BodyError::Encoded => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        BodyError::Broken => StatusCode::BAD_REQUEST,
    }
}

fn status_of_refusal(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::RepeatedHeader(_)
        | Refusal::NoEventId
        | Refusal::Signature(VerifyError::TooManySignatures | VerifyError::JoinedSignatures) => StatusCode::BAD_REQUEST,
        _ => StatusCode::UNAUTHORIZED,
    }
}

/// A stored outcome as it was given the first time.
pub(crate) fn stored(outcome: Outcome) -> Response {
    let mut response = Response::new(Body::from(outcome.body));
    let Ok(status) = StatusCode::from_u16(outcome.status) else {
        return problem(StatusCode::INTERNAL_SERVER_ERROR, "the stored answer cannot be given");
    };
    *response.status_mut() = status;
    for (name, value) in outcome.headers {
        let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) else {
            return problem(StatusCode::INTERNAL_SERVER_ERROR, "the stored answer cannot be given");
        };
        response.headers_mut().append(name, value);
    }
    response
}

pub(crate) fn replayed(mut response: Response) -> Response {
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

fn unavailable(detail: &str) -> Response {
    retry(problem(StatusCode::SERVICE_UNAVAILABLE, detail), RETRY_UNAVAILABLE)
}

fn retry(mut response: Response, seconds: u32) -> Response {
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// A problem document (RFC 9457).
fn problem(status: StatusCode, detail: &str) -> Response {
    let title = status.canonical_reason().unwrap_or("Error");
    let document = json!({"type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail});
    let headers = [(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))];
    (status, headers, document.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt;

    use super::*;

    fn outcome() -> Outcome {
        let headers = vec![
            ("content-type".to_owned(), "text/plain".to_owned()),
            ("link".to_owned(), "one".to_owned()),
            ("link".to_owned(), "two".to_owned()),
        ];
        Outcome { status: 299, headers, body: Bytes::from_static(b"\x00\xff") }
    }

    async fn body(response: Response) -> Bytes {
        response.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn a_replay_differs_by_its_marker_alone() {
        let first = Answer::First(outcome()).into_response();
        let mut replay = Answer::Replay(outcome()).into_response();
        assert_eq!(replay.headers_mut().remove(REPLAYED).unwrap(), "true");
        assert_eq!(first.status(), replay.status());
        assert_eq!(first.headers(), replay.headers());
        assert_eq!(first.headers().get_all("link").iter().count(), 2);
        assert_eq!(body(first).await, body(replay).await);
    }

    #[test]
    fn what_may_come_right_by_itself_is_a_503_with_retry_after() {
        for response in [
            Answer::InFlight.into_response(),
            IngestError::Store(StoreError::Closed).into_response(),
            IngestError::Effect(EffectError::MissedDeadline).into_response(),
        ] {
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert!(response.headers().contains_key(header::RETRY_AFTER));
        }
    }

    #[tokio::test]
    async fn problems_say_nothing_about_our_insides() {
        let cause = "relation \"invoices\" does not exist";
        let response = IngestError::Effect(EffectError::Failed(cause.into())).into_response();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        let body = body(response).await;
        assert!(!String::from_utf8_lossy(&body).contains("invoices"));
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["status"], 500);
    }

    #[test]
    fn refusals_are_401_or_400_where_the_request_itself_is_out_of_form() {
        let header = HeaderName::from_static("webhook-id");
        for (refusal, status) in [
            (Refusal::MissingHeader(header.clone()), 401),
            (Refusal::MalformedHeader(header.clone()), 401),
            (Refusal::RepeatedHeader(header), 400),
            (Refusal::NoEventId, 400),
            (Refusal::Other("not from here"), 401),
            (Refusal::Signature(VerifyError::NoMatch), 401),
            (Refusal::Signature(VerifyError::TooOld), 401),
            (Refusal::Signature(VerifyError::TooManySignatures), 400),
            (Refusal::Signature(VerifyError::JoinedSignatures), 400),
        ] {
            assert_eq!(IngestError::Refused(refusal).into_response().status(), status);
        }
    }

    #[test]
    fn a_conflict_is_answered_as_its_source_says() {
        assert_eq!(Answer::Conflict(StatusCode::ACCEPTED).into_response().status(), 202);
        let refused = Answer::Conflict(StatusCode::CONFLICT).into_response();
        assert_eq!(refused.status(), 409);
        assert_eq!(refused.headers()[header::CONTENT_TYPE], "application/problem+json");
    }
}
