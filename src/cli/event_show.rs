//! `twiceproof event show`: one event, where it goes, and what was tried.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};
use twiceproof::dispatcher::store::history::{self, AttemptsOf, StoredAttempt, StoredEvent, Window};
use twiceproof::store::{Conn, StoreError};

use super::event_list::described;
use super::global::{self, Global};
use super::{output, when};

/// How many deliveries, and how many attempts, are shown.
const MOST: i64 = 1_000;

/// Show one event with its deliveries and attempts
///
/// With --json its payload too, as a text in which what is no UTF-8 is replaced. At most 1000 deliveries and the 1000 newest
/// attempts are shown.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The event's id (msg_…) or uid
    #[arg(value_name = "ID")]
    id: String,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is known of an event.
struct Story {
    event: StoredEvent,
    /// Endpoint, state, and since when or until when.
    deliveries: Vec<(String, String, i64)>,
    attempts: Vec<StoredAttempt>,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.start(&[])?;
    let store = global::open_ready(&config).await?;
    let story = read(&mut store.read().await?.conn(), config.tenant.as_str(), &args.id).await;
    store.close().await;
    let Some(story) = story? else { bail!("the tenant {} has no event {}", config.tenant, args.id) };
    match args.json {
        true => output::json(&story.to_json())?,
        false => story.print()?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn read(conn: &mut Conn<'_>, tenant: &str, name: &str) -> Result<Option<Story>, StoreError> {
    let Some(event) = history::event(conn, tenant, name, true).await? else { return Ok(None) };
    let deliveries = history::destinations(conn, tenant, &event.id, ("", false), MOST).await?;
    let window = Window {
        from: "~",
        down: true,
        after: "",
        before: "~",
        channel: "",
        event_types: "",
        states: "",
        with_content: true,
        limit: MOST,
    };
    let mut attempts = history::attempts(conn, tenant, AttemptsOf::Event(&event.id, ""), -1, &window).await?;
    attempts.reverse();
    Ok(Some(Story { event, deliveries, attempts }))
}

impl Story {
    fn to_json(&self) -> Value {
        let mut told = described(&self.event);
        let payload = self.event.expunged_at.is_none().then(|| String::from_utf8_lossy(&self.event.payload));
        let delivery = |(endpoint, state, due_at): &(String, String, i64)| {
            let due_at = waits(state).then(|| when::rfc3339(*due_at));
            json!({ "endpoint": endpoint, "state": state, "due_at": due_at })
        };
        let attempt = |one: &StoredAttempt| {
            json!({
                "id": one.id,
                "endpoint": one.endpoint,
                "outcome": one.outcome,
                "status": one.status,
                "error": one.error,
                "response": one.response.as_deref().map(String::from_utf8_lossy),
                "by_hand": one.by_hand != 0,
                "started_at": when::rfc3339(one.started_at),
                "resolved_ms": one.resolved_ms,
                "connected_ms": one.connected_ms,
                "answered_ms": one.answered_ms,
                "took_ms": one.ended_at - one.started_at,
            })
        };
        told["payload"] = json!(payload);
        told["deliveries"] = self.deliveries.iter().map(delivery).collect();
        told["attempts"] = self.attempts.iter().map(attempt).collect();
        told
    }

    fn print(&self) -> anyhow::Result<()> {
        let event = &self.event;
        output::line(&event.id)?;
        output::line(format_args!("  type      {}", event.event_type))?;
        if let Some(uid) = &event.uid {
            output::line(format_args!("  uid       {uid}"))?;
        }
        output::line(format_args!("  accepted  {}", when::rfc3339(event.created_at)))?;
        match event.expunged_at {
            Some(at) => output::line(format_args!("  payload   taken away at {}", when::rfc3339(at)))?,
            None => output::line(format_args!("  payload   {} bytes, {}", event.payload.len(), event.content_type))?,
        }
        if self.deliveries.is_empty() {
            output::line("  no endpoint takes it")?;
        }
        for (endpoint, state, due_at) in &self.deliveries {
            let due = if waits(state) { format!("  due {}", when::rfc3339(*due_at)) } else { String::new() };
            output::line(format_args!("  {endpoint}  {state}{due}"))?;
            for one in self.attempts.iter().filter(|one| one.endpoint == *endpoint) {
                output::line(format_args!("    {}", line(one)))?;
            }
        }
        Ok(())
    }
}

/// An attempt in one line.
fn line(one: &StoredAttempt) -> String {
    let status = one.status.map(|status| format!(" {status}")).unwrap_or_default();
    let error = one.error.as_deref().map(|error| format!("  {error}")).unwrap_or_default();
    let by_hand = if one.by_hand == 0 { "" } else { "  by hand" };
    let took = one.ended_at - one.started_at;
    let at = |ms: Option<i64>, what| ms.map(|ms| format!("{what} after {ms}")).into_iter();
    let ways = at(one.resolved_ms, "resolved").chain(at(one.connected_ms, "connected"));
    let ways: Vec<String> = ways.chain(at(one.answered_ms, "answered")).collect();
    let ways = if ways.is_empty() { String::new() } else { format!(" ({})", ways.join(", ")) };
    format!("{}  {}{status}  {took} ms{ways}{by_hand}{error}", when::rfc3339(one.started_at), one.outcome)
}

/// Whether a delivery in this state has a time at which it goes on by itself.
fn waits(state: &str) -> bool {
    matches!(state, "pending" | "backoff")
}
