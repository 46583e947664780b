//! A host's own connection, brought into a write transaction the way we would.

use sqlx::Connection as _;
use tokio::sync::OwnedSemaphorePermit;

use super::{Conn, Store, StoreError};

#[cfg(feature = "sqlite")]
impl Store {
    /// Begins a write transaction on a host's own SQLite connection: waits for this process's turn to write, checks
    /// that the connection is durable, and takes the write lock at once (BEGIN IMMEDIATE).
    ///
    /// # Errors
    /// [`StoreError::Refused`] where the connection is not WAL with `synchronous=FULL`, [`StoreError::Busy`] where another
    /// process holds the lock too long, [`StoreError::Reentrant`] from inside a unit of work.
    pub async fn begin_on<'c>(
        &self,
        conn: &'c mut sqlx::SqliteConnection,
    ) -> Result<HostTx<'c, sqlx::Sqlite>, StoreError> {
        let permit = self.permit().await?;
        super::sqlite::check_host(conn).await?;
        #[expect(clippy::disallowed_methods, reason = "this is the one place that begins on a host's connection")]
        let tx = conn.begin_with(super::sqlite::BEGIN).await?;
        Ok(HostTx::new(tx, Some(permit)))
    }
}

#[cfg(feature = "postgres")]
impl Store {
    /// Begins a transaction on a host's own PostgreSQL connection.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    pub async fn begin_on_postgres<'c>(
        &self,
        conn: &'c mut sqlx::PgConnection,
    ) -> Result<HostTx<'c, sqlx::Postgres>, StoreError> {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that begins on a host's connection")]
        let tx = conn.begin().await?;
        Ok(HostTx::new(tx, None))
    }
}

/// A transaction on a host's connection. Dropping it rolls it back.
#[derive(Debug)]
pub struct HostTx<'c, DB: sqlx::Database> {
    tx: sqlx::Transaction<'c, DB>,
    /// As sqlx counts it: the host's connection may have been inside a transaction already.
    depth: usize,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<'c, DB: sqlx::Database> HostTx<'c, DB> {
    fn new(tx: sqlx::Transaction<'c, DB>, permit: Option<OwnedSemaphorePermit>) -> Self {
        let depth = super::raw::depth::<DB>(&tx);
        Self { tx, depth, _permit: permit }
    }

    /// The host's connection, for its own statements.
    pub fn sqlx(&mut self) -> &mut DB::Connection {
        &mut self.tx
    }

    /// The connection as our functions take it.
    pub fn conn<'t>(&'t mut self) -> Conn<'t>
    where
        Conn<'t>: From<&'t mut DB::Connection>,
    {
        Conn::from(&mut *self.tx)
    }

    /// Commits what the host and we wrote.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when no answer came: it may have been committed. [`StoreError::TransactionFailed`] when an
    /// earlier statement had failed on PostgreSQL, also one whose error was swallowed: COMMIT would report success and
    /// roll back. [`StoreError::EndedByUnit`] when a nested transaction was leaked or its `begin()` was cancelled.
    pub async fn commit(mut self) -> Result<(), StoreError>
    where
        for<'t> Conn<'t>: From<&'t mut DB::Connection>,
    {
        // As in `Tx::commit`.
        self.conn().execute("SELECT 1", &[]).await?;
        if super::raw::depth::<DB>(&self.tx) != self.depth {
            return Err(StoreError::EndedByUnit);
        }
        self.tx.commit().await.map_err(StoreError::of_commit)
    }

    /// Undoes what the host and we wrote.
    ///
    /// # Errors
    /// When the database did not acknowledge it.
    pub async fn rollback(mut self) -> Result<(), StoreError> {
        super::raw::rollback_to::<DB>(&mut self.tx, self.depth).await?;
        Ok(self.tx.rollback().await?)
    }
}
