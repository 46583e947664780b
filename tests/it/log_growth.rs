//! SQLite's write-ahead log comes down again, whoever read meanwhile.

use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use twiceproof::dispatcher::{Dispatcher, DispatcherOptions};
use twiceproof_shared::store::{Store, StoreError};

use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.sqlite("log::the_write_ahead_log_comes_down_after_a_long_reader", long_reader);
    suite.sqlite("log::readers_that_overlap_do_not_let_the_write_ahead_log_grow", overlapping);
}

const MIB: u64 = 1024 * 1024;

/// A connection that reads, and goes on seeing what it saw first.
async fn reader(bed: &Bed) -> SqliteConnection {
    let file = bed.db.url().file().unwrap();
    let mut conn = SqliteConnectOptions::new().filename(file).connect().await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT count(*) FROM blobs").execute(&mut conn).await.unwrap();
    conn
}

fn log_size(bed: &Bed) -> u64 {
    let file = format!("{}-wal", bed.db.url().file().unwrap().display());
    std::fs::metadata(file).unwrap().len()
}

async fn store(bed: &Bed) -> Store {
    let store = bed.db.store(None).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    tx.conn().execute_script("CREATE TABLE blobs (bytes BLOB NOT NULL)").await.unwrap();
    tx.commit().await.unwrap();
    store
}

async fn write(store: &Store, mib: u64) {
    for _ in 0..mib {
        let written: Result<u64, StoreError> = store
            .run(|conn| Box::pin(async { conn.execute("INSERT INTO blobs VALUES (zeroblob(1048576))", &[]).await }))
            .await;
        written.unwrap();
    }
}

async fn long_reader(bed: Bed) {
    let store = store(&bed).await;
    let reader = reader(&bed).await;
    write(&store, 70).await;
    assert!(log_size(&bed) > 70 * MIB, "the reader keeps it: {}", log_size(&bed));
    assert!(!store.trim_log(MIB).await.unwrap());
    write(&store, 1).await;
    let mut dispatcher = Dispatcher::start(&store, DispatcherOptions::default()).await.unwrap();
    dispatcher.step().await.unwrap();
    assert!(log_size(&bed) > 70 * MIB, "while it reads, nobody is kept waiting for it");
    reader.close().await.unwrap();
    dispatcher.step().await.unwrap();
    assert_eq!(log_size(&bed), 0);
    write(&store, 1).await;
}

async fn overlapping(bed: Bed) {
    let store = store(&bed).await;
    let bed = Arc::new(bed);
    // There is always one, and none stays for long.
    let readers = tokio::spawn({
        let bed = Arc::clone(&bed);
        async move {
            let mut reading = reader(&bed).await;
            loop {
                let next = reader(&bed).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
                reading.close().await.unwrap();
                reading = next;
            }
        }
    });
    let mut trims = 0;
    for _ in 0..200 {
        write(&store, 1).await;
        let was = log_size(&bed);
        trims += u32::from(was > 4 * MIB && store.trim_log(4 * MIB).await.unwrap());
        if trims == 5 {
            break;
        }
    }
    assert_eq!(trims, 5, "the log is emptied between readers");
    assert!(log_size(&bed) <= 4 * MIB, "{}", log_size(&bed));
    readers.abort();
}
