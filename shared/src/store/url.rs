//! Where the database is: `sqlite:FILE` or `postgres://…`. A URL holds a password, so it is never shown whole.

use std::path::{Path, PathBuf};

use super::{Database, StoreError};

/// The address of a database.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(Kind);

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Sqlite(PathBuf),
    Postgres(url::Url),
}

impl DatabaseUrl {
    /// Reads `sqlite:FILE`, `sqlite://FILE`, `postgres://…` or `postgresql://…`.
    ///
    /// # Errors
    /// [`StoreError::Refused`], with what is accepted; an in-memory SQLite database is refused because what is
    /// accepted must be durable.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        if let Some(rest) = text.strip_prefix("sqlite:") {
            let file = rest.strip_prefix("//").unwrap_or(rest);
            return Self::sqlite(file);
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            let url = url::Url::parse(text)
                .map_err(|error| StoreError::refused(format!("the PostgreSQL address cannot be read: {error}")))?;
            return Ok(Self(Kind::Postgres(url)));
        }
        Err(StoreError::refused("a database address is `sqlite:FILE` or `postgres://USER@HOST/DATABASE`"))
    }

    /// The address of a SQLite file.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for an empty name and for `:memory:`.
    pub fn sqlite(file: impl AsRef<Path>) -> Result<Self, StoreError> {
        let file = file.as_ref();
        match file.to_str() {
            Some("") => Err(StoreError::refused("`sqlite:` needs a file name, as in `sqlite:twiceproof.db`")),
            Some(name) if name.contains(":memory:") || name.contains("mode=memory") => {
                Err(StoreError::refused("an in-memory SQLite database loses what was accepted; name a file"))
            }
            Some(name) if name.contains('?') => {
                Err(StoreError::refused("a SQLite address is `sqlite:FILE`; parameters behind `?` are not taken"))
            }
            _ => Ok(Self(Kind::Sqlite(file.to_owned()))),
        }
    }

    /// Which database this is.
    #[must_use]
    pub fn database(&self) -> Database {
        match self.0 {
            Kind::Sqlite(_) => Database::Sqlite,
            Kind::Postgres(_) => Database::Postgres,
        }
    }

    /// The file, where this is SQLite.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.0 {
            Kind::Sqlite(file) => Some(file),
            Kind::Postgres(_) => None,
        }
    }

    /// The whole address with its password, for handing to another process. Never log it.
    #[must_use]
    pub fn expose(&self) -> String {
        match &self.0 {
            Kind::Sqlite(file) => format!("sqlite:{}", file.display()),
            Kind::Postgres(url) => url.to_string(),
        }
    }

    /// The same PostgreSQL database with `name` as the schema in which all tables are looked up.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for SQLite and for a name that is not made of `a-z`, `0-9` and `_`.
    pub fn with_schema(&self, name: &str) -> Result<Self, StoreError> {
        let Kind::Postgres(url) = &self.0 else {
            return Err(StoreError::refused("only a PostgreSQL database has schemas"));
        };
        if name.is_empty()
            || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        {
            return Err(StoreError::refused("a schema name is made of a-z, 0-9 and _"));
        }
        let mut url = url.clone();
        let kept: Vec<_> = url
            .query_pairs()
            .filter(|(key, _)| key != "options[search_path]")
            .map(|(key, value)| (key.into_owned(), value.into_owned()))
            .collect();
        url.query_pairs_mut().clear().extend_pairs(kept).append_pair("options[search_path]", name);
        Ok(Self(Kind::Postgres(url)))
    }

    /// Host and port of a PostgreSQL server.
    #[must_use]
    pub fn server(&self) -> Option<(String, u16)> {
        match &self.0 {
            Kind::Sqlite(_) => None,
            Kind::Postgres(url) => Some((url.host_str()?.to_owned(), url.port().unwrap_or(5432))),
        }
    }

    /// The same PostgreSQL database, reached at another address: through a proxy.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for SQLite.
    pub fn through(&self, address: std::net::SocketAddr) -> Result<Self, StoreError> {
        let Kind::Postgres(url) = &self.0 else {
            return Err(StoreError::refused("only a PostgreSQL database is reached at an address"));
        };
        let mut url = url.clone();
        let refused = || StoreError::refused("the PostgreSQL address names no server");
        url.set_ip_host(address.ip()).and_then(|()| url.set_port(Some(address.port()))).map_err(|()| refused())?;
        Ok(Self(Kind::Postgres(url)))
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn postgres(&self) -> Option<&url::Url> {
        match &self.0 {
            Kind::Sqlite(_) => None,
            Kind::Postgres(url) => Some(url),
        }
    }
}

impl std::fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Kind::Sqlite(file) => write!(f, "sqlite:{}", file.display()),
            Kind::Postgres(url) => {
                write!(f, "postgres://{}", url.host_str().unwrap_or_default())?;
                if let Some(port) = url.port() {
                    write!(f, ":{port}")?;
                }
                f.write_str(url.path())
            }
        }
    }
}

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

impl std::str::FromStr for DatabaseUrl {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::{Database, DatabaseUrl};

    #[test]
    fn both_kinds_are_read_and_a_password_is_never_shown() {
        let url = DatabaseUrl::parse("postgres://me:hunter2@db.example:5433/app?sslmode=require").unwrap();
        assert_eq!(url.database(), Database::Postgres);
        assert_eq!(
            format!("{url} {url:?}"),
            "postgres://db.example:5433/app DatabaseUrl(postgres://db.example:5433/app)"
        );
        assert!(url.with_schema("demo_1").unwrap().expose().contains("search_path"));
        assert_eq!(url.server(), Some(("db.example".to_owned(), 5433)));
        let through = url.through("127.0.0.1:99".parse().unwrap()).unwrap();
        assert_eq!(through.expose(), "postgres://me:hunter2@127.0.0.1:99/app?sslmode=require");
        assert_eq!(DatabaseUrl::parse("sqlite:a.db").unwrap(), DatabaseUrl::parse("sqlite://a.db").unwrap());
    }

    #[test]
    fn an_address_that_cannot_keep_what_was_accepted_is_refused() {
        for text in ["sqlite:", "sqlite::memory:", "sqlite:a.db?mode=memory", "mysql://x", "a.db", ""] {
            assert!(DatabaseUrl::parse(text).is_err(), "{text}");
        }
    }
}
