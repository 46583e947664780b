//! `twiceproof prove crash`: kill the program at every step, and count.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write as _, stderr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use twiceproof::config::{Log, LogFormat};
use twiceproof::kill::{POINTS, Point};
use twiceproof::prove::crash::{CrashOptions, Moment, Progress, Target};
use twiceproof::prove::history;
use twiceproof::random::Random;
use twiceproof::store::DatabaseUrl;

use super::global::Global;
use super::{logging, output};

/// Kill the program under load, and count what was lost or doubled
///
/// Starts a publishing client, a worker and a receiver as processes of this program, kills or stops them, harms their
/// connections, starts them again, lets everything come to rest and judges what was told to whom against what stands. Exit
/// code 0 only if every strike bit and nothing was lost, doubled or told wrongly. Other than most commands it uses no
/// settings: each round has a temporary SQLite file, in the folder of --database sqlite:FILE where that is given (FILE itself
/// is left alone), or a schema of its own at --database postgres://…, dropped at its end. Without any of the counts it kills
/// 10 processes at random moments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Kill at this point or moment, or at `all`; points need a program built with --features kill-points
    #[arg(long, value_name = "POINT")]
    at: Vec<String>,

    /// How often at each point
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=MOST))]
    rounds: u32,

    /// How many processes are killed at random moments
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=MOST))]
    random: u32,

    /// How many processes are stopped past their leases and go on
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=MOST))]
    zombies: u32,

    /// How many connections are cut, halved, delayed or swallowed
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=MOST))]
    cuts: u32,

    /// How often PostgreSQL is killed; only with --own-postgres
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=MOST))]
    postgres_kills: u32,

    /// Run on a temporary PostgreSQL cluster of its own, made of the installed binaries
    #[arg(long)]
    own_postgres: bool,

    /// Plans the same strikes again [default: random]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Write what happened to this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// Print the points and moments and end
    #[arg(long)]
    list_points: bool,
}

/// The most of anything, so that a slip of the finger ends on the same day.
const MOST: i64 = 100_000;

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    if args.list_points {
        for point in POINTS {
            output::line(format_args!("{:<22} {:?}: {}", point.name, point.part, point.moment))?;
        }
        for moment in Moment::ALL {
            output::line(format_args!("{:<22} {:?}: seen from outside, in any build", moment.name(), moment.part()))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    // What the halves say about faults that are on purpose would hide the report.
    let level = global.log_level.clone().unwrap_or_else(|| "off,sqlx::postgres::notice=off".to_owned());
    logging::start(&Log { format: LogFormat::Human, level })?;
    let target = match (&global.database, args.own_postgres) {
        (Some(_), true) => bail!("--own-postgres makes a database of its own; leave --database out"),
        (None, true) => Target::OwnPostgres,
        (Some(url), false) => Target::Url(DatabaseUrl::parse(url).context("cannot use this --database")?),
        (None, false) => Target::Url(DatabaseUrl::sqlite(std::env::temp_dir().join("crash.db"))?),
    };
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let seed = args.seed.unwrap_or_else(|| Random::from_system().below(u64::from(u32::MAX)));
    let mut options = CrashOptions::new(program, target, seed);
    (options.points, options.moments) = steps(&args.at)?;
    options.rounds = args.rounds;
    (options.random, options.zombies, options.cuts) = (args.random, args.zombies, args.cuts);
    options.server_kills = args.postgres_kills;
    if args.at.is_empty() && [args.random, args.zombies, args.cuts, args.postgres_kills] == [0; 4] {
        options.random = 10;
    }
    let mut file = match &args.history {
        Some(path) => {
            Some(BufWriter::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?))
        }
        None => None,
    };
    let judged = |entries: &[history::Entry]| match &mut file {
        Some(file) => history::write(entries, file),
        None => Ok(()),
    };
    let meter = stderr().is_terminal();
    let progress = |progress: Progress<'_>| {
        if meter {
            let Progress { title, round, rounds } = progress;
            // Only a nicety: a terminal that has gone away is no reason to stop.
            let _ = write!(stderr(), "\r{:70}\r  round {round} of {rounds}: {title} … ", "");
        }
    };
    let report = twiceproof::prove::crash::run(&options, progress, judged).await;
    if meter {
        let _ = write!(stderr(), "\r{:70}\r", "");
    }
    let report = report.with_context(|| format!("the run with seed {seed} could not be brought to its end"))?;
    if args.json {
        output::json(&serde_json::to_value(&report)?)?;
    } else {
        output::line(&report)?;
    }
    Ok(if report.is_proof() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The points and moments of these names.
fn steps(names: &[String]) -> anyhow::Result<(Vec<&'static Point>, Vec<Moment>)> {
    if names.iter().any(|name| name == "all") {
        return Ok((POINTS.iter().collect(), Moment::ALL.to_vec()));
    }
    let (mut points, mut moments) = (Vec::new(), Vec::new());
    for name in names {
        if let Some(moment) = Moment::ALL.into_iter().find(|moment| moment.name() == name) {
            moments.push(moment);
        } else {
            let point = POINTS.iter().find(|point| point.name == name);
            points.push(point.with_context(|| format!("there is no point {name:?}; --list-points shows them"))?);
        }
    }
    Ok((points, moments))
}
