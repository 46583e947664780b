//! A unit of work that calls back into its own store would wait for itself: it is refused instead.

use super::StoreError;

tokio::task_local! {
    static INSIDE: ();
}

/// Runs a unit, marked.
pub(super) async fn inside<F: Future>(unit: F) -> F::Output {
    INSIDE.scope((), unit).await
}

/// Refuses a call that comes from inside a unit.
pub(super) fn refuse() -> Result<(), StoreError> {
    match INSIDE.try_with(|()| ()) {
        Ok(()) => Err(StoreError::Reentrant),
        Err(_) => Ok(()),
    }
}
