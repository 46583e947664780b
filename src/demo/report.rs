//! The demo's report: what happened, counted, and the verdict.

use std::fmt;
use std::time::Duration;

use super::Sabotage;
use super::deck::Fault;

/// What the database counted at the end.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each is the count that its name says; the report spells them out")]
pub struct Counts {
    pub faults: Vec<(Fault, i64)>,
    pub orders: i64,
    pub events: i64,
    pub deliveries: i64,
    pub delivered: i64,
    pub dead: i64,
    pub dead_with_effect: i64,
    pub attempts: i64,
    pub requests: i64,
    pub ignored: i64,
    pub in_flight: i64,
    pub unauthorized: i64,
    pub conflicts: i64,
    pub effects: i64,
    pub lost: i64,
    pub double: i64,
    pub phantom: i64,
    pub gaps: i64,
}

/// What the demo found.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed that deals the same faults again.
    pub seed: u64,
    /// The protection that was left out, if one was.
    pub sabotage: Option<Sabotage>,
    /// The counts.
    pub counts: Counts,
    /// From the first order to the last answer.
    pub elapsed: Duration,
    /// The schema that was kept on PostgreSQL.
    pub schema: Option<String>,
}

impl Report {
    /// True where nothing was lost, doubled or gapped, and no effect came from an order that was rolled back.
    #[must_use]
    pub fn is_proof(&self) -> bool {
        let counts = &self.counts;
        [counts.lost, counts.double, counts.gaps, counts.phantom].iter().all(|count| *count == 0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        let mut line = |title: &str, count: i64| writeln!(f, "  {title:<46}{count:>8}");
        line("orders committed", counts.orders)?;
        line("events accepted", counts.events)?;
        line("deliveries", counts.deliveries)?;
        line("  delivered", counts.delivered)?;
        line("  dead", counts.dead)?;
        line("    of these, with their effect all the same", counts.dead_with_effect)?;
        line("attempts of the dispatcher", counts.attempts)?;
        line("requests at the receiver, copies included", counts.requests)?;
        writeln!(f, "\n  what went wrong on purpose")?;
        let mut line = |title: &str, count: i64| writeln!(f, "  {title:<46}{count:>8}");
        for (fault, count) in &counts.faults {
            line(&format!("  {}", fault.title()), *count)?;
        }
        writeln!(f, "\n  what the receiver made of it")?;
        let mut line = |title: &str, count: i64| writeln!(f, "  {title:<46}{count:>8}");
        line("  duplicates ignored", counts.ignored)?;
        line("  told to come again while the first ran", counts.in_flight)?;
        line("  refused for their signature or age", counts.unauthorized)?;
        line("  conflicts kept for review", counts.conflicts)?;
        line("  effects (invoices)", counts.effects)?;
        writeln!(f)?;
        writeln!(
            f,
            "  lost {}   double {}   gaps {}   from rolled-back orders {}",
            counts.lost, counts.double, counts.gaps, counts.phantom
        )?;
        writeln!(f, "  seed {}   {:.1} s", self.seed, self.elapsed.as_secs_f64())?;
        let verdict = if self.is_proof() { "nothing was lost, doubled or gapped" } else { "DAMAGE was done" };
        match self.sabotage {
            None => writeln!(f, "\n  {verdict}"),
            Some(sabotage) => writeln!(f, "\n  {verdict}; left out on purpose: {}", sabotage.title()),
        }
    }
}
