//! The integration tests, in one binary.
//!
//! Every test of the conformance suite runs under `sqlite::` and under `postgres::`, with equal names. Without an
//! installed PostgreSQL the latter are reported as ignored, never as passed; `TWICEPROOF_TEST_POSTGRES=require` makes
//! that a failure.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and prints what it measured")]

mod bench;
mod commit_cut;
mod copies;
mod crash;
mod dispatch;
mod egress;
mod egress_table;
mod faults;
mod fixture;
mod functions;
mod group_commit;
mod harness;
mod held_snapshot;
mod hostile;
mod kill;
mod kit;
mod ledger;
mod log_growth;
mod plans;
mod policy;
mod program;
mod publish;
mod receive;
mod replay;
mod retention;
mod rules;
mod schemes;
mod sealing;
mod seam;
mod together;
mod wake;

use std::process::ExitCode;

fn main() -> ExitCode {
    fixture::run_if_asked();
    let arguments = libtest_mimic::Arguments::from_args();
    let databases = harness::Databases::start(&arguments);
    let mut suite = harness::Suite::new(&databases);
    seam::register(&mut suite);
    sealing::register(&mut suite);
    group_commit::register(&mut suite);
    ledger::register(&mut suite);
    receive::register(&mut suite);
    together::register(&mut suite);
    hostile::register(&mut suite);
    schemes::register(&mut suite);
    commit_cut::register(&mut suite);
    dispatch::register(&mut suite);
    egress::register(&mut suite);
    kill::register(&mut suite);
    crash::register(&mut suite);
    faults::register(&mut suite);
    replay::register(&mut suite);
    copies::register(&mut suite);
    program::register(&mut suite);
    publish::register(&mut suite);
    functions::register(&mut suite);
    retention::register(&mut suite);
    plans::register(&mut suite);
    policy::register(&mut suite);
    held_snapshot::register(&mut suite);
    log_growth::register(&mut suite);
    bench::register(&mut suite);
    wake::register(&mut suite);
    rules::register(&mut suite);
    let conclusion = libtest_mimic::run(&arguments, suite.into_trials());
    // The server would outlive an exit from inside `run`.
    drop(databases);
    conclusion.exit_code()
}
