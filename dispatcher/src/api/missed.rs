//! What an endpoint missed: messages that it takes and has not got, each with the reason.

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::auth::Caller;
use super::error::{ApiError, Problems};
use super::messages::MessageOut;
use super::page::ListResponse;
use super::query::Query;
use super::window::HistoryQuery;
use crate::store::history::{self, MissedEvent};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list))
}

/// A message that an endpoint takes and has not got.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MissedMessageOut {
    /// `neverOwed`: it was published before the endpoint or its filter; `parked`: it waits for the endpoint to be enabled;
    /// `dead`: it is not tried any more.
    missed: &'static str,
    /// Why it is parked or dead, such as `endpoint_disabled`, `horizon` or `expired`.
    reason: Option<String>,
    #[serde(flatten)]
    message: MessageOut,
}

/// List what an endpoint missed, newest first
///
/// What waits for its next attempt is not missed. A page looks at a bounded number of messages: it may be short or empty and
/// have an iterator all the same.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/missed", operation_id = "v1.endpoint.missed",
    tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid"), HistoryQuery),
    responses((status = 200, body = ListResponse<MissedMessageOut>), Problems))]
pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Path((app, endpoint)): Path<(String, String)>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<ListResponse<MissedMessageOut>>, ApiError> {
    let read = query.events()?;
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let endpoint = api.manager().find(conn, &tenant.id, &endpoint).await?;
    let (rows, end) = history::missed(conn, tenant.id.as_str(), &endpoint.id, &read.window()).await?;
    let page = read.page.answer(rows, |row| row.event.id.as_str(), |row| MissedMessageOut::new(row, read.with_content));
    Ok(Json(page.stopped_at(&read.page, end)))
}

impl MissedMessageOut {
    fn new(row: MissedEvent, with_content: bool) -> Self {
        let missed = match row.state.as_deref() {
            None => "neverOwed",
            Some("parked") => "parked",
            Some(_) => "dead",
        };
        Self { missed, reason: row.state_reason, message: MessageOut::stored(row.event, with_content) }
    }
}
