//! Applications: the tenants of an organisation.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use twiceproof_shared::id::Prefix;
use twiceproof_shared::key::Key;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::auth::{Caller, Operator};
use super::body::{Body, patched};
use super::error::{ApiError, Problems};
use super::page::{ListResponse, Ordering, PageQuery};
use super::query::Query;
use super::time::DateTime;
use super::work::Work;
use crate::manage::tenants::{self, Metadata, NewTenant, Tenant, TenantDetails, check_uid};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(get, update, patch, delete))
}

/// An application to be created, or what it becomes.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ApplicationIn {
    name: String,
    /// Your own id, which works wherever the id does.
    uid: Option<String>,
    /// Deliveries per second over all endpoints.
    #[serde(alias = "rateLimit")]
    throttle_rate: Option<u32>,
    #[serde(default)]
    metadata: Metadata,
}

/// What changes of an application; what is left out stays.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ApplicationPatch {
    name: Option<String>,
    #[serde(default, deserialize_with = "patched::nullable")]
    uid: Option<Option<String>>,
    #[serde(default, alias = "rateLimit", deserialize_with = "patched::nullable")]
    throttle_rate: Option<Option<u32>>,
    metadata: Option<Metadata>,
}

/// An application.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ApplicationOut {
    id: String,
    uid: Option<String>,
    name: String,
    throttle_rate: Option<u32>,
    /// `throttleRate`, as older SDKs call it.
    rate_limit: Option<u32>,
    metadata: Metadata,
    #[schema(value_type = String, format = DateTime)]
    created_at: DateTime,
    #[schema(value_type = String, format = DateTime)]
    updated_at: DateTime,
}

/// How an application is created.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(super) struct CreateQuery {
    /// Answer with the application that has this uid, if there is one.
    get_if_exists: bool,
}

/// List applications
#[utoipa::path(get, path = "/api/v1/app", operation_id = "v1.application.list", tag = "Application",
    params(PageQuery), responses((status = 200, body = ListResponse<ApplicationOut>), Problems))]
pub(super) async fn list(
    State(api): State<Api>,
    caller: Operator,
    Query(query): Query<PageQuery>,
) -> Result<Json<ListResponse<ApplicationOut>>, ApiError> {
    let page = query.page(Ordering::Ascending)?;
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let rows = tenants::page(conn, caller.organisation(), &page.from, page.down, page.rows()).await?;
    Ok(Json(page.answer(rows, |tenant| tenant.id.as_str(), ApplicationOut::from)))
}

/// Create an application
#[utoipa::path(post, path = "/api/v1/app", operation_id = "v1.application.create", tag = "Application",
    params(CreateQuery), request_body = ApplicationIn,
    responses((status = 201, body = ApplicationOut), (status = 200, body = ApplicationOut), Problems))]
pub(super) async fn create(
    State(api): State<Api>,
    caller: Operator,
    work: Work,
    Query(query): Query<CreateQuery>,
    Body(body): Body<ApplicationIn>,
) -> Result<(StatusCode, Json<ApplicationOut>), ApiError> {
    let details = body.details()?;
    let new = NewTenant::new(api.store(), caller.organisation(), details.clone())?;
    let input = (caller, query.get_if_exists, details.uid, new);
    let (status, tenant) = work
        .run(input, |conn, input| {
            Box::pin(async move {
                let (caller, get_if_exists, uid, new) = &*input;
                if let (true, Some(uid)) = (get_if_exists, uid)
                    && let Some(found) = tenants::find(conn, caller.organisation(), uid.as_str()).await?
                {
                    return Ok((StatusCode::OK, found));
                }
                Ok((StatusCode::CREATED, new.create(conn).await?))
            })
        })
        .await?;
    Ok((status, Json(tenant.into())))
}

/// Get an application
#[utoipa::path(get, path = "/api/v1/app/{app_id}", operation_id = "v1.application.get", tag = "Application",
    params(("app_id" = String, Path, description = "Its id or uid")),
    responses((status = 200, body = ApplicationOut), Problems))]
pub(super) async fn get(
    State(api): State<Api>,
    caller: Caller,
    Path(app): Path<String>,
) -> Result<Json<ApplicationOut>, ApiError> {
    let mut reader = api.store().read().await?;
    Ok(Json(caller.tenant(&mut reader.conn(), &app).await?.into()))
}

/// Set all of an application, or create one with this uid
#[utoipa::path(put, path = "/api/v1/app/{app_id}", operation_id = "v1.application.update", tag = "Application",
    params(("app_id" = String, Path, description = "Its id or uid")), request_body = ApplicationIn,
    responses((status = 200, body = ApplicationOut), (status = 201, body = ApplicationOut), Problems))]
pub(super) async fn update(
    State(api): State<Api>,
    caller: Operator,
    work: Work,
    Path(app): Path<String>,
    Body(body): Body<ApplicationIn>,
) -> Result<(StatusCode, Json<ApplicationOut>), ApiError> {
    let details = body.details()?;
    // Where there is none, the name in the path becomes the uid, if it can be one. What else is wrong is wrong both ways.
    let uid = key("app_id", "path", app.clone()).ok().filter(|uid| check_uid(Prefix::Tenant, Some(uid)).is_ok());
    let fresh =
        |uid| NewTenant::new(api.store(), caller.organisation(), TenantDetails { uid: Some(uid), ..details.clone() });
    let new = uid.map(fresh).transpose()?;
    let input = (caller, app, details, new, api.store().now());
    let (status, tenant) = work
        .run(input, |conn, input| {
            Box::pin(async move {
                let (caller, app, details, new, now) = &*input;
                let organisation = caller.organisation();
                if let Some(old) = tenants::find(conn, organisation, app).await? {
                    let mut details = details.clone();
                    // The same request again must find the same application.
                    if details.uid.is_none() && old.details.uid.as_ref().is_some_and(|uid| uid.as_str() == app) {
                        details.uid.clone_from(&old.details.uid);
                    }
                    let tenant = tenants::update(conn, organisation, &old, details, *now).await?;
                    return Ok((StatusCode::OK, tenant));
                }
                let new = new.as_ref().ok_or_else(ApiError::not_found)?;
                Ok((StatusCode::CREATED, new.create(conn).await?))
            })
        })
        .await?;
    Ok((status, Json(tenant.into())))
}

/// Change parts of an application
#[utoipa::path(patch, path = "/api/v1/app/{app_id}", operation_id = "v1.application.patch", tag = "Application",
    params(("app_id" = String, Path, description = "Its id or uid")), request_body = ApplicationPatch,
    responses((status = 200, body = ApplicationOut), Problems))]
pub(super) async fn patch(
    State(api): State<Api>,
    caller: Operator,
    work: Work,
    Path(app): Path<String>,
    Body(body): Body<ApplicationPatch>,
) -> Result<Json<ApplicationOut>, ApiError> {
    let uid = body.uid.map(|uid| uid.map(|uid| key("uid", "body", uid)).transpose()).transpose()?;
    let input = (caller, app, body.name, uid, body.throttle_rate, body.metadata, api.store().now());
    let tenant = work
        .run(input, |conn, input| {
            Box::pin(async move {
                let (caller, app, name, uid, rate_limit, metadata, now) = &*input;
                let old = caller.tenant(conn, app).await?;
                let mut details = old.details.clone();
                if let Some(name) = name {
                    details.name.clone_from(name);
                }
                if let Some(uid) = uid {
                    details.uid.clone_from(uid);
                }
                if let Some(rate_limit) = rate_limit {
                    details.rate_limit = *rate_limit;
                }
                if let Some(metadata) = metadata {
                    details.metadata.clone_from(metadata);
                }
                Ok(tenants::update(conn, caller.organisation(), &old, details, *now).await?)
            })
        })
        .await?;
    Ok(Json(tenant.into()))
}

/// Delete an application with its endpoints
#[utoipa::path(delete, path = "/api/v1/app/{app_id}", operation_id = "v1.application.delete", tag = "Application",
    params(("app_id" = String, Path, description = "Its id or uid")),
    responses((status = 204, description = "It is gone"), Problems))]
pub(super) async fn delete(caller: Operator, work: Work, Path(app): Path<String>) -> Result<StatusCode, ApiError> {
    work.run((caller, app), |conn, input| {
        Box::pin(async move {
            let (caller, app) = &*input;
            let tenant = caller.tenant(conn, app).await?;
            Ok(tenants::delete(conn, caller.organisation(), &tenant.id).await?)
        })
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

impl ApplicationIn {
    /// Reads the fields.
    pub(super) fn details(self) -> Result<TenantDetails, ApiError> {
        let uid = self.uid.map(|uid| key("uid", "body", uid)).transpose()?;
        Ok(TenantDetails { name: self.name, uid, rate_limit: self.throttle_rate, metadata: self.metadata })
    }
}

impl From<Tenant> for ApplicationOut {
    fn from(tenant: Tenant) -> Self {
        let details = tenant.details;
        Self {
            id: tenant.id.into(),
            uid: details.uid.map(String::from),
            name: details.name,
            throttle_rate: details.rate_limit,
            rate_limit: details.rate_limit,
            metadata: details.metadata,
            created_at: DateTime(tenant.created_at),
            updated_at: DateTime(tenant.updated_at),
        }
    }
}

/// A key that the caller chose: as the API's description has it, letters, digits, `-`, `_` and `.`.
pub(super) fn key(field: &str, part: &str, text: String) -> Result<Key, ApiError> {
    let is_allowed = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    match Key::new(text) {
        Ok(key) if is_allowed => Ok(key),
        _ => Err(ApiError::invalid(part, field, "has 1 to 255 characters, each a letter, a digit, `-`, `_` or `.`")),
    }
}
