//! `twiceproof bench`: how fast this machine is, ours beside its limits.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use twiceproof::bench::{BenchOptions, LEAST_PAYLOAD, Scenario};
use twiceproof::config::{Log, LogFormat};
use twiceproof::store::DatabaseUrl;

use super::global::Global;
use super::{logging, output};

/// The most events, so that a slip of the finger does not fill the disk.
const MOST_EVENTS: u64 = 10_000_000;

/// Measure how fast this machine publishes, delivers and receives
///
/// Runs dispatcher, receiver, sink and load in this process, on loopback addresses, and measures in turns with each
/// scenario what the machine could do at best: a plain client that posts the same signed bytes over as many connections,
/// and a plain handler that verifies and inserts. Figures of other machines differ; the ratios to the limits tell. Other
/// than most commands it uses no settings: each scenario has a temporary SQLite file, in the folder of --database
/// sqlite:FILE where that is given (FILE itself is left alone), or a schema of its own at --database postgres://…, dropped
/// at its end.
///
/// Some scenarios are about trouble and take minutes, so they are measured only where they are named: beside-slow (a fast
/// endpoint beside one that answers after 10 s), black-hole and black-hole-connect (50 healthy endpoints beside one that
/// never answers, or where already the connect hangs, and that is owed many older events), resume (a worker process is
/// killed and started again). Their limit is the same load without the trouble.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to measure, once or more often [default: all up to receive]
    #[arg(long, value_name = "NAME", value_parser = scenarios())]
    scenario: Vec<Scenario>,

    /// Deliveries or requests of each scenario, over all rounds
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=MOST_EVENTS))]
    events: u64,

    /// Bytes of each payload, at most 1 MiB
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(LEAST_PAYLOAD as i64..=1_048_576))]
    payload: u32,

    /// How many publish or send at a time, and the slots of each endpoint
    #[arg(long, visible_alias = "publishers", value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=512))]
    connections: u32,

    /// How often limit and subject take turns
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// The longest that one turn may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=3600))]
    limit: u32,

    /// How long the scenarios beside a bad endpoint go on, over all rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    duration: u32,

    /// Older deliveries that the black hole is owed
    #[arg(long, value_name = "NUMBER", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    backlog: u32,

    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

fn scenarios() -> impl clap::builder::TypedValueParser<Value = Scenario> {
    PossibleValuesParser::new(Scenario::ALL.map(Scenario::name)).try_map(|name| {
        Scenario::ALL.into_iter().find(|scenario| scenario.name() == name).ok_or("there is no such scenario")
    })
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    // A line for each delivery would measure the logging.
    let level = global.log_level.clone().unwrap_or_else(|| "error".to_owned());
    logging::start(&Log { format: LogFormat::Human, level })?;
    let database = match &global.database {
        Some(url) => DatabaseUrl::parse(url).context("cannot use this --database")?,
        None => DatabaseUrl::sqlite(std::env::temp_dir().join("bench.db"))?,
    };
    let mut options = BenchOptions::new(database);
    if !args.scenario.is_empty() {
        options.scenarios = args.scenario;
    }
    options.events = usize::try_from(args.events)?;
    options.payload = args.payload as usize;
    options.connections = args.connections as usize;
    options.rounds = args.rounds as usize;
    options.limit = Duration::from_secs(u64::from(args.limit));
    options.duration = Duration::from_secs(u64::from(args.duration));
    options.backlog = args.backlog as usize;
    if cfg!(debug_assertions) {
        output::message("this program was built without optimisation; its figures say little");
    }
    let progress = |scenario: Scenario| output::message(&format!("measuring {} …", scenario.name()));
    let report = twiceproof::bench::run(&options, progress).await.context("there are no figures")?;
    if args.json {
        output::json(&serde_json::to_value(&report)?)?;
    } else {
        output::line(&report)?;
    }
    if report.results.iter().any(|result| !result.adds_up()) {
        bail!("the counts do not add up: something was lost or doubled");
    }
    Ok(ExitCode::SUCCESS)
}
