//! BEGIN, COMMIT and ROLLBACK as sqlx counts them, so that a host's nested `begin()` becomes a savepoint.

use sqlx::{Database, Error, SqlSafeStr};
use sqlx_core::transaction::TransactionManager;

pub(super) async fn begin<DB: Database>(conn: &mut DB::Connection, statement: &'static str) -> Result<(), Error> {
    DB::TransactionManager::begin(conn, Some(statement.into_sql_str())).await
}

pub(super) async fn commit<DB: Database>(conn: &mut DB::Connection) -> Result<(), Error> {
    DB::TransactionManager::commit(conn).await
}

pub(super) async fn rollback<DB: Database>(conn: &mut DB::Connection) -> Result<(), Error> {
    DB::TransactionManager::rollback(conn).await
}

#[cfg(feature = "sqlite")]
pub(super) fn depth<DB: Database>(conn: &DB::Connection) -> usize {
    DB::TransactionManager::get_transaction_depth(conn)
}
