//! Attempts: what was tried for a message or at an endpoint, and trying again.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Serialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::Conn;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::auth::Caller;
use super::endpoints::EndpointOut;
use super::error::{ApiError, Problems};
use super::messages::MessageOut;
use super::page::{ListResponse, Ordering, PageQuery};
use super::query::Query;
use super::time::DateTime;
use super::window::HistoryQuery;
use super::work::Work;
use crate::manage::ManageError;
use crate::manage::tenants::Tenant;
use crate::store::history::{self, AttemptsOf, OwedEvent, StoredAttempt, StoredEvent};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list_by_endpoint))
        .routes(routes!(list_by_msg))
        .routes(routes!(get))
        .routes(routes!(expunge_content))
        .routes(routes!(list_attempted_messages))
        .routes(routes!(list_attempted_destinations))
        .routes(routes!(resend))
}

/// An attempt.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MessageAttemptOut {
    id: String,
    endpoint_id: String,
    msg_id: String,
    /// Where the endpoint is now; empty where it was deleted.
    url: String,
    /// The first bytes of the answer as a text, U+FFFD for what is no UTF-8; or why there was none.
    response: String,
    /// 0 where there was no answer.
    response_status_code: u16,
    response_duration_ms: u64,
    /// Our own addition: so many milliseconds after the start the host's name was resolved; null where there was a connection.
    resolved_ms: Option<i64>,
    /// Our own addition: and the connection stood, with TLS.
    connected_ms: Option<i64>,
    /// Our own addition: and the head of the answer had come.
    answered_ms: Option<i64>,
    /// 0: success, 2: fail.
    status: u8,
    status_text: &'static str,
    /// 0: by the schedule, 1: by hand.
    trigger_type: u8,
    #[schema(value_type = String, format = DateTime)]
    timestamp: DateTime,
}

/// A message of an endpoint, and how far it is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointMessageOut {
    #[serde(flatten)]
    progress: Progress,
    id: String,
    event_id: Option<String>,
    event_type: String,
    #[schema(value_type = Object)]
    payload: Box<serde_json::value::RawValue>,
    channels: Option<Vec<String>>,
    #[schema(value_type = String, format = DateTime)]
    timestamp: DateTime,
}

/// An endpoint of a message, and how far it is there.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MessageEndpointOut {
    #[serde(flatten)]
    endpoint: EndpointOut,
    #[serde(flatten)]
    progress: Progress,
}

/// How far a message is at an endpoint.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Progress {
    /// 0: success, 1: pending, 2: fail, 3: sending.
    status: u8,
    status_text: &'static str,
    /// When it is tried next, as far as that is known.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt: Option<DateTime>,
}

/// Nothing.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EmptyResponse {}

/// List the attempts at an endpoint, newest first
#[utoipa::path(get, path = "/api/v1/app/{app_id}/attempt/endpoint/{endpoint_id}",
    operation_id = "v1.message-attempt.list-by-endpoint", tag = "Message Attempt",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid"), HistoryQuery),
    responses((status = 200, body = ListResponse<MessageAttemptOut>), Problems))]
pub(super) async fn list_by_endpoint(
    State(api): State<Api>,
    caller: Caller,
    Path((app, endpoint)): Path<(String, String)>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<ListResponse<MessageAttemptOut>>, ApiError> {
    let read = query.attempts()?;
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let endpoint = api.manager().find(conn, &tenant.id, &endpoint).await?;
    let of = AttemptsOf::Endpoint(&endpoint.id);
    let rows = history::attempts(conn, tenant.id.as_str(), of, read.class, &read.window()).await?;
    let url = endpoint.expose_url();
    let entry = |row| MessageAttemptOut::new(row, url.to_owned());
    Ok(Json(read.page.answer(rows, |row| row.id.as_str(), entry)))
}

/// List the attempts for a message, newest first
#[utoipa::path(get, path = "/api/v1/app/{app_id}/attempt/msg/{msg_id}", operation_id = "v1.message-attempt.list-by-msg",
    tag = "Message Attempt",
    params(("app_id" = String, Path, description = "Its id or uid"), ("msg_id" = String, Path, description = "Its id or eventId"), HistoryQuery),
    responses((status = 200, body = ListResponse<MessageAttemptOut>), Problems))]
pub(super) async fn list_by_msg(
    State(api): State<Api>,
    caller: Caller,
    Path((app, message)): Path<(String, String)>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<ListResponse<MessageAttemptOut>>, ApiError> {
    let read = query.attempts()?;
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let event = event(conn, &tenant, &message).await?;
    let endpoint = match &read.endpoint {
        Some(name) => api.manager().find(conn, &tenant.id, name).await?.id,
        None => String::new(),
    };
    let of = AttemptsOf::Event(&event.id, &endpoint);
    let rows = history::attempts(conn, tenant.id.as_str(), of, read.class, &read.window()).await?;
    let mut urls = Urls::default();
    for row in &rows {
        urls.look_up(&api, conn, &tenant, &row.endpoint).await?;
    }
    let entry = |row: StoredAttempt| {
        let url = urls.of(&row.endpoint);
        MessageAttemptOut::new(row, url)
    };
    Ok(Json(read.page.answer(rows, |row| row.id.as_str(), entry)))
}

/// Get an attempt
#[utoipa::path(get, path = "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}", operation_id = "v1.message-attempt.get",
    tag = "Message Attempt",
    params(("app_id" = String, Path, description = "Its id or uid"), ("msg_id" = String, Path, description = "Its id or eventId"), ("attempt_id" = String, Path)),
    responses((status = 200, body = MessageAttemptOut), Problems))]
pub(super) async fn get(
    State(api): State<Api>,
    caller: Caller,
    Path((app, message, attempt)): Path<(String, String, String)>,
) -> Result<Json<MessageAttemptOut>, ApiError> {
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let event = event(conn, &tenant, &message).await?;
    let found =
        history::attempt(conn, tenant.id.as_str(), &event.id, &attempt).await?.ok_or_else(ApiError::not_found)?;
    let mut urls = Urls::default();
    urls.look_up(&api, conn, &tenant, &found.endpoint).await?;
    let url = urls.of(&found.endpoint);
    Ok(Json(MessageAttemptOut::new(found, url)))
}

/// Take the body of an attempt's answer away
#[utoipa::path(delete, path = "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}/content",
    operation_id = "v1.message-attempt.expunge-content", tag = "Message Attempt",
    params(("app_id" = String, Path, description = "Its id or uid"), ("msg_id" = String, Path, description = "Its id or eventId"), ("attempt_id" = String, Path)),
    responses((status = 204, description = "It is gone"), Problems))]
pub(super) async fn expunge_content(
    caller: Caller,
    work: Work,
    Path((app, message, attempt)): Path<(String, String, String)>,
) -> Result<StatusCode, ApiError> {
    work.run((caller, app, message, attempt), |conn, input| {
        Box::pin(async move {
            let (caller, app, message, attempt) = &*input;
            let tenant = caller.tenant(conn, app).await?;
            let event = event(conn, &tenant, message).await?;
            match history::expunge_attempt(conn, tenant.id.as_str(), &event.id, attempt).await? {
                true => Ok(()),
                false => Err(ApiError::not_found()),
            }
        })
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the messages that an endpoint was or is sent, newest first
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/msg",
    operation_id = "v1.message-attempt.list-attempted-messages", tag = "Message Attempt",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid"), HistoryQuery),
    responses((status = 200, body = ListResponse<EndpointMessageOut>), Problems))]
pub(super) async fn list_attempted_messages(
    State(api): State<Api>,
    caller: Caller,
    Path((app, endpoint)): Path<(String, String)>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<ListResponse<EndpointMessageOut>>, ApiError> {
    let read = query.deliveries()?;
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let endpoint = api.manager().find(conn, &tenant.id, &endpoint).await?;
    let rows = history::owed(conn, tenant.id.as_str(), &endpoint.id, &read.window()).await?;
    let entry = |row| EndpointMessageOut::new(row, read.with_content);
    Ok(Json(read.page.answer(rows, |row| row.event.id.as_str(), entry)))
}

/// List the endpoints that a message was or is sent to
#[utoipa::path(get, path = "/api/v1/app/{app_id}/msg/{msg_id}/endpoint",
    operation_id = "v1.message-attempt.list-attempted-destinations", tag = "Message Attempt",
    params(("app_id" = String, Path, description = "Its id or uid"), ("msg_id" = String, Path, description = "Its id or eventId"), PageQuery),
    responses((status = 200, body = ListResponse<MessageEndpointOut>), Problems))]
pub(super) async fn list_attempted_destinations(
    State(api): State<Api>,
    caller: Caller,
    Path((app, message)): Path<(String, String)>,
    Query(query): Query<PageQuery>,
) -> Result<Json<ListResponse<MessageEndpointOut>>, ApiError> {
    let page = query.page(Ordering::Ascending)?;
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let event = event(conn, &tenant, &message).await?;
    let rows = history::destinations(conn, tenant.id.as_str(), &event.id, (&page.from, page.down), page.rows()).await?;
    let mut found = Vec::with_capacity(rows.len());
    for (endpoint, state, due_at) in rows {
        match api.manager().get(conn, &tenant.id, &endpoint).await {
            Ok(endpoint) => found.push((endpoint, Progress::of(&state, due_at))),
            // It was deleted.
            Err(ManageError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let entry = |(endpoint, progress)| MessageEndpointOut { endpoint: EndpointOut::from(endpoint), progress };
    Ok(Json(page.answer(found, |(endpoint, _)| endpoint.id.as_str(), entry)))
}

/// Send a message to an endpoint again, under the same id
///
/// The automatic schedule stays as it is: where this attempt fails, the next one is made when it was due anyway. An endpoint
/// that never was to get the message gets it now. Where an attempt is under way already, nothing more happens.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend",
    operation_id = "v1.message-attempt.resend", tag = "Message Attempt",
    params(("app_id" = String, Path, description = "Its id or uid"), ("msg_id" = String, Path, description = "Its id or eventId"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    responses((status = 202, body = EmptyResponse), Problems))]
pub(super) async fn resend(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path((app, message, endpoint)): Path<(String, String, String)>,
) -> Result<(StatusCode, Json<EmptyResponse>), ApiError> {
    let wake = work
        .run((api, caller, app, message, endpoint), |conn, input| {
            Box::pin(async move {
                let (api, caller, app, message, name) = &*input;
                let tenant = caller.tenant(conn, app).await?;
                let event = event(conn, &tenant, message).await?;
                let endpoint = api.manager().find(conn, &tenant.id, name).await?;
                if !endpoint.enabled {
                    let detail = "The endpoint is disabled; what waits for it is sent once it is resumed";
                    return Err(ApiError::conflict("endpoint_disabled", detail));
                }
                if event.expunged_at.is_some() {
                    return Err(ApiError::conflict("content_expunged", "The message's payload was taken away"));
                }
                Ok(api.publisher().resend(conn, &tenant.id, &event.id, &endpoint.id).await?)
            })
        })
        .await?;
    work.wake(wake);
    Ok((StatusCode::ACCEPTED, Json(EmptyResponse {})))
}

async fn event(conn: &mut Conn<'_>, tenant: &Tenant, name: &str) -> Result<StoredEvent, ApiError> {
    history::event(conn, tenant.id.as_str(), name, false).await?.ok_or_else(ApiError::not_found)
}

/// The URLs of a few endpoints.
#[derive(Default)]
struct Urls(std::collections::HashMap<String, String>);

impl Urls {
    async fn look_up(&mut self, api: &Api, conn: &mut Conn<'_>, tenant: &Tenant, id: &str) -> Result<(), ApiError> {
        if self.0.contains_key(id) {
            return Ok(());
        }
        let url = match api.manager().get(conn, &tenant.id, id).await {
            Ok(endpoint) => endpoint.expose_url().to_owned(),
            Err(ManageError::NotFound) => String::new(),
            Err(error) => return Err(error.into()),
        };
        self.0.insert(id.to_owned(), url);
        Ok(())
    }

    fn of(&self, id: &str) -> String {
        self.0.get(id).cloned().unwrap_or_default()
    }
}

impl MessageAttemptOut {
    fn new(row: StoredAttempt, url: String) -> Self {
        let is_success = row.outcome == "delivered";
        let body = row.response.as_deref().map(String::from_utf8_lossy);
        let response = body.map_or_else(|| row.error.clone().unwrap_or_default(), std::borrow::Cow::into_owned);
        Self {
            id: row.id,
            endpoint_id: row.endpoint,
            msg_id: row.event,
            url,
            response,
            response_status_code: row.status.and_then(|status| u16::try_from(status).ok()).unwrap_or(0),
            response_duration_ms: u64::try_from(row.ended_at - row.started_at).unwrap_or(0),
            resolved_ms: row.resolved_ms,
            connected_ms: row.connected_ms,
            answered_ms: row.answered_ms,
            status: if is_success { 0 } else { 2 },
            status_text: if is_success { "success" } else { "fail" },
            trigger_type: u8::from(row.by_hand != 0),
            timestamp: DateTime(Timestamp::from_millis(row.started_at)),
        }
    }
}

impl EndpointMessageOut {
    fn new(row: OwedEvent, with_content: bool) -> Self {
        let progress = Progress::of(&row.state, row.due_at);
        let MessageOut { id, event_id, event_type, payload, channels, timestamp } =
            MessageOut::stored(row.event, with_content);
        Self { progress, id, event_id, event_type, payload, channels, timestamp }
    }
}

impl Progress {
    fn of(state: &str, due_at: i64) -> Self {
        let (status, status_text) = match state {
            "delivered" => (0, "success"),
            "dead" => (2, "fail"),
            "leased" => (3, "sending"),
            _ => (1, "pending"),
        };
        let is_known = matches!(state, "backoff" | "pending");
        let next_attempt = is_known.then(|| DateTime::from_millis(due_at));
        Self { status, status_text, next_attempt }
    }
}
