//! The table at the end of a crash run.

use std::fmt;

use serde::Serialize;
use twiceproof_shared::store::DatabaseUrl;

use super::round::Played;
use crate::prove::{Kind, Verdict, check};

/// What a crash run found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The seed that plans the same strikes again.
    pub seed: u64,
    /// The kind of database, and where, without a password.
    pub database: String,
    /// One for each kind of strike.
    pub lines: Vec<Line>,
}

/// All rounds of one kind of strike.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// What was done.
    pub title: String,
    /// Rounds.
    pub rounds: u64,
    /// Strikes that bit.
    pub struck: u64,
    /// Strikes that did not.
    pub missed: u64,
    /// What came of it.
    pub verdict: Verdict,
}

impl Report {
    pub(super) fn new(seed: u64, database: &DatabaseUrl) -> Self {
        Self { seed, database: database.database().to_string(), lines: Vec::new() }
    }

    pub(super) fn add(&mut self, title: &str, played: &Played) {
        let verdict = check(&played.history);
        let line = match self.lines.iter_mut().find(|line| line.title == title) {
            Some(line) => line,
            None => {
                let verdict = Verdict::default();
                self.lines.push(Line { title: title.to_owned(), rounds: 0, struck: 0, missed: 0, verdict });
                self.lines.last_mut().expect("it was put there")
            }
        };
        line.rounds += 1;
        line.struck += played.struck;
        line.missed += played.missed;
        line.verdict.add(verdict);
    }

    /// Everything together.
    #[must_use]
    pub fn total(&self) -> Line {
        let mut total =
            Line { title: "together".to_owned(), rounds: 0, struck: 0, missed: 0, verdict: Verdict::default() };
        for line in &self.lines {
            total.rounds += line.rounds;
            total.struck += line.struck;
            total.missed += line.missed;
            total.verdict.add(line.verdict.clone());
        }
        total
    }

    /// True where every strike bit, nothing is wrong, and nothing ended as a dead letter.
    #[must_use]
    pub fn is_proof(&self) -> bool {
        let total = self.total();
        total.struck > 0 && total.missed == 0 && total.verdict.findings.is_empty() && total.verdict.dead == 0
    }
}

/// Findings that are spelled out.
const SHOWN: usize = 20;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<34}{:>7}{:>9}{:>9}{:>9}{:>9}{:>6}{:>7}{:>7}",
            self.database, "struck", "accepted", "unknown", "requests", "effects", "lost", "double", "other"
        )?;
        let total = self.total();
        for line in self.lines.iter().chain([&total]) {
            let verdict = &line.verdict;
            let (lost, double) = (verdict.count(Kind::Lost), verdict.count(Kind::Double));
            writeln!(
                f,
                "{:<34}{:>7}{:>9}{:>9}{:>9}{:>9}{:>6}{:>7}{:>7}",
                line.title,
                line.struck,
                verdict.accepted,
                verdict.unknown,
                verdict.arrived,
                verdict.effects,
                lost,
                double,
                verdict.findings.len() - lost - double
            )?;
        }
        let Line { struck, missed, verdict, .. } = &total;
        writeln!(
            f,
            "\n  {} of {} unknown offers had happened; {} requests were repeats, {} results came late, {} dead letters",
            verdict.unknown_happened, verdict.unknown, verdict.replayed, verdict.late, verdict.dead
        )?;
        for finding in verdict.findings.iter().take(SHOWN) {
            writeln!(f, "  {finding}")?;
        }
        if let Some(more @ 1..) = verdict.findings.len().checked_sub(SHOWN) {
            writeln!(f, "  and {more} more")?;
        }
        if *missed > 0 {
            writeln!(f, "  {missed} strikes did not bite, so that they prove nothing")?;
        }
        if self.is_proof() {
            // The rule of three: with no failure in n tries, the rate is below 3/n with 95 % confidence.
            let bound = (300.0 / f64::from(u32::try_from(*struck).unwrap_or(u32::MAX))).min(100.0);
            writeln!(
                f,
                "\n  nothing was lost or doubled in {struck} strikes (95 % bound: {bound:.2} % each); seed {}",
                self.seed
            )
        } else {
            writeln!(f, "\n  NOT PROVEN; seed {}", self.seed)
        }
    }
}
