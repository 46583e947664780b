//! `twiceproof endpoint show`: what is known of an endpoint.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value, json};
use twiceproof::dispatcher::{Endpoint, Manager};

use super::global::{self, Global};
use super::{output, signature_style};

/// Show an endpoint of the tenant
///
/// Its URL is a credential: without --url its host and a short hash stand for it. Values of its custom headers are never
/// shown.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Its id (ep_…) or uid
    id: String,

    /// Show the URL in full
    #[arg(long)]
    url: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.start(&[])?;
    let store = global::open_ready(&config).await?;
    let manager = Manager::new(&store, config.addresses(), &config.policy());
    let found = manager.find(&mut store.read().await?.conn(), &config.tenant, &args.id).await;
    store.close().await;
    let endpoint = found.with_context(|| format!("the tenant {} has no endpoint {}", config.tenant, args.id))?;
    if args.json {
        output::json(&shown(&endpoint, args.url))?;
        return Ok(ExitCode::SUCCESS);
    }
    let leads = if args.url { endpoint.expose_url().to_owned() } else { destination(&endpoint) };
    let state = match (&endpoint.state_reason, endpoint.enabled) {
        (_, true) => "enabled".to_owned(),
        (reason, false) => format!("disabled ({})", reason.as_deref().unwrap_or("manual")),
    };
    output::line(format_args!("{}", endpoint.id))?;
    output::line(format_args!("  leads    to {leads}"))?;
    output::line(format_args!("  gets     {}", events(&endpoint)))?;
    output::line(format_args!("  is       {state}"))?;
    output::line(format_args!("  signed   {}", signature_style::said(&endpoint.signing)))?;
    for (name, value) in [
        ("uid", endpoint.uid.clone().unwrap_or_default()),
        ("is for", endpoint.description.clone()),
        ("channels", endpoint.channels.join(", ")),
        ("headers", endpoint.headers.expose().map(|(name, _)| name).collect::<Vec<_>>().join(", ")),
    ] {
        if !value.is_empty() {
            output::line(format_args!("  {name:<8} {value}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Where an endpoint leads, as anybody may see it.
pub(super) fn destination(endpoint: &Endpoint) -> String {
    endpoint.destination().map_or_else(|| "nowhere".to_owned(), |destination| destination.to_string())
}

/// Which events it gets.
pub(super) fn events(endpoint: &Endpoint) -> String {
    match endpoint.event_types.as_slice() {
        [] => "all event types".to_owned(),
        types => types.join(", "),
    }
}

/// An endpoint for a script.
pub(super) fn shown(endpoint: &Endpoint, with_url: bool) -> Value {
    let headers: Vec<&str> = endpoint.headers.expose().map(|(name, _)| name).collect();
    let mut shown = json!({
        "id": endpoint.id,
        "tenant": endpoint.tenant,
        "uid": endpoint.uid,
        "destination": destination(endpoint),
        "description": endpoint.description,
        "enabled": endpoint.enabled,
        "disabled_reason": endpoint.state_reason,
        "event_types": endpoint.event_types,
        "channels": endpoint.channels,
        "headers": headers,
        "signing": endpoint.signing,
        "rate_limit": endpoint.rate_limit,
        "failures_in_row": endpoint.failures_in_row,
        "created_at_ms": endpoint.created_at.as_millis(),
        "updated_at_ms": endpoint.updated_at.as_millis(),
    });
    if with_url {
        shown["url"] = endpoint.expose_url().into();
    }
    shown
}
