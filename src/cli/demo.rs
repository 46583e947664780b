//! `twiceproof demo`: the promise, proven in front of you.

use std::cell::Cell;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use twiceproof::config::{Log, LogFormat};
use twiceproof::demo::{DemoOptions, Progress, Sabotage};
use twiceproof::random::Random;
use twiceproof::store::DatabaseUrl;

use super::global::Global;
use super::{logging, output};

/// The database's file in the demo's folder.
const FILE: &str = "demo.db";

/// Prove the promise in front of you
///
/// Starts a dispatcher, a receiver that writes invoices and a small order service in a temporary folder and on free ports,
/// misbehaves on purpose between them, and counts at the end what was lost, doubled or gapped. Exit code 0 only if
/// nothing was. Other than all commands it uses no settings; with --database postgres://… it runs in a schema of its own
/// there.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Deals the same faults again [default: random]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// How many orders are placed, each of which publishes an event
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    events: Option<u32>,

    /// Leave one protection out, and see what happens then
    #[arg(long, value_enum)]
    sabotage: Option<Protection>,

    /// Keep the database and say where it is
    #[arg(long)]
    keep: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Protection {
    /// The handler runs without asking whether the event came before
    Ledger,
    /// The effect is written on a connection of its own, not in the event's transaction
    Transaction,
    /// Each delivery is tried once
    Retry,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    // The faults are on purpose: what the halves log about them would hide the report.
    let level = global.log_level.clone().unwrap_or_else(|| "off".to_owned());
    logging::start(&Log { format: LogFormat::Human, level })?;
    let folder = tempfile::Builder::new().prefix("twiceproof-demo-").tempdir().context("cannot make a folder")?;
    let database = match &global.database {
        Some(url) => DatabaseUrl::parse(url).context("cannot use this --database")?,
        None => DatabaseUrl::sqlite(folder.path().join(FILE))?,
    };
    if let Some(file) = database.file()
        && file.exists()
    {
        bail!("{} exists; the demo needs a new file, or no --database to run in a temporary folder", file.display());
    }
    let seed = args.seed.unwrap_or_else(|| Random::from_system().below(u64::from(u32::MAX)));
    let mut options = DemoOptions::new(database.clone(), seed);
    options.orders = args.events.map_or(options.orders, |events| events as usize);
    options.keep = args.keep;
    options.sabotage = args.sabotage.map(|protection| match protection {
        Protection::Ledger => Sabotage::Ledger,
        Protection::Transaction => Sabotage::Transaction,
        Protection::Retry => Sabotage::Retry,
    });
    output::line(format_args!("seed {seed}, {} orders, {database}\n", options.orders))?;

    let meter = Meter::new();
    let report = twiceproof::demo::run(options, |progress| meter.show(progress)).await;
    meter.clear();
    let report = report.context("the demo could not be run to its end");
    let kept =
        args.keep.then(|| keep(folder, report.as_ref().ok().and_then(|report| report.schema.as_deref()), &database));
    let report = report?;
    output::line(&report)?;
    if let Some(kept) = kept {
        output::line(kept)?;
    }
    Ok(if report.is_proof() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Keeps the database, and says where it is.
fn keep(folder: TempDir, schema: Option<&str>, database: &DatabaseUrl) -> String {
    match (schema, database.file()) {
        (Some(schema), _) => format!("kept in the schema {schema} of {database}"),
        (None, Some(file)) => {
            let kept = format!("kept in {}", file.display());
            // A file that was named by --database lies elsewhere and stays anyway.
            let _ = folder.keep();
            kept
        }
        (None, None) => "nothing was kept".to_owned(),
    }
}

/// Shows on a terminal how much is left to deliver; quiet elsewhere.
struct Meter {
    on: bool,
    shown: Cell<Option<Instant>>,
}

impl Meter {
    fn new() -> Self {
        Self { on: stderr().is_terminal(), shown: Cell::new(None) }
    }

    fn show(&self, progress: Progress) {
        const EVERY: Duration = Duration::from_millis(200);
        if self.on && self.shown.get().is_none_or(|shown| shown.elapsed() >= EVERY) {
            self.shown.set(Some(Instant::now()));
            // Only a nicety: a terminal that has gone away is no reason to stop.
            let _ = write!(stderr(), "\r  {} of {} deliveries to go … ", progress.unfinished, progress.orders);
        }
    }

    fn clear(&self) {
        if self.shown.get().is_some() {
            let _ = write!(stderr(), "\r{:60}\r", "");
        }
    }
}
