//! The desk of [`publish_now`](super::Publisher::publish_now): events that come while a commit is under way share the next
//! one, and its few statements.
//!
//! Place in the path: around publish's own; a host's transaction never comes here.
//! Invariants: each caller gets the answer of its own event, after the commit; a batch that fails, for whatever reason, goes
//! again one by one, where each event is found by its id if the first commit had happened, and where it cannot be looked
//! for, its answer stays unknown; an event that has to wait for somebody else's transaction keeps no other waiting.

use std::sync::Arc;

use futures_util::future;
use twiceproof_shared::causes::chain;
use twiceproof_shared::desk::{self, Serving};
use twiceproof_shared::kill;
use twiceproof_shared::store::StoreError;

use super::{MOST_BYTES, PublishError, Published, Publisher, Ready};
use crate::store::events;

/// The most events of one transaction.
const MOST_AT_ONCE: usize = 128;

type Answer = Result<Published, PublishError>;
type Waiting = desk::Waiting<Arc<Ready>, Answer>;
/// Events that wait for the next transaction.
pub(super) type Desk = desk::Desk<Arc<Ready>, Answer>;

/// Puts the event among those that wait, and waits for its answer.
pub(super) async fn publish(publisher: &Publisher, ready: Arc<Ready>) -> Answer {
    // A unit of work that waited for this desk would wait for itself.
    publisher.store.refuse_inside_unit()?;
    let answer = publisher.desk.ask(ready, |serving| serve(serving, publisher.clone())).await;
    answer.unwrap_or_else(|| Err(StoreError::Closed.into()))
}

async fn serve(mut serving: Serving<Arc<Ready>, Answer>, publisher: Publisher) {
    loop {
        let (mut count, mut bytes) = (0, 0);
        let batch = serving.next(|ready| {
            count += 1;
            bytes += ready.event.payload.len();
            count <= MOST_AT_ONCE && bytes <= MOST_BYTES
        });
        if batch.is_empty() {
            return;
        }
        together(&publisher, batch).await;
    }
}

/// `is_unknown`: they may be committed together already.
async fn alone(publisher: &Publisher, batch: Vec<Waiting>, is_unknown: bool) {
    let each = batch.into_iter().map(async |one| {
        let answer = publisher.publish_alone(Arc::clone(&one.item)).await;
        one.answer(answer.map_err(|error| match error {
            PublishError::Store(error) if is_unknown => error.while_unknown().into(),
            other => other,
        }));
    });
    future::join_all(each).await;
}

async fn together(publisher: &Publisher, mut batch: Vec<Waiting>) {
    let is_single = batch.len() == 1;
    let ready: Arc<Vec<Arc<Ready>>> = Arc::new(batch.iter().map(|one| Arc::clone(&one.item)).collect());
    let worker = publisher.clone();
    let shared = publisher.store.run_own(move |conn| {
        let (publisher, ready) = (worker.clone(), Arc::clone(&ready));
        Box::pin(async move {
            // An uncommitted twin would make us wait, and all others with us: then each goes alone, beside the desk.
            events::give_way(conn).await?;
            let published = publisher.insert_all(conn, &ready).await?;
            kill::at("publish_before_commit");
            Ok::<_, PublishError>(published)
        })
    });
    match shared.await {
        Ok((answers, wake)) => {
            kill::at("publish_after_commit");
            wake.send();
            for (one, answer) in batch.into_iter().zip(answers) {
                one.answer(answer.map_err(PublishError::Conflict));
            }
        }
        Err(error) => {
            let is_busy = matches!(error, PublishError::Store(StoreError::Busy(_)));
            if let Some(one) = batch.pop_if(|_| !is_busy && is_single) {
                one.answer(Err(error));
                return;
            }
            tracing::debug!(error = %chain(&error), events = batch.len(), "events that shared a transaction are published one by one");
            let is_unknown = matches!(error, PublishError::Store(StoreError::Unknown(_)));
            let publisher = publisher.clone();
            tokio::spawn(async move { alone(&publisher, batch, is_unknown).await });
        }
    }
}
