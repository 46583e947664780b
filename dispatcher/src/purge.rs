//! Retention of events: what is older and has come to its end is deleted, with its deliveries and attempts.
//!
//! Place in the path: none; a slow task beside the worker ([`Dispatcher::run`](crate::Dispatcher::run)).
//! Invariants: an event with a delivery that is not final is kept, however old; small batches, each a transaction of its own,
//! so that nothing waits for them and a crash loses nothing but the place of the walk; several workers may do it at once.
//! What is to be deleted is looked for outside of write transactions.

use std::sync::Arc;
use std::time::Duration;

use twiceproof_shared::store::{Store, StoreError};
use twiceproof_shared::worker::keep_house;

use crate::schedule::Policy;
use crate::store::purge::{self, Deleted, Stretch, Walked};

/// The most rows of each table that one batch looks at and deletes.
const MOST_ROWS: i64 = 250;
/// The most tenants that one batch looks at.
const MOST_TENANTS: usize = 50;
const DAY: Duration = Duration::from_secs(86_400);

/// How long published events are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Retention {
    /// Since the event was accepted: by default 30 days, or longer as the policy's horizon asks.
    pub events: Option<Duration>,
    /// The named override: start although a copy of an event can still arrive after it was forgotten.
    pub allow_short: bool,
}

impl Retention {
    /// Events are kept for so long.
    #[must_use]
    pub fn of_events(events: Duration) -> Self {
        Self { events: Some(events), ..Self::default() }
    }

    /// What holds under this policy.
    ///
    /// # Errors
    /// [`ShortRetention`], unless it is allowed by name.
    pub fn under(&self, policy: &Policy) -> Result<Duration, ShortRetention> {
        let needed = policy.shortest_retention();
        let kept = self.events.unwrap_or_else(|| needed.max(30 * DAY));
        if kept >= needed {
            return Ok(kept);
        }
        if !self.allow_short {
            return Err(ShortRetention { kept, needed });
        }
        tracing::warn!(?kept, ?needed, "events are kept too shortly; a late copy of one may be accepted as new");
        Ok(kept)
    }
}

/// Events would be forgotten while copies of them can still arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "events are kept for {} s, but deliveries may be tried for so long that {} s are needed: keep them for longer, or allow it with \
     `allow_short`", kept.as_secs(), needed.as_secs()
)]
pub struct ShortRetention {
    /// How long events would be kept.
    pub kept: Duration,
    /// The least.
    pub needed: Duration,
}

/// What one batch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Purged {
    /// Events that were deleted.
    pub events: u64,
    /// Deliveries that were deleted.
    pub deliveries: u64,
    /// Attempts that were deleted.
    pub attempts: u64,
    /// The walk has not come to its end yet.
    pub more: bool,
}

/// A walk over all that is old, batch by batch, again and again.
#[derive(Debug)]
pub struct Purge {
    store: Store,
    keep: Duration,
    walked: Walked,
    /// The tenant that the walk is at, and the id behind which it goes on.
    tenant: Option<String>,
    after: String,
    /// The last tenant that was done.
    behind: String,
}

impl Purge {
    /// Events and attempts older than `keep` are deleted.
    #[must_use]
    pub fn new(store: &Store, keep: Duration) -> Self {
        let store = store.clone();
        Self { store, keep, walked: Walked::Events, tenant: None, after: String::new(), behind: String::new() }
    }

    /// Purges until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let purge = Arc::new(tokio::sync::Mutex::new(self));
        let step = || {
            let purge = Arc::clone(&purge);
            async move { purge.lock().await.step().await.map(|purged| purged.more) }
        };
        keep_house("the events' retention", step, shutdown).await;
    }

    /// Does one small batch.
    ///
    /// # Errors
    /// As [`StoreError`] says; the next batch begins at the same place.
    pub async fn step(&mut self) -> Result<Purged, StoreError> {
        for _ in 0..MOST_TENANTS {
            let Some(tenant) = self.tenant().await? else {
                self.behind.clear();
                if self.walked == Walked::Events {
                    self.walked = Walked::Attempts;
                    continue;
                }
                self.walked = Walked::Events;
                return Ok(Purged::default());
            };
            let found = self.look(&tenant).await?;
            let last = found.last().map(|(id, _)| id.clone());
            let is_end = (found.len() as i64) < MOST_ROWS;
            let free: Vec<String> = found.into_iter().filter(|(_, needed)| *needed == 0).map(|(id, _)| id).collect();
            let deleted = self.delete(&tenant, free).await?;
            // Otherwise there is more of these: they are found again from the same place.
            if ![deleted.deliveries, deleted.attempts].contains(&(MOST_ROWS as u64)) {
                self.advance(tenant, last, is_end);
            }
            if deleted != Deleted::default() {
                let Deleted { events, deliveries, attempts } = deleted;
                tracing::debug!(events, deliveries, attempts, "what is over and old was deleted");
                return Ok(Purged { events, deliveries, attempts, more: true });
            }
        }
        Ok(Purged { more: true, ..Purged::default() })
    }

    /// The tenant that the walk is at, or the next one.
    async fn tenant(&mut self) -> Result<Option<String>, StoreError> {
        if self.tenant.is_none() {
            let mut reader = self.store.read().await?;
            let next = purge::next_tenant(&mut reader.conn(), self.walked, &self.behind).await?;
            self.tenant = next.map(|(tenant,)| tenant);
            self.after.clear();
        }
        Ok(self.tenant.clone())
    }

    async fn look(&self, tenant: &str) -> Result<Vec<purge::Found>, StoreError> {
        let until = self.store.now().minus(self.keep);
        let stretch = Stretch { walked: self.walked, tenant, after: &self.after, until, limit: MOST_ROWS };
        let mut reader = self.store.read().await?;
        purge::look(&mut reader.conn(), stretch).await
    }

    async fn delete(&self, tenant: &str, ids: Vec<String>) -> Result<Deleted, StoreError> {
        if ids.is_empty() {
            return Ok(Deleted::default());
        }
        let (walked, batch) = (self.walked, Arc::new((tenant.to_owned(), ids)));
        self.store
            .run(move |conn| {
                let batch = Arc::clone(&batch);
                Box::pin(async move {
                    let (tenant, ids) = &*batch;
                    match walked {
                        Walked::Events => purge::delete_events(conn, tenant, ids, MOST_ROWS).await,
                        Walked::Attempts => {
                            let attempts = purge::delete_orphans(conn, tenant, ids).await?;
                            Ok(Deleted { attempts, ..Deleted::default() })
                        }
                    }
                })
            })
            .await
    }

    fn advance(&mut self, tenant: String, last: Option<String>, is_end: bool) {
        if let Some(last) = last {
            self.after = last;
        }
        if is_end {
            self.tenant = None;
            self.behind = tenant;
        }
    }
}
