//! Event types: what can be subscribed to.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::auth::{Caller, Operator};
use super::body::{Body, patched};
use super::error::{ApiError, Problems};
use super::page::{ListResponse, Ordering, page};
use super::query::Query;
use super::time::DateTime;
use super::work::Work;
use crate::manage::event_types::{self, EventType, EventTypeDetails, Guarantee, Schemas};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(get, update, patch, delete))
}

/// An event type to be created.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EventTypeIn {
    /// Letters, digits, `_` and `-`, in parts between dots.
    name: String,
    description: String,
    #[serde(default)]
    archived: bool,
    #[serde(default)]
    deprecated: bool,
    /// JSON schemas by version.
    #[schema(value_type = Option<std::collections::BTreeMap<String, Object>>)]
    schemas: Option<Schemas>,
    feature_flag: Option<String>,
    /// Our own addition: `atLeastOnce`, or `atMostOnce` for what must not be sent twice.
    #[schema(value_type = Option<String>)]
    guarantee: Option<Guarantee>,
}

/// What an event type becomes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EventTypeUpdate {
    description: String,
    #[serde(default)]
    archived: bool,
    #[serde(default)]
    deprecated: bool,
    /// JSON schemas by version.
    #[schema(value_type = Option<std::collections::BTreeMap<String, Object>>)]
    schemas: Option<Schemas>,
    feature_flag: Option<String>,
    /// Our own addition: `atLeastOnce`, or `atMostOnce` for what must not be sent twice.
    #[schema(value_type = Option<String>)]
    guarantee: Option<Guarantee>,
}

/// What changes of an event type; what is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EventTypePatch {
    description: Option<String>,
    archived: Option<bool>,
    deprecated: Option<bool>,
    #[serde(default, deserialize_with = "patched::nullable")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, Object>>)]
    schemas: Option<Option<Schemas>>,
    #[serde(default, deserialize_with = "patched::nullable")]
    feature_flag: Option<Option<String>>,
    /// Our own addition: `atLeastOnce`, or `atMostOnce` for what must not be sent twice.
    #[schema(value_type = Option<String>)]
    guarantee: Option<Guarantee>,
}

/// An event type.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EventTypeOut {
    name: String,
    description: String,
    archived: bool,
    deprecated: bool,
    #[schema(value_type = Option<std::collections::BTreeMap<String, Object>>)]
    schemas: Option<Schemas>,
    feature_flag: Option<String>,
    /// Our own addition: `atLeastOnce` or `atMostOnce`.
    #[schema(value_type = String)]
    guarantee: Guarantee,
    #[schema(value_type = String, format = DateTime)]
    created_at: DateTime,
    #[schema(value_type = String, format = DateTime)]
    updated_at: DateTime,
}

/// Which event types.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(super) struct ListQuery {
    /// The most entries to return: 1 to 250, 50 if it is left out.
    limit: Option<u64>,
    /// `iterator` or `prevIterator` of the page that was seen last.
    iterator: Option<String>,
    /// The order of the names.
    order: Option<Ordering>,
    /// The archived ones too.
    include_archived: bool,
    /// With their schemas.
    with_content: bool,
}

/// How an event type is deleted.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(super) struct DeleteQuery {
    /// Delete it for good; else it is archived.
    expunge: bool,
}

/// List event types
#[utoipa::path(get, path = "/api/v1/event-type", operation_id = "v1.event-type.list", tag = "Event Type",
    params(ListQuery), responses((status = 200, body = ListResponse<EventTypeOut>), Problems))]
pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<ListResponse<EventTypeOut>>, ApiError> {
    let page = page(query.limit, query.iterator, query.order.unwrap_or(Ordering::Ascending))?;
    let mut reader = api.store().read().await?;
    let (from, archived) = ((page.from.as_str(), page.down), query.include_archived);
    let rows = event_types::page(&mut reader.conn(), caller.organisation(), from, archived, page.rows()).await?;
    let entry = |one: EventType| {
        let out = EventTypeOut::from(one);
        if query.with_content { out } else { EventTypeOut { schemas: None, ..out } }
    };
    Ok(Json(page.answer(rows, |one| one.name.as_str(), entry)))
}

/// Create an event type
#[utoipa::path(post, path = "/api/v1/event-type", operation_id = "v1.event-type.create", tag = "Event Type",
    request_body = EventTypeIn, responses((status = 201, body = EventTypeOut), Problems))]
pub(super) async fn create(
    State(api): State<Api>,
    caller: Operator,
    work: Work,
    Body(body): Body<EventTypeIn>,
) -> Result<(StatusCode, Json<EventTypeOut>), ApiError> {
    let EventTypeIn { name, description, archived, deprecated, schemas, feature_flag, guarantee } = body;
    let guarantee = guarantee.unwrap_or_default();
    let details = EventTypeDetails { description, archived, deprecated, schemas, feature_flag, guarantee };
    let input = (caller, name, details, api.store().now());
    let created = work
        .run(input, |conn, input| {
            Box::pin(async move {
                let (caller, name, details, now) = &*input;
                let created = event_types::create(conn, caller.organisation(), name, details.clone(), *now).await?;
                created
                    .ok_or_else(|| ApiError::conflict("event_type_exists", "An event type of this name already exists"))
            })
        })
        .await?;
    Ok((StatusCode::CREATED, Json(created.into())))
}

/// Get an event type
#[utoipa::path(get, path = "/api/v1/event-type/{event_type_name}", operation_id = "v1.event-type.get", tag = "Event Type",
    params(("event_type_name" = String, Path)), responses((status = 200, body = EventTypeOut), Problems))]
pub(super) async fn get(
    State(api): State<Api>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<EventTypeOut>, ApiError> {
    let mut reader = api.store().read().await?;
    let found = event_types::find(&mut reader.conn(), caller.organisation(), &name).await?;
    Ok(Json(found.ok_or_else(ApiError::not_found)?.into()))
}

/// Set all of an event type, or create it
#[utoipa::path(put, path = "/api/v1/event-type/{event_type_name}", operation_id = "v1.event-type.update", tag = "Event Type",
    params(("event_type_name" = String, Path)), request_body = EventTypeUpdate,
    responses((status = 200, body = EventTypeOut), (status = 201, body = EventTypeOut), Problems))]
pub(super) async fn update(
    State(api): State<Api>,
    caller: Operator,
    work: Work,
    Path(name): Path<String>,
    Body(body): Body<EventTypeUpdate>,
) -> Result<(StatusCode, Json<EventTypeOut>), ApiError> {
    let guarantee = body.guarantee;
    let input = (caller, name, body.details(), guarantee, api.store().now());
    let (status, event_type) = work
        .run(input, |conn, input| {
            Box::pin(async move {
                let (caller, name, details, guarantee, now) = &*input;
                let organisation = caller.organisation();
                if let Some(old) = event_types::find(conn, organisation, name).await? {
                    // SDKs do not know it: left out, it stays.
                    let guarantee = guarantee.unwrap_or(old.details.guarantee);
                    let details = EventTypeDetails { guarantee, ..details.clone() };
                    let new = event_types::update(conn, organisation, &old, details, *now).await?;
                    return Ok((StatusCode::OK, new));
                }
                let created = event_types::create(conn, organisation, name, details.clone(), *now).await?;
                let taken = || ApiError::conflict("event_type_exists", "An event type of this name was just created");
                Ok((StatusCode::CREATED, created.ok_or_else(taken)?))
            })
        })
        .await?;
    Ok((status, Json(event_type.into())))
}

/// Change parts of an event type
#[utoipa::path(patch, path = "/api/v1/event-type/{event_type_name}", operation_id = "v1.event-type.patch",
    tag = "Event Type", params(("event_type_name" = String, Path)), request_body = EventTypePatch,
    responses((status = 200, body = EventTypeOut), Problems))]
pub(super) async fn patch(
    State(api): State<Api>,
    caller: Operator,
    work: Work,
    Path(name): Path<String>,
    Body(body): Body<EventTypePatch>,
) -> Result<Json<EventTypeOut>, ApiError> {
    let input = (caller, name, body, api.store().now());
    let event_type = work
        .run(input, |conn, input| {
            Box::pin(async move {
                let (caller, name, patch, now) = &*input;
                let organisation = caller.organisation();
                let old = event_types::find(conn, organisation, name).await?.ok_or_else(ApiError::not_found)?;
                let mut details = old.details.clone();
                if let Some(description) = &patch.description {
                    details.description.clone_from(description);
                }
                details.archived = patch.archived.unwrap_or(details.archived);
                details.deprecated = patch.deprecated.unwrap_or(details.deprecated);
                if let Some(schemas) = &patch.schemas {
                    details.schemas.clone_from(schemas);
                }
                if let Some(feature_flag) = &patch.feature_flag {
                    details.feature_flag.clone_from(feature_flag);
                }
                details.guarantee = patch.guarantee.unwrap_or(details.guarantee);
                Ok(event_types::update(conn, organisation, &old, details, *now).await?)
            })
        })
        .await?;
    Ok(Json(event_type.into()))
}

/// Archive an event type, or delete it for good
#[utoipa::path(delete, path = "/api/v1/event-type/{event_type_name}", operation_id = "v1.event-type.delete",
    tag = "Event Type", params(("event_type_name" = String, Path), DeleteQuery),
    responses((status = 204, description = "It is archived or gone"), Problems))]
pub(super) async fn delete(
    State(api): State<Api>,
    caller: Operator,
    work: Work,
    Path(name): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> Result<StatusCode, ApiError> {
    let input = (caller, name, query.expunge, api.store().now());
    work.run(input, |conn, input| {
        Box::pin(async move {
            let (caller, name, expunge, now) = &*input;
            let organisation = caller.organisation();
            if *expunge {
                return Ok(event_types::delete(conn, organisation, name).await?);
            }
            let old = event_types::find(conn, organisation, name).await?.ok_or_else(ApiError::not_found)?;
            let details = EventTypeDetails { archived: true, ..old.details.clone() };
            event_types::update(conn, organisation, &old, details, *now).await?;
            Ok(())
        })
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

impl EventTypeUpdate {
    fn details(self) -> EventTypeDetails {
        let Self { description, archived, deprecated, schemas, feature_flag, guarantee } = self;
        let guarantee = guarantee.unwrap_or_default();
        EventTypeDetails { description, archived, deprecated, schemas, feature_flag, guarantee }
    }
}

impl From<EventType> for EventTypeOut {
    fn from(event_type: EventType) -> Self {
        let EventTypeDetails { description, archived, deprecated, schemas, feature_flag, guarantee } =
            event_type.details;
        Self {
            name: event_type.name,
            description,
            archived,
            deprecated,
            schemas,
            feature_flag,
            guarantee,
            created_at: DateTime(event_type.created_at),
            updated_at: DateTime(event_type.updated_at),
        }
    }
}
