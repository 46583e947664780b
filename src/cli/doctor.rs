//! `twiceproof doctor`: is everything where somebody will move it on?

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use twiceproof::config::Config;
use twiceproof::dispatcher::doctor::{self, Examination, Severity};
use twiceproof::store::{Store, settings};

use super::global::{self, Global};
use super::output;

/// The exit code where something is wrong.
const WRONG: u8 = 3;

/// Look for what is held up, could be lost, or nobody moves
///
/// Says of each finding what it is, where, and what to do about it. Reads only, along indexes; with --deep whole tables too. Exit
/// code 0: nothing is wrong; 3: something is; 1: it could not be looked.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Read whole tables too: on a large installation this takes its time
    #[arg(long)]
    deep: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.start(&[])?;
    let store = global::open(&config).await?;
    let examined = examine(&store, args.deep).await;
    store.close().await;
    let (examination, weak) = examined.context("the installation could not be looked at")?;
    let is_well = examination.is_well() && weak.is_empty();
    match args.json {
        true => as_json(&examination, &weak, is_well)?,
        false => as_text(&config, &examination, &weak, is_well)?,
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

async fn examine(store: &Store, deep: bool) -> anyhow::Result<(Examination, Vec<settings::Weak>)> {
    let weak = settings::weak(&mut store.read().await?.conn()).await?;
    Ok((doctor::examine(store, deep).await?, weak))
}

fn as_json(examination: &Examination, weak: &[settings::Weak], is_well: bool) -> anyhow::Result<()> {
    let deliveries: serde_json::Map<String, serde_json::Value> =
        examination.deliveries.iter().map(|(state, count)| ((*state).to_owned(), json!(count))).collect();
    let mut findings: Vec<serde_json::Value> = weak
        .iter()
        .map(|weak| json!({"check": "database", "severity": "wrong", "what": weak.what, "which": [], "remedy": weak.remedy}))
        .collect();
    for finding in &examination.findings {
        findings.push(serde_json::to_value(finding)?);
    }
    output::json(&json!({ "well": is_well, "deliveries": deliveries, "findings": findings }))
}

fn as_text(config: &Config, examination: &Examination, weak: &[settings::Weak], is_well: bool) -> anyhow::Result<()> {
    output::line(format_args!("{}", config.database))?;
    let counts: Vec<String> = examination.deliveries.iter().map(|(state, count)| format!("{count} {state}")).collect();
    if !counts.is_empty() {
        output::line(format_args!("deliveries: {}", counts.join(", ")))?;
    }
    for weak in weak {
        told("wrong", &weak.what, &[], weak.remedy)?;
    }
    for finding in &examination.findings {
        let word = if finding.severity == Severity::Wrong { "wrong" } else { "note" };
        told(word, &finding.what, &finding.which, finding.remedy)?;
    }
    if is_well {
        output::line("nothing is wrong")?;
    }
    Ok(())
}

fn told(word: &str, what: &str, which: &[String], remedy: &str) -> anyhow::Result<()> {
    output::line(format_args!("{word}: {what}"))?;
    for one in which {
        output::line(format_args!("    {one}"))?;
    }
    output::line(format_args!("    to do: {remedy}"))
}
