//! BEGIN, COMMIT and ROLLBACK as sqlx counts them, so that a host's nested `begin()` becomes a savepoint.
//!
//! Invariant: what [`commit`] reports is the outer transaction. sqlx commits whatever its count says is innermost, so a
//! nested transaction that was leaked would have only its savepoint released; and a nested `begin()` that was cancelled
//! rolls the outer one back and leaves the count at 0, where sqlx's commit does nothing and reports success.

use sqlx::{Database, Error, SqlSafeStr};
use sqlx_core::transaction::TransactionManager;

use super::StoreError;

pub(super) async fn begin<DB: Database>(conn: &mut DB::Connection, statement: &'static str) -> Result<(), Error> {
    DB::TransactionManager::begin(conn, Some(statement.into_sql_str())).await
}

/// Opens a savepoint inside a transaction.
pub(super) async fn nest<DB: Database>(conn: &mut DB::Connection) -> Result<(), Error> {
    DB::TransactionManager::begin(conn, None).await
}

/// Ends the innermost savepoint and keeps what was written in it.
pub(super) async fn release<DB: Database>(conn: &mut DB::Connection) -> Result<(), Error> {
    DB::TransactionManager::commit(conn).await
}

/// Commits the outer transaction and no other.
pub(super) async fn commit<DB: Database>(conn: &mut DB::Connection) -> Result<(), StoreError> {
    if depth::<DB>(conn) != 1 {
        return Err(StoreError::EndedByUnit);
    }
    DB::TransactionManager::commit(conn).await.map_err(StoreError::of_commit)
}

/// Rolls back to this depth, whatever was left open inside; 0 ends the outer transaction.
pub(super) async fn rollback_to<DB: Database>(conn: &mut DB::Connection, wanted: usize) -> Result<(), Error> {
    while depth::<DB>(conn) > wanted {
        DB::TransactionManager::rollback(conn).await?;
    }
    Ok(())
}

/// How many transactions are open, as sqlx counts them.
pub(super) fn depth<DB: Database>(conn: &DB::Connection) -> usize {
    DB::TransactionManager::get_transaction_depth(conn)
}
