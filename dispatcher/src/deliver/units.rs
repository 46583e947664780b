//! The units of work of a worker: each is one transaction, and may run again.
//!
//! Place in the path: before and after the attempts; no request is under way inside of them.

use std::sync::Arc;

use ::metrics::counter;
use twiceproof_shared::causes::chain;
use twiceproof_shared::store::{Conn, Database, Store, StoreError};
use twiceproof_shared::worker::Pace;
use twiceproof_shared::{kill, metrics};

use super::attempt::{Ended, Mail};
use super::news;
use crate::operational;
use crate::store::claim::{self, ClaimRequest, Claimed, ClaimedDelivery};
use crate::store::load::{self, Cargo};
use crate::store::record::{self, Finished, Recorded};
use crate::store::waiting;

/// Whether there is anything to claim: a look that writes nothing.
pub(super) async fn any(store: &Store) -> Result<bool, StoreError> {
    let mut reader = store.read().await?;
    waiting::any(&mut reader.conn(), store.now()).await
}

/// What a claim brought: deliveries, and what they are made of where it was read already.
#[derive(Debug, Default)]
pub(super) struct Haul {
    pub(super) claimed: Claimed,
    cargo: Option<Cargo>,
}

/// Claims deliveries.
pub(super) async fn claim(store: &Store, request: ClaimRequest) -> Result<Haul, StoreError> {
    let request = Arc::new(request);
    let clock = store.clone();
    let haul = store
        .run_own(move |conn| {
            let (request, clock) = (Arc::clone(&request), clock.clone());
            Box::pin(async move {
                let haul = haul(conn, &request, &clock).await?;
                if !haul.claimed.deliveries.is_empty() {
                    kill::at("claim_before_commit");
                }
                Ok::<_, StoreError>(haul)
            })
        })
        .await?;
    if !haul.claimed.deliveries.is_empty() {
        kill::at("after_claim");
    }
    Ok(haul)
}

async fn haul(conn: &mut Conn<'_>, request: &ClaimRequest, store: &Store) -> Result<Haul, StoreError> {
    let claimed = claim::claim(conn, request, store.now()).await?;
    let cargo = match conn.database() {
        // Differs because SQLite's one writer should not read what others can read beside it.
        Database::Sqlite => None,
        // Differs because another connection would cost PostgreSQL more than the look.
        Database::Postgres => Some(load::load(conn, &claimed.deliveries, store).await?),
    };
    Ok(Haul { claimed, cargo })
}

/// Records a batch. It stays with the caller until it is recorded.
pub(super) async fn record(store: &Store, batch: Arc<Vec<Finished>>) -> Result<Recorded, StoreError> {
    if batch.is_empty() {
        return Ok(Recorded::default());
    }
    let clock = store.clone();
    let (recorded, turned) = store
        .run_own(move |conn| {
            let (batch, clock) = (Arc::clone(&batch), clock.clone());
            Box::pin(async move {
                let (recorded, mut turned) = record::record_and_tell(conn, &batch, clock.now()).await?;
                operational::tell(conn, &clock, std::mem::take(&mut turned.tellings)).await?;
                kill::at("record_before_commit");
                Ok::<_, StoreError>((recorded, turned))
            })
        })
        .await?;
    kill::at("record_after_commit");
    measure(&recorded);
    news::tell_changes(&turned.endpoints);
    Ok(recorded)
}

fn measure(recorded: &Recorded) {
    for (result, count) in [
        ("delivered", recorded.delivered),
        ("retried", recorded.retried),
        ("dead", recorded.dead),
        ("parked", recorded.parked),
        ("late", recorded.late),
    ] {
        if count > 0 {
            counter!(metrics::RECORDED, "result" => result).increment(count);
        }
    }
}

/// Puts together what was claimed, reading what was not read yet outside any transaction. Where that fails the leases are
/// given back.
pub(super) async fn load(store: &Store, haul: Haul) -> Result<Vec<Mail>, StoreError> {
    let Haul { claimed: Claimed { deliveries, .. }, cargo } = haul;
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }
    let cargo = match cargo {
        Some(cargo) => Ok(cargo),
        None => read(store, &deliveries).await,
    };
    match cargo {
        Ok(cargo) => {
            let mails = deliveries.into_iter().map(|claimed| {
                let content = cargo.content(&claimed);
                let target = cargo.target(&claimed);
                Mail { claimed, content, target }
            });
            Ok(mails.collect())
        }
        Err(error) => {
            give_back(store, deliveries).await;
            Err(error)
        }
    }
}

async fn read(store: &Store, deliveries: &[ClaimedDelivery]) -> Result<Cargo, StoreError> {
    let mut reader = store.read().await?;
    load::load(&mut reader.conn(), deliveries, store).await
}

/// Gives leases back. Where that fails they end by their time.
pub(super) async fn give_back(store: &Store, claimed: Vec<ClaimedDelivery>) {
    if claimed.is_empty() {
        return;
    }
    let claimed = Arc::new(claimed);
    let released = store
        .run_own(move |conn| {
            let claimed = Arc::clone(&claimed);
            Box::pin(async move { record::release(conn, &claimed).await })
        })
        .await;
    if let Err(error) = released {
        let error: StoreError = error;
        tracing::warn!(error = %chain(&error), "leases could not be given back; they end by their time");
    }
}

/// Gives back what was not sent and records the rest in one batch; again and again while the database does not answer,
/// until the last lease is over.
pub(super) async fn record_by_lease(store: &Store, ended: Vec<Ended>) -> Result<(Recorded, usize), StoreError> {
    let (finished, unsent) = apart(ended);
    let released = unsent.len();
    give_back(store, unsent).await;
    let last_lease = finished.iter().map(Finished::lease_until).max();
    let batch = Arc::new(finished);
    let mut pace = Pace::new(store.waker().sleeper());
    loop {
        match record(store, Arc::clone(&batch)).await {
            Ok(recorded) => return Ok((recorded, released)),
            Err(error) if error.is_retryable() && last_lease.is_some_and(|until| store.now() < until) => {
                tracing::warn!(error = %chain(&error), attempts = batch.len(), "results are not recorded yet");
                pace.back_off().await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What is to be recorded, and what is to be given back.
pub(super) fn apart(ended: Vec<Ended>) -> (Vec<Finished>, Vec<ClaimedDelivery>) {
    let (mut finished, mut unsent) = (Vec::new(), Vec::new());
    for one in ended {
        match one {
            Ended::Finished(one) => finished.push(one),
            Ended::Unsent(one) => unsent.push(one),
        }
    }
    (finished, unsent)
}
