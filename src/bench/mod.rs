//! The measuring kit: how fast the halves are on this machine, beside what the machine could do at best.
//!
//! A figure alone says little, because machines differ. So every scenario measures its *limit* too, in the same run and in
//! turns with the subject: a plain client that posts as many signed bodies to the same sink over as many connections, or a
//! plain handler that verifies and inserts under group commit and knows no ledger. Ratios carry over to other machines.
//!
//! Invariants: loopback only; bounded in count and in time; every scenario has a database of its own, a temporary SQLite
//! file or a schema that is dropped at its end; what was counted is in the report, so that a fast run that lost something
//! shows. Nothing here is a test of speed: times are reported, never asserted.

mod backlog;
mod bed;
mod client;
mod deliver;
mod isolation;
mod meter;
mod pace;
mod publish;
mod receive;
mod report;
mod resume;
mod sink;
mod store;
mod trap;

use std::path::PathBuf;
use std::time::Duration;

use twiceproof_dispatcher::{ManageError, PublishError, StartError};
use twiceproof_receiver::BoxError;
use twiceproof_shared::store::{DatabaseUrl, StoreError};

pub use report::{Counts, Figures, Report, Result as ScenarioResult};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scenario {
    /// Events accepted, each in a call of its own, by many publishers at a time.
    Publish,
    /// A backlog delivered to one endpoint.
    Drain,
    /// A backlog delivered to ten endpoints each.
    DrainTen,
    /// From publish to delivered, by many publishers at a time.
    EndToEnd,
    /// The same to ten endpoints each.
    EndToEndTen,
    /// From publish to arrival at 100 events a second: latency without load.
    Pace,
    /// Signed requests received: ledger, effect and outcome in one transaction.
    Receive,
    /// A backlog for ten endpoints, made by SQL and drained once, each tenth measured apart.
    Backlog,
    /// The same while a reader keeps its snapshot open.
    BacklogHeld,
    /// A fast endpoint beside one that answers after ten seconds.
    BesideSlow,
    /// Healthy endpoints beside one that never answers and is owed many older events.
    BlackHole,
    /// The same where already the connect hangs.
    BlackHoleConnect,
    /// From the restart of a killed worker process until what it had claimed arrives again.
    Resume,
}

impl Scenario {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 13] = [
        Self::Publish,
        Self::Drain,
        Self::DrainTen,
        Self::EndToEnd,
        Self::EndToEndTen,
        Self::Pace,
        Self::Receive,
        Self::Backlog,
        Self::BacklogHeld,
        Self::BesideSlow,
        Self::BlackHole,
        Self::BlackHoleConnect,
        Self::Resume,
    ];

    /// Whether it is about trouble: such a one takes its time, and is measured only where it is named.
    #[must_use]
    pub fn is_trouble(self) -> bool {
        matches!(self, Self::BesideSlow | Self::BlackHole | Self::BlackHoleConnect | Self::Resume)
    }

    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Drain => "drain",
            Self::DrainTen => "drain-10",
            Self::EndToEnd => "end-to-end",
            Self::EndToEndTen => "end-to-end-10",
            Self::Pace => "pace",
            Self::Receive => "receive",
            Self::Backlog => "backlog",
            Self::BacklogHeld => "backlog-held",
            Self::BesideSlow => "beside-slow",
            Self::BlackHole => "black-hole",
            Self::BlackHoleConnect => "black-hole-connect",
            Self::Resume => "resume",
        }
    }

    /// How many endpoints get each event.
    pub(crate) fn fan_out(self) -> usize {
        if matches!(self, Self::DrainTen | Self::EndToEndTen) { 10 } else { 1 }
    }

    /// How many endpoints there are.
    pub(crate) fn endpoints(self) -> usize {
        if self.is_backlog() { 10 } else { self.fan_out() }
    }

    /// Whether it is done once, without rounds.
    pub(crate) fn is_backlog(self) -> bool {
        matches!(self, Self::Backlog | Self::BacklogHeld)
    }
}

/// What a measurement is made with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BenchOptions {
    /// The database. On SQLite a temporary folder is made beside the file, which itself is neither opened nor made; on
    /// PostgreSQL a schema for each scenario.
    pub database: DatabaseUrl,
    /// What is measured, in this order.
    pub scenarios: Vec<Scenario>,
    /// How many deliveries or requests each scenario makes in all: at least one for each round and endpoint.
    pub events: usize,
    /// Bytes of each payload: at least [`LEAST_PAYLOAD`].
    pub payload: usize,
    /// How many publish, or send requests, at a time; also the slots of each endpoint.
    pub connections: usize,
    /// How often limit and subject take turns.
    pub rounds: usize,
    /// The longest that one turn may take; longer is an error.
    pub limit: Duration,
    /// How long the scenarios beside a bad endpoint go on, all rounds together.
    pub duration: Duration,
    /// How many older deliveries the black hole is owed.
    pub backlog: usize,
    /// The program that is run as a worker process; this one where there is none.
    pub program: Option<PathBuf>,
}

/// The shortest payload, which has room for its number.
pub const LEAST_PAYLOAD: usize = 32;
/// The most requests that a worker has under way, and the most connections of its limit.
const MOST_CONNECTIONS: usize = 512;

impl BenchOptions {
    /// Every scenario that is not about trouble, with 20,000 events of 1 KiB over 64 connections in three rounds; those
    /// about trouble, where they are named, for a minute and with a backlog of 100,000.
    #[must_use]
    pub fn new(database: DatabaseUrl) -> Self {
        Self {
            database,
            scenarios: Scenario::ALL.into_iter().filter(|scenario| !scenario.is_trouble()).collect(),
            events: 20_000,
            payload: 1024,
            connections: 64,
            rounds: 3,
            limit: Duration::from_secs(120),
            duration: Duration::from_secs(60),
            backlog: 100_000,
            program: None,
        }
    }

    /// How many events one round publishes, so that all rounds together make about `events` deliveries.
    fn events_of_a_round(&self, fan_out: usize) -> usize {
        (self.events / self.rounds.max(1) / fan_out).max(1)
    }

    /// The same for the scenario that keeps a pace: a few seconds of it tell as much as many.
    fn events_of_a_pace(&self) -> usize {
        self.events_of_a_round(1).min(200)
    }
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The database did not do its part.
    #[error("the database of the measurement: {0}")]
    Store(#[from] StoreError),
    /// An event was not accepted.
    #[error("an event was not accepted")]
    Publish(#[from] PublishError),
    /// An endpoint was not accepted.
    #[error("an endpoint was not accepted")]
    Endpoint(#[from] ManageError),
    /// The dispatcher did not start.
    #[error("the dispatcher")]
    Dispatcher(#[from] StartError),
    /// A port, a thread or a folder could not be had.
    #[error("a port, a thread or a folder could not be had")]
    System(#[from] std::io::Error),
    /// A part could not be set up.
    #[error("a part of the measurement could not be set up")]
    Setup(#[source] BoxError),
    /// The plain client got no answer.
    #[error("a request was not answered")]
    Client(#[from] reqwest::Error),
    /// A request was refused.
    #[error("a request was answered with {0}")]
    Refused(u16),
    /// A turn took longer than it may.
    #[error("one turn of the scenario `{0}` took longer than it may")]
    TimedOut(&'static str),
    /// A part panicked.
    #[error("a part of the measurement panicked")]
    Panicked,
}

/// Runs the scenarios one after another, telling `progress` which one begins.
///
/// # Errors
/// As [`BenchError`] says. What was lost or doubled is no error but in the counts of the [`Report`].
pub async fn run(options: &BenchOptions, progress: impl Fn(Scenario)) -> Result<Report, BenchError> {
    let mut report = Report::new(options);
    for scenario in &options.scenarios {
        progress(*scenario);
        let bed = bed::Bed::open(options, *scenario).await?;
        let result = match scenario {
            Scenario::Publish => publish::measure(&bed).await,
            Scenario::Drain | Scenario::DrainTen => deliver::drain(&bed).await,
            Scenario::EndToEnd | Scenario::EndToEndTen => deliver::end_to_end(&bed).await,
            Scenario::Pace => pace::measure(&bed).await,
            Scenario::Receive => receive::measure(&bed).await,
            Scenario::Backlog | Scenario::BacklogHeld => backlog::measure(&bed).await,
            Scenario::BesideSlow => isolation::beside_slow(&bed).await,
            Scenario::BlackHole | Scenario::BlackHoleConnect => isolation::black_hole(&bed).await,
            Scenario::Resume => resume::measure(&bed).await,
        };
        bed.close().await?;
        report.results.push(result?);
    }
    Ok(report)
}
