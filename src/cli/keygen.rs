//! `twiceproof keygen`: a new signing secret.

use std::process::ExitCode;

use twiceproof::random::Random;
use twiceproof::seal::MasterKey;
use twiceproof::secret::Secret;
use twiceproof::signature::PrivateKey;

use super::global::Global;
use super::output;

/// Print a new signing secret
///
/// The secret has 32 random bytes, written as `whsec_` and base64, and is stored nowhere. Redirect it into a file that
/// only you can read: (umask 077; twiceproof keygen > secret)
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Make the private key of a pair instead (whsk_…, signs as v1a); `endpoint add` shows its public key
    #[arg(long)]
    key_pair: bool,

    /// Make a master key instead (whmk_…), under which `serve` seals the secrets of endpoints
    #[arg(long, conflicts_with = "key_pair")]
    master_key: bool,
}

pub(super) async fn run(args: Args, _: &Global) -> anyhow::Result<ExitCode> {
    let random = Random::from_system();
    let text = if args.key_pair {
        PrivateKey::generate(&random).to_text()
    } else if args.master_key {
        MasterKey::generate_text(&random)
    } else {
        Secret::generate(&random).to_text()
    };
    output::line(&*text)?;
    Ok(ExitCode::SUCCESS)
}
