//! `twiceproof token`: a bearer token for the REST API.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use twiceproof::clock::{Clock as _, SystemClock};
use twiceproof::config::parse_duration;
use twiceproof::dispatcher::api::token::Subject;
use twiceproof::dispatcher::manage::tenants::default_organisation;
use twiceproof::id::{Id, Prefix};
use twiceproof::key::Key;

use super::global::Global;
use super::output;

/// Print a bearer token for the REST API
///
/// It speaks for the whole organisation, or with --application for one tenant. Whoever has the secret can make tokens;
/// `serve` checks them with the same secret. It need not run, and nothing is stored.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file with the secret that `serve` checks tokens with: 32 bytes or more
    #[arg(long, value_name = "FILE")]
    jwt_secret_file: Option<String>,

    /// The organisation (org_…) [default: that of a server that has one]
    #[arg(long, value_name = "ID")]
    organization: Option<String>,

    /// Speak for this application (app_…) only, as a portal does for its owner
    #[arg(long, value_name = "ID")]
    application: Option<String>,

    /// How long it is valid
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = parse_duration)]
    expires_in: Duration,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.load(&[("--jwt-secret-file", "api.jwt_secret_file", args.jwt_secret_file)])?;
    let keys = config.api_keys.context("there is no secret; make one and name it: --jwt-secret-file FILE")?;
    let organisation = match args.organization {
        None => default_organisation(),
        Some(text) => Id::parse(Prefix::Organisation, &text)
            .context("--organization takes an id: org_ and 27 letters and digits")?,
    };
    let subject = match args.application {
        None => Subject::Organisation(organisation),
        Some(text) => Subject::Tenant {
            organisation,
            tenant: Key::new(text).context("--application takes the id of an application")?,
        },
    };
    let now = SystemClock.now();
    output::line(keys.sign(&subject, now, now.plus(args.expires_in)))?;
    Ok(ExitCode::SUCCESS)
}
