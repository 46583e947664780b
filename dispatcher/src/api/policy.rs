//! What the server goes by: for receivers, who have to remember a message for longer than it may still come.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::auth::Caller;
use super::error::Problems;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get))
}

/// What the server goes by, in seconds. An endpoint's own policy goes before it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PolicyOut {
    /// How long after its creation a delivery is tried.
    horizon: u64,
    /// The waits between attempts, each spread between half of it and the whole.
    schedule: Vec<f64>,
    /// Whether the last wait comes again until the horizon ends.
    repeats_last: bool,
    /// The deadline of one attempt.
    timeout: f64,
    /// How long messages are kept after they were accepted; null where this process does not know.
    event_retention: Option<u64>,
    /// How long a receiver has to remember a message at least: 1.2 times the horizon. A message that is sent again by hand, or by
    /// a replay, may come as long as messages are kept.
    shortest_receiver_retention: u64,
}

/// Get the schedule, horizon and retention of the server
#[utoipa::path(get, path = "/api/v1/policy", operation_id = "v1.policy.get", tag = "Policy",
    responses((status = 200, body = PolicyOut), Problems))]
pub(super) async fn get(State(api): State<Api>, _: Caller) -> Json<PolicyOut> {
    let policy = api.manager().policy();
    Json(PolicyOut {
        horizon: policy.horizon.as_secs(),
        schedule: policy.schedule.delays().iter().map(|wait| wait.as_secs_f64()).collect(),
        repeats_last: policy.schedule.repeats_last(),
        timeout: policy.timeout.as_secs_f64(),
        event_retention: api.event_retention().map(|kept| kept.as_secs()),
        shortest_receiver_retention: policy.shortest_retention().as_secs(),
    })
}
