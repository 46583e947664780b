//! Throw-away databases for tests: a SQLite file in a temporary folder, or a schema of its own in a PostgreSQL cluster
//! that this process started from the installed binaries.
//!
//! Only dev-dependencies switch this feature on.

mod statements;

use crate::clock::Clock;
use crate::store::{DatabaseUrl, Store, StoreError, StoreOptions};
use std::sync::Arc;

#[cfg(feature = "postgres")]
pub use crate::cluster::{Cluster, ClusterError};
pub(crate) use statements::note;
pub use statements::{OwnedArg, Statement, record, recorded};
#[cfg(feature = "postgres")]
pub(crate) use statements::{follow, place};

/// A database that goes away with this value.
#[derive(Debug)]
pub struct TestDatabase {
    url: DatabaseUrl,
    /// Keeps the folder of a SQLite file.
    folder: Option<tempfile::TempDir>,
}

impl TestDatabase {
    /// A fresh SQLite file, not migrated.
    ///
    /// # Panics
    /// When no temporary folder can be made.
    #[must_use]
    pub fn sqlite() -> Self {
        let folder = tempfile::Builder::new().prefix("twiceproof-").tempdir().expect("a temporary folder");
        let url = DatabaseUrl::sqlite(folder.path().join("test.db")).expect("a file name");
        Self { url, folder: Some(folder) }
    }

    /// A fresh schema in the cluster, not migrated.
    ///
    /// # Errors
    /// When the cluster does not answer.
    #[cfg(feature = "postgres")]
    pub async fn postgres(cluster: &Cluster) -> Result<Self, StoreError> {
        Ok(Self { url: cluster.schema().await?, folder: None })
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &DatabaseUrl {
        &self.url
    }

    /// The folder of a SQLite file.
    #[must_use]
    pub fn folder(&self) -> Option<&std::path::Path> {
        self.folder.as_ref().map(tempfile::TempDir::path)
    }

    /// Opens and migrates it with this clock, or with its usual one.
    ///
    /// # Errors
    /// As [`Store::connect`] and [`Store::migrate`].
    pub async fn store(&self, clock: Option<Arc<dyn Clock>>) -> Result<Store, StoreError> {
        let options = StoreOptions { clock, connections: Some(8), ..StoreOptions::default() };
        let store = Store::connect(&self.url, options).await?;
        store.migrate().await?;
        Ok(store)
    }
}
