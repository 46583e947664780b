//! Who asks, and for which tenant.
//!
//! Place in the path: extractors, before the body is read.
//! Invariants: no handler finds a tenant but through [`Caller::tenant`], which looks in the caller's organisation only, and for
//! a portal's token at its one tenant only. What the caller may not see is *not found*.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use twiceproof_shared::id::Id;
use twiceproof_shared::store::Conn;

use super::Api;
use super::error::ApiError;
use super::token::Subject;
use crate::manage::tenants::{self, Tenant};

/// Whoever has a valid token.
#[derive(Debug, Clone)]
pub(super) struct Caller(Subject);

/// A caller who speaks for the whole organisation.
#[derive(Debug, Clone)]
pub(super) struct Operator(Caller);

impl Caller {
    /// The organisation, which owns all that the caller can see.
    pub(super) fn organisation(&self) -> &Id {
        match &self.0 {
            Subject::Organisation(organisation) | Subject::Tenant { organisation, .. } => organisation,
        }
    }

    /// A tenant by its id or uid.
    pub(super) async fn tenant(&self, conn: &mut Conn<'_>, id_or_uid: &str) -> Result<Tenant, ApiError> {
        let found = tenants::find(conn, self.organisation(), id_or_uid).await?.ok_or_else(ApiError::not_found)?;
        match &self.0 {
            Subject::Tenant { tenant, .. } if *tenant != found.id => Err(ApiError::not_found()),
            _ => Ok(found),
        }
    }
}

impl Operator {
    /// The organisation.
    pub(super) fn organisation(&self) -> &Id {
        self.0.organisation()
    }

    /// A tenant by its id or uid.
    pub(super) async fn tenant(&self, conn: &mut Conn<'_>, id_or_uid: &str) -> Result<Tenant, ApiError> {
        self.0.tenant(conn, id_or_uid).await
    }
}

impl FromRequestParts<Api> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        subject(parts, api).map(Self)
    }
}

/// Who the request's token speaks for.
pub(super) fn subject(parts: &Parts, api: &Api) -> Result<Subject, ApiError> {
    let token = bearer(parts).ok_or_else(|| refused("the request has no `Authorization: Bearer` token"))?;
    api.keys().judge(token, api.store().now()).map_err(|invalid| refused(&invalid.to_string()))
}

impl FromRequestParts<Api> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, api).await?;
        match caller.0 {
            Subject::Organisation(_) => Ok(Self(caller)),
            Subject::Tenant { .. } => {
                let detail = "The token speaks for one application; this needs a token of the organisation.";
                Err(ApiError::http(StatusCode::FORBIDDEN, "permission_denied", detail))
            }
        }
    }
}

/// The token; the name of the scheme is compared without its case (RFC 9110, section 11.1).
fn bearer(parts: &Parts) -> Option<&str> {
    let mut values = parts.headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    // Two of them: nobody knows which one a proxy has looked at.
    (values.next().is_none() && scheme.eq_ignore_ascii_case("bearer")).then(|| token.trim())
}

fn refused(detail: &str) -> ApiError {
    ApiError::http(StatusCode::UNAUTHORIZED, "authentication_failed", format!("Authentication failed: {detail}."))
}
