//! `twiceproof keygen`: a new signing secret.

use std::process::ExitCode;

use twiceproof::random::Random;
use twiceproof::secret::Secret;

use super::global::Global;
use super::output;

/// Print a new signing secret
///
/// The secret has 32 random bytes, written as `whsec_` and base64, and is stored nowhere. Redirect it into a file that
/// only you can read: (umask 077; twiceproof keygen > secret)
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) async fn run(_: Args, _: &Global) -> anyhow::Result<ExitCode> {
    output::line(&*Secret::generate(&Random::from_system()).to_text())?;
    Ok(ExitCode::SUCCESS)
}
