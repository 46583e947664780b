//! `Tx`: an owned write transaction that no cancelled future can leave half open.
//!
//! A connection goes back to its pool only after an acknowledged COMMIT or ROLLBACK. On every other path (BEGIN not
//! acknowledged, future dropped, commit failed) it is taken out of the pool and closed, which makes the database roll
//! back.

use sqlx::pool::PoolConnection;
use tokio::sync::OwnedSemaphorePermit;

use super::{Conn, StoreError};

/// An owned transaction. Dropping it without [`Tx::commit`] rolls it back.
#[derive(Debug)]
pub struct Tx {
    conn: Kind,
    /// Held on SQLite: one writer of this process at a time.
    _permit: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum Kind {
    #[cfg(feature = "sqlite")]
    Sqlite(Checked<sqlx::Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(Checked<sqlx::Postgres>),
}

impl Tx {
    #[cfg(feature = "sqlite")]
    pub(super) async fn sqlite(pool: &sqlx::SqlitePool, permit: OwnedSemaphorePermit) -> Result<Self, StoreError> {
        let conn = Checked::begin(pool.acquire().await?, super::sqlite::BEGIN).await?;
        Ok(Self { conn: Kind::Sqlite(conn), _permit: Some(permit) })
    }

    #[cfg(feature = "postgres")]
    pub(super) async fn postgres(pool: &sqlx::PgPool) -> Result<Self, StoreError> {
        // After the server was restarted every pooled connection may be dead. Nothing has happened before BEGIN is
        // acknowledged, so the next connection can be tried; each failure takes one out of the pool.
        let mut stale = pool.size();
        loop {
            match Checked::begin(pool.acquire().await?, "BEGIN").await {
                Ok(conn) => return Ok(Self { conn: Kind::Postgres(conn), _permit: None }),
                Err(StoreError::Unavailable(_)) if stale > 0 => stale -= 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The connection, to write through.
    pub fn conn(&mut self) -> Conn<'_> {
        match &mut self.conn {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(conn) => Conn::from(conn.get()),
            #[cfg(feature = "postgres")]
            Kind::Postgres(conn) => Conn::from(conn.get()),
        }
    }

    /// Makes everything written through [`Tx::conn`] durable.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when no answer came: it may have been committed. [`StoreError::TransactionFailed`] when
    /// an earlier statement had failed on PostgreSQL, where COMMIT would report success and roll back.
    /// [`StoreError::EndedByUnit`] when a nested transaction was leaked, or its `begin()` was cancelled, which makes sqlx
    /// roll this one back: nothing is committed.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        // On PostgreSQL it fails in a failed transaction; on SQLite it waits for what a cancelled future left to be done.
        self.conn().execute("SELECT 1", &[]).await?;
        self.commit_last_write().await
    }

    /// Commits where the last statement of the transaction has succeeded, as [`finish`](crate::ledger::finish) has: it would not
    /// have in a failed one. A round trip less than [`Tx::commit`].
    ///
    /// # Errors
    /// As [`Tx::commit`].
    pub async fn commit_last_write(self) -> Result<(), StoreError> {
        match self.conn {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(conn) => conn.commit().await,
            #[cfg(feature = "postgres")]
            Kind::Postgres(conn) => conn.commit().await,
        }
    }

    /// Undoes everything.
    ///
    /// # Errors
    /// When the database did not acknowledge it. Nothing is committed then either: the connection is closed.
    pub async fn rollback(self) -> Result<(), StoreError> {
        match self.conn {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(conn) => conn.rollback().await,
            #[cfg(feature = "postgres")]
            Kind::Postgres(conn) => conn.rollback().await,
        }
    }
}

/// A pooled connection inside a transaction: closed on drop unless its end was acknowledged.
#[derive(Debug)]
struct Checked<DB: sqlx::Database>(Option<PoolConnection<DB>>);

impl<DB: sqlx::Database> Checked<DB> {
    async fn begin(conn: PoolConnection<DB>, statement: &'static str) -> Result<Self, StoreError> {
        // The guard owns the connection before BEGIN is sent: a cancelled begin closes it.
        let mut conn = Self(Some(conn));
        super::raw::begin::<DB>(conn.get(), statement).await?;
        Ok(conn)
    }

    fn get(&mut self) -> &mut DB::Connection {
        self.0.as_mut().expect("the connection is taken only by the end of the transaction")
    }

    async fn commit(mut self) -> Result<(), StoreError> {
        super::raw::commit::<DB>(self.get()).await?;
        self.0 = None;
        Ok(())
    }

    async fn rollback(mut self) -> Result<(), StoreError> {
        if super::raw::depth::<DB>(self.get()) == 0 {
            // It ended behind our back: what state the connection is in is anybody's guess.
            return Err(StoreError::EndedByUnit);
        }
        super::raw::rollback_to::<DB>(self.get(), 0).await?;
        self.0 = None;
        Ok(())
    }
}

impl<DB: sqlx::Database> Drop for Checked<DB> {
    fn drop(&mut self) {
        if let Some(conn) = self.0.take() {
            drop(conn.detach());
        }
    }
}
