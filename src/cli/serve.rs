//! `twiceproof serve`: one worker and the HTTP side, or the HTTP side alone, until it is told to stop.

use std::process::ExitCode;

use super::global::Global;
use super::process::{self, Answers, Parts};

/// Deliver events, and answer the REST API, /live, /ready and /metrics
///
/// The API speaks to whoever has a token (`twiceproof token`) that was signed with the secret; without a secret it is off.
/// Brings the tables up to date first. On SIGTERM or ctrl-c it claims nothing more, lets requests under way end, records
/// them and ends with exit code 0; a second signal ends it at once. On one SQLite file only one process delivers at a time: with
/// `--only api` as many others as you like answer beside it. On PostgreSQL as many as you like do both.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The address to answer on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// The file with the secret that the API's tokens are signed with: 32 bytes or more
    #[arg(long, value_name = "FILE")]
    jwt_secret_file: Option<String>,

    /// Leave the deliveries to others: a `twiceproof worker`, or another `serve`
    #[arg(long, value_name = "PART", value_enum)]
    only: Option<Only>,
}

/// The part that is served alone.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Only {
    /// The HTTP side
    Api,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let own = [("--listen", "listen", args.listen), ("--jwt-secret-file", "api.jwt_secret_file", args.jwt_secret_file)];
    let config = global.start(&own)?;
    let worker = !matches!(args.only, Some(Only::Api));
    process::run(&config, Parts { worker, http: Some(Answers::Api) }).await
}
