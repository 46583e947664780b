//! Messages: the events of an application.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::applications::{ApplicationIn, key};
use super::auth::{Caller, Operator};
use super::body::Body;
use super::brought::{brought, found_or_made, tenant};
use super::error::{ApiError, Problems};
use super::page::ListResponse;
use super::query::Query;
use super::time::DateTime;
use super::window::HistoryQuery;
use super::work::Work;
use crate::event::{InvalidEvent, NewEvent};
use crate::publish::{PublishError, Published};
use crate::store::history::{self, StoredEvent};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(get)).routes(routes!(expunge_content))
}

/// A message to be created.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MessageIn {
    event_type: String,
    /// A JSON object; it is stored, signed and sent byte for byte as it is written here.
    #[schema(value_type = Object)]
    payload: Box<RawValue>,
    /// Your own id: the same id is the same message.
    event_id: Option<String>,
    channels: Option<Vec<String>>,
    /// Our own addition: messages with the same key are delivered to each endpoint in order, each after the one before was taken or
    /// given up.
    ordering_key: Option<String>,
    /// Our own addition: from then on it is not sent any more.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<DateTime>,
    /// Not supported: a message is sent at once. Given, it is refused, rather than sent too early.
    #[schema(value_type = Option<String>)]
    deliver_at: Option<serde::de::IgnoredAny>,
    /// Made where the path names an application that is not there.
    application: Option<ApplicationIn>,
}

/// A message.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MessageOut {
    pub(super) id: String,
    pub(super) event_id: Option<String>,
    pub(super) event_type: String,
    /// What was published; `{}` where it was not asked for, `{"expired":true}` once it was expunged. A payload that is no JSON
    /// is a text here.
    #[schema(value_type = Object)]
    pub(super) payload: Box<RawValue>,
    pub(super) channels: Option<Vec<String>>,
    #[schema(value_type = String, format = DateTime)]
    pub(super) timestamp: DateTime,
}

/// What is answered.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(super) struct ContentQuery {
    /// With the payload.
    with_content: bool,
}

impl Default for ContentQuery {
    fn default() -> Self {
        Self { with_content: true }
    }
}

/// List messages, newest first
#[utoipa::path(get, path = "/api/v1/app/{app_id}/msg", operation_id = "v1.message.list", tag = "Message",
    params(("app_id" = String, Path, description = "Its id or uid"), HistoryQuery),
    responses((status = 200, body = ListResponse<MessageOut>), Problems))]
pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Path(app): Path<String>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<ListResponse<MessageOut>>, ApiError> {
    let read = query.events()?;
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let rows = history::events(conn, tenant.id.as_str(), &read.window()).await?;
    Ok(Json(read.page.answer(rows, |row| row.id.as_str(), |row| MessageOut::stored(row, read.with_content))))
}

/// Create a message
#[utoipa::path(post, path = "/api/v1/app/{app_id}/msg", operation_id = "v1.message.create", tag = "Message",
    params(("app_id" = String, Path, description = "Its id or uid"), ContentQuery), request_body = MessageIn,
    responses((status = 202, body = MessageOut), Problems))]
pub(super) async fn create(
    State(api): State<Api>,
    caller: Operator,
    work: Work,
    Path(app): Path<String>,
    Query(query): Query<ContentQuery>,
    Body(body): Body<MessageIn>,
) -> Result<(StatusCode, Json<MessageOut>), ApiError> {
    let event = body.event(api.store().now())?;
    let (published, event) = if work.is_lent() {
        // In the transaction that records the request's key.
        let brought = brought(&api, &caller, &app, body.application)?;
        let input = (api.clone(), caller, app, brought, event);
        let (published, event, wake) = work
            .run(input, |conn, input| {
                Box::pin(async move {
                    let (api, caller, app, brought, event) = &*input;
                    let tenant = found_or_made(conn, caller, app, brought.as_ref()).await?;
                    let event = NewEvent { tenant: tenant.id, ..event.clone() };
                    let (published, wake) = api.publisher().publish(conn, event.clone()).await.map_err(refused)?;
                    Ok((published, event, wake))
                })
            })
            .await?;
        work.wake(wake);
        (published, event)
    } else {
        let tenant = tenant(&api, &caller, &work, app, body.application).await?;
        let event = NewEvent { tenant: tenant.id, ..event };
        (api.publisher().publish_now(event.clone()).await.map_err(refused)?, event)
    };
    accepted(&published)?;
    Ok((StatusCode::ACCEPTED, Json(MessageOut::new(&event, &published.id, query.with_content))))
}

/// Get a message
#[utoipa::path(get, path = "/api/v1/app/{app_id}/msg/{msg_id}", operation_id = "v1.message.get", tag = "Message",
    params(("app_id" = String, Path, description = "Its id or uid"), ("msg_id" = String, Path, description = "Its id or eventId"), ContentQuery),
    responses((status = 200, body = MessageOut), Problems))]
pub(super) async fn get(
    State(api): State<Api>,
    caller: Caller,
    Path((app, message)): Path<(String, String)>,
    Query(query): Query<ContentQuery>,
) -> Result<Json<MessageOut>, ApiError> {
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let found = history::event(conn, tenant.id.as_str(), &message, query.with_content)
        .await?
        .ok_or_else(ApiError::not_found)?;
    Ok(Json(MessageOut::stored(found, query.with_content)))
}

/// Take the payload of a message away
///
/// Attempts under way end as they do; what waits is not sent any more.
#[utoipa::path(delete, path = "/api/v1/app/{app_id}/msg/{msg_id}/content", operation_id = "v1.message.expunge-content",
    tag = "Message",
    params(("app_id" = String, Path, description = "Its id or uid"), ("msg_id" = String, Path, description = "Its id or eventId")),
    responses((status = 204, description = "It is gone"), Problems))]
pub(super) async fn expunge_content(
    State(api): State<Api>,
    caller: Operator,
    work: Work,
    Path((app, message)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    work.run((api, caller, app, message), |conn, input| {
        Box::pin(async move {
            let (api, caller, app, message) = &*input;
            let tenant = caller.tenant(conn, app).await?;
            let tenant = tenant.id.as_str();
            let found = history::event(conn, tenant, message, false).await?.ok_or_else(ApiError::not_found)?;
            history::expunge_event(conn, tenant, &found.id, api.store().now()).await?;
            Ok(())
        })
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

impl MessageIn {
    /// Reads the fields. Whose it is shows later.
    fn event(&self, now: Timestamp) -> Result<NewEvent, ApiError> {
        let payload = self.payload.get();
        if !payload.starts_with('{') {
            return Err(ApiError::body("payload", "must be a JSON object"));
        }
        if self.deliver_at.is_some() {
            return Err(ApiError::body("deliverAt", "is not supported; messages are sent at once"));
        }
        let nobody = Key::new("-").map_err(|_| ApiError::not_found())?;
        let mut event = NewEvent::json(nobody, &self.event_type, Bytes::copy_from_slice(payload.as_bytes()));
        event.uid = self.event_id.clone().map(event_id).transpose()?;
        let channels = self.channels.iter().flatten().enumerate();
        let channel = |(place, text): (usize, &String)| key(&format!("channels.{place}"), "body", text.clone());
        event.channels = channels.map(channel).collect::<Result<_, _>>()?;
        event.ordering_key = self.ordering_key.clone().map(|text| key("orderingKey", "body", text)).transpose()?;
        event.expires_at = self.expires_at.map(|DateTime(expires_at)| expires_at);
        if event.expires_at.is_some_and(|expires_at| expires_at <= now) {
            return Err(ApiError::body("expiresAt", "is over already: nothing would be sent"));
        }
        Ok(event)
    }
}

fn event_id(text: String) -> Result<Key, ApiError> {
    let key = key("eventId", "body", text)?;
    match Id::parse(Prefix::Event, key.as_str()) {
        Ok(_) => Err(ApiError::body("eventId", "may not look like an id of ours")),
        Err(_) => Ok(key),
    }
}

/// What was accepted before is a conflict here, as the SDKs know it, with the id of the message that has the eventId.
fn accepted(published: &Published) -> Result<(), ApiError> {
    if published.fresh {
        return Ok(());
    }
    let detail = format!("This message was already accepted, as {}", published.id);
    Err(ApiError::conflict("already_accepted", detail))
}

/// The field that breaks a rule of events.
pub(super) fn refused(error: PublishError) -> ApiError {
    match error {
        PublishError::Invalid(invalid @ InvalidEvent::EventType) => ApiError::body("eventType", invalid.to_string()),
        PublishError::Invalid(invalid @ InvalidEvent::TooManyChannels) => {
            ApiError::body("channels", invalid.to_string())
        }
        PublishError::Invalid(invalid @ InvalidEvent::PayloadTooLarge { .. }) => {
            ApiError::http(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", invalid.to_string())
        }
        error => error.into(),
    }
}

impl MessageOut {
    /// A message that was just accepted.
    pub(super) fn new(event: &NewEvent, id: &Id, with_content: bool) -> Self {
        let channels: Vec<String> = event.channels.iter().map(Key::to_string).collect();
        Self {
            id: id.to_string(),
            event_id: event.uid.as_ref().map(Key::to_string),
            event_type: event.event_type.clone(),
            payload: payload(&event.payload, with_content, false),
            channels: (!channels.is_empty()).then_some(channels),
            timestamp: DateTime(id.minted_at()),
        }
    }

    /// A message as it is stored.
    pub(super) fn stored(event: StoredEvent, with_content: bool) -> Self {
        let channels: Vec<String> = serde_json::from_str(&event.channels).unwrap_or_default();
        // The time that its id tells, by which lists are bounded.
        let minted_at = Id::parse(Prefix::Event, &event.id).map(|id| id.minted_at());
        let timestamp = minted_at.unwrap_or(Timestamp::from_millis(event.created_at));
        Self {
            payload: payload(&event.payload, with_content, event.expunged_at.is_some()),
            id: event.id,
            event_id: event.uid,
            event_type: event.event_type,
            channels: (!channels.is_empty()).then_some(channels),
            timestamp: DateTime(timestamp),
        }
    }
}

/// A payload as it was published, byte for byte where it is JSON.
fn payload(bytes: &[u8], with_content: bool, expunged: bool) -> Box<RawValue> {
    let text = match (with_content, expunged) {
        (_, true) => r#"{"expired":true}"#.to_owned(),
        (false, false) => "{}".to_owned(),
        (true, false) => String::from_utf8_lossy(bytes).into_owned(),
    };
    RawValue::from_string(text).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(bytes);
        // A text always can be written as JSON.
        serde_json::value::to_raw_value(&text).unwrap_or_default()
    })
}
