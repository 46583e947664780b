//! Group commit: units of many callers share a commit, and no unit can harm another's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::ConnectOptions;
use twiceproof_shared::store::{Conn, Store, StoreError};

use crate::harness::{Bed, Suite};
use crate::seam::{ADD, count, store_with_table};

pub fn register(suite: &mut Suite) {
    suite.both("units::two_hundred_units_at_once_all_commit", many_units);
    suite.both("units::a_unit_that_fails_leaves_the_others_alone", failing_unit);
    suite.both("units::a_unit_that_panics_leaves_the_others_alone", panicking_unit);
    suite.both("units::work_goes_on_when_its_caller_goes_away", abandoned_unit);
    suite.sqlite("units::a_unit_that_rolls_the_outer_transaction_back_harms_no_other", rollback_unit);
    suite.sqlite("units::a_unit_that_commits_by_itself_is_told_so", committing_unit);
    suite.sqlite("units::a_second_process_gets_the_lock_while_batches_run", foreign_writer);
    suite.sqlite("units::queued_units_share_one_commit", shared_commits);
}

/// Adds one row; recognisable by its id, so that it may run again.
async fn add(conn: &mut Conn<'_>, id: i64) -> Result<(), StoreError> {
    let sql = "INSERT INTO host_rows (id, name)
               SELECT $1, 'unit' WHERE NOT EXISTS (SELECT 1 FROM host_rows WHERE id = $1)";
    conn.execute(sql, &[id.into()]).await.map(drop)
}

/// Starts `units` units at once, of which those with an id below `odd` run `bad` after their own write.
async fn at_once<B>(store: &Store, units: i64, odd: i64, bad: B) -> Vec<Result<(), StoreError>>
where
    B: for<'a, 'c> Fn(&'a mut Conn<'c>) -> futures_util::future::BoxFuture<'a, Result<(), StoreError>>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let tasks: Vec<_> = (0..units)
        .map(|id| {
            let (store, bad) = (store.clone(), bad.clone());
            tokio::spawn(async move {
                store
                    .run(move |conn| {
                        let bad = bad.clone();
                        Box::pin(async move {
                            add(conn, id).await?;
                            if id < odd { bad(conn).await } else { Ok(()) }
                        })
                    })
                    .await
            })
        })
        .collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

async fn many_units(bed: Bed) {
    let store = store_with_table(&bed).await;
    let results = at_once(&store, 200, 0, |_| Box::pin(async { Ok(()) })).await;
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(count(&store).await, 200);
}

async fn failing_unit(bed: Bed) {
    let store = store_with_table(&bed).await;
    let results = at_once(&store, 40, 5, |conn| {
        Box::pin(async move { conn.execute("INSERT INTO no_such_table VALUES (1)", &[]).await.map(drop) })
    })
    .await;
    assert!(results[..5].iter().all(|result| matches!(result, Err(StoreError::Statement(_)))), "{results:?}");
    assert!(results[5..].iter().all(Result::is_ok));
    assert_eq!(count(&store).await, 35);
}

async fn panicking_unit(bed: Bed) {
    let store = store_with_table(&bed).await;
    let results = at_once(&store, 40, 3, |_| Box::pin(async { panic!("on purpose") })).await;
    assert!(results[..3].iter().all(|result| matches!(result, Err(StoreError::Panicked))), "{results:?}");
    assert_eq!(count(&store).await, 37);
}

async fn abandoned_unit(bed: Bed) {
    let store = store_with_table(&bed).await;
    let unit = store.run(|conn| {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            add(conn, 1).await
        })
    });
    assert!(tokio::time::timeout(Duration::from_millis(10), unit).await.is_err());
    let deadline = Instant::now() + Duration::from_secs(10);
    while count(&store).await == 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(count(&store).await, 1);
}

async fn rollback_unit(bed: Bed) {
    let store = store_with_table(&bed).await;
    let results = at_once(&store, 60, 2, |conn| Box::pin(async move { conn.execute_script("ROLLBACK").await })).await;
    assert!(results[..2].iter().all(Result::is_err), "{results:?}");
    assert!(results[2..].iter().all(Result::is_ok), "{results:?}");
    assert_eq!(count(&store).await, 58);
}

async fn committing_unit(bed: Bed) {
    let store = store_with_table(&bed).await;
    let results = at_once(&store, 60, 1, |conn| Box::pin(async move { conn.execute_script("COMMIT").await })).await;
    assert!(matches!(results[0], Err(StoreError::EndedByUnit)), "{:?}", results[0]);
    assert!(results[1..].iter().all(Result::is_ok), "{results:?}");
    // Its COMMIT was refused, so that what it wrote is not there; everybody else's is.
    assert_eq!(count(&store).await, 59);
}

async fn foreign_writer(bed: Bed) {
    let store = store_with_table(&bed).await;
    let stop = Arc::new(AtomicU64::new(0));
    let ours: Vec<_> = (0..16_i64)
        .map(|lane| {
            let (store, stop) = (store.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut id = lane * 1_000_000;
                while stop.load(Ordering::Acquire) == 0 {
                    id += 1;
                    store
                        .run(move |conn| Box::pin(add(conn, id)))
                        .await
                        .unwrap_or_else(|error: StoreError| panic!("{error}"));
                }
            })
        })
        .collect();
    let mut foreign = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(bed.db.url().file().unwrap())
        .busy_timeout(Duration::from_secs(5))
        .connect()
        .await
        .unwrap();
    let mut waits = Vec::new();
    for id in 0..50_i64 {
        let asked = Instant::now();
        sqlx::query(ADD).bind(-id - 1).bind("foreign").execute(&mut foreign).await.unwrap();
        waits.push(asked.elapsed());
    }
    stop.store(1, Ordering::Release);
    for task in ours {
        task.await.unwrap();
    }
    println!("longest wait of the foreign writer: {:?}", waits.iter().max().unwrap());
}

async fn shared_commits(bed: Bed) {
    let store = store_with_table(&bed).await;
    let mut shared = 0;
    // A batch closes early on a machine that is busy elsewhere, so it gets a few chances.
    for round in 0..20 {
        // While somebody else writes, units queue up; then they run in one batch.
        let writing = store.begin().await.unwrap();
        let tasks: Vec<_> = (0..10_i64)
            .map(|id| {
                let (store, reading) = (store.clone(), store.clone());
                tokio::spawn(async move {
                    store
                        .run(move |conn| {
                            let reading = reading.clone();
                            Box::pin(async move {
                                add(conn, round * 10 + id).await?;
                                let (inside,): (i64,) = conn.fetch_one("SELECT count(*) FROM host_rows", &[]).await?;
                                Ok::<_, StoreError>(inside - count(&reading).await)
                            })
                        })
                        .await
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        writing.rollback().await.unwrap();
        // What a unit sees more than the world does are the units of its batch that ran so far.
        for task in tasks {
            shared = shared.max(task.await.unwrap().unwrap());
        }
        assert_eq!(count(&store).await, (round + 1) * 10);
        if shared > 1 {
            return;
        }
    }
    panic!("no two units ever shared a commit");
}
