//! Endpoints: where an application's messages go.

mod headers;
mod model;
mod secrets;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use twiceproof_shared::store::Wake;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::model::{EndpointIn, EndpointPatch, EndpointStats, EndpointUpdate, EventExampleIn};
use super::Api;
use super::auth::Caller;
use super::body::Body;
use super::error::{ApiError, Problems};
use super::messages::{MessageOut, refused};
use super::page::{ListResponse, Ordering, PageQuery};
use super::query::Query;
use super::time::DateTime;
use super::work::Work;
use crate::manage::change::EndpointChange;
use crate::manage::{self, ManageError, event_types};
use crate::store::counts;

pub(super) use self::model::EndpointOut;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, update, patch, delete))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(stats))
        .routes(routes!(send_example))
        .merge(headers::routes())
        .merge(secrets::routes())
}

/// List endpoints
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint", operation_id = "v1.endpoint.list", tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), PageQuery),
    responses((status = 200, body = ListResponse<EndpointOut>), Problems))]
pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Path(app): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<Json<ListResponse<EndpointOut>>, ApiError> {
    let page = query.page(Ordering::Ascending)?;
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let rows = api.manager().page(conn, &tenant.id, &page.from, page.down, page.rows()).await?;
    Ok(Json(page.answer(rows, |one| one.id.as_str(), EndpointOut::from)))
}

/// Create an endpoint
///
/// It gets the messages that are created from now on.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint", operation_id = "v1.endpoint.create", tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid")), request_body = EndpointIn,
    responses((status = 201, body = EndpointOut), Problems))]
pub(super) async fn create(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path(app): Path<String>,
    Body(body): Body<EndpointIn>,
) -> Result<(StatusCode, Json<EndpointOut>), ApiError> {
    // Made before the unit, which may run again; whose it is shows inside.
    let ready = api.manager().ready(body.endpoint()?)?;
    let created = work
        .run((api, caller, app, ready), |conn, input| {
            Box::pin(async move {
                let (api, caller, app, ready) = &*input;
                let ready = ready.of(&caller.tenant(conn, app).await?.id);
                manage::insert(conn, api.store(), &ready).await?;
                Ok(ready.created()?)
            })
        })
        .await?;
    Ok((StatusCode::CREATED, Json(created.endpoint.into())))
}

/// Get an endpoint
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", operation_id = "v1.endpoint.get", tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    responses((status = 200, body = EndpointOut), Problems))]
pub(super) async fn get(
    State(api): State<Api>,
    caller: Caller,
    Path((app, endpoint)): Path<(String, String)>,
) -> Result<Json<EndpointOut>, ApiError> {
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    Ok(Json(api.manager().find(conn, &tenant.id, &endpoint).await?.into()))
}

/// Set all of an endpoint, or create one with this uid
///
/// Its custom headers and its secret stay, and so does the uid that the path names where the body has none.
#[utoipa::path(put, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", operation_id = "v1.endpoint.update",
    tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    request_body = EndpointUpdate,
    responses((status = 200, body = EndpointOut), (status = 201, body = EndpointOut), Problems))]
pub(super) async fn update(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path((app, name)): Path<(String, String)>,
    Body(body): Body<EndpointUpdate>,
) -> Result<(StatusCode, Json<EndpointOut>), ApiError> {
    let change = body.clone().change()?;
    // Where there is none, the name in the path becomes the uid, if it can be one. What else is wrong is wrong both ways.
    let fresh = body.endpoint(&name)?.map(|new| api.manager().ready(new)).transpose()?;
    let (status, endpoint, wake) = work
        .run((api, caller, app, name, change, fresh), |conn, input| {
            Box::pin(async move {
                let (api, caller, app, name, change, fresh) = &*input;
                let tenant = caller.tenant(conn, app).await?;
                match api.manager().find(conn, &tenant.id, name).await {
                    Ok(old) => {
                        let mut change = change.clone();
                        // The same request again must find the same endpoint.
                        if change.uid == Some(None) && old.uid.as_ref() == Some(name) {
                            change.uid = None;
                        }
                        let changed = api.manager().change(conn, &tenant.id, &old.id, change).await?;
                        Ok((StatusCode::OK, changed.endpoint, changed.wake))
                    }
                    Err(ManageError::NotFound) => {
                        let ready = fresh.as_ref().ok_or_else(ApiError::not_found)?.of(&tenant.id);
                        manage::insert(conn, api.store(), &ready).await?;
                        Ok((StatusCode::CREATED, ready.created()?.endpoint, Wake::none()))
                    }
                    Err(error) => Err(error.into()),
                }
            })
        })
        .await?;
    work.wake(wake);
    Ok((status, Json(endpoint.into())))
}

/// Change parts of an endpoint
#[utoipa::path(patch, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", operation_id = "v1.endpoint.patch",
    tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    request_body = EndpointPatch, responses((status = 200, body = EndpointOut), Problems))]
pub(super) async fn patch(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path((app, endpoint)): Path<(String, String)>,
    Body(body): Body<EndpointPatch>,
) -> Result<Json<EndpointOut>, ApiError> {
    let change = body.change()?;
    changed(api, caller, work, (app, endpoint), change).await
}

/// Pause an endpoint: its messages are kept
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/pause", operation_id = "v1.endpoint.pause",
    tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    responses((status = 200, body = EndpointOut), Problems))]
pub(super) async fn pause(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path(names): Path<(String, String)>,
) -> Result<Json<EndpointOut>, ApiError> {
    changed(api, caller, work, names, EndpointChange { enabled: Some(false), ..EndpointChange::default() }).await
}

/// Send a paused or disabled endpoint what was kept for it, oldest first
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/resume", operation_id = "v1.endpoint.resume",
    tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    responses((status = 200, body = EndpointOut), Problems))]
pub(super) async fn resume(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path(names): Path<(String, String)>,
) -> Result<Json<EndpointOut>, ApiError> {
    changed(api, caller, work, names, EndpointChange { enabled: Some(true), ..EndpointChange::default() }).await
}

async fn changed(
    api: Api,
    caller: Caller,
    work: Work,
    (app, name): (String, String),
    change: EndpointChange,
) -> Result<Json<EndpointOut>, ApiError> {
    let changed = work
        .run((api, caller, app, name, change), |conn, input| {
            Box::pin(async move {
                let (api, caller, app, name, change) = &*input;
                let tenant = caller.tenant(conn, app).await?;
                let endpoint = api.manager().find(conn, &tenant.id, name).await?;
                Ok(api.manager().change(conn, &tenant.id, &endpoint.id, change.clone()).await?)
            })
        })
        .await?;
    work.wake(changed.wake);
    Ok(Json(changed.endpoint.into()))
}

/// Delete an endpoint
///
/// Nothing more is sent to it; what was tried can be read until its retention is over.
#[utoipa::path(delete, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", operation_id = "v1.endpoint.delete",
    tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    responses((status = 204, description = "It is gone"), Problems))]
pub(super) async fn delete(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path((app, endpoint)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    work.run((api, caller, app, endpoint), |conn, input| {
        Box::pin(async move {
            let (api, caller, app, name) = &*input;
            let tenant = caller.tenant(conn, app).await?;
            let endpoint = api.manager().find(conn, &tenant.id, name).await?;
            Ok(api.manager().delete(conn, &tenant.id, &endpoint.id).await?)
        })
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Of which time.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(super) struct StatsQuery {
    /// Messages that were created after this time; 28 days ago if it is left out.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<DateTime>,
    /// Messages that were created before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<DateTime>,
}

/// Count an endpoint's messages by what became of them
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/stats", operation_id = "v1.endpoint.get-stats",
    tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid"), StatsQuery),
    responses((status = 200, body = EndpointStats), Problems))]
pub(super) async fn stats(
    State(api): State<Api>,
    caller: Caller,
    Path((app, endpoint)): Path<(String, String)>,
    Query(query): Query<StatsQuery>,
) -> Result<Json<EndpointStats>, ApiError> {
    const USUAL: std::time::Duration = std::time::Duration::from_secs(28 * 86_400);
    let now = api.store().now();
    let since = query.since.map_or(now.minus(USUAL), |since| since.0);
    let until = query.until.map_or(now.plus(USUAL), |until| until.0);
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let endpoint = api.manager().find(conn, &tenant.id, &endpoint).await?;
    let counts = counts::of_endpoint(conn, tenant.id.as_str(), &endpoint.id, since, until).await?;
    Ok(Json(EndpointStats::from(counts)))
}

/// Send an endpoint an example, whatever its filter
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/send-example",
    operation_id = "v1.endpoint.send-example", tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    request_body = EventExampleIn, responses((status = 200, body = MessageOut), Problems))]
pub(super) async fn send_example(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path((app, endpoint)): Path<(String, String)>,
    Body(body): Body<EventExampleIn>,
) -> Result<Json<MessageOut>, ApiError> {
    let id = api.publisher().mint();
    let (event, wake) = work
        .run((api, caller, app, endpoint, body, id.clone()), |conn, input| {
            Box::pin(async move {
                let (api, caller, app, name, body, id) = &*input;
                let tenant = caller.tenant(conn, app).await?;
                let endpoint = api.manager().find(conn, &tenant.id, name).await?;
                let event_type = event_types::find(conn, caller.organisation(), &body.event_type).await?;
                let event = body.event(&tenant.id, event_type.as_ref());
                let wake = api.publisher().publish_to(conn, event.clone(), id, &endpoint.id).await.map_err(refused)?;
                Ok((event, wake))
            })
        })
        .await?;
    work.wake(wake);
    Ok(Json(MessageOut::new(&event, &id, true)))
}
