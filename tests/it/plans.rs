//! How the databases would run what runs all the time, at a size at which reading a whole table shows.
//!
//! The real functions run once, each statement is kept as it ran, and the database is asked for its plan. A statement of the
//! hot paths that did not run is an error too, so none is forgotten.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use sqlx::{AssertSqlSafe, Row};
use twiceproof::dispatcher::decide::Decision;
use twiceproof::dispatcher::exchange::{Answer, Exchange};
use twiceproof::dispatcher::store::claim::{ClaimRequest, ClaimedDelivery, Known, claim};
use twiceproof::dispatcher::store::ordering::{self, Ended};
use twiceproof::dispatcher::store::purge::{Stretch, Walked};
use twiceproof::dispatcher::store::record::{Span, record, release};
use twiceproof::dispatcher::store::{events, fan_outs, load, overdue, purge, waiting, workers};
use twiceproof::dispatcher::{AddressPolicy, Dispatcher, DispatcherOptions, NewEvent, Policy, Publisher, Purge};
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::ledger::{self, LedgerKey, Outcome, RawRequest, Request};
use twiceproof_shared::store::{Conn, Database, Store};
use twiceproof_shared::testing::{OwnedArg, Statement};

use crate::harness::{Bed, Suite};
use crate::plans_fill::{fill, script};

pub fn register(suite: &mut Suite) {
    suite.both("plans::send_b1_nothing_that_runs_all_the_time_reads_a_whole_table", hot_paths);
}

/// Files whose every statement must have run: all of the hot paths. The others are of reports and of managing endpoints.
const HOT: [&str; 17] = [
    "dispatcher/src/store/admit.rs",
    "dispatcher/src/store/attempts.rs",
    "dispatcher/src/store/claim.rs",
    "dispatcher/src/store/events.rs",
    "dispatcher/src/store/fan_outs.rs",
    "dispatcher/src/store/health.rs",
    "dispatcher/src/store/lanes.rs",
    "dispatcher/src/store/load.rs",
    "dispatcher/src/store/ordering.rs",
    "dispatcher/src/store/overdue.rs",
    "dispatcher/src/store/purge.rs",
    "dispatcher/src/store/record.rs",
    "dispatcher/src/store/waiting.rs",
    "dispatcher/src/store/workers.rs",
    "shared/src/ledger/bulk.rs",
    "shared/src/ledger/purge.rs",
    "shared/src/ledger/sql.rs",
];
/// What waits, by the names of its indexes: little of what there is.
const WAITS: [&str; 9] =
    ["_pending", "_backoff", "_leased", "_parked", "_blocked", "_unplaced", "_heads", "_expiry", "_expired"];
/// Tables that grow.
const BIG: [&str; 4] = ["twiceproof_events", "twiceproof_deliveries", "twiceproof_attempts", "twiceproof_ledger"];

async fn hot_paths(bed: Bed) {
    taken_down(bed, |store| {
        Box::pin(async move {
            twiceproof_shared::testing::record();
            everything(store).await;
            let seen = twiceproof_shared::testing::recorded();
            none_is_missing(store.database(), &seen);
            none_reads_a_whole_table(store, &seen).await;
        })
    })
    .await;
}

/// Runs a test on a filled database. Statements are kept for each thread, so everything runs on one.
pub async fn taken_down(bed: Bed, test: for<'a> fn(&'a Store) -> LocalBoxFuture<'a, ()>) {
    let run = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = bed.db.store(None).await.unwrap();
            fill(&store).await;
            test(&store).await;
        });
    });
    tokio::task::spawn_blocking(move || run.join()).await.unwrap().unwrap();
}

/// No statement reads a table that grows from one end to the other, or all of a tenant's rows.
pub async fn none_reads_a_whole_table(store: &Store, seen: &[Statement]) {
    let mut wrong = Vec::new();
    match store.database() {
        Database::Sqlite => {
            check_sqlite(store, seen, &mut wrong).await;
            // A host may have statistics gathered.
            script(store, "ANALYZE".to_owned()).await;
            check_sqlite(store, seen, &mut wrong).await;
        }
        Database::Postgres => check_postgres(store, seen, &mut wrong).await,
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), seen.len(), wrong.join("\n\n"));
}

/// What publishers, workers, receivers and housekeeping do.
async fn everything(store: &Store) {
    publishing(store).await;
    delivering(store).await;
    waiting_ones(store).await;
    receiving(store).await;
    housekeeping(store).await;
}

fn tenant() -> Key {
    Key::new("t1").unwrap()
}

async fn publishing(store: &Store) {
    let publisher = Publisher::new(store, &Policy::default());
    let event = || NewEvent::json(tenant(), "order.t1", "{}".to_owned());
    let again = event().with_uid(Key::new("again").unwrap());
    let mut tx = store.begin().await.unwrap();
    for _ in 0..2 {
        let (_, wake) = publisher.publish(&mut tx.conn(), again.clone()).await.unwrap();
        wake.send();
    }
    let many = (0..100).map(|_| event()).chain([again.clone()]).collect();
    let (published, _) = publisher.publish_many(&mut tx.conn(), many).await.unwrap();
    tx.commit().await.unwrap();
    let id = published.into_iter().next().unwrap().unwrap().id;
    publisher.publish_now(event()).await.unwrap();
    let ordered = NewEvent { ordering_key: Some(Key::new("k1").unwrap()), ..event() };
    publisher.publish_now(ordered).await.unwrap();
    publisher.owed(&tenant(), &id).await.unwrap();
    events::exists(&mut store.read().await.unwrap().conn(), "t1", id.as_str()).await.unwrap();
}

async fn delivering(store: &Store) {
    let mut options = DispatcherOptions::default();
    options.sender.addresses = AddressPolicy::AllowPrivate;
    options.policy.slots_per_worker = 64;
    let mut dispatcher = Dispatcher::start(store, options).await.unwrap();
    assert!(dispatcher.step().await.unwrap().claimed > 0);
    dispatcher.stop().await;
    let claimed = claimed(store, None).await;
    // A tenant with few lanes may have fewer deliveries than it was given slots.
    assert!((32..=64).contains(&claimed.len()), "{}", claimed.len());
    load::load(&mut store.read().await.unwrap().conn(), &claimed, store).await.unwrap();
    let now = store.now();
    let span = Span { started_at: now, ended_at: now };
    let finished: Vec<_> = claimed
        .into_iter()
        .map(|one| {
            let attempt = Id::mint(Prefix::Attempt, now, store.random());
            one.finish(attempt, Exchange::Answered(Answer::of_status(410)), Decision::DisableEndpoint, span)
        })
        .collect();
    let mut tx = store.begin().await.unwrap();
    assert!(record(&mut tx.conn(), &finished, now).await.unwrap().parked > 0);
    tx.commit().await.unwrap();
    let lanes = (0..1_000).map(|n| (format!("ep_{}", 10_000 + n), 1)).collect();
    let known = Known { lanes, since: now.minus(Duration::from_secs(5)) };
    let back = self::claimed(store, Some(known)).await;
    let mut tx = store.begin().await.unwrap();
    assert!(release(&mut tx.conn(), &back).await.unwrap() > 0);
    let conn = &mut tx.conn();
    let worker = Id::mint(Prefix::Worker, now, store.random());
    workers::heartbeat(conn, &worker, now.minus(Duration::from_secs(60))).await.unwrap();
    assert!(workers::any_dead(conn, now).await.unwrap());
    workers::take_over_dead(conn, now, 1_000).await.unwrap();
    workers::take_over_all(conn, &worker).await.unwrap();
    if conn.database() == Database::Sqlite {
        workers::sqlite_file(conn).await.unwrap();
    }
    tx.rollback().await.unwrap();
}

async fn claimed(store: &Store, known: Option<Known>) -> Vec<ClaimedDelivery> {
    let worker = Id::mint(Prefix::Worker, store.now(), store.random());
    let new = ClaimRequest::new(worker, 64, Duration::from_secs(15));
    let request = ClaimRequest { after: "ep_10500".to_owned(), known, ..new };
    let mut tx = store.begin().await.unwrap();
    let claimed = claim(&mut tx.conn(), &request, store.now()).await.unwrap();
    tx.commit().await.unwrap();
    claimed.deliveries
}

async fn waiting_ones(store: &Store) {
    let (mut tx, now) = (store.begin().await.unwrap(), store.now());
    let conn = &mut tx.conn();
    waiting::any(conn, now).await.unwrap();
    let since = now.minus(Duration::from_secs(1));
    waiting::promote_due(conn, since, now, 1_000).await.unwrap();
    waiting::return_expired(conn, since, now, 1_000).await.unwrap();
    assert!(waiting::parked_lanes(conn, ("t1", "ep_10021"), 1_000).await.unwrap().len() > 10);
    waiting::park_pending(conn, "t1", "ep_10021", now, 1_000).await.unwrap();
    waiting::park_backoff(conn, "t1", "ep_10021", now, 1_000).await.unwrap();
    waiting::unpark(conn, "t1", "ep_10021", now, 1_000).await.unwrap();
    waiting::bury(conn, "t1", "ep_10021", now, 1_000).await.unwrap();
    waiting::bury_parked(conn, "t1", "ep_10021", now, 1_000).await.unwrap();
    overdue::end(conn, now.minus(Duration::from_secs(1)), now, 100).await.unwrap();
    ordering::bury(conn, "t1", "ep_10021", now, 1_000).await.unwrap();
    ordering::place(conn).await.unwrap();
    let ended = (0..50).map(|n| Ended {
        tenant: "t2".to_owned(),
        endpoint: "ep_10022".to_owned(),
        ordering_key: Some(format!("k{n}")),
        deadline_at: now.as_millis(),
    });
    ordering::unblock(conn, ended.collect(), now).await.unwrap();
    assert!(fan_outs::spread(conn, "t1", now).await.unwrap().is_some());
    assert_eq!(fan_outs::spread(conn, "t9", now).await.unwrap().as_deref(), Some("wide"));
    assert_eq!(fan_outs::spread(conn, "wide", now).await.unwrap().as_deref(), Some("t0"));
    tx.rollback().await.unwrap();
}

async fn receiving(store: &Store) {
    let (mut tx, now) = (store.begin().await.unwrap(), store.now());
    let conn = &mut tx.conn();
    let request = |body: &str| {
        let part = |text: &str| Key::new(text).unwrap();
        let key = LedgerKey { tenant: tenant(), scope: part("shop/1"), key: part("evt_1") };
        Request { lease: Some(Duration::ZERO), ..Request::of_body(key, body.as_bytes(), Duration::from_secs(9)) }
    };
    assert!(matches!(accept(conn, &request("a"), now).await, ledger::Answer::New(_)));
    let ledger::Answer::New(taken_over) = accept(conn, &request("a"), now).await else { panic!("it was let go") };
    let outcome = Outcome { status: 200, headers: Vec::new(), body: Bytes::new() };
    ledger::finish(conn, taken_over, &outcome, now).await.unwrap();
    assert!(matches!(accept(conn, &request("a"), now).await, ledger::Answer::Replay(_)));
    assert!(ledger::renew(conn, &request("a"), now).await.unwrap().is_none(), "it has not expired");
    assert!(ledger::peek(conn, &request("b")).await.unwrap().is_some());
    assert!(ledger::renew(conn, &request("a"), now).await.unwrap().is_none());
    ledger::keep_conflict(conn, &request("b"), &RawRequest { headers: "[]", body: b"b" }, now).await.unwrap();
    let (mut fresh, known) = (request("c"), request("a"));
    fresh.key.key = Key::new("evt_2").unwrap();
    let claims = ledger::accept_all(conn, &[&fresh, &known], now).await.unwrap();
    let [Some(claim), None]: [_; 2] = claims.try_into().unwrap() else { panic!("one is new and one is known") };
    ledger::finish_all(conn, &[(&fresh, claim, &outcome)], now).await.unwrap();
    let mut forgotten = request("d");
    let part = |text: &str| Key::new(text).unwrap();
    forgotten.key = LedgerKey { tenant: part("t0"), scope: part("shop/1"), key: part(&format!("k{:027}", 100)) };
    assert!(ledger::renew(conn, &forgotten, now).await.unwrap().is_some());
    tx.commit().await.unwrap();
}

async fn accept(conn: &mut Conn<'_>, request: &Request, now: twiceproof_shared::clock::Timestamp) -> ledger::Answer {
    ledger::accept(conn, request, now).await.unwrap()
}

async fn housekeeping(store: &Store) {
    assert!(Purge::new(store, Duration::from_secs(86_400)).step().await.unwrap().events > 0);
    assert!(ledger::purge(store, &ledger::Retention::default()).await.unwrap().more);
    let mut tx = store.begin().await.unwrap();
    let conn = &mut tx.conn();
    assert!(purge::next_tenant(conn, Walked::Attempts, "t1").await.unwrap().is_some());
    let stretch = Stretch { walked: Walked::Attempts, tenant: "t1", after: "", until: store.now(), limit: 250 };
    let found = purge::look(conn, stretch).await.unwrap();
    let ids: Vec<String> = found.into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), 250);
    purge::delete_orphans(conn, "t1", &ids).await.unwrap();
    tx.rollback().await.unwrap();
}

/// Every statement of the hot files that is for this database ran.
fn none_is_missing(database: Database, seen: &[Statement]) {
    let (own, other) = match database {
        Database::Sqlite => ("Database::Sqlite =>", "Database::Postgres =>"),
        Database::Postgres => ("Database::Postgres =>", "Database::Sqlite =>"),
    };
    let mut count = 0;
    for file in HOT {
        let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(path).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for function in text.split("async fn ") {
            let mut from = 0;
            while let Some(start) = ["SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH "]
                .iter()
                .filter_map(|verb| function[from..].find(&format!("\"{verb}")))
                .min()
            {
                let start = from + start + 1;
                let end = start + function[start..].find('"').unwrap();
                let (before, sql) = (&function[..start], &function[start..end]);
                from = end + 1;
                let last = |word: &str| before.rfind(word);
                let of_one_alone = match database {
                    Database::Sqlite => sql.contains("json_to_recordset"),
                    Database::Postgres => sql.contains("pragma_") || sql.contains("last_insert_rowid"),
                };
                if last(other) > last(own) || of_one_alone {
                    continue;
                }
                count += 1;
                // Some are put together from parts.
                assert!(seen.iter().any(|statement| statement.sql.contains(sql)), "{file}: this did not run:\n{sql}");
            }
        }
    }
    assert!(count > 30, "only {count} statements were found");
}

async fn check_sqlite(store: &Store, seen: &[Statement], wrong: &mut Vec<String>) {
    let mut reader = store.read().await.unwrap();
    let mut conn = reader.conn();
    for Statement { sql, .. } in seen {
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        let rows = sqlx::raw_sql(explain).fetch_all(conn.sqlite().unwrap()).await.unwrap();
        for row in rows {
            let detail: String = row.get("detail");
            if reads_all(&detail) {
                wrong.push(format!("{detail}\n    of {sql}"));
            }
        }
    }
}

/// Whether a line of SQLite's plan reads a table that grows from one end to the other, or all of a tenant's rows.
fn reads_all(detail: &str) -> bool {
    let words: Vec<&str> = detail.split_whitespace().collect();
    let of_tenant = BIG.iter().any(|table| detail.contains(&format!("{table}_"))) && detail.ends_with("(tenant=?)");
    let is_small = |name: &str| {
        matches!(name, "lane" | "pick" | "p" | "page" | "CONSTANT" | "twiceproof_workers" | "pragma_database_list")
    };
    // What is on its way goes soon, and is looked at by its first row.
    let is_small = |name: &str| is_small(name) || (name == "twiceproof_fan_outs" && detail.contains("COVERING INDEX"));
    // What waits is little of what there is, and has indexes of its own.
    let waits = WAITS.iter().any(|part| detail.contains(part));
    match words[..] {
        ["SCAN", name, ..] => !(is_small(name) || detail.contains("VIRTUAL TABLE") || name.starts_with('(') || waits),
        _ => of_tenant,
    }
}

async fn check_postgres(store: &Store, seen: &[Statement], wrong: &mut Vec<String>) {
    let mut reader = store.read().await.unwrap();
    let mut conn = reader.conn();
    let conn = conn.postgres().unwrap();
    for mode in ["force_custom_plan", "force_generic_plan"] {
        for statement in seen {
            let mut findings = BTreeMap::new();
            walk(&plan(conn, mode, statement).await, &mut findings);
            let sql = statement.sql;
            wrong.extend(findings.into_iter().map(|(node, count)| format!("{mode}: {count} × {node}\n    of {sql}")));
        }
    }
}

/// PostgreSQL's plan of a statement, as JSON.
async fn plan(conn: &mut sqlx::PgConnection, mode: &str, statement: &Statement) -> serde_json::Value {
    let Statement { sql, args } = statement;
    let types: Vec<&str> = args.iter().map(type_of).collect();
    let values: Vec<String> = args.iter().map(literal).collect();
    let list = |of: String| if of.is_empty() { of } else { format!("({of})") };
    let (types, values) = (list(types.join(", ")), list(values.join(", ")));
    let prepare = format!("SET plan_cache_mode = {mode}; DEALLOCATE ALL; PREPARE hot{types} AS {sql}");
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *conn).await.unwrap_or_else(|e| panic!("{e}: {sql}"));
    let explain = AssertSqlSafe(format!("EXPLAIN (FORMAT JSON) EXECUTE hot{values}"));
    let row = sqlx::raw_sql(explain).fetch_one(&mut *conn).await.unwrap();
    serde_json::from_str(row.get_unchecked::<&str, _>(0)).unwrap()
}

/// The plans of a statement: one on SQLite, and on PostgreSQL one for these values and one for any.
pub async fn plans(store: &Store, statement: &Statement) -> Vec<String> {
    let mut reader = store.read().await.unwrap();
    let mut conn = reader.conn();
    match conn.database() {
        Database::Sqlite => {
            let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {}", statement.sql));
            let rows = sqlx::raw_sql(explain).fetch_all(conn.sqlite().unwrap()).await.unwrap();
            vec![rows.iter().map(|row| row.get::<String, _>("detail") + "\n").collect()]
        }
        Database::Postgres => {
            let mut plans = Vec::new();
            for mode in ["force_custom_plan", "force_generic_plan"] {
                let plan = plan(conn.postgres().unwrap(), mode, statement).await;
                plans.push(format!("{plan:#}"));
            }
            plans
        }
    }
}

fn type_of(arg: &OwnedArg) -> &'static str {
    match arg {
        OwnedArg::Text(_) => "text",
        OwnedArg::Int(_) => "bigint",
        OwnedArg::Bytes(_) => "bytea",
    }
}

fn literal(arg: &OwnedArg) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match arg {
        OwnedArg::Text(Some(text)) => format!("$twiceproof${text}$twiceproof$"),
        OwnedArg::Int(Some(int)) => format!("({int})"),
        OwnedArg::Bytes(Some(bytes)) => format!("'\\x{}'", hex(bytes)),
        _ => "NULL".to_owned(),
    }
}

/// Collects the nodes of a plan that read a table that grows from one end to the other, or all of a tenant's rows.
fn walk(plan: &serde_json::Value, findings: &mut BTreeMap<String, usize>) {
    match plan {
        serde_json::Value::Array(nodes) => nodes.iter().for_each(|node| walk(node, findings)),
        serde_json::Value::Object(node) => {
            let text = |name: &str| node.get(name).and_then(serde_json::Value::as_str).unwrap_or_default();
            let (kind, table, index, condition) =
                (text("Node Type"), text("Relation Name"), text("Index Name"), text("Index Cond"));
            let is_big = BIG.iter().any(|big| table == *big || index.starts_with(&format!("{big}_")));
            let is_partial = WAITS.iter().any(|part| index.contains(part));
            let of_tenant = condition.contains("tenant = ") && !condition.contains(" AND ");
            let whole =
                kind == "Seq Scan" || (kind.contains("Index") && !is_partial && (condition.is_empty() || of_tenant));
            if is_big && whole {
                *findings.entry(format!("{kind} {table} {index} {condition}")).or_default() += 1;
            }
            node.values().for_each(|node| walk(node, findings));
        }
        _ => {}
    }
}
