//! `twiceproof endpoint list`: the endpoints of a tenant.

use std::process::ExitCode;

use serde_json::json;
use twiceproof::dispatcher::{Endpoint, Manager};

use super::global::{self, Global};
use super::{endpoint_show, output};

/// List the endpoints of the tenant
///
/// URLs are credentials: a line shows the host and a short hash, which tells two URLs of one host apart.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How many endpoints one read takes.
const PAGE: u32 = 250;

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.start(&[])?;
    let store = global::open_ready(&config).await?;
    let manager = Manager::new(&store, config.addresses(), &config.policy());
    let mut endpoints: Vec<Endpoint> = Vec::new();
    loop {
        let after = endpoints.last().map_or("", |last| &last.id).to_owned();
        let page = manager.list(&mut store.read().await?.conn(), &config.tenant, &after, PAGE).await?;
        if page.is_empty() {
            break;
        }
        endpoints.extend(page);
    }
    store.close().await;
    if args.json {
        let shown: Vec<_> = endpoints.iter().map(|endpoint| endpoint_show::shown(endpoint, false)).collect();
        output::json(&json!(shown))?;
    } else if endpoints.is_empty() {
        output::message(&format!("the tenant {} has no endpoints", config.tenant));
    } else {
        for endpoint in &endpoints {
            let state = if endpoint.enabled { "enabled " } else { "disabled" };
            let leads = endpoint_show::destination(endpoint);
            output::line(format_args!("{}  {state}  {leads}  {}", endpoint.id, endpoint_show::events(endpoint)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
