//! Logs to standard error, for people or as JSON lines.

use std::io::{IsTerminal as _, stderr};

use anyhow::{Context as _, anyhow};
use tracing_subscriber::EnvFilter;
use twiceproof::config::{Log, LogFormat};

/// Starts logging for this process; call it once.
pub(super) fn start(log: &Log) -> anyhow::Result<()> {
    // PostgreSQL's notices, such as "already exists, skipping", are no news to an operator.
    let directives = format!("sqlx::postgres::notice=warn,{}", log.level);
    let filter = EnvFilter::builder().parse(directives).context("cannot read the log level")?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match log.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        _ => builder.with_ansi(stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()).try_init(),
    }
    .map_err(|error| anyhow!("cannot start logging: {error}"))
}
