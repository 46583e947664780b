//! The order service: it publishes each order's event inside the transaction that writes the order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use twiceproof_dispatcher::{NewEvent, PublishError, Publisher};
use twiceproof_shared::causes::chain;
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use super::deck::Fault;
use super::{DemoError, store as tables};

/// How many orders are placed at a time.
const CLERKS: usize = 8;

/// How long a clerk waits before an order that the database did not take is placed again.
const PAUSE: Duration = Duration::from_millis(50);

/// The type of the events.
pub const EVENT_TYPE: &str = "order.placed";

/// Places one order for each card of the deck; those that are dealt [`Fault::RolledBack`] are rolled back after their
/// event was published.
pub async fn open(
    store: &Store,
    publisher: &Publisher,
    tenant: &Key,
    deck: &Arc<Vec<Option<Fault>>>,
) -> Result<(), DemoError> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut clerks: JoinSet<Result<(), DemoError>> = JoinSet::new();
    for _ in 0..CLERKS {
        let (store, publisher, tenant) = (store.clone(), publisher.clone(), tenant.clone());
        let (deck, next) = (Arc::clone(deck), Arc::clone(&next));
        clerks.spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(card) = deck.get(index) else { return Ok(()) };
                let order = (index as i64 + 1, order_placed(&tenant, index + 1)?);
                place(&store, &publisher, order, *card == Some(Fault::RolledBack)).await?;
            }
        });
    }
    while let Some(done) = clerks.join_next().await {
        done.map_err(|_| DemoError::Panicked)??;
    }
    Ok(())
}

/// The order's event. Its uid is the order, so that placing it may run again.
fn order_placed(tenant: &Key, number: usize) -> Result<NewEvent, DemoError> {
    let uid = Key::new(format!("order-{number}")).map_err(|error| DemoError::Setup(error.into()))?;
    let payload = format!(r#"{{"type":"{EVENT_TYPE}","order":{number},"amount":{}}}"#, 1_000 + number);
    Ok(NewEvent::json(tenant.clone(), EVENT_TYPE, payload).with_uid(uid))
}

/// Writes the order and publishes its event: both, or neither.
async fn place(
    store: &Store,
    publisher: &Publisher,
    (number, event): (i64, NewEvent),
    roll_back: bool,
) -> Result<(), DemoError> {
    loop {
        match try_place(store, publisher, number, &event, roll_back).await {
            // Running it again looks the uid up.
            Err(DemoError::Store(error) | DemoError::Publish(PublishError::Store(error))) if error.is_retryable() => {
                tracing::debug!(error = %chain(&error), number, "placing an order again");
                tokio::time::sleep(PAUSE).await;
            }
            other => return other,
        }
    }
}

async fn try_place(
    store: &Store,
    publisher: &Publisher,
    number: i64,
    event: &NewEvent,
    roll_back: bool,
) -> Result<(), DemoError> {
    let mut tx = store.begin().await?;
    let (published, wake) = publisher.publish(&mut tx.conn(), event.clone()).await?;
    if !published.fresh {
        // An earlier try was committed after all, and its order with it.
        return Ok(tx.rollback().await?);
    }
    tables::add_order(&mut tx.conn(), number, published.id.as_ref()).await?;
    if roll_back {
        tx.rollback().await?;
        return Ok(tables::note_fault(store, Fault::RolledBack, published.id.to_string()).await?);
    }
    tx.commit().await?;
    wake.send();
    Ok(())
}

impl From<PublishError> for DemoError {
    fn from(error: PublishError) -> Self {
        Self::Publish(error)
    }
}
