//! Runs the handler: in a savepoint, under its deadline.
//!
//! Place in the path: the ledger said *new*; what comes out is stored as the outcome by the caller, last.
//! Invariants: a refusal leaves nothing of the effect but its answer; a statement that failed cannot pass for done, even
//! where the handler swallowed its error.

use std::time::Duration;

use twiceproof_shared::ledger::Outcome;
use twiceproof_shared::store::{Conn, StoreError, begin_effect, keep_effect, undo_effect};

use crate::event::Event;
use crate::handler::{AnyHandler, BoxError, HandlerError};

/// Runs the handler and says what to store.
///
/// # Errors
/// Everything must be rolled back then.
pub(crate) async fn run(
    conn: &mut Conn<'_>,
    handler: &dyn AnyHandler,
    event: &Event,
    deadline: Duration,
) -> Result<Outcome, EffectError> {
    let mark = begin_effect(conn).await?;
    let handled = tokio::time::timeout(deadline, handler.handle_boxed(conn, event)).await;
    let Ok(handled) = handled else {
        return Err(EffectError::MissedDeadline);
    };
    let reply = match handled {
        Ok(reply) => {
            keep_effect(conn, mark).await.map_err(|error| match error {
                StoreError::TransactionFailed(_) => EffectError::Failed(Box::new(error)),
                other => EffectError::Store(other),
            })?;
            reply
        }
        Err(HandlerError::Refuse(reply)) => {
            undo_effect(conn, mark).await?;
            reply
        }
        Err(HandlerError::Fail(error)) => {
            // Everything is rolled back anyway; this tells whether there is still something to roll back.
            return Err(match undo_effect(conn, mark).await {
                Err(StoreError::EndedByUnit) => EffectError::Store(StoreError::EndedByUnit),
                _ => EffectError::Failed(error),
            });
        }
    };
    reply.into_outcome().map_err(|error| EffectError::Failed(Box::new(error)))
}

/// Runs the handler without a savepoint of its own: its outcome, unless it refuses, fails or misses its deadline. Everything
/// must be rolled back then.
pub(crate) async fn run_bare(
    conn: &mut Conn<'_>,
    handler: &dyn AnyHandler,
    event: &Event,
    deadline: Duration,
) -> Option<Outcome> {
    let handled = tokio::time::timeout(deadline, handler.handle_boxed(conn, event)).await;
    handled.ok()?.ok()?.into_outcome().ok()
}

/// Why there is no effect.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EffectError {
    /// The handler failed, or replied what cannot be stored.
    #[error("the handler failed")]
    Failed(#[source] BoxError),
    /// The handler took longer than it may.
    #[error("the handler missed its deadline")]
    MissedDeadline,
    /// The database failed around the handler.
    #[error(transparent)]
    Store(#[from] StoreError),
}
