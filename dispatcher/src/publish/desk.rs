//! The desk of [`publish_now`](super::Publisher::publish_now): events that come while a commit is under way share the next
//! one, and its few statements.
//!
//! Place in the path: around publish's own; a host's transaction never comes here.
//! Invariants: nobody waits for company (an event that comes to an idle desk goes at once); each caller gets the answer of
//! its own event, after the commit; a batch that fails, for whatever reason, goes again one by one, where each event is
//! found by its id if the first commit had happened; an event that has to wait for somebody else's transaction keeps no
//! other waiting.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future;
use tokio::sync::oneshot;
use twiceproof_shared::kill;
use twiceproof_shared::store::StoreError;

use super::{MOST_BYTES, PublishError, Published, Publisher, Ready};
use crate::store::events;

/// The most events of one transaction.
const MOST_AT_ONCE: usize = 128;

type Answer = Result<Published, PublishError>;

/// An event and its waiting caller.
#[derive(Debug)]
struct Waiting {
    ready: Arc<Ready>,
    answer: oneshot::Sender<Answer>,
}

/// Events that wait for the next transaction. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Desk(Arc<Mutex<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Somebody works through them.
    is_served: bool,
}

impl Desk {
    /// Puts the event among those that wait, and waits for its answer.
    pub(super) async fn publish(&self, publisher: &Publisher, ready: Arc<Ready>) -> Answer {
        // A unit of work that waited for this desk would wait for itself.
        publisher.store.refuse_inside_unit()?;
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut queue = self.queue();
            queue.waiting.push(Waiting { ready, answer });
            !std::mem::replace(&mut queue.is_served, true)
        };
        if is_first {
            tokio::spawn(serve(Serving { desk: self.clone(), is_done: false }, publisher.clone()));
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one that works through the queue; the next event finds the desk free when it goes, whatever made it go.
struct Serving {
    desk: Desk,
    /// It saw nobody waiting; another may serve the desk already.
    is_done: bool,
}

impl Serving {
    /// What goes together next; empty once nobody waits, and then the desk is free.
    fn next(&mut self) -> Vec<Waiting> {
        let mut queue = self.desk.queue();
        let mut bytes = 0;
        let fits = queue.waiting.iter().take(MOST_AT_ONCE).take_while(|one| {
            bytes += one.ready.event.payload.len();
            bytes <= MOST_BYTES
        });
        // The first goes alone where it is larger than all together may be.
        let count = fits.count().max(1).min(queue.waiting.len());
        queue.is_served = count > 0;
        self.is_done = count == 0;
        queue.waiting.drain(..count).collect()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.is_done {
            // It did not come to its end: whoever waits is told so, by the end of its channel.
            let mut queue = self.desk.queue();
            queue.is_served = false;
            queue.waiting.clear();
        }
    }
}

async fn serve(mut serving: Serving, publisher: Publisher) {
    loop {
        let batch = serving.next();
        if batch.is_empty() {
            return;
        }
        together(&publisher, batch).await;
    }
}

async fn alone(publisher: &Publisher, batch: Vec<Waiting>) {
    let each = batch.into_iter().map(async |one| {
        let answer = publisher.publish_alone(one.ready).await;
        // A caller that went away needs no answer.
        let _ = one.answer.send(answer);
    });
    future::join_all(each).await;
}

async fn together(publisher: &Publisher, mut batch: Vec<Waiting>) {
    let is_single = batch.len() == 1;
    let ready: Arc<Vec<Arc<Ready>>> = Arc::new(batch.iter().map(|one| Arc::clone(&one.ready)).collect());
    let worker = publisher.clone();
    let shared = publisher.store.run(move |conn| {
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
                let _ = one.answer.send(answer.map_err(PublishError::Conflict));
            }
        }
        Err(error) => {
            let is_busy = matches!(error, PublishError::Store(StoreError::Busy(_)));
            if let Some(one) = batch.pop_if(|_| !is_busy && is_single) {
                let _ = one.answer.send(Err(error));
                return;
            }
            tracing::debug!(%error, events = batch.len(), "events that shared a transaction are published one by one");
            let publisher = publisher.clone();
            tokio::spawn(async move { alone(&publisher, batch).await });
        }
    }
}
