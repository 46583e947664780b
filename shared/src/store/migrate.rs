//! Applies the numbered steps of `twiceproof_migrations`, once each, also when several processes start at once.

use sha2::{Digest, Sha256};
use twiceproof_migrations::Migration;

use super::{Conn, Database, Store, StoreError};

impl Store {
    /// Brings the schema up to date; the versions that were applied now.
    ///
    /// Processes that start together wait for each other. Each step and its record commit together.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the database was made by a newer program or a released step was edited; else as
    /// [`StoreError`] says.
    pub async fn migrate(&self) -> Result<Vec<i64>, StoreError> {
        let mut tx = self.begin().await?;
        let applied = migrate(&mut tx.conn(), self.now().as_millis()).await?;
        tx.commit().await?;
        Ok(applied)
    }

    /// The versions that are missing; empty means up to date.
    ///
    /// # Errors
    /// As [`Store::migrate`].
    pub async fn pending_migrations(&self) -> Result<Vec<i64>, StoreError> {
        let mut reader = self.read().await?;
        let mut conn = reader.conn();
        let (exists,): (i64,) = match conn.database() {
            Database::Sqlite => {
                conn.fetch_one(
                    "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'twiceproof_migrations'",
                    &[],
                )
                .await?
            }
            Database::Postgres => conn.fetch_one("SELECT count(to_regclass('twiceproof_migrations'))", &[]).await?,
        };
        let done = if exists == 0 { Vec::new() } else { recorded(&mut conn).await? };
        missing(steps(conn.database()), &done).map(|missing| missing.iter().map(|step| step.version).collect())
    }
}

async fn migrate(conn: &mut Conn<'_>, now: i64) -> Result<Vec<i64>, StoreError> {
    match conn.database() {
        // Differs because BEGIN IMMEDIATE already holds SQLite's only write lock.
        Database::Sqlite => {}
        // Differs because PostgreSQL has no write lock on the whole database; the number is arbitrary and ours.
        Database::Postgres => {
            conn.execute("SELECT pg_advisory_xact_lock(8437210945562)", &[]).await?;
        }
    }
    conn.execute_script(
        "CREATE TABLE IF NOT EXISTS twiceproof_migrations (
            version BIGINT NOT NULL PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at BIGINT NOT NULL)",
    )
    .await?;
    let done = recorded(conn).await?;
    let missing = missing(steps(conn.database()), &done)?;
    for step in &missing {
        conn.execute_script(step.sql).await?;
        conn.execute(
            "INSERT INTO twiceproof_migrations (version, name, checksum, applied_at) VALUES ($1, $2, $3, $4)",
            &[step.version.into(), step.name.into(), checksum(step).as_str().into(), now.into()],
        )
        .await?;
    }
    crate::kill::at("migration_before_commit");
    Ok(missing.iter().map(|step| step.version).collect())
}

fn steps(database: Database) -> &'static [Migration] {
    match database {
        Database::Sqlite => twiceproof_migrations::SQLITE,
        Database::Postgres => twiceproof_migrations::POSTGRES,
    }
}

async fn recorded(conn: &mut Conn<'_>) -> Result<Vec<(i64, String)>, StoreError> {
    conn.fetch_all("SELECT version, checksum FROM twiceproof_migrations ORDER BY version", &[]).await
}

/// The steps that are not recorded, after checking those that are.
fn missing(steps: &'static [Migration], done: &[(i64, String)]) -> Result<Vec<&'static Migration>, StoreError> {
    for (version, recorded) in done {
        let Some(step) = steps.iter().find(|step| step.version == *version) else {
            return Err(StoreError::refused(format!(
                "the database has schema version {version}, which this program does not know; use the newer program"
            )));
        };
        if checksum(step) != *recorded {
            return Err(StoreError::refused(format!(
                "schema version {version} of the database is not the one this program has; they come from different releases"
            )));
        }
    }
    Ok(steps.iter().filter(|step| done.iter().all(|(version, _)| *version != step.version)).collect())
}

fn checksum(step: &Migration) -> String {
    Sha256::digest(step.sql.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
