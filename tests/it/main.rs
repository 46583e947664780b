//! The integration tests, in one binary.
//!
//! Every test of the conformance suite runs under `sqlite::` and under `postgres::`, with equal names. Without an
//! installed PostgreSQL the latter are reported as ignored, never as passed; `TWICEPROOF_TEST_POSTGRES=require` makes
//! that a failure.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and prints what it measured")]

mod api_attempts;
mod api_bed;
mod api_description;
mod api_endpoint_deliveries;
mod api_endpoint_rules;
mod api_endpoints;
mod api_event_types;
mod api_isolation;
mod api_kit;
mod api_messages;
mod api_missed;
mod api_resend;
mod bench;
mod commit_cut;
mod copies;
mod crash;
mod dispatch;
mod doctor;
mod egress;
mod egress_table;
mod fan_outs;
mod faults;
mod fixture;
mod functions;
mod group_commit;
mod guarantees;
mod harness;
mod held_snapshot;
mod hostile;
mod idempotency;
mod idempotency_api;
mod idempotency_handlers;
mod idempotency_history;
mod key_pairs;
mod kill;
mod kit;
mod languages;
mod ledger;
mod linear;
mod log_growth;
mod operational;
mod ordering;
mod plans;
mod plans_fill;
mod plans_history;
mod policy;
mod program;
mod publish;
mod receive;
mod replay;
mod replay_kills;
mod replays;
mod retention;
mod rules;
mod scenarios;
mod schemes;
mod sdk;
mod sealing;
mod seam;
mod signing;
mod together;
mod upgrade;
mod wake;
mod workers;

use std::process::ExitCode;

fn main() -> ExitCode {
    fixture::run_if_asked();
    let arguments = libtest_mimic::Arguments::from_args();
    let databases = harness::Databases::start(&arguments);
    let mut suite = harness::Suite::new(&databases);
    seam::register(&mut suite);
    sealing::register(&mut suite);
    sdk::register(&mut suite);
    group_commit::register(&mut suite);
    ledger::register(&mut suite);
    receive::register(&mut suite);
    together::register(&mut suite);
    hostile::register(&mut suite);
    idempotency::register(&mut suite);
    idempotency_api::register(&mut suite);
    idempotency_handlers::register(&mut suite);
    idempotency_history::register(&mut suite);
    linear::register(&mut suite);
    schemes::register(&mut suite);
    commit_cut::register(&mut suite);
    dispatch::register(&mut suite);
    egress::register(&mut suite);
    kill::register(&mut suite);
    crash::register(&mut suite);
    faults::register(&mut suite);
    replay::register(&mut suite);
    replays::register(&mut suite);
    replay_kills::register(&mut suite);
    copies::register(&mut suite);
    program::register(&mut suite);
    key_pairs::register(&mut suite);
    upgrade::register(&mut suite);
    scenarios::register(&mut suite);
    publish::register(&mut suite);
    functions::register(&mut suite);
    languages::register(&mut suite);
    retention::register(&mut suite);
    plans::register(&mut suite);
    plans_history::register(&mut suite);
    policy::register(&mut suite);
    ordering::register(&mut suite);
    operational::register(&mut suite);
    guarantees::register(&mut suite);
    fan_outs::register(&mut suite);
    held_snapshot::register(&mut suite);
    log_growth::register(&mut suite);
    bench::register(&mut suite);
    wake::register(&mut suite);
    workers::register(&mut suite);
    doctor::register(&mut suite);
    signing::register(&mut suite);
    api_endpoints::register(&mut suite);
    api_description::register(&mut suite);
    api_endpoint_rules::register(&mut suite);
    api_endpoint_deliveries::register(&mut suite);
    rules::register(&mut suite);
    api_event_types::register(&mut suite);
    api_messages::register(&mut suite);
    api_missed::register(&mut suite);
    api_attempts::register(&mut suite);
    api_resend::register(&mut suite);
    api_isolation::register(&mut suite);
    let conclusion = libtest_mimic::run(&arguments, suite.into_trials());
    // The server would outlive an exit from inside `run`.
    drop(databases);
    conclusion.exit_code()
}
