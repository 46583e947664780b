//! `twiceproof worker`: delivers, and answers nothing but questions about itself.

use std::process::ExitCode;

use super::global::Global;
use super::process::{self, Answers, Parts};

/// Deliver events, and nothing else
///
/// The other part of `serve --only api`. Brings the tables up to date first, and keeps house: forgets what is over, and sends
/// again what was asked for. On SIGTERM or ctrl-c it claims nothing more, lets requests under way end, records them and ends
/// with exit code 0; a second signal ends it at once. On one SQLite file only one worker runs at a time; on PostgreSQL as
/// many as you like share the work.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Answer /live, /ready and /metrics on this address; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let http = args.listen.is_some().then_some(Answers::Health);
    let config = global.start(&[("--listen", "listen", args.listen)])?;
    process::run(&config, Parts { worker: true, http }).await
}
