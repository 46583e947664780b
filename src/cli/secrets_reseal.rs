//! `twiceproof secrets reseal`: all secrets of endpoints under the first master key.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::json;
use twiceproof::dispatcher::manage::sealing;

use super::global::{self, Global};
use super::output;

/// Seal the secrets of all endpoints under the first master key
///
/// Give the new key in the first line of the file that TWICEPROOF_SECRETS_MASTER_KEY_FILE names and the old one in the second,
/// to all processes; run this; then take the old one away. What runs meanwhile goes on signing. A secret that was not sealed
/// yet is sealed too.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.start(&[])?;
    if config.seal.current().is_none() {
        bail!(
            "there is no master key; make one with `twiceproof keygen --master-key` and name its file: TWICEPROOF_SECRETS_MASTER_KEY_FILE"
        );
    }
    let store = global::open_ready(&config).await?;
    let done = sealing::reseal(&store).await.context("not all secrets are sealed; run it again")?;
    store.close().await;
    if args.json {
        output::json(&json!({ "sealed": done.sealed, "kept": done.kept, "master_key": config.seal.current() }))?;
    } else {
        output::line(format_args!("sealed {}, kept {}", done.sealed, done.kept))?;
    }
    Ok(ExitCode::SUCCESS)
}
