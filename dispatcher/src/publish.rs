//! MAIN PATH: an event is accepted in the caller's transaction.
//!
//! Validate, store the event, make one delivery for each matching endpoint; after the commit the caller sends the
//! [`Wake`].
//! Invariants: nothing is sent before the commit, and nothing at all if the caller rolls back. No refusal is an SQL error, so
//! a refused publish does not fail the host's transaction. The same uid is the same event: with the same bytes, type,
//! content type, channels and ordering key it is *already accepted*, with anything else a *conflict*. The minted id goes
//! out with every attempt to every endpoint.

mod desk;

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::counter;
use sha2::{Digest, Sha256};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::{Conn, Store, StoreError, Wake};
use twiceproof_shared::{kill, metrics};

use self::desk::Desk;
use crate::event::{self, InvalidEvent, NewEvent};
use crate::schedule::Policy;
use crate::store::events::{self, EventRow, Twin};
use crate::store::fan_outs::{self, FreshEvent};
use crate::store::resend;

/// Publishes events into one store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Publisher {
    store: Store,
    horizon: Duration,
    payload_limit: usize,
    desk: Desk,
}

/// An event that was accepted, now or before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The minted id, which every receiver sees as `webhook-id`.
    pub id: Id,
    /// Whether this call accepted it; false: it was accepted before, under the same uid.
    pub fresh: bool,
}

/// A uid that came again with something else. The first event is untouched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the uid was already used for {id}, with another {}", differs.join(", "))]
pub struct Conflict {
    /// The event that has the uid.
    pub id: Id,
    /// What differs, by name: `payload`, `event type`, `content type`, `channels`, `ordering key`.
    pub differs: Vec<&'static str>,
}

/// An event was not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// It breaks a rule; the same event will never be accepted.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
    /// Its uid belongs to another event.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The database could not take it; see [`StoreError::is_retryable`].
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The largest payload that is accepted by default: 1 MiB.
pub const PAYLOAD_LIMIT: usize = 1024 * 1024;

impl Publisher {
    /// A publisher whose deliveries live as long as this policy says.
    pub fn new(store: &Store, policy: &Policy) -> Self {
        Self { store: store.clone(), horizon: policy.horizon, payload_limit: PAYLOAD_LIMIT, desk: Desk::default() }
    }

    /// The same with another limit of the payload, in bytes.
    #[must_use]
    pub fn with_payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = bytes;
        self
    }

    /// The largest payload, in bytes.
    #[must_use]
    pub fn payload_limit(&self) -> usize {
        self.payload_limit
    }

    /// Publishes an event in the caller's transaction. Send the [`Wake`] after its commit.
    ///
    /// On PostgreSQL an uncommitted event with the same uid is waited for, and one with the same ordering key; transactions that
    /// publish several of those in different orders can wait for each other, which PostgreSQL ends with a retryable error.
    ///
    /// # Errors
    /// [`PublishError::Invalid`] and [`PublishError::Conflict`] leave the transaction usable; [`PublishError::Store`]
    /// does not.
    pub async fn publish(&self, conn: &mut Conn<'_>, event: NewEvent) -> Result<(Published, Wake), PublishError> {
        let ready = self.ready(event)?;
        let published = self.insert(conn, &ready).await?;
        kill::at("publish_before_commit");
        Ok(published)
    }

    /// Publishes an event in a transaction of ours, shared with others that this publisher and its clones are given
    /// meanwhile. Returns after the commit.
    ///
    /// # Errors
    /// As [`PublishError`] says. After [`StoreError::Unknown`] it may have been accepted: with a uid, publish it again.
    pub async fn publish_now(&self, event: NewEvent) -> Result<Published, PublishError> {
        // Minted before the unit, which may run again: it then finds its own event by the id.
        let ready = Arc::new(self.ready(event)?);
        let published = desk::publish(self, ready).await?;
        let fresh = if published.fresh { "true" } else { "false" };
        counter!(metrics::PUBLISHED, "fresh" => fresh).increment(1);
        Ok(published)
    }

    /// A fresh id for an event that is published with [`Publisher::publish_to`].
    #[must_use]
    pub fn mint(&self) -> Id {
        Id::mint(Prefix::Event, self.store.now(), self.store.random())
    }

    /// Publishes an event to one endpoint alone, whatever its filter, in the caller's transaction. Send the [`Wake`] after its
    /// commit. Run again with the same id it changes nothing.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub async fn publish_to(
        &self,
        conn: &mut Conn<'_>,
        event: NewEvent,
        id: &Id,
        endpoint: &str,
    ) -> Result<Wake, PublishError> {
        let ready = Ready { id: id.clone(), ..self.ready(event)? };
        events::hold_order(conn, &ready.order().into_iter().collect()).await?;
        let (tenant, now) = (ready.event.tenant.as_str(), self.store.now());
        if !events::insert(conn, &ready.row(), now).await? && !events::exists(conn, tenant, id.as_str()).await? {
            let uid = ready.event.uid.as_ref().map_or("", Key::as_str);
            let twin = events::by_uid(conn, tenant, uid).await?;
            let twin = twin.ok_or_else(|| StoreError::Refused("an event is in the way that cannot be seen".into()))?;
            ready.compare(&twin)?;
            return Ok(Wake::none());
        }
        resend::owe(conn, tenant, id.as_str(), endpoint, (now, now.plus(self.horizon))).await?;
        Ok(self.wake(1))
    }

    /// Has an event sent to an endpoint again, or for the first time, beside its schedule, under the same id. Send the
    /// [`Wake`] after the commit. Where an attempt is due or under way already, nothing changes.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    pub async fn resend(
        &self,
        conn: &mut Conn<'_>,
        tenant: &Key,
        event: &str,
        endpoint: &str,
    ) -> Result<Wake, StoreError> {
        let now = self.store.now();
        if !resend::again(conn, tenant.as_str(), event, endpoint, now).await? {
            resend::owe(conn, tenant.as_str(), event, endpoint, (now, now.plus(self.horizon))).await?;
        }
        Ok(self.wake(1))
    }

    /// Publishes one event in a unit of its own.
    async fn publish_alone(&self, ready: Arc<Ready>) -> Result<Published, PublishError> {
        let publisher = self.clone();
        let (published, wake) = self
            .store
            .run(move |conn| {
                let (publisher, ready) = (publisher.clone(), Arc::clone(&ready));
                Box::pin(async move {
                    let published = publisher.insert(conn, &ready).await?;
                    kill::at("publish_before_commit");
                    Ok::<_, PublishError>(published)
                })
            })
            .await?;
        kill::at("publish_after_commit");
        wake.send();
        Ok(published)
    }

    /// How many endpoints an event is or was owed to; 0 for an event that nobody subscribed to.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    pub async fn owed(&self, tenant: &Key, id: &Id) -> Result<u64, StoreError> {
        let mut reader = self.store.read().await?;
        let count = events::owed(&mut reader.conn(), tenant.as_ref(), id.as_ref()).await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Publishes many events in the caller's transaction, in their order and with few statements. Each has its own
    /// answer: one that conflicts does not keep the others out.
    ///
    /// # Errors
    /// [`PublishError::Invalid`] if any event breaks a rule, before anything is stored; else as [`Publisher::publish`].
    pub async fn publish_many(
        &self,
        conn: &mut Conn<'_>,
        events: Vec<NewEvent>,
    ) -> Result<(Vec<Result<Published, Conflict>>, Wake), PublishError> {
        let ready = events.into_iter().map(|event| self.ready(event)).collect::<Result<Vec<_>, _>>()?;
        self.insert_all(conn, &ready).await
    }

    async fn insert_all<R: Borrow<Ready> + Sync>(
        &self,
        conn: &mut Conn<'_>,
        ready: &[R],
    ) -> Result<(Vec<Result<Published, Conflict>>, Wake), PublishError> {
        let mut answers = Vec::with_capacity(ready.len());
        let mut made = 0;
        events::hold_order(conn, &ready.iter().filter_map(|one| one.borrow().order()).collect()).await?;
        for batch in batches(ready) {
            let now = self.store.now();
            let rows: Vec<EventRow<'_>> = batch.iter().map(|one| one.borrow().row()).collect();
            let inserted = events::insert_many(conn, &rows, now).await?;
            let ready = || batch.iter().map(Borrow::borrow);
            let fresh: Vec<_> =
                ready().filter(|one: &&Ready| inserted.has(one.id.as_str())).map(Ready::fresh).collect();
            made += self.fan_out(conn, &fresh, now).await?;
            for one in ready() {
                answers.push(match inserted.has(one.id.as_str()) {
                    true => Ok(Published { id: one.id.clone(), fresh: true }),
                    false => match self.again(conn, one).await {
                        Ok((published, more)) => {
                            made += more;
                            Ok(published)
                        }
                        Err(PublishError::Conflict(conflict)) => Err(conflict),
                        Err(error) => return Err(error),
                    },
                });
            }
        }
        Ok((answers, self.wake(made)))
    }

    /// Checks the event and gives it its id.
    fn ready(&self, event: NewEvent) -> Result<Ready, InvalidEvent> {
        event::check(&event, self.payload_limit)?;
        let mut channels: Vec<&Key> = event.channels.iter().collect();
        channels.sort_unstable();
        channels.dedup();
        // A list of texts always can be written as JSON.
        let channels = serde_json::to_string(&channels).unwrap_or_default();
        let id = Id::mint(Prefix::Event, self.store.now(), self.store.random());
        let digest = Sha256::digest(&event.payload).into();
        Ok(Ready { event, id, digest, channels })
    }

    async fn insert(&self, conn: &mut Conn<'_>, ready: &Ready) -> Result<(Published, Wake), PublishError> {
        events::hold_order(conn, &ready.order().into_iter().collect()).await?;
        let now = self.store.now();
        if events::insert(conn, &ready.row(), now).await? {
            let made = self.fan_out(conn, &[ready.fresh()], now).await?;
            return Ok((Published { id: ready.id.clone(), fresh: true }, self.wake(made)));
        }
        let (published, made) = self.again(conn, ready).await?;
        Ok((published, self.wake(made)))
    }

    /// The event is there already: as an earlier run of this unit, or under its uid as an earlier event.
    async fn again(&self, conn: &mut Conn<'_>, ready: &Ready) -> Result<(Published, u64), PublishError> {
        let tenant = ready.event.tenant.as_str();
        if let Some(uid) = &ready.event.uid
            && let Some(twin) = events::by_uid(conn, tenant, uid.as_str()).await?
        {
            return Ok((ready.compare(&twin)?, 0));
        }
        if events::exists(conn, tenant, ready.id.as_str()).await? {
            return Ok((Published { id: ready.id.clone(), fresh: true }, 0));
        }
        // What was in the way has gone (retention ended it, just now). The place is free again.
        let now = self.store.now();
        if events::insert(conn, &ready.row(), now).await? {
            let made = self.fan_out(conn, &[ready.fresh()], now).await?;
            return Ok((Published { id: ready.id.clone(), fresh: true }, made));
        }
        Err(StoreError::Refused("an event is in the way that cannot be seen; publish again".into()).into())
    }

    async fn fan_out(&self, conn: &mut Conn<'_>, fresh: &[FreshEvent<'_>], now: Timestamp) -> Result<u64, StoreError> {
        if fresh.is_empty() {
            return Ok(0);
        }
        fan_outs::fan_out(conn, fresh, now, now.plus(self.horizon)).await
    }

    fn wake(&self, deliveries: u64) -> Wake {
        if deliveries > 0 { self.store.waker().owed() } else { Wake::none() }
    }
}

/// An event that was checked and has its id.
#[derive(Debug)]
struct Ready {
    event: NewEvent,
    id: Id,
    digest: [u8; 32],
    channels: String,
}

impl Ready {
    fn row(&self) -> EventRow<'_> {
        EventRow {
            tenant: self.event.tenant.as_str(),
            id: self.id.as_str(),
            uid: self.event.uid.as_ref().map(Key::as_str),
            event_type: &self.event.event_type,
            content_type: &self.event.content_type,
            payload: &self.event.payload,
            digest: &self.digest,
            channels: &self.channels,
            ordering_key: self.event.ordering_key.as_ref().map(Key::as_str),
            expires_at: self.event.expires_at,
        }
    }

    fn order(&self) -> Option<(&str, &str)> {
        self.event.ordering_key.as_ref().map(|key| (self.event.tenant.as_str(), key.as_str()))
    }

    fn fresh(&self) -> FreshEvent<'_> {
        FreshEvent {
            tenant: self.event.tenant.as_str(),
            id: self.id.as_str(),
            event_type: &self.event.event_type,
            channels: &self.channels,
            ordering_key: self.event.ordering_key.as_ref().map(Key::as_str),
            expires_at: self.event.expires_at.map(Timestamp::as_millis),
        }
    }

    /// What it means that the uid is taken by `twin`.
    fn compare(&self, twin: &Twin) -> Result<Published, PublishError> {
        let id = Id::parse(Prefix::Event, &twin.id)
            .map_err(|_| StoreError::Refused("an id in twiceproof_events cannot be read".into()))?;
        let row = self.row();
        let differs: Vec<&'static str> = [
            ("payload", row.digest[..] != twin.digest[..]),
            ("event type", row.event_type != twin.event_type),
            ("content type", row.content_type != twin.content_type),
            ("channels", row.channels != twin.channels),
            ("ordering key", row.ordering_key != twin.ordering_key.as_deref()),
        ]
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect();
        if differs.is_empty() {
            // An earlier run of the same unit has the same id, and is this call.
            let fresh = id == self.id;
            return Ok(Published { id, fresh });
        }
        Err(Conflict { id, differs }.into())
    }
}

/// The most events, and about the most bytes, of one statement.
const MOST_EVENTS: usize = 500;
const MOST_BYTES: usize = 4 * 1024 * 1024;

fn batches<R: Borrow<Ready>>(ready: &[R]) -> Vec<&[R]> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, one) in ready.iter().enumerate() {
        let size = one.borrow().event.payload.len();
        if at > start && (at - start == MOST_EVENTS || bytes + size > MOST_BYTES) {
            batches.push(&ready[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += size;
    }
    if start < ready.len() {
        batches.push(&ready[start..]);
    }
    batches
}

#[cfg(test)]
mod tests;
