//! What is answered where something is not as asked: a status, a stable code and a sentence.
//!
//! Invariants: the texts repeat no payload, no secret and no URL; what belongs to somebody else is *not found*.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use twiceproof_shared::causes::chain;
use twiceproof_shared::store::StoreError;
use utoipa::{IntoResponses, ToSchema};

use crate::manage::ManageError;
use crate::publish::PublishError;

/// An answer that is not 2xx.
#[derive(Debug)]
pub(super) enum ApiError {
    /// One sentence under a code.
    Http(StatusCode, HttpErrorOut),
    /// What was asked for breaks rules, each at its place.
    Invalid(Vec<ValidationErrorItem>),
    /// The database could not take it.
    Store(StoreError),
}

/// An error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct HttpErrorOut {
    /// What happened, as a word that does not change.
    code: &'static str,
    /// What happened, as a sentence.
    detail: String,
}

/// What is wrong with a request.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HTTPValidationError {
    detail: Vec<ValidationErrorItem>,
}

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct ValidationErrorItem {
    /// The part of the request, then the way to the value: `["body", "channels", "0"]`.
    loc: Vec<String>,
    /// What is wrong.
    msg: String,
    /// A word for it that does not change.
    r#type: &'static str,
}

impl ApiError {
    /// There is no such thing, or not for this caller.
    pub(super) fn not_found() -> Self {
        Self::http(StatusCode::NOT_FOUND, "not_found", "Entity not found")
    }

    /// What is there already is in the way.
    pub(super) fn conflict(code: &'static str, detail: impl Into<String>) -> Self {
        Self::http(StatusCode::CONFLICT, code, detail)
    }

    /// One value of the body breaks a rule.
    pub(super) fn body(field: &str, msg: impl Into<String>) -> Self {
        Self::invalid("body", field, msg)
    }

    /// One value of the query breaks a rule.
    pub(super) fn query(field: &str, msg: impl Into<String>) -> Self {
        Self::invalid("query", field, msg)
    }

    /// One value of a part of the request (`body`, `query`, `path`) breaks a rule; `field` may be a way with dots.
    pub(super) fn invalid(part: &str, field: &str, msg: impl Into<String>) -> Self {
        let way = field.split('.').filter(|step| !step.is_empty() && *step != "?");
        let loc = std::iter::once(part).chain(way).map(str::to_owned).collect();
        Self::Invalid(vec![ValidationErrorItem { loc, msg: msg.into(), r#type: "value_error" }])
    }

    pub(super) fn http(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self::Http(status, HttpErrorOut { code, detail: detail.into() })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            Self::Http(status, body) if status == StatusCode::UNAUTHORIZED => {
                (status, [(header::WWW_AUTHENTICATE, "Bearer")], Json(body)).into_response()
            }
            Self::Http(status, body) => (status, Json(body)).into_response(),
            Self::Invalid(detail) => {
                (StatusCode::UNPROCESSABLE_ENTITY, Json(HTTPValidationError { detail })).into_response()
            }
            Self::Store(error) => of_the_store(&error),
        }
    }
}

/// What the database said stays in the log: the caller cannot mend it.
fn of_the_store(error: &StoreError) -> Response {
    if error.is_retryable() {
        tracing::warn!(error = %chain(error), "a request was refused for now");
        let detail = "The request could not be stored now; it may be sent again.".to_owned();
        let body = Json(HttpErrorOut { code: "unavailable", detail });
        let wait = HeaderValue::from_static("1");
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, wait)], body).into_response();
    }
    tracing::error!(error = %chain(error), "a request failed");
    let detail = "The request failed; the server's log says why.".to_owned();
    (StatusCode::INTERNAL_SERVER_ERROR, Json(HttpErrorOut { code: "server_error", detail })).into_response()
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<ManageError> for ApiError {
    fn from(error: ManageError) -> Self {
        match error {
            ManageError::Url(_) => Self::body("url", error.to_string()),
            ManageError::EventType(_) => Self::body("eventTypes", error.to_string()),
            ManageError::Limit(_) => Self::body("", error.to_string()),
            ManageError::Policy(_) => Self::body("policy", error.to_string()),
            ManageError::Signing(_) => Self::body("signing", error.to_string()),
            ManageError::Header(_) => Self::body("headers", error.to_string()),
            ManageError::UidTaken(_) => Self::conflict("uid_taken", error.to_string()),
            ManageError::SecretIdTaken => Self::conflict("secret_id_taken", error.to_string()),
            ManageError::TooManySecrets => Self::conflict("too_many_secrets", error.to_string()),
            ManageError::NotFound => Self::not_found(),
            ManageError::Store(error) => Self::Store(error),
        }
    }
}

impl From<PublishError> for ApiError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Invalid(invalid) => Self::body("", invalid.to_string()),
            PublishError::Conflict(conflict) => Self::conflict("event_id_conflict", conflict.to_string()),
            PublishError::Store(error) => Self::Store(error),
        }
    }
}

/// The answers that every route may give.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "it only describes")]
pub(super) enum Problems {
    /// The request cannot be read.
    #[response(status = 400)]
    BadRequest(HttpErrorOut),
    /// There is no token, or it is not valid (any more).
    #[response(status = 401)]
    Unauthorized(HttpErrorOut),
    /// The token does not allow this.
    #[response(status = 403)]
    Forbidden(HttpErrorOut),
    /// There is no such thing.
    #[response(status = 404)]
    NotFound(HttpErrorOut),
    /// Something is in the way.
    #[response(status = 409)]
    Conflict(HttpErrorOut),
    /// The body is longer than allowed.
    #[response(status = 413)]
    TooLarge(HttpErrorOut),
    /// Values break rules.
    #[response(status = 422)]
    Invalid(HTTPValidationError),
    /// Not now; `Retry-After` says when.
    #[response(status = 503)]
    Unavailable(HttpErrorOut),
}
