//! How the database is set, as far as the promises depend on it.
//!
//! Place in the path: `twiceproof doctor` asks. Invariants: reads only.

use super::{Conn, Database, StoreError};

/// A setting of the database that weakens a promise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Weak {
    /// The setting, and what it is.
    pub what: String,
    /// What to do about it.
    pub remedy: &'static str,
}

/// Looks for settings under which what was accepted could be lost, or tables could not be tidied.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn weak(conn: &mut Conn<'_>) -> Result<Vec<Weak>, StoreError> {
    match conn.database() {
        Database::Sqlite => sqlite(conn).await,
        Database::Postgres => postgres(conn).await,
    }
}

async fn sqlite(conn: &mut Conn<'_>) -> Result<Vec<Weak>, StoreError> {
    let mut weak = Vec::new();
    let (mode,): (String,) = conn.fetch_one("SELECT journal_mode FROM pragma_journal_mode", &[]).await?;
    if mode != "wal" {
        let what = format!("SQLite's journal mode is {mode}");
        weak.push(Weak { what, remedy: "let the program open the file once while nobody else has it: it sets WAL" });
    }
    Ok(weak)
}

async fn postgres(conn: &mut Conn<'_>) -> Result<Vec<Weak>, StoreError> {
    let settings: Vec<(String, String)> = conn
        .fetch_all(
            "SELECT name, setting FROM pg_settings
             WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum') AND setting = 'off'",
            &[],
        )
        .await?;
    let mut weak: Vec<Weak> = settings
        .into_iter()
        .map(|(name, setting)| {
            let remedy = match name.as_str() {
                "autovacuum" => "switch it on: without it the tables of the queue grow and slow down",
                _ => "switch it on: what was accepted can be lost with the server's power",
            };
            Weak { what: format!("PostgreSQL's {name} is {setting}"), remedy }
        })
        .collect();
    let old: Vec<(i64, String)> = conn
        .fetch_all(
            "SELECT CAST(pid AS BIGINT), coalesce(nullif(application_name, ''), 'no name') FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
               AND (state LIKE 'idle in transaction%' OR backend_xmin IS NOT NULL)
               AND xact_start < clock_timestamp() - interval '5 minutes' ORDER BY xact_start LIMIT 5",
            &[],
        )
        .await?;
    weak.extend(old.into_iter().map(|(pid, name)| Weak {
        what: format!("the session {pid} ({name}) has had a transaction open for more than five minutes"),
        remedy: "end it: while it is open nothing that was delivered since can be tidied away",
    }));
    Ok(weak)
}
