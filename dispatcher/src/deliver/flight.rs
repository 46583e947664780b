//! What is under way: a task for each attempt, and how many of them each endpoint has.
//!
//! Place in the path: between the claim and the record.
//! Invariants: no more requests are under way to an endpoint than it has slots. What was claimed ahead, for an endpoint that
//! answers quickly, waits here for one of them; it keeps its lease meanwhile, and is given back where that takes too long.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::{self, JoinSet};

use super::attempt::{Ended, Hands, Mail};
use crate::store::record::Finished;

/// An endpoint that answers within this is quick: while a claim and a record go to the database and back, its slots would
/// stand empty most of the time.
const QUICK: Duration = Duration::from_millis(100);

/// The attempts under way.
pub(super) struct Flight {
    tasks: JoinSet<Ended>,
    endpoint_of: HashMap<task::Id, Arc<str>>,
    /// Those with attempts under way.
    endpoints: HashMap<Arc<str>, Endpoint>,
    stop: watch::Sender<bool>,
}

struct Endpoint {
    under_way: u32,
    slots: usize,
    gate: Arc<Semaphore>,
    is_quick: bool,
}

impl Flight {
    pub(super) fn new() -> Self {
        Self {
            tasks: JoinSet::new(),
            endpoint_of: HashMap::new(),
            endpoints: HashMap::new(),
            stop: watch::Sender::new(false),
        }
    }

    /// Sends it, in a task of its own, as soon as its endpoint has a slot.
    pub(super) fn launch(&mut self, mail: Mail, hands: Hands) {
        // An endpoint that is no longer stored is sent nothing; the attempt says so.
        let slots = mail.target.as_ref().map_or(1, |target| target.slots.max(1));
        let name: Arc<str> = mail.claimed.key.endpoint.as_str().into();
        let endpoint = self.endpoints.entry(Arc::clone(&name)).or_insert_with(|| Endpoint::new(slots));
        if endpoint.slots != slots {
            // Those that are under way end by the old number.
            endpoint.slots = slots;
            endpoint.gate = Arc::new(Semaphore::new(slots));
        }
        endpoint.under_way += 1;
        let gate = Arc::clone(&endpoint.gate);
        let mut stopped = self.stop.subscribe();
        let task = self.tasks.spawn(async move {
            let mut stop = std::pin::pin!(async move {
                // An error means that the worker itself has gone, which stops the task anyway.
                let _ = stopped.wait_for(|stop| *stop).await;
            });
            let slot = tokio::select! {
                biased;
                slot = gate.acquire() => slot,
                () = &mut stop => return Ended::Unsent(mail.claimed),
            };
            let ended = hands.attempt(mail, stop).await;
            drop(slot);
            ended
        });
        self.endpoint_of.insert(task.id(), name);
    }

    /// The next attempt that ends; none where nothing is under way.
    pub(super) async fn next(&mut self) -> Option<Result<Ended, task::JoinError>> {
        let ended = self.tasks.join_next_with_id().await?;
        Some(self.landed(ended))
    }

    /// An attempt that has ended already.
    pub(super) fn try_next(&mut self) -> Option<Result<Ended, task::JoinError>> {
        let ended = self.tasks.try_join_next_with_id()?;
        Some(self.landed(ended))
    }

    fn landed(&mut self, ended: Result<(task::Id, Ended), task::JoinError>) -> Result<Ended, task::JoinError> {
        let id = ended.as_ref().map_or_else(task::JoinError::id, |(id, _)| *id);
        let ended = ended.map(|(_, ended)| ended);
        if let Some(name) = self.endpoint_of.remove(&id)
            && let Some(endpoint) = self.endpoints.get_mut(&name)
        {
            endpoint.under_way -= 1;
            endpoint.is_quick = matches!(&ended, Ok(Ended::Finished(one)) if is_quick(one));
            if endpoint.under_way == 0 {
                self.endpoints.remove(&name);
            }
        }
        ended
    }

    /// How many are under way, those that wait for a slot included.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// How many are under way to each endpoint.
    pub(super) fn busy(&self) -> HashMap<String, u32> {
        self.endpoints.iter().map(|(name, endpoint)| (name.to_string(), endpoint.under_way)).collect()
    }

    /// The endpoints that answer quickly.
    pub(super) fn quick(&self) -> HashSet<String> {
        self.endpoints.iter().filter(|(_, one)| one.is_quick).map(|(name, _)| name.to_string()).collect()
    }

    /// Ends all requests early.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }
}

/// Where an attempt may be the only one, nothing is claimed ahead: with the worker all that was claimed would be lost.
fn is_quick(one: &Finished) -> bool {
    one.is_success() && one.took() <= QUICK && !one.is_at_most_once()
}

impl Endpoint {
    fn new(slots: usize) -> Self {
        Self { under_way: 0, slots, gate: Arc::new(Semaphore::new(slots)), is_quick: false }
    }
}
