//! Handlers and hosts that do what they must not: no effect is lost, none happens twice, and nobody else waits.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use http::StatusCode;
use sqlx::Connection;
use twiceproof::receiver::{Event, HandlerError, Reply, handler_fn};
use twiceproof_shared::store::{Conn, Database, Store, StoreError, begin_effect};

use crate::harness::{Bed, Suite};
use crate::kit::{self, ADD_EFFECT, Effect, Receiving, effects, make_effects, signed, source};

pub fn register(suite: &mut Suite) {
    suite.postgres("hostile::a_host_commit_of_a_failed_transaction_is_an_error", failed_host_commit);
    suite.both("hostile::a_leaked_nested_transaction_never_passes_as_committed", leaked_nested);
    suite.both("hostile::rel_b54_a_cancelled_nested_begin_never_passes_as_committed", cancelled_nested);
    suite.both("hostile::rel_b54_a_handler_that_cancels_a_nested_begin_acts_once_or_not_at_all", cancelling_handler);
    suite.both("hostile::a_handler_that_rolls_back_by_itself_acts_at_most_once", own_rollback);
    suite.sqlite("hostile::a_handler_cannot_commit_by_itself", own_commit);
    suite.sqlite("hostile::nothing_is_written_behind_a_transaction_that_sqlite_rolled_back", auto_rollback);
    suite.both("hostile::a_refusal_undoes_an_effect_left_open_inside_the_effect", effect_in_effect);
    suite.both("hostile::a_statement_over_the_deadline_holds_nobody_up", endless_statement);
    suite.postgres("hostile::statements_that_were_given_up_do_not_stay_on_the_server", given_up);
    suite.sqlite("hostile::nothing_is_accepted_into_a_deleted_file", deleted_file);
    suite.sqlite("hostile::a_batch_closes_with_the_error_of_a_deferred_constraint", deferred);
    suite.sqlite("hostile::work_that_nobody_waits_for_any_more_is_not_begun", overload);
}

async fn prepared(bed: &Bed) -> Store {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    store
}

async fn script(store: &Store, sql: &'static str) {
    let mut tx = store.begin().await.unwrap();
    tx.conn().execute_script(sql).await.unwrap();
    tx.commit().await.unwrap();
}

fn add<'a>(conn: &'a mut Conn<'_>, event: &'a Event) -> BoxFuture<'a, Result<u64, StoreError>> {
    Box::pin(async move { conn.execute(ADD_EFFECT, &[event.id().into(), event.body().as_ref().into()]).await })
}

async fn failed_host_commit(bed: Bed) {
    let store = prepared(&bed).await;
    let mut host = sqlx::PgConnection::connect(&bed.db.url().expose()).await.unwrap();
    let mut tx = store.begin_on_postgres(&mut host).await.unwrap();
    tx.conn().execute(ADD_EFFECT, &["msg".into(), b"lost".as_slice().into()]).await.unwrap();
    assert!(tx.conn().execute("SELECT 1 / 0", &[]).await.is_err());
    let result = tx.commit().await;
    assert!(matches!(result, Err(StoreError::TransactionFailed(_))), "{result:?}");
    assert!(effects(&store).await.is_empty());
}

async fn leaked_nested(bed: Bed) {
    let store = prepared(&bed).await;
    for round in 0..10 {
        let mut tx = store.begin().await.unwrap();
        tx.conn().execute(ADD_EFFECT, &["msg".into(), b"lost".as_slice().into()]).await.unwrap();
        #[expect(clippy::disallowed_methods, reason = "a host's handler")]
        match bed.database() {
            Database::Sqlite => std::mem::forget(tx.conn().sqlite().unwrap().begin().await.unwrap()),
            Database::Postgres => std::mem::forget(tx.conn().postgres().unwrap().begin().await.unwrap()),
        }
        if round % 2 == 0 {
            tx.rollback().await.unwrap();
        } else {
            let result = tx.commit().await;
            assert!(matches!(result, Err(StoreError::EndedByUnit)), "{result:?}");
        }
        // The connection is not lent again: it would see its own uncommitted row.
        assert!(effects(&store).await.is_empty());
    }
}

/// Begins a nested transaction and gives up before the database has answered.
async fn cancel_nested_begin(conn: &mut Conn<'_>) {
    #[expect(clippy::disallowed_methods, reason = "a host's handler")]
    match conn.database() {
        Database::Sqlite => drop(futures_util::poll!(Box::pin(conn.sqlite().unwrap().begin()))),
        Database::Postgres => drop(futures_util::poll!(Box::pin(conn.postgres().unwrap().begin()))),
    }
}

async fn cancelled_nested(bed: Bed) {
    let store = prepared(&bed).await;
    for round in 0..100 {
        let mut tx = store.begin().await.unwrap();
        let id = format!("msg_{round}");
        tx.conn().execute(ADD_EFFECT, &[(&id).into(), b"x".as_slice().into()]).await.unwrap();
        cancel_nested_begin(&mut tx.conn()).await;
        let result = tx.commit().await;
        let kept = effects(&store).await.iter().any(|(event, _)| *event == id);
        assert_eq!(result.is_ok(), kept, "{result:?}");
    }
}

async fn cancelling_handler(bed: Bed) {
    let store = prepared(&bed).await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            cancel_nested_begin(conn).await;
            let _ = add(conn, event).await;
            match event.body().as_ref() {
                b"fails" => Err(HandlerError::fail("on purpose")),
                _ => Ok(Reply::ok()),
            }
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    for round in 0..20 {
        let id = format!("msg_{round}");
        let message = signed(&id, if round % 2 == 0 { "fails" } else { "a" }, store.now());
        for _ in 0..4 {
            let answer = receiving.send(&message).await;
            let acted = effects(&store).await.iter().filter(|(event, _)| *event == id).count();
            assert!(acted <= 1, "{id} acted {acted} times");
            assert!(!answer.status.is_success() || acted == 1, "{id}: {}", answer.status);
        }
    }
}

async fn own_rollback(bed: Bed) {
    let store = prepared(&bed).await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            conn.execute_script("ROLLBACK").await?;
            let added = add(conn, event).await;
            match event.body().as_ref() {
                b"fails" => Err(HandlerError::fail("on purpose")),
                _ => added.map(|_| Reply::ok()).map_err(HandlerError::from),
            }
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    for body in ["fails", "a"] {
        let message = signed(&format!("msg_{body}"), body, store.now());
        for _ in 0..3 {
            assert!(!receiving.send(&message).await.status.is_success());
        }
        let acted = effects(&store).await.iter().filter(|(_, stored)| stored == body.as_bytes()).count();
        assert!(acted <= 1, "{body} acted {acted} times");
    }
}

async fn own_commit(bed: Bed) {
    let store = prepared(&bed).await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            add(conn, event).await?;
            if event.body().as_ref() == b"commits" {
                conn.execute_script("COMMIT").await?;
            }
            Ok(Reply::ok())
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    let message = signed("msg_1", "commits", store.now());
    for _ in 0..2 {
        assert_eq!(receiving.send(&message).await.status, 500);
        assert!(effects(&store).await.is_empty(), "its COMMIT is refused, and its effect goes with it");
    }
    assert_eq!(receiving.send(&signed("msg_2", "a", store.now())).await.status, 200);
}

/// Where a transaction was rolled back by the database (disk full, `OR ROLLBACK`) or by the handler, the next statement
/// would commit by itself, without the event's key, once for each redelivery.
async fn auto_rollback(bed: Bed) {
    let store = prepared(&bed).await;
    script(&store, "CREATE TABLE guard (id INTEGER PRIMARY KEY); INSERT INTO guard VALUES (1)").await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            let _ = match event.body().as_ref() {
                b"rule" => conn.execute_script("INSERT OR ROLLBACK INTO guard VALUES (1)").await,
                b"own" => conn.execute_script("ROLLBACK").await,
                b"anew" => conn.execute_script("ROLLBACK; BEGIN").await,
                _ => Ok(()),
            };
            let _ = add(conn, event).await;
            let _ = conn.execute_script("COMMIT").await;
            Ok(Reply::ok())
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    for body in ["rule", "own", "anew", "rule"] {
        let answer = receiving.send(&signed(&format!("msg_{body}"), body, store.now())).await;
        assert_eq!(answer.status, 500, "{body}");
        assert!(effects(&store).await.is_empty(), "{body}");
    }
}

async fn effect_in_effect(bed: Bed) {
    let store = prepared(&bed).await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            add(conn, event).await?;
            let _left_open = begin_effect(conn).await?;
            add(conn, event).await?;
            match event.body().as_ref() {
                b"refuse" => Err(HandlerError::Refuse(Reply::new(StatusCode::CONFLICT))),
                _ => Ok(Reply::ok()),
            }
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    assert_eq!(receiving.send(&signed("msg_1", "refuse", store.now())).await.status, 409);
    assert!(effects(&store).await.is_empty());
    assert_eq!(receiving.send(&signed("msg_2", "a", store.now())).await.status, 200);
    assert_eq!(effects(&store).await.len(), 2);
}

async fn endless_statement(bed: Bed) {
    let store = prepared(&bed).await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            add(conn, event).await?;
            // The second one writes: interrupting it ends the whole batch on SQLite.
            let endless = match event.body().as_ref() {
                b"reads" => "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
                b"writes" => {
                    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000000)
                     INSERT INTO effects (event, body) SELECT 'none', '' FROM n WHERE i < 0"
                }
                _ => return Ok(Reply::ok()),
            };
            conn.execute(endless, &[]).await?;
            Ok(Reply::ok())
        })
    });
    let source = source().handler_deadline(Duration::from_millis(200));
    let receiving = Receiving::start(&store, source, handler).await;
    let began = Instant::now();
    let messages = ["a", "reads", "b", "writes", "c", "d"];
    let messages = messages.iter().map(|body| signed(&format!("msg_{body}"), *body, store.now())).collect();
    let answers = kit::send_all(&receiving.hop, messages, 6).await;
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    assert_eq!(statuses, [200, 503, 200, 503, 200, 200]);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert_eq!(effects(&store).await.len(), 4);
}

async fn given_up(bed: Bed) {
    let store = prepared(&bed).await;
    let mut locker = store.begin().await.unwrap();
    locker.conn().execute_script("LOCK TABLE effects IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let handler = Effect { store: store.clone(), takes: Duration::ZERO };
    let receiving = Receiving::start(&store, source().handler_deadline(Duration::from_millis(50)), handler).await;
    let messages = (0..20).map(|n| signed(&format!("msg_{n}"), "a", store.now())).collect();
    for answer in kit::send_all(&receiving.hop, messages, 20).await {
        assert_eq!(answer.status, 503);
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'effects'::regclass";
        let (waiting,): (i64,) = store.read().await.unwrap().conn().fetch_one(waiting, &[]).await.unwrap();
        if waiting == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{waiting} statements that nobody waits for still wait for the lock");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    locker.rollback().await.unwrap();
    assert!(effects(&store).await.is_empty());
}

async fn deleted_file(bed: Bed) {
    let store = prepared(&bed).await;
    let handler = Effect { store: store.clone(), takes: Duration::ZERO };
    let receiving = Receiving::start(&store, source(), handler).await;
    assert_eq!(receiving.send(&signed("msg_1", "a", store.now())).await.status, 200);
    let file = bed.db.url().file().unwrap();
    let aside = file.with_extension("aside");
    std::fs::rename(file, &aside).unwrap();
    let lost = signed("msg_2", "a", store.now());
    for _ in 0..2 {
        let answer = receiving.send(&lost).await;
        assert_eq!(answer.status, 503, "what SQLite writes into a file without a name is not durable");
        assert!(!file.exists(), "no empty database takes its place");
    }
    std::fs::rename(&aside, file).unwrap();
    assert_eq!(receiving.send(&lost).await.status, 200, "it goes on by itself");
    assert_eq!(effects(&store).await.len(), 2);
}

async fn deferred(bed: Bed) {
    let store = prepared(&bed).await;
    script(
        &store,
        "CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE child (parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)",
    )
    .await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            add(conn, event).await?;
            if event.body().as_ref() == b"orphan" {
                conn.execute("INSERT INTO child VALUES (77)", &[]).await?;
            }
            Ok(Reply::ok())
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    let messages = (0..20).map(|n| signed(&format!("msg_{n}"), if n == 7 { "orphan" } else { "a" }, store.now()));
    let answers = kit::send_all(&receiving.hop, messages.collect(), 20).await;
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer.status, if n == 7 { 500 } else { 200 }, "{n}");
    }
    assert_eq!(effects(&store).await.len(), 19);
}

/// Thirty handlers of a second each: the last ones are told to come again, and then nobody works off the whole queue
/// before the next event has its turn.
async fn overload(bed: Bed) {
    let store = prepared(&bed).await;
    let handler = Effect { store: store.clone(), takes: Duration::from_secs(1) };
    let receiving = Receiving::start(&store, source(), handler).await;
    let messages = (0..30).map(|n| signed(&format!("msg_{n}"), "a", store.now())).collect();
    let answers = kit::send_all(&receiving.hop, messages, 30).await;
    let accepted = answers.iter().filter(|answer| answer.status == 200).count();
    assert!(answers.iter().all(|answer| answer.status == 200 || answer.status == 503));
    let began = Instant::now();
    assert_eq!(receiving.send(&signed("msg_next", "a", store.now())).await.status, 200);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let effects = effects(&store).await.len();
    assert!((accepted + 1..30).contains(&effects), "{accepted} accepted, {effects} effects");
}
