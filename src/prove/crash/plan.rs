//! What is struck, how and in which order: all of it decided by the options and the seed, before anything starts.

use std::time::Duration;

use twiceproof_shared::kill::{Part, Point};
use twiceproof_shared::random::Random;
use twiceproof_shared::store::Database;

use super::CrashOptions;
use crate::prove::Fault;

/// Strikes of one round; all of them hit while events are published and delivered.
const EACH_ROUND: usize = 5;

/// What is done once.
#[derive(Debug, Clone, Copy)]
pub(super) enum Strike {
    /// A process ends itself at this passage of a point.
    At(&'static Point, u64),
    /// A process is killed as soon as this is seen.
    When(Moment),
    /// A process is killed after this long.
    Kill(Part, Duration),
    /// A process is stopped past its lease and goes on.
    Freeze(Part),
    /// After this long a connection is harmed: one between program and PostgreSQL, or a request's.
    Cut(Link, Fault, Duration),
    /// PostgreSQL ends without a checkpoint after this long; `killed`: only its first process, by SIGKILL.
    Server { after: Duration, killed: bool },
}

/// What is seen from outside, and who is killed then. It takes nothing from the program that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moment {
    /// The client was told that an event is accepted: the publisher.
    EventAccepted,
    /// A request has arrived, and is not answered: the worker.
    RequestArrived,
    /// An answer leaves: the receiver.
    AnswerLeaves,
}

impl Moment {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::EventAccepted, Self::RequestArrived, Self::AnswerLeaves];

    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EventAccepted => "event_accepted",
            Self::RequestArrived => "request_arrived",
            Self::AnswerLeaves => "answer_leaves",
        }
    }

    /// Who is killed.
    #[must_use]
    pub fn part(self) -> Part {
        match self {
            Self::EventAccepted => Part::Publisher,
            Self::RequestArrived => Part::Worker,
            Self::AnswerLeaves => Part::Receiver,
        }
    }
}

/// Which connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// Worker to receiver.
    Requests,
    /// Publisher and worker to PostgreSQL.
    Database,
    /// Receiver to PostgreSQL: key and effect.
    Effects,
}

/// One round: a database of its own, load, strikes, recovery, judgement.
#[derive(Debug, Clone)]
pub(super) struct Round {
    /// Counted from 1; its events carry it, so that a history of several rounds can be judged as one.
    pub(super) number: usize,
    /// What its strikes have in common; a line of the report.
    pub(super) title: String,
    pub(super) strikes: Vec<Strike>,
}

/// Everything that the options ask for.
pub(super) fn plan(options: &CrashOptions, database: Database, random: &Random) -> Vec<Round> {
    let mut rounds = Vec::new();
    for point in &options.points {
        let strikes = (0..options.rounds).map(|_| Strike::At(point, passage(point, random)));
        group(&mut rounds, format!("killed at {}", point.name), strikes.collect());
    }
    for moment in &options.moments {
        let strikes = (0..options.rounds).map(|_| Strike::When(*moment));
        group(&mut rounds, format!("killed when {}", moment.name()), strikes.collect());
    }
    let kills = (0..options.random).map(|_| Strike::Kill(part(random), moment(random)));
    group(&mut rounds, "killed at a random moment".to_owned(), kills.collect());
    let freezes = (0..options.zombies).map(|turn| Strike::Freeze(ZOMBIES[turn as usize % ZOMBIES.len()]));
    group(&mut rounds, "stopped past the lease".to_owned(), freezes.collect());
    let cuts: Vec<_> = (0..options.cuts).map(|turn| cut(turn, database, random)).collect();
    group(&mut rounds, "connections harmed".to_owned(), cuts);
    let servers = (0..options.server_kills)
        .map(|_| Strike::Server { after: moment(random) + Duration::from_millis(50), killed: random.below(2) == 0 });
    group(&mut rounds, "PostgreSQL killed".to_owned(), servers.collect());
    rounds
}

fn group(rounds: &mut Vec<Round>, title: String, strikes: Vec<Strike>) {
    for strikes in strikes.chunks(EACH_ROUND) {
        rounds.push(Round { number: rounds.len() + 1, title: title.clone(), strikes: strikes.to_vec() });
    }
}

/// Not always the first passage: what went before shall be in the database.
fn passage(point: &Point, random: &Random) -> u64 {
    let most = match point.part {
        Part::Receiver => 40,
        Part::Publisher => 16,
        Part::Worker => 6,
    };
    1 + random.below(most)
}

/// Who is stopped, in turns: mostly the worker, who alone holds leases.
const ZOMBIES: [Part; 4] = [Part::Worker, Part::Receiver, Part::Worker, Part::Publisher];

fn part(random: &Random) -> Part {
    match random.below(5) {
        0 => Part::Publisher,
        1 | 2 => Part::Receiver,
        _ => Part::Worker,
    }
}

fn moment(random: &Random) -> Duration {
    Duration::from_millis(20 + random.below(300))
}

/// All kinds of harm take turns; where exactly each bites, the seed decides.
fn cut(turn: u32, database: Database, random: &Random) -> Strike {
    let bytes = usize::try_from(random.below(1_200)).unwrap_or_default();
    let on_both = [
        Fault::CutBack(bytes / 4),
        Fault::CutForth(bytes),
        Fault::Halve,
        Fault::Swallow(Duration::from_millis(1_500)),
        Fault::Delay(Duration::from_millis(random.below(1_500))),
    ];
    let commits = [Fault::CommitAnswerLost, Fault::CommitNotSent];
    let mut kinds: Vec<(Link, Fault)> = Vec::new();
    if database == Database::Postgres {
        kinds.extend(commits.map(|fault| (Link::Effects, fault)));
        kinds.extend(commits.into_iter().chain(on_both).map(|fault| (Link::Database, fault)));
    }
    kinds.extend(on_both.map(|fault| (Link::Requests, fault)));
    let (link, fault) = kinds[turn as usize % kinds.len()];
    Strike::Cut(link, fault, moment(random) / 3)
}

#[cfg(test)]
mod tests {
    use super::{Moment, Strike, plan};
    use crate::prove::crash::{CrashOptions, Target};
    use twiceproof_shared::kill::POINTS;
    use twiceproof_shared::random::Random;
    use twiceproof_shared::store::{Database, DatabaseUrl};

    #[test]
    fn a_seed_plans_the_same_strikes_and_all_that_were_asked_for() {
        let target = Target::Url(DatabaseUrl::sqlite("a.db").unwrap());
        let mut options = CrashOptions::new("twiceproof", target, 7);
        (options.points, options.moments, options.rounds) = (POINTS.iter().collect(), Moment::ALL.to_vec(), 7);
        (options.random, options.zombies, options.cuts, options.server_kills) = (11, 3, 40, 6);
        let shown = |seed| format!("{:?}", plan(&options, Database::Postgres, &Random::seeded(seed)));
        assert_eq!(shown(7), shown(7));
        assert_ne!(shown(7), shown(8));
        let rounds = plan(&options, Database::Sqlite, &Random::seeded(7));
        let strikes: Vec<_> = rounds.iter().flat_map(|round| &round.strikes).collect();
        assert_eq!(strikes.len(), (POINTS.len() + 3) * 7 + 11 + 3 + 40 + 6);
        for point in POINTS {
            let at = strikes.iter().filter(|strike| matches!(strike, Strike::At(other, _) if *other == point));
            assert_eq!(at.count(), 7, "{}", point.name);
        }
    }
}
