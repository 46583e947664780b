//! A named savepoint: what the host's handler wrote can be undone alone, and the transaction stays usable.

use super::{Conn, StoreError};

/// Opens the savepoint of an effect.
///
/// # Errors
/// As [`Conn::execute`]; outside a transaction PostgreSQL refuses it.
pub async fn begin_effect(conn: &mut Conn<'_>) -> Result<(), StoreError> {
    conn.execute_script("SAVEPOINT twiceproof_effect").await
}

/// Keeps what was written since [`begin_effect`].
///
/// # Errors
/// [`StoreError::TransactionFailed`] when a statement inside had failed on PostgreSQL, also one whose error the
/// handler swallowed.
pub async fn keep_effect(conn: &mut Conn<'_>) -> Result<(), StoreError> {
    conn.execute_script("RELEASE SAVEPOINT twiceproof_effect").await
}

/// Undoes what was written since [`begin_effect`]; the transaction is usable again, also after a failed statement.
///
/// # Errors
/// As [`Conn::execute`].
pub async fn undo_effect(conn: &mut Conn<'_>) -> Result<(), StoreError> {
    conn.execute_script("ROLLBACK TO SAVEPOINT twiceproof_effect; RELEASE SAVEPOINT twiceproof_effect").await
}
