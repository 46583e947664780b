//! JSON bodies: read within a limit, refused with the place of what is wrong.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;

use super::Api;
use super::error::ApiError;

/// A body that was read as JSON, whatever fields it has besides. An empty body is an empty object, as some SDKs send it.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Api> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Api) -> Result<Self, ApiError> {
        let content_type = request.headers().get(header::CONTENT_TYPE).cloned();
        let bytes = Bytes::from_request(request, api).await.map_err(|refused| match refused.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                ApiError::http(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", "The body is longer than allowed.")
            }
            _ => bad_request("The body did not arrive whole."),
        })?;
        if bytes.is_empty() {
            return read(b"{}").map(Self);
        }
        let is_json = content_type.is_none_or(|value| {
            let media_type = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
            media_type.trim().eq_ignore_ascii_case("application/json")
        });
        if !is_json {
            let detail = "The body must be JSON (`content-type: application/json`).";
            return Err(ApiError::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail));
        }
        read(&bytes).map(Self)
    }
}

/// Reads one JSON value, and nothing behind it.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let cause = error.inner();
        if cause.is_data() {
            // serde_json's text ends with the line and column; the place says it better.
            let text = cause.to_string();
            let sentence = text.rsplit_once(" at line ").map_or(text.as_str(), |(sentence, _)| sentence);
            ApiError::invalid("body", &place(error.path()), sentence)
        } else {
            bad_request(&format!("The body is no JSON: {cause}."))
        }
    })?;
    json.end().map_err(|error| bad_request(&format!("The body is more than one JSON value: {error}.")))?;
    Ok(value)
}

/// The way to a value, its steps between dots.
fn place(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let step = |segment: &Segment| match segment {
        Segment::Seq { index } => index.to_string(),
        Segment::Map { key } => key.clone(),
        Segment::Enum { variant } => variant.clone(),
        Segment::Unknown => "?".to_owned(),
    };
    path.iter().map(step).collect::<Vec<_>>().join(".")
}

fn bad_request(detail: &str) -> ApiError {
    ApiError::http(StatusCode::BAD_REQUEST, "bad_request", detail)
}

/// A field of a patch: left out, set to null, or given.
pub(super) mod patched {
    use serde::{Deserialize, Deserializer};

    /// Reads a field that is there: `Some(None)` for null.
    pub(in crate::api) fn nullable<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
    where
        T: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Option::deserialize(deserializer).map(Some)
    }
}
