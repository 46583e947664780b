//! `twiceproof event list`: the newest events.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value, json};
use twiceproof::dispatcher::event::check_event_type;
use twiceproof::dispatcher::store::history::{self, StoredEvent, Window};

use super::global::{self, Global};
use super::{output, when};

/// List events, newest first
///
/// Go on behind the last one that was seen with --before ID. `event show ID` tells what became of one.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The most events to list
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,

    /// Only events of this type; may be given several times
    #[arg(long = "type", value_name = "TYPE")]
    event_types: Vec<String>,

    /// Only events that are older than the one with this id
    #[arg(long, value_name = "ID")]
    before: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.start(&[])?;
    for event_type in &args.event_types {
        check_event_type(event_type).with_context(|| format!("cannot use --type {event_type:?}"))?;
    }
    let event_types = match args.event_types.is_empty() {
        true => String::new(),
        false => serde_json::to_string(&args.event_types)?,
    };
    let window = Window {
        from: args.before.as_deref().unwrap_or("~"),
        down: true,
        after: "",
        before: "~",
        channel: "",
        event_types: &event_types,
        states: "",
        with_content: false,
        limit: args.limit.into(),
    };
    let store = global::open_ready(&config).await?;
    let events = history::events(&mut store.read().await?.conn(), config.tenant.as_str(), &window).await;
    store.close().await;
    let events = events.context("cannot read the events")?;
    if args.json {
        return output::json(&events.iter().map(described).collect()).map(|()| ExitCode::SUCCESS);
    }
    for StoredEvent { id, uid, event_type, created_at, .. } in &events {
        let uid = uid.as_deref().unwrap_or("-");
        output::line(format_args!("{id}  {}  {event_type}  {uid}", when::rfc3339(*created_at)))?;
    }
    if events.is_empty() {
        output::message(&format!("the tenant {} has no such events", config.tenant));
    }
    Ok(ExitCode::SUCCESS)
}

/// What is told of an event, without its payload.
pub(super) fn described(event: &StoredEvent) -> Value {
    json!({
        "id": event.id,
        "uid": event.uid,
        "type": event.event_type,
        "content_type": event.content_type,
        "channels": serde_json::from_str::<Value>(&event.channels).unwrap_or_default(),
        "created_at": when::rfc3339(event.created_at),
        "expunged_at": event.expunged_at.map(when::rfc3339),
    })
}
