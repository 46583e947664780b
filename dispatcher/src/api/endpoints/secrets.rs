//! The secret of an endpoint, and its rotation.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{PrivateKey, SigningKey};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::model::secret;
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::body::Body;
use crate::api::error::{ApiError, Problems};
use crate::api::work::Work;
use crate::manage::ManageError;
use crate::store::secrets::SecretKey;

/// How long the old secret signs beside the new one when nobody says otherwise.
const USUAL_GRACE: u32 = 86_400;
/// The longest time for which it does.
const LONGEST_GRACE: u32 = 604_800;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get)).routes(routes!(rotate))
}

/// What verifies an endpoint's signatures.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct EndpointSecretOut {
    /// `whsec_…`, or where a private key signs, its public half `whpk_…`.
    key: String,
}

impl EndpointSecretOut {
    fn of(secret: &SigningKey) -> Self {
        Self { key: secret.public().map_or_else(|| secret.to_text().to_string(), |public| public.to_text()) }
    }
}

/// What signs from now on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct EndpointSecretRotateIn {
    /// `whsec_…` or `whsk_…`; made if it is left out, of the kind that it takes the place of.
    key: Option<String>,
    /// How long the old one signs beside it: 0 to 604,800 seconds, a day if it is left out.
    grace_period_seconds: Option<u32>,
}

/// Get an endpoint's secret
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret", operation_id = "v1.endpoint.get-secret",
    tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    responses((status = 200, body = EndpointSecretOut), Problems))]
pub(in crate::api) async fn get(
    State(api): State<Api>,
    caller: Caller,
    Path((app, endpoint)): Path<(String, String)>,
) -> Result<Json<EndpointSecretOut>, ApiError> {
    let mut reader = api.store().read().await?;
    let conn = &mut reader.conn();
    let tenant = caller.tenant(conn, &app).await?;
    let endpoint = api.manager().find(conn, &tenant.id, &endpoint).await?;
    let secret = api.manager().newest_secret(conn, &tenant.id, &endpoint.id).await?;
    Ok(Json(EndpointSecretOut::of(&secret)))
}

/// Give an endpoint a new secret
///
/// For the grace period both sign each message, so that receivers can change over without missing any.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret/rotate",
    operation_id = "v1.endpoint.rotate-secret", tag = "Endpoint",
    params(("app_id" = String, Path, description = "Its id or uid"), ("endpoint_id" = String, Path, description = "Its id or uid")),
    request_body = EndpointSecretRotateIn, responses((status = 200, body = EndpointSecretOut), Problems))]
pub(in crate::api) async fn rotate(
    State(api): State<Api>,
    caller: Caller,
    work: Work,
    Path((app, endpoint)): Path<(String, String)>,
    Body(body): Body<EndpointSecretRotateIn>,
) -> Result<Json<EndpointSecretOut>, ApiError> {
    let grace = body.grace_period_seconds.unwrap_or(USUAL_GRACE);
    if grace > LONGEST_GRACE {
        return Err(ApiError::body("gracePeriodSeconds", format!("lies between 0 and {LONGEST_GRACE}")));
    }
    let given = body.key.as_deref().map(secret).transpose()?;
    // Made before the unit, which may run again; of both kinds, since the old one shows inside.
    let random = api.store().random();
    let made = (SigningKey::from(Secret::generate(random)), SigningKey::from(PrivateKey::generate(random)));
    let key_id = api.manager().mint_key_id().map_err(|_| ManageError::SecretIdTaken)?;
    let old_until = api.store().now().plus(Duration::from_secs(grace.into()));
    let new = work
        .run((api, caller, app, endpoint, given, made, key_id, old_until), |conn, input| {
            Box::pin(async move {
                let (api, caller, app, name, given, (shared, private), key_id, old_until) = &*input;
                let tenant = caller.tenant(conn, app).await?;
                let endpoint = api.manager().find(conn, &tenant.id, name).await?;
                let new = match given {
                    Some(given) => given,
                    None => match api.manager().newest_secret(conn, &tenant.id, &endpoint.id).await {
                        Ok(old) if old.public().is_some() && !endpoint.signing.needs_shared_secret() => private,
                        Ok(_) | Err(ManageError::NotFound) => shared,
                        Err(error) => return Err(error.into()),
                    },
                };
                let key = SecretKey { tenant: tenant.id.as_str(), endpoint: &endpoint.id, key_id };
                api.manager().rotate_secret(conn, key, new, *old_until).await?;
                Ok(new.clone())
            })
        })
        .await?;
    // Older SDKs know this as an answer without a body, newer ones read the new secret from it.
    Ok(Json(EndpointSecretOut::of(&new)))
}
