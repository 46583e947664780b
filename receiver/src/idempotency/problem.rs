//! What the layer itself answers, where the handler does not get to say it.
//!
//! Invariants: types and codes never change; no text repeats a key, a payload or what the database said.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{self, HeaderValue};
use serde_json::json;

use super::header::InvalidHeader;
use crate::body::BodyError;

/// Why the layer answers by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The route requires a key.
    #[error("This request needs an Idempotency-Key: one for each operation, sent unchanged with every repeat.")]
    KeyMissing,
    /// The header holds no key.
    #[error("The request has no usable key: {0}.")]
    KeyInvalid(InvalidHeader),
    /// The key was used with another request.
    #[error("Idempotency-Key was already used with a different request payload.")]
    KeyReused,
    /// The key was used, and what was answered then has been forgotten.
    #[error(
        "Idempotency-Key was already used so long ago that its answer is no longer kept; a new operation needs a new key."
    )]
    KeyExpired,
    /// The first request with this key is still running.
    #[error("A request with this Idempotency-Key is still being processed, retry shortly.")]
    InFlight,
    /// The body is larger than the layer reads.
    #[error("The body is larger than allowed.")]
    BodyTooLarge,
    /// The body did not arrive in time.
    #[error("The body did not arrive in time.")]
    BodyTooSlow,
    /// The body ended early.
    #[error("The body did not arrive whole.")]
    BodyBroken,
    /// The request was not done, or it is not known whether it was: a repeat with the same key finds out.
    #[error("The request could not be completed now; repeat it with the same Idempotency-Key.")]
    Unavailable,
    /// The handler failed in a way that leaves no answer to give. Nothing of it is kept.
    #[error("The request failed; nothing of it was kept.")]
    Failed,
}

impl Problem {
    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::KeyMissing | Self::KeyInvalid(_) | Self::BodyBroken => StatusCode::BAD_REQUEST,
            Self::KeyReused | Self::KeyExpired => StatusCode::UNPROCESSABLE_ENTITY,
            Self::InFlight => StatusCode::CONFLICT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// A word for it that does not change.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::KeyMissing => "idempotency_key_missing",
            Self::KeyInvalid(_) => "idempotency_key_invalid",
            Self::KeyReused => "idempotency_key_reused",
            Self::KeyExpired => "idempotency_key_expired",
            Self::InFlight => "idempotency_key_in_flight",
            Self::BodyTooLarge => "payload_too_large",
            Self::BodyTooSlow => "body_too_slow",
            Self::BodyBroken => "bad_request",
            Self::Unavailable => "unavailable",
            Self::Failed => "server_error",
        }
    }

    /// Its type in a problem document (RFC 9457): a URI that does not change.
    #[must_use]
    pub fn r#type(&self) -> String {
        format!("urn:twiceproof:problem:{}", self.code().replace('_', "-"))
    }

    /// Seconds after which a repeat is worth a try. The layer sets the header, whoever makes the answer.
    #[must_use]
    pub fn retry_after(&self) -> Option<u32> {
        match self {
            Self::InFlight => Some(1),
            Self::Unavailable => Some(5),
            _ => None,
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Self::KeyMissing => "Idempotency-Key is missing",
            Self::KeyInvalid(_) => "Idempotency-Key is invalid",
            Self::KeyReused => "Idempotency-Key is already used",
            Self::KeyExpired => "Idempotency-Key has expired",
            Self::InFlight => "A request is outstanding for this Idempotency-Key",
            other => other.status().canonical_reason().unwrap_or("Error"),
        }
    }
}

/// As a problem document (RFC 9457).
impl IntoResponse for &Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let document = json!({
            "type": self.r#type(), "title": self.title(), "status": status.as_u16(), "detail": self.to_string(),
            "code": self.code(),
        });
        let headers = [(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))];
        (status, headers, document.to_string()).into_response()
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge => Self::BodyTooLarge,
            BodyError::TooSlow => Self::BodyTooSlow,
            BodyError::Broken | BodyError::Encoded => Self::BodyBroken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b2_types_titles_and_texts_stay_as_they_are_published() {
        for (problem, status, name, text) in [
            (Problem::KeyMissing, 400, "missing", "This request needs an Idempotency-Key"),
            (Problem::KeyInvalid(InvalidHeader::Repeated), 400, "invalid", "The request has no usable key: there are"),
            (Problem::KeyReused, 422, "reused", "Idempotency-Key was already used with a different request payload."),
            (Problem::KeyExpired, 422, "expired", "Idempotency-Key was already used so long ago"),
            (
                Problem::InFlight,
                409,
                "in-flight",
                "A request with this Idempotency-Key is still being processed, retry shortly.",
            ),
        ] {
            assert_eq!(problem.status(), status);
            assert_eq!(problem.r#type(), format!("urn:twiceproof:problem:idempotency-key-{name}"));
            assert!(problem.to_string().starts_with(text), "{problem}");
        }
    }
}
