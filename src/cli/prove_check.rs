//! `twiceproof prove check`: judge a history that anybody wrote.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use twiceproof::prove::history;

use super::global::Global;
use super::output;

/// Judge a history: what was lost, doubled, or told wrongly
///
/// A history is JSON lines, one fact each, as `prove crash --history` writes them. Each finding is a line. Exit code 0 only if
/// there is none.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file, or - for standard input
    file: PathBuf,

    /// Print the verdict as JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    let name = args.file.display();
    let from: Box<dyn BufRead> = if args.file.as_os_str() == "-" {
        Box::new(BufReader::new(stdin()))
    } else {
        Box::new(BufReader::new(File::open(&args.file).with_context(|| format!("cannot open {name}"))?))
    };
    let entries = history::read(from).with_context(|| format!("{name} is no history"))?;
    let verdict = twiceproof::prove::check(&entries);
    if args.json {
        output::json(&serde_json::to_value(&verdict)?)?;
    } else {
        for finding in &verdict.findings {
            output::line(finding)?;
        }
        let (accepted, effects, findings) = (verdict.accepted, verdict.effects, verdict.findings.len());
        output::line(format_args!("{accepted} accepted, {effects} effects, {findings} findings"))?;
    }
    Ok(if verdict.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
