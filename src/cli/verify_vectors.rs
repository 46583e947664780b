//! The vectors of `twiceproof verify`: how many agree, which deviate, and what was not judged.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::json;
use twiceproof::receiver::vectors::{Outcome, Vector, VectorFile};

use super::output;

/// Judges the vectors of a file, or those of one provider.
pub(super) fn run(path: &Path, provider: Option<&str>, as_json: bool) -> anyhow::Result<ExitCode> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the vectors in {}", path.display()))?;
    let file: VectorFile =
        serde_json::from_str(&text).with_context(|| format!("{} is no file of vectors", path.display()))?;
    let chosen = |vector: &&Vector| provider.is_none_or(|name| vector.provider == name);
    let mut judged = Judged::default();
    file.vectors.iter().filter(chosen).for_each(|vector| judged.judge(vector));
    if judged.total() == 0 {
        bail!("{} has no vector{}", path.display(), provider.map(|name| format!(" of {name}")).unwrap_or_default());
    }
    judged.print(as_json)?;
    // Where nothing was judged, nothing agrees.
    Ok(if judged.deviations.is_empty() && judged.agreed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Default)]
struct Judged<'a> {
    agreed: usize,
    deviations: Vec<(&'a Vector, Outcome)>,
    unsupported: BTreeMap<&'a str, usize>,
}

impl<'a> Judged<'a> {
    fn judge(&mut self, vector: &'a Vector) {
        match vector.outcome() {
            Outcome::Unsupported => *self.unsupported.entry(&vector.provider).or_default() += 1,
            outcome if outcome.satisfies(vector.expect) => self.agreed += 1,
            outcome => self.deviations.push((vector, outcome)),
        }
    }

    fn total(&self) -> usize {
        self.agreed + self.deviations.len() + self.unsupported.values().sum::<usize>()
    }

    fn print(&self, as_json: bool) -> anyhow::Result<()> {
        let unsupported: usize = self.unsupported.values().sum();
        if as_json {
            let deviations: Vec<_> = self
                .deviations
                .iter()
                .map(|(vector, outcome)| {
                    let (got, reason) = said(outcome);
                    json!({ "id": vector.id, "expected": vector.expect.as_str(), "got": got, "reason": reason })
                })
                .collect();
            return output::json(&json!({
                "agreed": self.agreed,
                "deviations": deviations,
                "unsupported": self.unsupported,
            }));
        }
        for (vector, outcome) in &self.deviations {
            let (got, reason) = said(outcome);
            output::line(format_args!(
                "deviates: {}: {got}, expected {}: {}{}",
                vector.id,
                vector.expect.as_str(),
                vector.why,
                reason.map(|reason| format!(" ({reason})")).unwrap_or_default(),
            ))?;
        }
        for (name, count) in &self.unsupported {
            output::line(format_args!("unsupported: {count} of {name}"))?;
        }
        output::line(format_args!(
            "{} agree, {} deviate, {unsupported} unsupported",
            self.agreed,
            self.deviations.len()
        ))
    }
}

fn said(outcome: &Outcome) -> (&'static str, Option<&str>) {
    match outcome {
        Outcome::Valid => ("valid", None),
        Outcome::Invalid(reason) => ("invalid", Some(reason)),
        Outcome::ConfigError(reason) => ("config_error", Some(reason)),
        _ => ("unsupported", None),
    }
}
