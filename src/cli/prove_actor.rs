//! `twiceproof prove actor`: a process for `prove crash` to kill. Not for people.

use std::io::{BufReader, stdin, stdout};
use std::process::ExitCode;

use super::global::Global;

/// Play a part in a crash run, as the first line of standard input says
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) async fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    twiceproof::prove::crash::act(BufReader::new(stdin()), stdout()).await?;
    Ok(ExitCode::SUCCESS)
}
