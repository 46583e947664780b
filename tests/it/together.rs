//! Received events that share a transaction: all or none, and each as if it had gone alone.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use twiceproof::receiver::{HandlerError, Reply, handler_fn};
use twiceproof_shared::store::Database;

use crate::harness::{Bed, Suite};
use crate::kit::{ADD_EFFECT, Receiving, effects, make_effects, send_all, signed, source};

pub fn register(suite: &mut Suite) {
    suite.both("together::refusals_failures_and_repeats_among_others_end_as_if_alone", mixed);
    suite.both("together::a_nested_transaction_that_one_leaks_costs_the_others_nothing", leaked);
    suite.postgres("together::events_at_the_same_time_share_a_transaction_where_the_host_allows_it", shared);
    suite.postgres("together::slow_handlers_still_run_side_by_side", slow);
}

const LANES: usize = 48;

async fn mixed(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let failed: Arc<Mutex<HashSet<String>>> = Arc::default();
    let handler = handler_fn(move |conn, event| {
        let failed = Arc::clone(&failed);
        Box::pin(async move {
            conn.execute(ADD_EFFECT, &[event.id().into(), event.body().as_ref().into()]).await?;
            match event.body().last() {
                Some(b'3') => Err(HandlerError::Refuse(Reply::new(StatusCode::IM_A_TEAPOT))),
                Some(b'5') if failed.lock().unwrap().insert(event.id().to_string()) => {
                    Err(HandlerError::fail("it fails the first time"))
                }
                _ => Ok(Reply::ok()),
            }
        })
    });
    let receiving = Receiving::start(&store, source().share_transactions(true), handler).await;
    let message = |number: usize| signed(&format!("msg_{number:03}"), number.to_string(), store.now());
    let first = send_all(&receiving.hop, (0..200).map(message).collect(), LANES).await;
    for (number, answer) in first.iter().enumerate() {
        let expected: &[u16] = match number % 10 {
            3 => &[418],
            // In a shared transaction it failed once, and then went alone.
            5 => &[500, 200],
            _ => &[200],
        };
        assert!(expected.contains(&answer.status.as_u16()), "{number}: {}", answer.status);
    }
    // Everything once more, among new ones.
    let again: Vec<_> = (0..200).flat_map(|number| [message(number), message(number + 200)]).collect();
    let again = send_all(&receiving.hop, again, LANES).await;
    for (number, answer) in again.iter().step_by(2).enumerate() {
        let expected = if number % 10 == 3 { 418 } else { 200 };
        assert_eq!(answer.status.as_u16(), expected, "{number}");
    }
    send_all(&receiving.hop, (200..400).map(message).collect(), LANES).await;
    let effects = effects(&store).await;
    let expected: Vec<_> = (0..400)
        .filter(|number| number % 10 != 3)
        .map(|number| (format!("msg_{number:03}"), number.to_string().into_bytes()))
        .collect();
    assert_eq!(effects, expected, "one effect each, and none of those that were refused");
}

async fn leaked(bed: Bed) {
    let database = bed.database();
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let handler = handler_fn(move |conn, event| {
        Box::pin(async move {
            conn.execute(ADD_EFFECT, &[event.id().into(), event.body().as_ref().into()]).await?;
            if event.body().ends_with(b"7") {
                let nested = match database {
                    Database::Sqlite => nest(conn.sqlite().expect("SQLite")).await,
                    Database::Postgres => nest(conn.postgres().expect("PostgreSQL")).await,
                };
                nested.map_err(HandlerError::fail)?;
            }
            Ok(Reply::ok())
        })
    });
    let receiving = Receiving::start(&store, source().share_transactions(true), handler).await;
    let message = |number: usize| signed(&format!("msg_{number:03}"), number.to_string(), store.now());
    let answers = send_all(&receiving.hop, (0..100).map(message).collect(), LANES).await;
    assert!(answers.iter().all(|answer| answer.status == StatusCode::OK));
    assert_eq!(effects(&store).await.len(), 100);
}

/// Begins a nested transaction and forgets it.
#[expect(clippy::disallowed_methods, reason = "a host's handler does what hosts do")]
async fn nest<C: sqlx::Connection>(conn: &mut C) -> Result<(), sqlx::Error> {
    std::mem::forget(conn.begin().await?);
    Ok(())
}

async fn shared(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            let sql = "INSERT INTO effects (event, body) SELECT $1, convert_to(pg_current_xact_id()::text, 'UTF8')";
            conn.execute(sql, &[event.id().into()]).await?;
            Ok(Reply::ok())
        })
    });
    let receiving = Receiving::start(&store, source().share_transactions(true), handler).await;
    let messages = (0..300).map(|number| signed(&format!("msg_{number:03}"), "{}", store.now())).collect();
    let answers = send_all(&receiving.hop, messages, LANES).await;
    assert!(answers.iter().all(|answer| answer.status == StatusCode::OK));
    let effects = effects(&store).await;
    let transactions: HashSet<_> = effects.iter().map(|(_, transaction)| transaction).collect();
    assert_eq!(effects.len(), 300);
    assert!(transactions.len() < 200, "{} transactions", transactions.len());
}

async fn slow(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let highest = Arc::clone(&most);
    let handler = handler_fn(move |_conn, _event| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&highest));
        Box::pin(async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(60)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(Reply::ok())
        })
    });
    let receiving = Receiving::start(&store, source().share_transactions(true), handler).await;
    let messages = (0..64).map(|number| signed(&format!("msg_{number:03}"), "{}", store.now())).collect();
    send_all(&receiving.hop, messages, LANES).await;
    assert!(most.load(Ordering::SeqCst) > 2, "{most:?}");
}
