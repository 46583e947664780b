//! The crash matrix, in the size of a check before a change: killed at every step, at random moments, stopped past leases,
//! connections harmed, PostgreSQL killed. `TWICEPROOF_TEST_CRASH=N` makes every count N times as large; `twiceproof prove
//! crash` runs the same by hand.

use std::path::Path;
use std::process::Command;

use twiceproof::kill::{POINTS, Part};
use twiceproof::prove::crash::{CrashOptions, Moment, Report, Target, run};
use twiceproof_shared::random::Random;

use crate::harness::{Bed, Suite};
use crate::kill::binary;

pub fn register(suite: &mut Suite) {
    suite.both("crash::rel_b05_a_publisher_killed_at_every_step_loses_and_doubles_nothing", |bed| {
        at_every_step(bed, Part::Publisher)
    });
    suite.both("crash::rel_b03_a_worker_killed_at_every_step_loses_and_doubles_nothing", |bed| {
        at_every_step(bed, Part::Worker)
    });
    suite.both("crash::rel_b01_a_receiver_killed_at_every_step_loses_and_doubles_nothing", |bed| {
        at_every_step(bed, Part::Receiver)
    });
    suite.both("crash::rel_b15_processes_killed_at_random_moments_lose_and_double_nothing", |bed| {
        strike(bed, |options, times| options.random = 5 * times)
    });
    suite.both("crash::rel_b26_processes_stopped_past_their_leases_lose_and_double_nothing", |bed| {
        strike(bed, |options, times| options.zombies = 2 * times)
    });
    suite.both("crash::rel_b49_connections_cut_halved_delayed_and_swallowed_lose_and_double_nothing", |bed| {
        strike(bed, |options, times| options.cuts = 10 * times)
    });
    suite.postgres("crash::rel_b27_postgres_killed_under_load_loses_and_doubles_nothing", |_| server_killed());
    suite.plain("crash::the_command_proves_it_and_writes_its_history", command);
}

/// How many times the ordinary size.
fn times() -> u32 {
    std::env::var("TWICEPROOF_TEST_CRASH").map_or(1, |text| text.parse().unwrap())
}

async fn at_every_step(bed: Bed, part: Part) {
    strike(bed, move |options, times| {
        options.points = POINTS.iter().filter(|point| point.part == part).collect();
        options.moments = Moment::ALL.into_iter().filter(|moment| moment.part() == part).collect();
        options.rounds = 2 * times;
    })
    .await;
}

async fn strike(bed: Bed, ask: impl FnOnce(&mut CrashOptions, u32)) {
    let mut options = CrashOptions::new(binary(), Target::Url(bed.db.url().clone()), seed());
    ask(&mut options, times());
    prove(&options).await;
}

async fn server_killed() {
    let mut options = CrashOptions::new(binary(), Target::OwnPostgres, seed());
    options.server_kills = 3 * times();
    prove(&options).await;
}

fn seed() -> u64 {
    Random::from_system().below(1_000_000)
}

async fn prove(options: &CrashOptions) {
    println!("seed {}", options.seed);
    let report: Report = run(options, |_| {}, |_| Ok(())).await.unwrap();
    println!("{report}");
    assert!(report.is_proof());
    assert!(report.total().verdict.effects > 0);
}

fn command() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history.jsonl");
    let database = format!("sqlite:{}", folder.path().join("mine.db").display());
    let mut command = Command::new(binary());
    command.current_dir(folder.path()).args(["prove", "crash", "--random", "6", "--json", "--database", &database]);
    let output = command.arg("--history").arg(&history).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["lines"][0]["struck"], 6);
    assert_eq!(report["lines"][0]["verdict"]["findings"], serde_json::json!([]));
    // The history that was written is judged the same, both rounds as one.
    let (success, verdict) = judge(&history);
    assert!(success);
    assert_eq!(verdict["effects"], report["lines"][0]["verdict"]["effects"]);
    assert_eq!(verdict["findings"], serde_json::json!([]));
    // With an effect once more it is no proof any longer.
    let text = std::fs::read_to_string(&history).unwrap();
    let effect = text.lines().find(|line| line.contains("\"effect\"")).unwrap();
    std::fs::write(&history, format!("{text}{effect}\n")).unwrap();
    let (success, verdict) = judge(&history);
    assert!(!success);
    assert_eq!(verdict["findings"][0]["kind"], "double");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["history.jsonl"], "the named database is left alone, and nothing else stays");
}

/// What `prove check` makes of a history.
fn judge(history: &Path) -> (bool, serde_json::Value) {
    let output = Command::new(binary()).args(["prove", "check", "--json"]).arg(history).output().unwrap();
    (output.status.success(), serde_json::from_slice(&output.stdout).unwrap())
}
