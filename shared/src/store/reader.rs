//! Reads outside any transaction, on a connection that is lent.

use super::{Conn, Pools, Store, StoreError};

impl Store {
    /// A connection for reads outside any transaction.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    pub async fn read(&self) -> Result<Reader, StoreError> {
        Ok(match &self.0.pools {
            #[cfg(feature = "sqlite")]
            Pools::Sqlite { pool, .. } => Reader(Lent::Sqlite(pool.acquire().await?)),
            #[cfg(feature = "postgres")]
            Pools::Postgres { pool, .. } => Reader(Lent::Postgres(pool.acquire().await?)),
        })
    }
}

/// A connection for reads, outside any transaction; it goes back to its pool on drop.
#[derive(Debug)]
pub struct Reader(Lent);

#[derive(Debug)]
enum Lent {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::pool::PoolConnection<sqlx::Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::pool::PoolConnection<sqlx::Postgres>),
}

impl Reader {
    /// The connection.
    pub fn conn(&mut self) -> Conn<'_> {
        match &mut self.0 {
            #[cfg(feature = "sqlite")]
            Lent::Sqlite(conn) => Conn::from(&mut **conn),
            #[cfg(feature = "postgres")]
            Lent::Postgres(conn) => Conn::from(&mut **conn),
        }
    }
}
