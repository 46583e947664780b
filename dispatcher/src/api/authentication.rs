//! Access for the owners of applications.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::applications::ApplicationIn;
use super::auth::{Caller, Operator};
use super::body::Body;
use super::brought::{brought, found_or_made};
use super::error::{ApiError, Problems};
use super::token::Subject;
use super::work::Work;

/// How long a portal's token is valid.
const PORTAL_LIFE: Duration = Duration::from_secs(7 * 86_400);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(app_portal_access)).routes(routes!(logout))
}

/// What a portal may show.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AppPortalAccessIn {
    /// Made where the path names an application that is not there.
    application: Option<ApplicationIn>,
}

/// Access to a portal.
#[derive(Serialize, ToSchema)]
pub(super) struct AppPortalAccessOut {
    /// Speaks for the application for seven days.
    token: String,
    /// Where its owner goes: the token is behind the `#`, which browsers do not send.
    url: String,
}

/// Give the owner of an application access to it
///
/// The token allows to manage its endpoints, and to read and resend its messages; nothing of other applications.
#[utoipa::path(post, path = "/api/v1/auth/app-portal-access/{app_id}", operation_id = "v1.authentication.app-portal-access",
    tag = "Authentication", params(("app_id" = String, Path, description = "Its id or uid")),
    request_body = AppPortalAccessIn, responses((status = 200, body = AppPortalAccessOut), Problems))]
pub(super) async fn app_portal_access(
    State(api): State<Api>,
    caller: Operator,
    work: Work,
    Path(app): Path<String>,
    Body(AppPortalAccessIn { application }): Body<AppPortalAccessIn>,
) -> Result<Json<AppPortalAccessOut>, ApiError> {
    let brought = brought(&api, &caller, &app, application)?;
    let organisation = caller.organisation().clone();
    let tenant = work
        .run((caller, app, brought), |conn, input| {
            Box::pin(async move {
                let (caller, app, brought) = &*input;
                found_or_made(conn, caller, app, brought.as_ref()).await
            })
        })
        .await?;
    let now = api.store().now();
    let subject = Subject::Tenant { organisation, tenant: tenant.id };
    let token = api.keys().sign(&subject, now, now.plus(PORTAL_LIFE));
    let url = format!("{}/console#key={token}", api.public_url());
    Ok(Json(AppPortalAccessOut { token, url }))
}

/// End a portal's session
///
/// Tokens are not stored, so there is nothing to be forgotten here: the client forgets its own, which else ends by its time.
#[utoipa::path(post, path = "/api/v1/auth/logout", operation_id = "v1.authentication.logout", tag = "Authentication",
    responses((status = 204, description = "Forget the token"), Problems))]
pub(super) async fn logout(_: Caller) -> StatusCode {
    StatusCode::NO_CONTENT
}
