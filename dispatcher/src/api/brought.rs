//! Applications that a request brings along: made where the path names one that is not there.
//!
//! Invariants: what is there is never changed; many requests at once that bring the same one make it once.

use twiceproof_shared::store::Conn;

use super::Api;
use super::applications::{ApplicationIn, key};
use super::auth::Operator;
use super::error::ApiError;
use super::work::Work;
use crate::manage::ManageError;
use crate::manage::tenants::{self, NewTenant, Tenant, TenantDetails};

/// The tenant of a message, made where it is not there and the message brings it.
pub(super) async fn tenant(
    api: &Api,
    caller: &Operator,
    work: &Work,
    app: String,
    application: Option<ApplicationIn>,
) -> Result<Tenant, ApiError> {
    let found = caller.tenant(&mut api.store().read().await?.conn(), &app).await;
    if found.is_ok() || application.is_none() {
        return found;
    }
    let brought = brought(api, caller, &app, application)?;
    work.run((caller.clone(), app, brought), |conn, input| {
        Box::pin(async move {
            let (caller, app, brought) = &*input;
            found_or_made(conn, caller, app, brought.as_ref()).await
        })
    })
    .await
}

/// The application that a request brings, under the uid of the path. It has its id, so a unit that makes it may run again.
pub(super) fn brought(
    api: &Api,
    caller: &Operator,
    app: &str,
    application: Option<ApplicationIn>,
) -> Result<Option<NewTenant>, ApiError> {
    let Some(application) = application else { return Ok(None) };
    let uid = key("app_id", "path", app.to_owned())?;
    let details = TenantDetails { uid: Some(uid), ..application.details()? };
    Ok(Some(NewTenant::new(api.store(), caller.organisation(), details)?))
}

/// The tenant that the path names, or the one that the request brings. Of many at once that bring it, one makes it.
pub(super) async fn found_or_made(
    conn: &mut Conn<'_>,
    caller: &Operator,
    app: &str,
    brought: Option<&NewTenant>,
) -> Result<Tenant, ApiError> {
    let (missing, new) = match (caller.tenant(conn, app).await, brought) {
        (Err(missing), Some(new)) => (missing, new),
        (found, _) => return found,
    };
    match new.create(conn).await {
        Err(ManageError::UidTaken(_)) => tenants::find(conn, caller.organisation(), app).await?.ok_or(missing),
        made => Ok(made?),
    }
}
