//! Whether the API answers.

use axum::extract::State;
use axum::http::StatusCode;
use twiceproof_shared::clock::Timestamp;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::error::{ApiError, Problems};
use crate::store::workers;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get)).routes(routes!(ping))
}

/// Whether the API reaches its database
#[utoipa::path(get, path = "/api/v1/health", operation_id = "v1.health.get", tag = "Health",
    responses((status = 204, description = "It does"), Problems), security(()))]
pub(super) async fn get(State(api): State<Api>) -> Result<StatusCode, ApiError> {
    let mut reader = api.store().read().await?;
    workers::any_dead(&mut reader.conn(), Timestamp::EPOCH).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whether the API answers at all
#[utoipa::path(get, path = "/api/v1/health/ping", operation_id = "v1.health.ping", tag = "Health",
    responses((status = 204, description = "It does")), security(()))]
pub(super) async fn ping() -> StatusCode {
    StatusCode::NO_CONTENT
}
