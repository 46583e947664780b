//! `twiceproof migrate`: creates the tables or brings them up to date.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use super::global::{self, Global};
use super::output;

/// Create the tables, or bring them up to date
///
/// Safe to run at any time and by several processes at once: each step is applied once, under a lock. `serve` does the
/// same when it starts.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.start(&[])?;
    let store = global::open(&config).await?;
    let applied = store.migrate().await.context("cannot migrate the database")?;
    store.close().await;
    if args.json {
        output::json(&json!({ "database": config.database.to_string(), "applied": applied }))?;
    } else if applied.is_empty() {
        output::line(format_args!("{}: up to date, nothing to apply", config.database))?;
    } else {
        output::line(format_args!("{}: applied {}", config.database, list(&applied)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(versions: &[i64]) -> String {
    versions.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}
