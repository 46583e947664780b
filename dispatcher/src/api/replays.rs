//! Sending the past again: recover what failed, replay what was missed.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::auth::Caller;
use super::body::Body;
use super::error::{ApiError, Problems};
use super::time::DateTime;
use super::work::Work;
use crate::manage::tenants::Tenant;
use crate::replay::{self, NewReplay, Replay, What};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(recover))
        .routes(routes!(replay_missing))
        .routes(routes!(create))
        .routes(routes!(preview))
        .routes(routes!(get))
        .routes(routes!(cancel))
}

/// Of which time.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(super) struct RecoverIn {
    #[schema(value_type = String, format = DateTime)]
    since: DateTime,
    /// Now, if it is left out.
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<DateTime>,
}

/// A replay in the words of the SDKs.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecoverOut {
    id: String,
    status: &'static str,
    task: &'static str,
    #[schema(value_type = String, format = DateTime)]
    updated_at: DateTime,
}

/// A replay to be made.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReplayIn {
    #[schema(value_type = String, format = DateTime)]
    since: DateTime,
    /// Now, if it is left out.
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<DateTime>,
    /// `failed`: what is not tried any more; `missing`: what the endpoint takes and never was to get; `everything`: both, and
    /// what was delivered.
    #[schema(value_type = String)]
    what: What,
    /// The most messages per second; as fast as the endpoint takes them, if it is left out.
    throttle_rate: Option<u32>,
}

/// How much would be sent.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReplayPreviewOut {
    count: u64,
}

/// How far a replay has come.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReplayOut {
    id: String,
    #[schema(value_type = String)]
    what: What,
    /// `running`, `done` or `cancelled`.
    #[schema(value_type = String)]
    status: replay::State,
    /// Messages that were made ready to be sent.
    sent: u64,
    #[schema(value_type = String, format = DateTime)]
    created_at: DateTime,
    #[schema(value_type = String, format = DateTime)]
    updated_at: DateTime,
}

/// Send an endpoint again what failed since a time
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/recover", operation_id = "v1.endpoint.recover",
    tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    request_body = RecoverIn, responses((status = 202, body = RecoverOut), Problems))]
pub(super) async fn recover(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path(names): Path<(String, String)>,
    Body(body): Body<RecoverIn>,
) -> Result<(StatusCode, Json<RecoverOut>), ApiError> {
    let replay = ask(api, caller, work, names, body.of(What::Failed)).await?;
    let updated_at = DateTime(replay.updated_at);
    let out = RecoverOut { id: replay.id, status: "running", task: "endpoint.recover", updated_at };
    Ok((StatusCode::ACCEPTED, Json(out)))
}

/// Send an endpoint what it takes and never was to get, since a time
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/replay-missing",
    operation_id = "v1.endpoint.replay-missing", tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    request_body = RecoverIn, responses((status = 202, body = RecoverOut), Problems))]
pub(super) async fn replay_missing(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path(names): Path<(String, String)>,
    Body(body): Body<RecoverIn>,
) -> Result<(StatusCode, Json<RecoverOut>), ApiError> {
    let replay = ask(api, caller, work, names, body.of(What::Missing)).await?;
    let updated_at = DateTime(replay.updated_at);
    let out = RecoverOut { id: replay.id, status: "running", task: "endpoint.replay", updated_at };
    Ok((StatusCode::ACCEPTED, Json(out)))
}

/// Send an endpoint much of the past again
///
/// It goes on by itself, also after a restart, can be looked at and cancelled, and leaves the schedules as they are.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/replay", operation_id = "v1.endpoint.replay",
    tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    request_body = ReplayIn, responses((status = 202, body = ReplayOut), Problems))]
pub(super) async fn create(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path(names): Path<(String, String)>,
    Body(body): Body<ReplayIn>,
) -> Result<(StatusCode, Json<ReplayOut>), ApiError> {
    let replay = ask(api, caller, work, names, body).await?;
    Ok((StatusCode::ACCEPTED, Json(replay.into())))
}

/// Count what a replay would send
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/replay/preview",
    operation_id = "v1.endpoint.replay-preview", tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    request_body = ReplayIn, responses((status = 200, body = ReplayPreviewOut), Problems))]
pub(super) async fn preview(
    State(api): State<Api>,
    caller: Caller,
    Path((app, endpoint)): Path<(String, String)>,
    Body(body): Body<ReplayIn>,
) -> Result<Json<ReplayPreviewOut>, ApiError> {
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let endpoint = api.manager().find(conn, &tenant.id, &endpoint).await?;
    let new = body.replay(&api, &tenant, endpoint.id)?;
    Ok(Json(ReplayPreviewOut { count: replay::preview(conn, &new).await? }))
}

/// See how far a replay has come
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/replay/{replay_id}",
    operation_id = "v1.endpoint.get-replay", tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid"), ("replay_id" = String, Path)),
    responses((status = 200, body = ReplayOut), Problems))]
pub(super) async fn get(
    State(api): State<Api>,
    caller: Caller,
    Path((app, endpoint, id)): Path<(String, String, String)>,
) -> Result<Json<ReplayOut>, ApiError> {
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let endpoint = api.manager().find(conn, &tenant.id, &endpoint).await?;
    let found = replay::find(conn, &tenant.id, &endpoint.id, &id).await?.ok_or_else(ApiError::not_found)?;
    Ok(Json(found.into()))
}

/// Cancel a replay
///
/// What was made ready already is sent. A replay that has ended stays as it is.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/replay/{replay_id}/cancel",
    operation_id = "v1.endpoint.cancel-replay", tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid"), ("replay_id" = String, Path)),
    responses((status = 200, body = ReplayOut), Problems))]
pub(super) async fn cancel(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path((app, endpoint, id)): Path<(String, String, String)>,
) -> Result<Json<ReplayOut>, ApiError> {
    let found = work
        .run((api, caller, app, endpoint, id), |conn, input| {
            Box::pin(async move {
                let (api, caller, app, name, id) = &*input;
                let tenant = caller.tenant(conn, app).await?;
                let endpoint = api.manager().find(conn, &tenant.id, name).await?;
                replay::find(conn, &tenant.id, &endpoint.id, id).await?.ok_or_else(ApiError::not_found)?;
                replay::cancel(conn, &tenant.id, id, api.store().now()).await?;
                replay::find(conn, &tenant.id, &endpoint.id, id).await?.ok_or_else(ApiError::not_found)
            })
        })
        .await?;
    Ok(Json(found.into()))
}

async fn ask(
    api: Api,
    caller: Caller,
    work: Work,
    (app, name): (String, String),
    body: ReplayIn,
) -> Result<Replay, ApiError> {
    let id = replay::mint(api.store());
    work.run((api, caller, app, name, body, id), |conn, input| {
        Box::pin(async move {
            let (api, caller, app, name, body, id) = &*input;
            let tenant = caller.tenant(conn, app).await?;
            let endpoint = api.manager().find(conn, &tenant.id, name).await?;
            let new = body.clone().replay(api, &tenant, endpoint.id)?;
            Ok(replay::ask(conn, id, &new, api.store().now()).await?)
        })
    })
    .await
}

impl RecoverIn {
    fn of(self, what: What) -> ReplayIn {
        ReplayIn { since: self.since, until: self.until, what, throttle_rate: None }
    }
}

impl ReplayIn {
    fn replay(self, api: &Api, tenant: &Tenant, endpoint: String) -> Result<NewReplay, ApiError> {
        let until = self.until.map_or_else(|| api.store().now(), |until| until.0);
        if until <= self.since.0 {
            return Err(ApiError::body("until", "lies after `since`"));
        }
        if self.throttle_rate == Some(0) {
            return Err(ApiError::body("throttleRate", "is 1 or more"));
        }
        Ok(NewReplay {
            tenant: tenant.id.clone(),
            endpoint,
            what: self.what,
            since: self.since.0,
            until,
            rate_limit: self.throttle_rate,
        })
    }
}

impl From<Replay> for ReplayOut {
    fn from(replay: Replay) -> Self {
        Self {
            id: replay.id,
            what: replay.what,
            status: replay.state,
            sent: replay.sent,
            created_at: DateTime(replay.created_at),
            updated_at: DateTime(replay.updated_at),
        }
    }
}
