//! `twiceproof event publish`: publishes one event.

use std::io::{IsTerminal as _, Read as _, stdin};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::json;
use twiceproof::config::parse_duration;
use twiceproof::dispatcher::publish::Conflict;
use twiceproof::dispatcher::{NewEvent, PublishError, Published, Publisher};
use twiceproof::key::Key;

use super::global::{self, Global};
use super::output;

/// The exit code for a uid that was used with something else.
const CONFLICT: u8 = 3;

/// Publish one event
///
/// The payload is taken byte for byte from --data, from --file or from standard input. With --uid a repetition is
/// recognised: the same event again is "already accepted"; anything else under the uid is a conflict, exit code 3, and
/// changes nothing.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The event type, such as order.paid
    #[arg(long = "type", value_name = "TYPE")]
    event_type: String,

    /// Your own id of the event: the same uid is the same event
    #[arg(long, value_name = "ID")]
    uid: Option<String>,

    /// The payload itself
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    data: Option<String>,

    /// The file with the payload
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// The media type of the payload
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    content_type: String,

    /// Events with the same key go to each endpoint in order, each after the one before was taken or given up
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,

    /// Not sent any more after so long, such as 10m or 2h
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires_in: Option<Duration>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.start(&[])?;
    let payload = payload(args.data, args.file)?;
    let mut event = NewEvent::json(config.tenant.clone(), args.event_type, payload);
    event.content_type = args.content_type;
    event.uid = args.uid.map(Key::new).transpose().context("cannot use this --uid")?;
    event.ordering_key = args.ordering_key.map(Key::new).transpose().context("cannot use this --ordering-key")?;

    check_json(&event)?;

    let store = global::open_ready(&config).await?;
    event.expires_at = args.expires_in.map(|span| store.now().plus(span));
    let event_type = event.event_type.clone();
    let publisher = Publisher::new(&store, &config.policy());
    let outcome = publisher.publish_now(event).await;
    let owed = match &outcome {
        Ok(published) => publisher.owed(&config.tenant, &published.id).await.context("the event was accepted")?,
        Err(_) => 0,
    };
    store.close().await;
    match outcome {
        Ok(published) => {
            if owed == 0 {
                let tenant = &config.tenant;
                output::message(&format!(
                    "no endpoint of the tenant {tenant} takes {event_type}: nothing will be sent"
                ));
            }
            accepted(&published, owed, args.json)
        }
        Err(PublishError::Conflict(conflict)) => refused(&conflict, args.json),
        Err(error) => Err(error).context("the event was not accepted"),
    }
}

/// What is called JSON must be some; the bytes are sent as they are all the same.
fn check_json(event: &NewEvent) -> anyhow::Result<()> {
    if event.content_type != "application/json" {
        return Ok(());
    }
    serde_json::from_slice::<&serde_json::value::RawValue>(&event.payload)
        .map(drop)
        .context("the payload is not valid JSON; for other data name its --content-type")
}

fn payload(data: Option<String>, file: Option<PathBuf>) -> anyhow::Result<Vec<u8>> {
    match (data, file) {
        (Some(data), _) => Ok(data.into_bytes()),
        (None, Some(path)) => {
            std::fs::read(&path).with_context(|| format!("cannot read the payload in {}", path.display()))
        }
        (None, None) if stdin().is_terminal() => bail!("no payload: give --data or --file, or pipe it in"),
        (None, None) => {
            let mut payload = Vec::new();
            stdin().read_to_end(&mut payload).context("cannot read the payload from standard input")?;
            Ok(payload)
        }
    }
}

fn accepted(published: &Published, owed: u64, as_json: bool) -> anyhow::Result<ExitCode> {
    let (status, remark) = if published.fresh {
        ("accepted", "")
    } else {
        ("already_accepted", "  already accepted; nothing was changed")
    };
    if as_json {
        output::json(&json!({ "id": published.id.as_str(), "status": status, "endpoints": owed }))?;
    } else {
        output::line(format_args!("{}{remark}", published.id))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn refused(conflict: &Conflict, as_json: bool) -> anyhow::Result<ExitCode> {
    if as_json {
        output::json(&json!({ "id": conflict.id.as_str(), "status": "conflict", "differs": conflict.differs }))?;
    }
    output::message(&format!("conflict: {conflict}; nothing was changed"));
    Ok(ExitCode::from(CONFLICT))
}
