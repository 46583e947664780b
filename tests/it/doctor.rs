//! The doctor finds what it is there for, and nothing where all is well.

use std::time::Duration;

use twiceproof::dispatcher::doctor::{Examination, Severity, examine};
use twiceproof::dispatcher::{AddressPolicy, Dispatcher, Manager, NewEvent, Policy};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::{Store, StoreOptions, settings};

use crate::dispatch::{answer, endpoint, event, options, publish, sink, tenant, timed, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("doctor::a_healthy_installation_has_no_findings_while_it_works", healthy);
    suite.both("doctor::without_a_worker_all_that_is_due_is_found", no_worker);
    suite.both("doctor::what_nobody_would_ever_move_is_found", no_owner);
    suite.both("doctor::only_a_deep_look_finds_rows_that_contradict_themselves", torn);
    suite.both("doctor::tables_that_are_too_old_are_found_before_anything_else", schema);
    suite.both("doctor::the_command_says_what_is_wrong_and_what_to_do", command);
}

fn checks(examination: &Examination) -> Vec<&'static str> {
    examination.findings.iter().map(|finding| finding.check).collect()
}

async fn change(store: &Store, sql: &'static str) -> u64 {
    let mut tx = store.begin().await.unwrap();
    let changed = tx.conn().execute(sql, &[]).await.unwrap();
    tx.commit().await.unwrap();
    changed
}

fn ordered(payload: &str) -> NewEvent {
    NewEvent { ordering_key: Some(Key::new("a").unwrap()), ..event(payload) }
}

async fn healthy(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, _) = sink(|n, _| answer(if n == 0 { 500 } else { 200 })).await;
    let off = endpoint(&store, url(&front), |_| {}).await;
    endpoint(&store, url(&front), |_| {}).await;
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
    let mut tx = store.begin().await.unwrap();
    manager.disable(&mut tx.conn(), &tenant(), &off).await.unwrap();
    tx.commit().await.unwrap();
    for event in [event("1"), ordered("2"), ordered("3"), ordered("4")] {
        publish(&store, event).await;
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    for _ in 0..3 {
        let examination = examine(&store, true).await.unwrap();
        assert!(examination.findings.is_empty(), "{examination:?}");
        dispatcher.step().await.unwrap();
        clock.advance(Duration::from_secs(5));
    }
    let examination = examine(&store, true).await.unwrap();
    assert!(examination.is_well() && examination.findings.is_empty(), "{examination:?}");
    let all: u64 = examination.deliveries.iter().map(|(_, count)| count).sum();
    assert_eq!(all, 8, "what was accepted is what is there: {examination:?}");
    assert!(settings::weak(&mut store.read().await.unwrap().conn()).await.unwrap().iter().all(|weak| {
        // The clusters of tests are made to be thrown away.
        weak.what.contains("fsync")
            || weak.what.contains("full_page_writes")
            || weak.what.contains("synchronous_commit")
    }));
}

async fn no_worker(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, _) = sink(|_, _| answer(500)).await;
    endpoint(&store, url(&front), |_| {}).await;
    publish(&store, event("1")).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    dispatcher.stop().await;
    publish(&store, event("2")).await;
    clock.advance(Duration::from_secs(50));
    assert!(examine(&store, false).await.unwrap().findings.is_empty(), "within a minute nothing is late");
    clock.advance(Duration::from_secs(20));
    let examination = examine(&store, false).await.unwrap();
    assert_eq!(checks(&examination), ["overdue", "waiting"], "{examination:?}");
    assert!(!examination.is_well());
    let wide = "INSERT INTO twiceproof_fan_outs (tenant, event, deadline_at, created_at) VALUES ('t', 'msg_1', 0, 0)";
    let replay = "INSERT INTO twiceproof_replays
         (tenant, id, endpoint, what, state, from_event, until_event, due_at, created_at, updated_at)
         VALUES ('t', 'rpl_1', 'ep_1', 'failed', 'running', '', '', 0, 0, 0)";
    let worker = "INSERT INTO twiceproof_workers (id, started_at, heartbeat_at) VALUES ('wrk_1', 0, 0)";
    for sql in [wide, replay, worker] {
        change(&store, sql).await;
    }
    let examination = examine(&store, false).await.unwrap();
    let mut expected = vec!["overdue", "waiting", "fan_out", "replay"];
    if bed.database() == twiceproof_shared::store::Database::Postgres {
        expected.push("workers");
    }
    assert_eq!(checks(&examination), expected, "{examination:?}");
    assert_eq!(examination.findings[2].which, ["t msg_1"]);
}

async fn no_owner(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, _) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    for event in [ordered("1"), ordered("2"), event("3")] {
        publish(&store, event).await;
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    dispatcher.stop().await;
    // As no protection of ours would leave it.
    change(
        &store,
        "UPDATE twiceproof_deliveries SET state = 'blocked', state_reason = 'ordering_key', final_at = NULL
         WHERE ordering_key IS NOT NULL",
    )
    .await;
    change(&store, "UPDATE twiceproof_deliveries SET state = 'parked', final_at = NULL WHERE ordering_key IS NULL")
        .await;
    change(&store, "UPDATE twiceproof_endpoints SET failures_in_row = 1").await;
    clock.advance(Duration::from_secs(61));
    let examination = examine(&store, false).await.unwrap();
    assert_eq!(checks(&examination), ["blocked", "parked"], "{examination:?}");
    assert_eq!(examination.findings[0].which.len(), 2);
    change(&store, "UPDATE twiceproof_endpoints SET state = 'disabled', state_reason = 'failing'").await;
    let examination = examine(&store, false).await.unwrap();
    assert_eq!(checks(&examination), ["blocked", "failing"], "{examination:?}");
    assert_eq!(examination.findings[1].severity, Severity::Note);
}

async fn torn(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (front, _) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    clock.advance(Duration::from_secs(1));
    for payload in ["1", "2", "3"] {
        publish(&store, event(payload)).await;
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    assert!(examine(&store, true).await.unwrap().findings.is_empty());
    for (sql, check) in [
        (
            "UPDATE twiceproof_deliveries SET final_at = NULL WHERE event = (SELECT min(event) FROM twiceproof_deliveries)",
            "torn",
        ),
        ("UPDATE twiceproof_deliveries SET final_at = 1, lease_owner = 'wrk_0'", "torn"),
        (
            "DELETE FROM twiceproof_deliveries WHERE event = (SELECT max(event) FROM twiceproof_deliveries)",
            "not_fanned_out",
        ),
    ] {
        assert!(change(&store, sql).await > 0);
        assert!(examine(&store, false).await.unwrap().findings.is_empty(), "{check}: no index tells it");
        let examination = examine(&store, true).await.unwrap();
        assert!(checks(&examination).contains(&check), "{check}: {examination:?}");
    }
    change(&store, "UPDATE twiceproof_deliveries SET state = 'backoff', due_at = 9000000000000, final_at = NULL").await;
    change(&store, "DELETE FROM twiceproof_events").await;
    let examination = examine(&store, true).await.unwrap();
    assert!(checks(&examination).contains(&"event_missing"), "{examination:?}");
}

async fn schema(bed: Bed) {
    let store = Store::connect(bed.db.url(), StoreOptions::default()).await.unwrap();
    let examination = examine(&store, true).await.unwrap();
    assert_eq!(checks(&examination), ["schema"], "{examination:?}");
    assert!(!examination.is_well());
}

async fn command(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    endpoint(&store, "http://127.0.0.1:9/canary?k=canary".to_owned(), |_| {}).await;
    publish(&store, event("1")).await;
    let database = bed.db.url().expose();
    let run = async |args: &[&str]| {
        let mut command = std::process::Command::new(crate::kill::binary());
        command.env("TWICEPROOF_DATABASE", &database).current_dir(std::env::temp_dir()).arg("doctor").args(args);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let (out, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(!out.contains("canary") && !errors.contains("canary"), "{out}{errors}");
        (output.status.code(), out, errors)
    };
    let (_, out, errors) = run(&["--deep"]).await;
    assert!(out.contains("1 pending, 0 backoff"), "{out}{errors}");
    change(&store, "UPDATE twiceproof_deliveries SET due_at = due_at - 120000").await;
    let (code, out, errors) = run(&[]).await;
    assert_eq!(code, Some(3), "{out}{errors}");
    assert!(out.contains("wrong: a delivery has been pending for") && out.contains("to do: "), "{out}");
    let (code, out, errors) = run(&["--json"]).await;
    assert_eq!(code, Some(3), "{out}{errors}");
    let told: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&told["well"], &told["deliveries"]["pending"]), (&false.into(), &1.into()));
    let findings = told["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["check"] == "waiting" && finding["severity"] == "wrong"), "{out}");
}
