//! The savepoint of an effect: what the host's handler wrote can be undone alone, and the transaction stays usable.
//!
//! Invariants: the savepoint is one of sqlx's, named by its depth, so nothing inside an effect (a handler's own nested
//! `begin()`, an effect within the effect) can be mistaken for it; what was left open inside ends with it; and it is
//! noticed when it ended early, as by a nested `begin()` that was cancelled: sqlx 0.9 rolls back up to two levels then.

use super::conn::Kind;
use super::{Conn, Database, StoreError, raw};

/// An open savepoint. End it with [`keep_effect`] or [`undo_effect`], or roll the transaction back.
#[derive(Debug)]
#[must_use = "keep or undo the effect, or roll the transaction back"]
pub struct EffectMark {
    /// As sqlx counts it.
    depth: usize,
}

/// Opens the savepoint of an effect.
///
/// # Errors
/// [`StoreError::Refused`] outside a transaction that sqlx knows of; else as [`Conn::execute`].
pub async fn begin_effect(conn: &mut Conn<'_>) -> Result<EffectMark, StoreError> {
    if depth(conn) == 0 {
        return Err(StoreError::refused("an effect needs a transaction that was begun with sqlx"));
    }
    match &mut conn.0 {
        #[cfg(feature = "sqlite")]
        Kind::Sqlite(conn) => raw::nest::<sqlx::Sqlite>(conn).await?,
        #[cfg(feature = "postgres")]
        Kind::Postgres(conn) => raw::nest::<sqlx::Postgres>(conn).await?,
    }
    Ok(EffectMark { depth: depth(conn) })
}

/// Keeps what was written since [`begin_effect`].
///
/// # Errors
/// [`StoreError::TransactionFailed`] when a statement inside had failed on PostgreSQL, also one whose error the
/// handler swallowed. [`StoreError::EndedByUnit`] when the savepoint has ended already: roll back.
pub async fn keep_effect(conn: &mut Conn<'_>, mark: EffectMark) -> Result<(), StoreError> {
    check(conn, &mark).await?;
    while depth(conn) >= mark.depth {
        match &mut conn.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(conn) => raw::release::<sqlx::Sqlite>(conn).await?,
            #[cfg(feature = "postgres")]
            Kind::Postgres(conn) => raw::release::<sqlx::Postgres>(conn).await?,
        }
    }
    Ok(())
}

/// Undoes what was written since [`begin_effect`]; the transaction is usable again, also after a failed statement.
///
/// # Errors
/// As [`Conn::execute`]; [`StoreError::EndedByUnit`] when the savepoint has ended already: roll back.
pub async fn undo_effect(conn: &mut Conn<'_>, mark: EffectMark) -> Result<(), StoreError> {
    check(conn, &mark).await?;
    match &mut conn.0 {
        #[cfg(feature = "sqlite")]
        Kind::Sqlite(conn) => raw::rollback_to::<sqlx::Sqlite>(conn, mark.depth - 1).await?,
        #[cfg(feature = "postgres")]
        Kind::Postgres(conn) => raw::rollback_to::<sqlx::Postgres>(conn, mark.depth - 1).await?,
    }
    Ok(())
}

async fn check(conn: &mut Conn<'_>, mark: &EffectMark) -> Result<(), StoreError> {
    match conn.database() {
        // Differs because SQLite's thread does what a cancelled future left over in its own time, and counts then.
        Database::Sqlite => drop(conn.execute("SELECT 1", &[]).await?),
        // Differs because the count is right at once, and a statement would be a round trip.
        Database::Postgres => {}
    }
    if depth(conn) < mark.depth { Err(StoreError::EndedByUnit) } else { Ok(()) }
}

fn depth(conn: &Conn<'_>) -> usize {
    match &conn.0 {
        #[cfg(feature = "sqlite")]
        Kind::Sqlite(conn) => raw::depth::<sqlx::Sqlite>(conn),
        #[cfg(feature = "postgres")]
        Kind::Postgres(conn) => raw::depth::<sqlx::Postgres>(conn),
    }
}
