//! How a transaction ends where it does not simply commit: rolled back, without an answer, or by the handler's hand.
//!
//! Place in the path: behind [`once`](super::once).
//! Invariants: what may have been committed is never run again by us; an answer is given only where it was found.

use std::sync::Arc;
use std::time::Duration;

use twiceproof_shared::causes::chain;
use twiceproof_shared::ledger::{self, Outcome};
use twiceproof_shared::store::{StoreError, Tx};

use super::once::Once;
use super::sealed;

/// How long a rollback may take before its connection is closed instead, which rolls back too.
const ROLLBACK_WAIT: Duration = Duration::from_secs(1);
/// The pauses between the looks at what became of a commit.
const LOOKS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(50), Duration::from_millis(200)];

impl Once {
    /// What is stored under the key, after a commit that got no answer. None: nothing, or nobody can tell now.
    pub(super) async fn found(&self) -> Option<Outcome> {
        for pause in LOOKS {
            tokio::time::sleep(pause).await;
            let Ok(mut reader) = self.settings.store.read().await else { continue };
            if let Ok(Some(ledger::Answer::Replay(replay))) = ledger::peek(&mut reader.conn(), &self.asked).await
                && let Some(outcome) = replay.outcome
            {
                return sealed::open(&self.settings.store, &self.asked.key, outcome).ok();
            }
        }
        tracing::warn!("it is not known whether a request was committed; its client is told to repeat it");
        None
    }

    /// Keeps a key whose handler may have committed something by itself: it stays in flight until somebody looks.
    pub(super) async fn hold(&self) {
        let asked = Arc::new(self.asked.clone());
        let store = self.settings.store.clone();
        let now = store.now();
        let held: Result<ledger::Answer, StoreError> = store
            .run(move |conn| {
                let asked = Arc::clone(&asked);
                Box::pin(async move { ledger::accept(conn, &asked, now).await })
            })
            .await;
        tracing::error!(
            held = held.is_ok(),
            "a handler ended the transaction that it was lent; its key stays in flight"
        );
    }
}

/// Rolls back. Where that is not acknowledged, the connection is closed, which rolls back too.
pub(super) async fn undo(tx: Option<Tx>) {
    let Some(tx) = tx else { return };
    match tokio::time::timeout(ROLLBACK_WAIT, tx.rollback()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error = %chain(&error), "a rollback failed; the connection was closed"),
        Err(_) => tracing::warn!("a rollback was not acknowledged in time; the connection was closed"),
    }
}
