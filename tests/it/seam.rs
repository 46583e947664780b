//! The storage seam: one query on both databases, inside our transaction or a host's own.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use futures_util::future::BoxFuture;
use sqlx::{ConnectOptions, Connection};
use std::sync::{Arc, Mutex};
use tower::ServiceExt;
use twiceproof_shared::store::{Conn, Database, Store, StoreError, Tx};

use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("seam::one_query_runs_on_either_database", one_query);
    suite.both("seam::a_host_writes_with_plain_sqlx_beside_us_in_its_own_transaction", host_transaction);
    suite.both("seam::what_a_host_rolls_back_never_happened", host_rollback);
    suite.both("seam::a_dropped_transaction_is_rolled_back_and_the_pool_stays_clean", dropped_transaction);
    suite.both("seam::an_axum_handler_writes_through_a_layers_transaction", layer_transaction);
    suite.both("seam::a_unit_that_calls_back_into_the_store_is_refused", reentrant);
    suite.both("seam::migrations_race_and_run_once", racing_migrations);
    suite.both("seam::rel_b54_a_cancelled_begin_never_lends_an_open_transaction", cancelled_begin);
    suite.postgres("seam::a_commit_of_a_failed_transaction_is_an_error", failed_commit);
    suite.sqlite("seam::a_host_connection_that_could_lose_commits_is_refused", unsafe_host);
    suite.sqlite("seam::rel_b56_a_host_transaction_takes_the_write_lock_at_once", immediate);
}

pub const MAKE: &str = "CREATE TABLE host_rows (id BIGINT NOT NULL, name TEXT NOT NULL)";
pub const ADD: &str = "INSERT INTO host_rows (id, name) VALUES ($1, $2)";

pub async fn count(store: &Store) -> i64 {
    let mut reader = store.read().await.unwrap();
    let (count,): (i64,) = reader.conn().fetch_one("SELECT count(*) FROM host_rows", &[]).await.unwrap();
    count
}

pub async fn store_with_table(bed: &Bed) -> Store {
    let store = bed.db.store(None).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    tx.conn().execute_script(MAKE).await.unwrap();
    tx.commit().await.unwrap();
    store
}

async fn one_query(bed: Bed) {
    let store = store_with_table(&bed).await;
    let mut tx = store.begin().await.unwrap();
    assert_eq!(tx.conn().execute(ADD, &[1_i64.into(), "one".into()]).await.unwrap(), 1);
    let (id, name): (i64, String) = tx.conn().fetch_one("SELECT id, name FROM host_rows", &[]).await.unwrap();
    assert_eq!((id, name.as_str()), (1, "one"));
    let none: Option<(i64,)> = tx.conn().fetch_optional("SELECT id FROM host_rows WHERE id = 2", &[]).await.unwrap();
    assert!(none.is_none());
    tx.commit().await.unwrap();
    assert_eq!(count(&store).await, 1);
}

/// Writes one row of the host's with plain sqlx, as a handler would.
fn plain_sqlx<'a>(conn: &'a mut Conn<'_>, id: i64) -> BoxFuture<'a, Result<(), sqlx::Error>> {
    Box::pin(async move {
        match conn.database() {
            Database::Sqlite => {
                sqlx::query(ADD).bind(id).bind("plain").execute(conn.sqlite().unwrap()).await?;
            }
            Database::Postgres => {
                sqlx::query(ADD).bind(id).bind("plain").execute(conn.postgres().unwrap()).await?;
            }
        }
        Ok(())
    })
}

async fn host_transaction(bed: Bed) {
    let store = store_with_table(&bed).await;
    in_host_transaction(&bed, &store, true).await;
    assert_eq!(count(&store).await, 2);
}

async fn host_rollback(bed: Bed) {
    let store = store_with_table(&bed).await;
    in_host_transaction(&bed, &store, false).await;
    assert_eq!(count(&store).await, 0);
}

async fn in_host_transaction(bed: &Bed, store: &Store, commit: bool) {
    match bed.database() {
        Database::Sqlite => {
            let mut host = host_sqlite(bed).await;
            let mut tx = store.begin_on(&mut host).await.unwrap();
            tx.conn().execute(ADD, &[1_i64.into(), "ours".into()]).await.unwrap();
            plain_sqlx(&mut tx.conn(), 2).await.unwrap();
            if commit { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
        }
        Database::Postgres => {
            let mut host = sqlx::PgConnection::connect(&bed.db.url().expose()).await.unwrap();
            let mut tx = store.begin_on_postgres(&mut host).await.unwrap();
            tx.conn().execute(ADD, &[1_i64.into(), "ours".into()]).await.unwrap();
            plain_sqlx(&mut tx.conn(), 2).await.unwrap();
            if commit { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
        }
    }
}

async fn host_sqlite(bed: &Bed) -> sqlx::SqliteConnection {
    sqlx::sqlite::SqliteConnectOptions::new()
        .filename(bed.db.url().file().unwrap())
        .synchronous(sqlx::sqlite::SqliteSynchronous::Full)
        .connect()
        .await
        .unwrap()
}

async fn dropped_transaction(bed: Bed) {
    let store = store_with_table(&bed).await;
    for id in 0..20_i64 {
        let mut tx = store.begin().await.unwrap();
        tx.conn().execute(ADD, &[id.into(), "lost".into()]).await.unwrap();
        drop(tx);
    }
    let mut tx = store.begin().await.unwrap();
    tx.conn().execute(ADD, &[99_i64.into(), "kept".into()]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(count(&store).await, 1);
}

/// The layer lends its owned transaction through a slot in the request's extensions and takes it back to commit.
async fn layer_transaction(bed: Bed) {
    type Slot = Arc<Mutex<Option<Tx>>>;
    async fn handler(Extension(slot): Extension<Slot>) -> StatusCode {
        let mut tx = slot.lock().unwrap().take().unwrap();
        plain_sqlx(&mut tx.conn(), 7).await.unwrap();
        *slot.lock().unwrap() = Some(tx);
        StatusCode::CREATED
    }
    let store = store_with_table(&bed).await;
    let outer = store.clone();
    let app = Router::new().route("/", post(handler)).layer(axum::middleware::from_fn(
        move |mut request: Request<Body>, next: axum::middleware::Next| {
            let store = outer.clone();
            async move {
                let slot: Slot = Arc::new(Mutex::new(Some(store.begin().await.unwrap())));
                request.extensions_mut().insert(Arc::clone(&slot));
                let response = next.run(request).await;
                let tx = slot.lock().unwrap().take();
                tx.unwrap().commit().await.unwrap();
                response
            }
        },
    ));
    let response = app.oneshot(Request::post("/").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    assert_eq!(count(&store).await, 1);
}

async fn reentrant(bed: Bed) {
    let store = store_with_table(&bed).await;
    let inner = store.clone();
    let result: Result<(), StoreError> = store
        .run(move |_| {
            let store = inner.clone();
            Box::pin(async move { store.begin().await.map(drop) })
        })
        .await;
    assert!(matches!(result, Err(StoreError::Reentrant)), "{result:?}");
    let inner = store.clone();
    let result: Result<(), StoreError> = store
        .run(move |_| {
            let store = inner.clone();
            Box::pin(async move { store.run(|_| Box::pin(async { Ok(()) })).await })
        })
        .await;
    assert!(matches!(result, Err(StoreError::Reentrant)), "{result:?}");
}

async fn racing_migrations(bed: Bed) {
    let open = async || Store::connect(bed.db.url(), twiceproof_shared::store::StoreOptions::default()).await.unwrap();
    let stores = [open().await, open().await, open().await, open().await];
    let steps = stores[0].pending_migrations().await.unwrap().len();
    let [a, b, c, d] = &stores;
    let (a, b, c, d) = tokio::join!(a.migrate(), b.migrate(), c.migrate(), d.migrate());
    let applied: usize = [a, b, c, d].into_iter().map(|result| result.unwrap().len()).sum();
    assert!(steps > 0);
    assert_eq!(applied, steps, "one of them applied all steps");
    assert!(stores[0].pending_migrations().await.unwrap().is_empty());
}

async fn cancelled_begin(bed: Bed) {
    let store = store_with_table(&bed).await;
    for micros in 0..400_u64 {
        let begin = store.begin();
        let _ = tokio::time::timeout(std::time::Duration::from_micros(micros * 2), begin).await;
    }
    for id in 0..50_i64 {
        // A connection that was lent inside a transaction would not see this committed by the next one.
        let mut tx = store.begin().await.unwrap();
        tx.conn().execute(ADD, &[id.into(), "kept".into()]).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(count(&store).await, id + 1);
    }
}

async fn failed_commit(bed: Bed) {
    let store = store_with_table(&bed).await;
    let mut tx = store.begin().await.unwrap();
    tx.conn().execute(ADD, &[1_i64.into(), "lost".into()]).await.unwrap();
    assert!(tx.conn().execute("SELECT 1 / 0", &[]).await.is_err());
    let result = tx.commit().await;
    assert!(matches!(result, Err(StoreError::TransactionFailed(_))), "{result:?}");
    assert_eq!(count(&store).await, 0);
}

async fn unsafe_host(bed: Bed) {
    let store = store_with_table(&bed).await;
    let mut host = host_sqlite(&bed).await;
    sqlx::query("PRAGMA synchronous=NORMAL").execute(&mut host).await.unwrap();
    let result = store.begin_on(&mut host).await.map(drop);
    assert!(matches!(result, Err(StoreError::Refused(_))), "{result:?}");
}

async fn immediate(bed: Bed) {
    let store = store_with_table(&bed).await;
    let mut host = host_sqlite(&bed).await;
    let mut tx = store.begin_on(&mut host).await.unwrap();
    // It reads first; nobody can write in between, so its own write cannot fail with BUSY_SNAPSHOT.
    let (before,): (i64,) = tx.conn().fetch_one("SELECT count(*) FROM host_rows", &[]).await.unwrap();
    let other = store.clone();
    let writing = tokio::spawn(async move {
        other.run(|conn| Box::pin(async { conn.execute(ADD, &[2_i64.into(), "other".into()]).await })).await
    });
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    tx.conn().execute(ADD, &[before.into(), "host".into()]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(writing.await.unwrap().map_err(|error: StoreError| error.to_string()), Ok(1));
    assert_eq!(count(&store).await, 2);
}
