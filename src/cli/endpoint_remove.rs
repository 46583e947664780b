//! `twiceproof endpoint remove`: nothing more is sent there.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use twiceproof::dispatcher::Manager;

use super::global::{self, Global};
use super::output;

/// Remove an endpoint of the tenant with its secrets
///
/// What it was still owed is not sent any more; what was tried stays until its retention is over.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Its id (ep_…) or uid
    id: String,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.start(&[])?;
    let store = global::open_ready(&config).await?;
    let manager = Manager::new(&store, config.addresses(), &config.policy());
    let mut tx = store.begin().await?;
    let found = manager.find(&mut tx.conn(), &config.tenant, &args.id).await;
    let endpoint = found.with_context(|| format!("the tenant {} has no endpoint {}", config.tenant, args.id))?;
    manager.delete(&mut tx.conn(), &config.tenant, &endpoint.id).await?;
    tx.commit().await.context("whether the endpoint was removed shows `endpoint list`")?;
    store.close().await;
    if args.json {
        output::json(&json!({ "id": endpoint.id, "tenant": endpoint.tenant, "removed": true }))?;
    } else {
        output::line(format_args!("removed {}", endpoint.id))?;
    }
    Ok(ExitCode::SUCCESS)
}
