//! The crash runs: the real program is killed at every step and at random moments, stopped past its leases, cut off from its
//! database and its receiver, and has its database killed under it; then the history is judged.
//!
//! A round has a database of its own, a publishing client, a worker (`serve`) and a receiver, each a process. It is under
//! load while it is struck a few times; whoever dies of a strike is started again, as a supervisor would. Then everything
//! comes to rest and [`check`](crate::prove::check()) has the word.
//! Invariants: only processes that were started here are touched; a seed plans the same strikes; an unknown outcome is asked
//! for afterwards, never guessed.

mod actor;
mod book;
mod plan;
mod report;
mod round;
mod store;
mod strike;
mod troupe;

use std::path::PathBuf;

use tempfile::TempDir;
use twiceproof_receiver::BoxError;
#[cfg(feature = "postgres")]
use twiceproof_shared::cluster::{Cluster, ClusterError, Crash};
use twiceproof_shared::kill::{self, Part, Point};
use twiceproof_shared::random::Random;
#[cfg(feature = "postgres")]
use twiceproof_shared::store::{Database, create_own_schema, drop_schema};
use twiceproof_shared::store::{DatabaseUrl, StoreError};

pub use actor::act;
pub use plan::Moment;
pub use report::{Line, Report};

use crate::prove::history::Entry;

/// What a crash run does.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CrashOptions {
    /// The program that is killed: `twiceproof` itself.
    pub program: PathBuf,
    /// Where it stores everything.
    pub target: Target,
    /// Plans the same strikes again.
    pub seed: u64,
    /// Where a process ends itself. Needs a program with the cargo feature `kill-points`.
    pub points: Vec<&'static Point>,
    /// Moments seen from outside, at which a process is killed.
    pub moments: Vec<Moment>,
    /// How often at each point and moment.
    pub rounds: u32,
    /// How many processes are killed at random moments.
    pub random: u32,
    /// How many processes are stopped past their leases and go on.
    pub zombies: u32,
    /// How many connections are harmed, between worker and receiver or between program and PostgreSQL.
    pub cuts: u32,
    /// How often PostgreSQL is killed under load. Needs [`Target::OwnPostgres`].
    pub server_kills: u32,
}

/// The database of a crash run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Target {
    /// For SQLite a temporary file beside the one that is named, for each round; for PostgreSQL a schema, dropped at the end
    /// of its round.
    Url(DatabaseUrl),
    /// A PostgreSQL cluster of its own, made of the installed binaries; it may be killed.
    OwnPostgres,
}

impl CrashOptions {
    /// A run that strikes nobody yet.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, target: Target, seed: u64) -> Self {
        let program = program.into();
        let (rounds, random, zombies, cuts, server_kills) = (5, 0, 0, 0, 0);
        Self {
            program,
            target,
            seed,
            points: Vec::new(),
            moments: Vec::new(),
            rounds,
            random,
            zombies,
            cuts,
            server_kills,
        }
    }
}

/// Why a crash run has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CrashError {
    /// The database did not do its part, outside of what was done to it.
    #[error("the database of the crash run: {0}")]
    Store(#[from] StoreError),
    /// A process, a port or a folder could not be had.
    #[error("a process, a port or a folder could not be had")]
    System(#[from] std::io::Error),
    /// A part could not be set up.
    #[error("a part of the crash run could not be set up")]
    Setup(#[source] BoxError),
    /// A process did not become ready.
    #[error("a {0:?} process was not ready in time; `TWICEPROOF_TEST_KEEP` keeps its log")]
    NotReady(Part),
    /// A process could not be stopped or let go on.
    #[error("a process could not be sent a signal; it takes the `kill` program of a Unix system")]
    Signal,
    /// The program cannot end itself at points.
    #[error("this program was built without kill points; build it with `--features kill-points`, or kill at random")]
    NoPoints,
    /// Somebody else's PostgreSQL is not killed.
    #[error("PostgreSQL is killed only in a cluster of its own, which --own-postgres makes")]
    NotOurs,
    /// There is no PostgreSQL to be started.
    #[cfg(feature = "postgres")]
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// This build has no PostgreSQL.
    #[error("this program was built without PostgreSQL")]
    NoPostgres,
}

/// How far a run is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// What is being done.
    pub title: &'a str,
    /// The round that begins, from 1, …
    pub round: usize,
    /// … and how many there are.
    pub rounds: usize,
}

/// Runs everything that the options ask for. `judged` sees the history of each round after it was judged.
///
/// Call it from the main task: on Linux a cluster of its own ends with the thread that started it.
///
/// # Errors
/// [`CrashError`] where something could not be set up. Damage is not an error but in the [`Report`].
pub async fn run(
    options: &CrashOptions,
    progress: impl Fn(Progress<'_>),
    mut judged: impl FnMut(&[Entry]) -> std::io::Result<()>,
) -> Result<Report, CrashError> {
    if !options.points.is_empty() && !kill::ARE_BUILT_IN {
        return Err(CrashError::NoPoints);
    }
    if options.server_kills > 0 && !matches!(options.target, Target::OwnPostgres) {
        return Err(CrashError::NotOurs);
    }
    let mut bed = Bed::open(options)?;
    let random = Random::seeded(options.seed);
    let rounds = plan::plan(options, bed.url.database(), &random);
    let mut report = Report::new(options.seed, &bed.url);
    for round in &rounds {
        progress(Progress { title: &round.title, round: round.number, rounds: rounds.len() });
        let played = round::play(&mut bed, round, &random).await?;
        judged(&played.history)?;
        report.add(&round.title, &played);
    }
    Ok(report)
}

/// What the rounds stand on.
struct Bed {
    program: PathBuf,
    url: DatabaseUrl,
    #[cfg(feature = "postgres")]
    cluster: Option<Cluster>,
}

impl Bed {
    #[cfg(feature = "postgres")]
    fn open(options: &CrashOptions) -> Result<Self, CrashError> {
        let program = options.program.clone();
        Ok(match &options.target {
            Target::Url(url) => Self { program, url: url.clone(), cluster: None },
            Target::OwnPostgres => {
                let cluster = Cluster::start()?;
                Self { program, url: cluster.url(), cluster: Some(cluster) }
            }
        })
    }

    #[cfg(not(feature = "postgres"))]
    fn open(options: &CrashOptions) -> Result<Self, CrashError> {
        match &options.target {
            Target::Url(url) => Ok(Self { program: options.program.clone(), url: url.clone() }),
            Target::OwnPostgres => Err(CrashError::NoPostgres),
        }
    }

    /// A round's own database, the folder of its processes, and its schema's name.
    async fn database(&self) -> Result<(DatabaseUrl, TempDir, Option<String>), CrashError> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("twiceproof-crash-").disable_cleanup(std::env::var_os(KEEP).is_some());
        let Some(file) = self.url.file() else {
            #[cfg(feature = "postgres")]
            {
                let (url, name) = create_own_schema(&self.url, "twiceproof_prove").await?;
                return Ok((url, builder.tempdir()?, Some(name)));
            }
            #[cfg(not(feature = "postgres"))]
            return Err(CrashError::NoPostgres);
        };
        let beside = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = builder.tempdir_in(beside.unwrap_or(std::path::Path::new(".")))?;
        Ok((DatabaseUrl::sqlite(folder.path().join("round.db"))?, folder, None))
    }

    /// Drops a round's schema.
    async fn forget(&self, schema: Option<String>) -> Result<(), CrashError> {
        #[cfg(feature = "postgres")]
        if let Some(name) = schema
            && self.url.database() == Database::Postgres
        {
            drop_schema(&self.url, &name).await?;
        }
        #[cfg(not(feature = "postgres"))]
        drop(schema);
        Ok(())
    }

    /// Ends the own PostgreSQL and starts it again on the same data.
    fn crash_server(&mut self, killed: bool) -> Result<(), CrashError> {
        #[cfg(feature = "postgres")]
        if let Some(cluster) = &mut self.cluster {
            cluster.crash(if killed { Crash::Kill } else { Crash::Immediate })?;
            return Ok(());
        }
        #[cfg(not(feature = "postgres"))]
        let _ = killed;
        Err(CrashError::NotOurs)
    }
}

/// Keeps the folders of the rounds, with the logs of their processes.
const KEEP: &str = "TWICEPROOF_TEST_KEEP";
