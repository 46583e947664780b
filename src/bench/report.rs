//! The report: figures of subjects and limits, and what was counted.

use std::fmt;

use serde::Serialize;
use twiceproof_shared::store::Database;

use super::{BenchOptions, Scenario};

/// All figures of a run.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// `SQLite` or `PostgreSQL`.
    pub database: String,
    /// Bytes of each payload.
    pub payload: usize,
    /// How often limit and subject took turns.
    pub rounds: usize,
    /// One for each scenario.
    pub results: Vec<Result>,
}

/// The figures of one scenario.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Result {
    /// Its name.
    pub scenario: &'static str,
    /// How many publish or send at a time, and the connections of the plain client.
    pub connections: usize,
    /// Ours.
    pub subject: Figures,
    /// What the machine could do at best, measured in turns with ours.
    pub limits: Vec<Figures>,
    /// Ours in parts, one after another, where the scenario tells them apart.
    pub parts: Vec<Figures>,
    /// What was counted in the database and at the sink at the end.
    pub counts: Counts,
}

/// What a scenario left behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "each is the count that its name says")]
pub struct Counts {
    pub events: u64,
    pub deliveries: u64,
    pub delivered: u64,
    pub arrivals: u64,
    pub effects: u64,
}

/// What was measured of one kind of work, over all rounds.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// What worked.
    pub name: &'static str,
    /// How many were done.
    pub count: u64,
    /// How long it took.
    pub seconds: f64,
    /// The rate.
    pub per_second: f64,
    /// Half were faster; none where one has no latency of its own.
    pub p50_ms: Option<f64>,
    /// 99 of 100 were faster.
    pub p99_ms: Option<f64>,
    /// The slowest.
    pub max_ms: Option<f64>,
    /// Processor time of this process for 1,000, the load included, the sink not.
    pub cpu_ms_per_1000: Option<f64>,
    /// Processor time of the database server for 1,000, where it can be read.
    pub server_cpu_ms_per_1000: Option<f64>,
    /// Memory of this process at the end of a turn, or during a part; the largest.
    pub rss_mib: Option<f64>,
}

impl Report {
    pub(super) fn new(options: &BenchOptions) -> Self {
        Self {
            database: options.database.database().to_string(),
            payload: options.payload,
            rounds: options.rounds,
            results: Vec::new(),
        }
    }
}

impl Result {
    pub(super) fn new(
        scenario: Scenario,
        connections: usize,
        subject: Figures,
        limits: Vec<Figures>,
        counts: Counts,
    ) -> Self {
        Self { scenario: scenario.name(), connections, subject, limits, parts: Vec::new(), counts }
    }

    /// Whether nothing was lost or doubled: every event has its deliveries, each was delivered, and each effect is there.
    #[must_use]
    pub fn adds_up(&self) -> bool {
        let (count, counts) = (self.subject.count, self.counts);
        match self.scenario {
            "receive" => counts.effects == count,
            "publish" => counts.events == count && counts.deliveries == count,
            // Their limits are deliveries too.
            "beside-slow" | "black-hole" | "black-hole-connect" => {
                let count = count + self.limits.iter().map(|limit| limit.count).sum::<u64>();
                counts.deliveries == count && counts.delivered == count && counts.arrivals >= count
            }
            // Delivered at least once: a sink may see more, never fewer.
            _ => counts.deliveries == count && counts.delivered == count && counts.arrivals >= count,
        }
    }

    /// The subject's rate as a share of each limit's, by the limit's name. What keeps a pace has a rate of its own choice,
    /// and what resumes has none.
    #[must_use]
    pub fn ratios(&self) -> Vec<(&'static str, f64)> {
        let has_no_rate = |scenario: &Scenario| *scenario == Scenario::Pace || scenario.is_trouble();
        if Scenario::ALL.iter().filter(|scenario| has_no_rate(scenario)).any(|one| one.name() == self.scenario) {
            return Vec::new();
        }
        let share = |limit: &Figures| (limit.name, self.subject.per_second / limit.per_second.max(1e-9));
        self.limits.iter().map(share).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} bytes, {} rounds in turns\n", self.database, self.payload, self.rounds)?;
        let (rates, latencies) = ("per second   of limit", "p50 ms   p99 ms   max ms");
        writeln!(f, "  {:<16}{rates}  {latencies}  CPU ms/1000   + server  RSS MiB", "")?;
        for result in &self.results {
            writeln!(f, "{} ({} connections)", result.scenario, result.connections)?;
            let ratios = result.ratios();
            let share = |name| ratios.iter().find(|(limit, _)| *limit == name).map(|(_, share)| *share);
            line(f, &result.subject, None)?;
            for limit in &result.limits {
                line(f, limit, share(limit.name))?;
            }
            for part in &result.parts {
                line(f, part, None)?;
            }
            let Counts { events, deliveries, delivered, arrivals, effects } = result.counts;
            writeln!(
                f,
                "  counted: events {events}, deliveries {deliveries}, delivered {delivered}, arrivals {arrivals}, \
                 effects {effects}"
            )?;
        }
        if self.database == Database::Postgres.to_string()
            && self.results.iter().any(|result| result.subject.server_cpu_ms_per_1000.is_none())
        {
            writeln!(f, "\nThe server's processor time cannot be read: it runs elsewhere, or there is no /proc.")?;
        }
        write!(f, "\nCPU is this process's, its load included and the sink's thread taken out.")
    }
}

fn line(f: &mut fmt::Formatter<'_>, figures: &Figures, share: Option<f64>) -> fmt::Result {
    let number = |value: Option<f64>, digits: usize| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"));
    writeln!(
        f,
        "  {:<16}{:>10.0}{:>11}{:>8}{:>9}{:>9}{:>13}{:>11}{:>9}",
        figures.name,
        figures.per_second,
        number(share, 2),
        number(figures.p50_ms, 2),
        number(figures.p99_ms, 2),
        number(figures.max_ms, 2),
        number(figures.cpu_ms_per_1000, 0),
        number(figures.server_cpu_ms_per_1000, 0),
        number(figures.rss_mib, 0),
    )
}
