//! The custom headers of an endpoint. Values that look like credentials are not shown again.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::body::Body;
use crate::api::error::{ApiError, Problems};
use crate::api::work::Work;
use crate::headers::CustomHeaders;
use crate::manage::change::EndpointChange;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get, update, patch))
}

/// All headers.
#[derive(Deserialize, ToSchema)]
pub(in crate::api) struct EndpointHeadersIn {
    headers: BTreeMap<String, String>,
}

/// Headers that change; null takes one away.
#[derive(Deserialize, ToSchema)]
pub(in crate::api) struct EndpointHeadersPatchIn {
    headers: BTreeMap<String, Option<String>>,
}

/// The headers of an endpoint.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct EndpointHeadersOut {
    headers: BTreeMap<String, String>,
    /// The names of those whose values are not shown.
    sensitive: BTreeSet<String>,
}

/// Get an endpoint's headers
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers", operation_id = "v1.endpoint.get-headers",
    tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    responses((status = 200, body = EndpointHeadersOut), Problems))]
pub(in crate::api) async fn get(
    State(api): State<Api>,
    caller: Caller,
    Path((app, endpoint)): Path<(String, String)>,
) -> Result<Json<EndpointHeadersOut>, ApiError> {
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let endpoint = api.manager().find(conn, &tenant.id, &endpoint).await?;
    let (sensitive, open): (Vec<_>, Vec<_>) =
        endpoint.headers.expose().partition(|(name, _)| CustomHeaders::is_sensitive(name));
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    Ok(Json(EndpointHeadersOut {
        headers: open.into_iter().map(owned).collect(),
        sensitive: sensitive.into_iter().map(|(name, _)| name.to_owned()).collect(),
    }))
}

/// Set all of an endpoint's headers
#[utoipa::path(put, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers",
    operation_id = "v1.endpoint.update-headers", tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    request_body = EndpointHeadersIn, responses((status = 204, description = "They are set"), Problems))]
pub(in crate::api) async fn update(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path(names): Path<(String, String)>,
    Body(body): Body<EndpointHeadersIn>,
) -> Result<StatusCode, ApiError> {
    let headers = CustomHeaders::new(body.headers).map_err(invalid)?;
    change(api, caller, work, names, move |_| Ok(headers.clone())).await
}

/// Change some of an endpoint's headers
#[utoipa::path(patch, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers",
    operation_id = "v1.endpoint.patch-headers", tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    request_body = EndpointHeadersPatchIn, responses((status = 204, description = "They are changed"), Problems))]
pub(in crate::api) async fn patch(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path(names): Path<(String, String)>,
    Body(body): Body<EndpointHeadersPatchIn>,
) -> Result<StatusCode, ApiError> {
    change(api, caller, work, names, move |old| old.patched(body.headers.clone()).map_err(invalid)).await
}

async fn change(
    api: Api,
    caller: Caller,
    work: Work,
    (app, name): (String, String),
    new: impl Fn(&CustomHeaders) -> Result<CustomHeaders, ApiError> + Send + Sync + 'static,
) -> Result<StatusCode, ApiError> {
    work.run((api, caller, app, name, new), |conn, input| {
        Box::pin(async move {
            let (api, caller, app, name, new) = &*input;
            let tenant = caller.tenant(conn, app).await?;
            let endpoint = api.manager().find(conn, &tenant.id, name).await?;
            let headers = new(&endpoint.headers)?;
            let change = EndpointChange { headers: Some(headers), ..EndpointChange::default() };
            api.manager().change(conn, &tenant.id, &endpoint.id, change).await?;
            Ok(())
        })
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

fn invalid(error: crate::headers::InvalidHeader) -> ApiError {
    ApiError::body("headers", error.to_string())
}
