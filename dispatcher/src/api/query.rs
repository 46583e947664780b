//! The query of a request, refused with the name of what is wrong. A name may come several times.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::Api;
use super::error::ApiError;

/// The query, as `T` names its parts. Others are passed over.
#[derive(Debug)]
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Api> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs = serde_html_form::Deserializer::from_bytes(query.as_bytes());
        let read = serde_path_to_error::deserialize(pairs);
        read.map(Self).map_err(|error| ApiError::invalid("query", &error.path().to_string(), error.inner().to_string()))
    }
}
