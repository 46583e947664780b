//! `Conn`: a borrowed connection of either kind. Every query of ours takes one, which is what lets a host publish, or
//! be idempotent, inside its own transaction.

#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnection, PgRow};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::arg::bind;
use super::{Arg, StoreError};

/// Which database a connection speaks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Database {
    /// SQLite, one file.
    Sqlite,
    /// PostgreSQL.
    Postgres,
}

impl std::fmt::Display for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
        })
    }
}

/// A borrowed connection, inside a transaction or not, of either database.
///
/// A handler that wants plain sqlx takes the connection out with `Conn::sqlite` or `Conn::postgres`; portable code
/// uses [`Conn::execute`] and the `fetch` methods with `$1` placeholders.
#[derive(Debug)]
pub struct Conn<'c>(pub(super) Kind<'c>);

#[derive(Debug)]
pub(super) enum Kind<'c> {
    #[cfg(feature = "sqlite")]
    Sqlite(&'c mut SqliteConnection),
    #[cfg(feature = "postgres")]
    Postgres(&'c mut PgConnection),
}

impl Conn<'_> {
    /// The database behind this connection.
    #[must_use]
    pub fn database(&self) -> Database {
        match self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => Database::Sqlite,
            #[cfg(feature = "postgres")]
            Kind::Postgres(_) => Database::Postgres,
        }
    }

    /// The same connection, lent on.
    pub fn reborrow(&mut self) -> Conn<'_> {
        Conn(match &mut self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(conn) => Kind::Sqlite(conn),
            #[cfg(feature = "postgres")]
            Kind::Postgres(conn) => Kind::Postgres(conn),
        })
    }

    /// The sqlx connection, where this is SQLite.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(&mut self) -> Option<&mut SqliteConnection> {
        match &mut self.0 {
            Kind::Sqlite(conn) => Some(conn),
            #[cfg(feature = "postgres")]
            Kind::Postgres(_) => None,
        }
    }

    /// The sqlx connection, where this is PostgreSQL.
    #[cfg(feature = "postgres")]
    pub fn postgres(&mut self) -> Option<&mut PgConnection> {
        match &mut self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => None,
            Kind::Postgres(conn) => Some(conn),
        }
    }

    /// Runs a statement; the number of rows it changed.
    ///
    /// # Errors
    /// As [`StoreError`] says; the transaction of a PostgreSQL connection has failed then.
    pub async fn execute(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        #[cfg(feature = "testing")]
        crate::testing::note(sql, args);
        Ok(match &mut self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(conn) => bind!(sqlx::query(sql), args).execute(&mut **conn).await?.rows_affected(),
            #[cfg(feature = "postgres")]
            Kind::Postgres(conn) => bind!(sqlx::query(sql), args).execute(&mut **conn).await?.rows_affected(),
        })
    }

    /// Runs several statements without parameters, one after another.
    ///
    /// # Errors
    /// As [`Conn::execute`].
    pub async fn execute_script(&mut self, sql: &'static str) -> Result<(), StoreError> {
        match &mut self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(conn) => sqlx::raw_sql(sql).execute(&mut **conn).await.map(|_| ())?,
            #[cfg(feature = "postgres")]
            Kind::Postgres(conn) => sqlx::raw_sql(sql).execute(&mut **conn).await.map(|_| ())?,
        }
        Ok(())
    }

    /// All rows of a query.
    ///
    /// # Errors
    /// As [`Conn::execute`]; also when a row does not have the shape of `T`.
    pub async fn fetch_all<T: FromRows>(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<Vec<T>, StoreError> {
        #[cfg(feature = "testing")]
        crate::testing::note(sql, args);
        Ok(match &mut self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(conn) => bind!(sqlx::query_as::<_, T>(sql), args).fetch_all(&mut **conn).await?,
            #[cfg(feature = "postgres")]
            Kind::Postgres(conn) => bind!(sqlx::query_as::<_, T>(sql), args).fetch_all(&mut **conn).await?,
        })
    }

    /// The first row of a query, if there is one.
    ///
    /// # Errors
    /// As [`Conn::fetch_all`].
    pub async fn fetch_optional<T: FromRows>(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<T>, StoreError> {
        #[cfg(feature = "testing")]
        crate::testing::note(sql, args);
        Ok(match &mut self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(conn) => bind!(sqlx::query_as::<_, T>(sql), args).fetch_optional(&mut **conn).await?,
            #[cfg(feature = "postgres")]
            Kind::Postgres(conn) => bind!(sqlx::query_as::<_, T>(sql), args).fetch_optional(&mut **conn).await?,
        })
    }

    /// The only row of a query.
    ///
    /// # Errors
    /// As [`Conn::fetch_all`]; also when there is no row.
    pub async fn fetch_one<T: FromRows>(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<T, StoreError> {
        self.fetch_optional(sql, args).await?.ok_or(StoreError::Statement(sqlx::Error::RowNotFound))
    }
}

#[cfg(feature = "sqlite")]
impl<'c> From<&'c mut SqliteConnection> for Conn<'c> {
    fn from(conn: &'c mut SqliteConnection) -> Self {
        Self(Kind::Sqlite(conn))
    }
}

#[cfg(feature = "postgres")]
impl<'c> From<&'c mut PgConnection> for Conn<'c> {
    fn from(conn: &'c mut PgConnection) -> Self {
        Self(Kind::Postgres(conn))
    }
}

/// A row shape that both databases can fill: derive [`sqlx::FromRow`] on a struct, or use a tuple.
#[cfg(all(feature = "sqlite", feature = "postgres"))]
pub trait FromRows: for<'r> sqlx::FromRow<'r, SqliteRow> + for<'r> sqlx::FromRow<'r, PgRow> + Send + Unpin {}
#[cfg(all(feature = "sqlite", feature = "postgres"))]
impl<T> FromRows for T where T: for<'r> sqlx::FromRow<'r, SqliteRow> + for<'r> sqlx::FromRow<'r, PgRow> + Send + Unpin {}

/// A row shape that the database can fill: derive [`sqlx::FromRow`] on a struct, or use a tuple.
#[cfg(all(feature = "sqlite", not(feature = "postgres")))]
pub trait FromRows: for<'r> sqlx::FromRow<'r, SqliteRow> + Send + Unpin {}
#[cfg(all(feature = "sqlite", not(feature = "postgres")))]
impl<T> FromRows for T where T: for<'r> sqlx::FromRow<'r, SqliteRow> + Send + Unpin {}

/// A row shape that the database can fill: derive [`sqlx::FromRow`] on a struct, or use a tuple.
#[cfg(all(feature = "postgres", not(feature = "sqlite")))]
pub trait FromRows: for<'r> sqlx::FromRow<'r, PgRow> + Send + Unpin {}
#[cfg(all(feature = "postgres", not(feature = "sqlite")))]
impl<T> FromRows for T where T: for<'r> sqlx::FromRow<'r, PgRow> + Send + Unpin {}
