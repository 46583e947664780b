//! Requests with an `Idempotency-Key`: what a handler, a client or a database can do to the transaction in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceExt;
use twiceproof::prove::{Fault, Proxy};
use twiceproof::receiver::idempotency::{IdempotencyLayer, Policy, Rule};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::{Database, Loan, Store, StoreError, StoreOptions};

use crate::harness::{Bed, Suite};
use crate::idempotency::{Bench, at, is_replay, request, send};
use crate::kit::{ADD_EFFECT, Receiving, effects, make_effects};

pub fn register(suite: &mut Suite) {
    suite.both("idempotency::failures_leave_nothing_and_run_again", failures);
    suite.both("idempotency::where_errors_are_replayed_their_effects_are_undone", errors_replayed);
    suite.both("idempotency::a_request_that_was_not_begun_does_not_burn_its_key", not_begun);
    suite.both("idempotency::a_handler_that_panics_or_parts_with_the_transaction_leaves_nothing", parted);
    suite.both("idempotency::a_handler_that_commits_by_itself_is_never_run_again", by_itself);
    suite.both("idempotency::a_handler_over_its_deadline_leaves_nothing", deadline);
    suite.both("idempotency::an_answer_that_cannot_be_stored_leaves_nothing", unstorable);
    suite.both("idempotency::a_body_over_the_limit_is_refused_before_anything", too_large);
    suite.both("idempotency::a9_a_client_that_leaves_finds_its_answer_when_it_comes_back", left);
    suite.both("idempotency::a_connection_that_breaks_changes_nothing", broken);
    suite.both("idempotency::a_handler_cannot_have_a_second_transaction_by_mistake", reentrant);
    suite.both("idempotency::a_handler_that_does_not_use_the_transaction_is_called_once_too", outside);
    suite.both("idempotency::wake_ups_are_sent_after_the_commit", woken);
    suite.postgres("idempotency::a_failed_statement_cannot_pass_for_an_effect", swallowed);
    suite.postgres("idempotency::rel_b49_a_commit_that_got_no_answer_is_looked_up_and_never_run_twice", cut);
}

/// What is done by a handler that is told by `x-do`.
#[derive(Clone)]
struct Told {
    store: Store,
    calls: Arc<AtomicUsize>,
}

async fn told(State(told): State<Told>, Extension(loan): Extension<Loan>, headers: HeaderMap) -> Response {
    told.calls.fetch_add(1, Ordering::SeqCst);
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    let (what, op) = (text("x-do"), text("x-op"));
    if what != "refuse" && what != "outside" {
        let done: Result<u64, StoreError> = loan
            .work(|conn| {
                Box::pin(async move { conn.execute(ADD_EFFECT, &[op.as_str().into(), b"x".as_slice().into()]).await })
            })
            .await;
        done.unwrap();
    }
    match what.as_str() {
        "panic" => panic!("as it was told"),
        "drop" => drop(loan.take()),
        "keep" => {
            let tx = loan.take();
            // Longer than the request lives; rolled back when the task ends.
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                drop(tx);
            });
        }
        "hang" => std::future::pending().await,
        "large" => return "x".repeat(1_001).into_response(),
        "large-failure" => return (StatusCode::BAD_GATEWAY, "x".repeat(1_001)).into_response(),
        "header" => return ([("x-made", HeaderValue::from_bytes(b"\xff").unwrap())], "done").into_response(),
        "utf-8" => return ([("x-made", HeaderValue::from_bytes("ü".as_bytes()).unwrap())], "done").into_response(),
        "begin" => {
            let refused = told.store.begin().await.map(drop);
            let also: Result<(), StoreError> = told.store.run(|_| Box::pin(async { Ok(()) })).await;
            assert!(matches!((&refused, &also), (Err(StoreError::Reentrant), Err(StoreError::Reentrant))));
            return (StatusCode::INTERNAL_SERVER_ERROR, "refused").into_response();
        }
        "commit" | "rollback" => {
            let end = if what == "commit" { "COMMIT" } else { "ROLLBACK" };
            for sql in [end, "INSERT INTO effects (event, body) VALUES ('by itself', CAST('x' AS BYTEA))"] {
                let sql = match told.store.database() {
                    Database::Sqlite if sql != end => "INSERT INTO effects (event, body) VALUES ('by itself', x'00')",
                    _ => sql,
                };
                let done: Result<u64, StoreError> =
                    loan.work(|conn| Box::pin(async move { conn.execute(sql, &[]).await })).await;
                done.unwrap();
            }
        }
        "swallow" => {
            let failed: Result<u64, StoreError> =
                loan.work(|conn| Box::pin(async move { conn.execute("SELECT 1 / 0", &[]).await })).await;
            assert!(failed.is_err());
        }
        "wake" => loan.owe(told.store.waker().owed()),
        "refuse" | "refuse-late" => return (StatusCode::UNPROCESSABLE_ENTITY, "no").into_response(),
        status if status.parse::<u16>().is_ok() => {
            return (StatusCode::from_u16(status.parse().unwrap()).unwrap(), "failed").into_response();
        }
        _ => {}
    }
    "done".into_response()
}

struct Ready {
    told: Told,
    app: Router,
}

impl Ready {
    async fn new(bed: &Bed, policy: Policy) -> Self {
        let store = bed.db.store(None).await.unwrap();
        make_effects(&store).await;
        Self::on(store, |layer| layer.rule(Rule::new(policy)))
    }

    fn on(store: Store, set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> Self {
        let layer = IdempotencyLayer::new(&store, |_| Key::new("t").ok()).answer_limit(1_000).body_limit(1_000);
        let told = Told { store, calls: Arc::default() };
        let app = Router::new().route("/told", post(self::told)).route_layer(set(layer)).with_state(told.clone());
        Self { told, app }
    }

    async fn send(&self, key: &str, what: &str) -> twiceproof::prove::Answer {
        send(&self.app, doing(key, what)).await
    }

    fn calls(&self) -> usize {
        self.told.calls.load(Ordering::SeqCst)
    }

    async fn effects(&self) -> usize {
        effects(&self.told.store).await.len()
    }

    /// The key is as new, and nothing is left of the failure: not a row, not a lock.
    async fn assert_unburnt(&self, key: &str) {
        let (calls, effects) = (self.calls(), self.effects().await);
        // The connection of a transaction that was dropped closes in its own time.
        let mut again = self.send(key, "").await;
        for _ in 0..500 {
            if again.status == 200 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            again = self.send(key, "").await;
        }
        assert_eq!((again.status.as_u16(), &again.body[..], is_replay(&again)), (200, &b"done"[..], false));
        assert_eq!((self.calls(), self.effects().await), (calls + 1, effects + 1));
    }
}

fn doing(key: &str, what: &str) -> Request<Body> {
    let mut request = at("/told", request(key, what, "{}"));
    request.headers_mut().insert("x-do", what.parse().unwrap());
    request
}

async fn failures(bed: Bed) {
    let ready = Ready::new(&bed, Policy::ReplaySuccesses).await;
    for status in ["400", "409", "422", "429", "500", "503"] {
        for _ in 0..2 {
            let failed = ready.send(status, status).await;
            assert_eq!((failed.status.as_str(), &failed.body[..], is_replay(&failed)), (status, &b"failed"[..], false));
        }
        assert_eq!(ready.calls() % 3, 2, "it ran twice");
        ready.assert_unburnt(status).await;
        assert!(is_replay(&ready.send(status, status).await), "a success is final");
    }
    assert_eq!(ready.effects().await, 6);
}

async fn errors_replayed(bed: Bed) {
    let ready = Ready::new(&bed, Policy::ReplayAll).await;
    for status in ["400", "409", "422", "500", "502"] {
        let calls = ready.calls();
        let first = ready.send(status, status).await;
        let again = ready.send(status, "").await;
        assert_eq!((first.status.as_str(), is_replay(&first)), (status, false));
        assert_eq!((again.status.as_str(), &again.body, is_replay(&again)), (status, &first.body, true));
        assert_eq!((ready.calls(), ready.effects().await), (calls + 1, 0), "one run, no effect");
    }
    for status in ["408", "425", "429", "503"] {
        assert_eq!(ready.send(status, status).await.status.as_str(), status);
        ready.assert_unburnt(status).await;
    }
    assert!(is_replay(&ready.send("503", "").await));
}

async fn not_begun(bed: Bed) {
    for policy in [Policy::ReplaySuccesses, Policy::ReplayAll] {
        let store = bed.db.store(None).await.unwrap();
        if policy == Policy::ReplaySuccesses {
            make_effects(&store).await;
        }
        let ready = Ready::on(store, |layer| layer.rule(Rule::new(policy)));
        let key = format!("{policy:?}");
        assert_eq!(ready.send(&key, "refuse").await.status, 422);
        ready.assert_unburnt(&key).await;
    }
    let ready = Ready::on(bed.db.store(None).await.unwrap(), |layer| layer.rule(Rule::new(Policy::ReplayAll)));
    assert_eq!(ready.send("late", "refuse-late").await.status, 422);
    assert!(is_replay(&ready.send("late", "").await), "the host's rule has spoken");
}

async fn parted(bed: Bed) {
    for policy in [Policy::ReplaySuccesses, Policy::ReplayAll] {
        let store = bed.db.store(None).await.unwrap();
        if policy == Policy::ReplaySuccesses {
            make_effects(&store).await;
        }
        let ready = Ready::on(store, |layer| layer.rule(Rule::new(policy)));
        for what in ["panic", "drop", "keep"] {
            let key = format!("{policy:?}-{what}");
            let before = ready.effects().await;
            let failed = ready.send(&key, what).await;
            assert_eq!((failed.status.as_u16(), ready.effects().await), (500, before), "{key}");
            ready.assert_unburnt(&key).await;
        }
    }
}

async fn by_itself(bed: Bed) {
    let ready = Ready::new(&bed, Policy::ReplaySuccesses).await;
    for what in ["commit", "rollback"] {
        ready.send(what, what).await;
        let (calls, effects) = (ready.calls(), ready.effects().await);
        for _ in 0..3 {
            let again = ready.send(what, what).await;
            assert!(again.status == 409 || is_replay(&again), "{what}: {again:?}");
        }
        assert_eq!((ready.calls(), ready.effects().await), (calls, effects), "{what}");
    }
}

async fn deadline(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let ready = Ready::on(store, |layer| layer.deadline(Duration::from_millis(200)));
    let late = ready.send("k", "hang").await;
    assert_eq!((late.status.as_u16(), ready.effects().await), (503, 0));
    assert!(late.headers.contains_key("retry-after"));
    ready.assert_unburnt("k").await;
}

async fn unstorable(bed: Bed) {
    let ready = Ready::new(&bed, Policy::ReplaySuccesses).await;
    for what in ["large", "header"] {
        assert_eq!((ready.send(what, what).await.status.as_u16(), ready.effects().await % 10), (500, 0), "{what}");
    }
    // What is not stored may be as large as it likes.
    let failure = ready.send("failure", "large-failure").await;
    assert_eq!((failure.status.as_u16(), failure.body.len()), (502, 1_001));
    for what in ["large", "header", "failure"] {
        ready.assert_unburnt(what).await;
    }
    let (first, again) = (ready.send("utf-8", "utf-8").await, ready.send("utf-8", "").await);
    assert!(is_replay(&again) && again.headers["x-made"] == first.headers["x-made"]);
}

async fn too_large(bed: Bed) {
    let ready = Ready::new(&bed, Policy::ReplaySuccesses).await;
    let mut large = doing("k", "");
    *large.body_mut() = Body::from("x".repeat(1_001));
    assert_eq!((send(&ready.app, large).await.status.as_u16(), ready.calls()), (413, 0));
    let mut broken = doing("k", "");
    let parts = [Ok("half"), Err(std::io::Error::other("reset"))];
    *broken.body_mut() = Body::from_stream(futures_util::stream::iter(parts));
    assert_eq!((send(&ready.app, broken).await.status.as_u16(), ready.calls()), (400, 0));
    ready.assert_unburnt("k").await;
}

async fn left(bed: Bed) {
    let bench = Bench::new(bed.db.store(None).await.unwrap()).await.gated(0);
    let app = bench.ordinary();
    let client = tokio::spawn(app.clone().oneshot(request("k", "a", "{}")));
    bench.written.acquire().await.unwrap().forget();
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    assert_eq!(send(&app, request("k", "b", "{}")).await.status, 409, "it goes on without its client");
    bench.gate.add_permits(1);
    let patient = bench.app(bench.layer().in_flight_wait(Duration::from_secs(60)));
    let back = send(&patient, request("k", "c", "{}")).await;
    assert_eq!((&back.body[..], is_replay(&back)), (&b"a"[..], true));
    assert_eq!(effects(&bench.store).await.len(), 1);
}

async fn broken(bed: Bed) {
    let bench = Bench::new(bed.db.store(None).await.unwrap()).await.gated(0);
    let serving = Receiving::serve(bench.ordinary()).await;
    let head = "POST /invoices HTTP/1.1\r\nhost: a\r\nx-tenant: t\r\nx-op: a\r\nidempotency-key: k\r\ncontent-length: 2\r\n\r\n";
    // One leaves in the middle of its body, one while its answer is made.
    let mut half = TcpStream::connect(serving.address).await.unwrap();
    half.write_all(format!("{head}{{").as_bytes()).await.unwrap();
    drop(half);
    let mut whole = TcpStream::connect(serving.address).await.unwrap();
    whole.write_all(format!("{head}{{}}").as_bytes()).await.unwrap();
    bench.written.acquire().await.unwrap().forget();
    drop(whole);
    bench.gate.add_permits(1);
    let patient = Receiving::serve(bench.app(bench.layer().in_flight_wait(Duration::from_secs(60)))).await;
    let mut back = TcpStream::connect(patient.address).await.unwrap();
    back.write_all(format!("{head}{{}}").replace("x-op: a", "connection: close\r\nx-op: b").as_bytes()).await.unwrap();
    let mut answer = String::new();
    back.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201") && answer.contains("idempotent-replayed: true"), "{answer}");
    assert_eq!(effects(&bench.store).await, [("a".to_owned(), b"{}".to_vec())]);
}

async fn reentrant(bed: Bed) {
    let ready = Ready::new(&bed, Policy::ReplaySuccesses).await;
    assert_eq!(ready.send("k", "begin").await.body, "refused");
    ready.assert_unburnt("k").await;
}

async fn outside(bed: Bed) {
    let ready = Ready::new(&bed, Policy::ReplaySuccesses).await;
    let (first, again) = (ready.send("k", "outside").await, ready.send("k", "outside").await);
    assert_eq!((first.status.as_u16(), is_replay(&first), is_replay(&again)), (200, false, true));
    assert_eq!((ready.calls(), ready.effects().await), (1, 0));
}

async fn woken(bed: Bed) {
    let ready = Ready::new(&bed, Policy::ReplaySuccesses).await;
    let mut sleeper = ready.told.store.waker().sleeper();
    sleeper.begin();
    assert_eq!(ready.send("k", "wake").await.status, 200);
    tokio::time::timeout(Duration::from_secs(60), sleeper.woken()).await.expect("nobody was woken");
}

async fn swallowed(bed: Bed) {
    for (n, policy) in [Policy::ReplaySuccesses, Policy::ReplayAll].into_iter().enumerate() {
        let store = bed.db.store(None).await.unwrap();
        if n == 0 {
            make_effects(&store).await;
        }
        let ready = Ready::on(store, |layer| layer.rule(Rule::new(policy)));
        let key = format!("{policy:?}");
        assert_eq!((ready.send(&key, "swallow").await.status.as_u16(), ready.effects().await), (500, n));
        ready.assert_unburnt(&key).await;
    }
}

async fn cut(bed: Bed) {
    assert_eq!(bed.database(), Database::Postgres);
    let direct = bed.db.store(None).await.unwrap();
    make_effects(&direct).await;
    let (host, port) = bed.db.url().server().unwrap();
    let proxy = Proxy::open(format!("{host}:{port}")).await.unwrap();
    let store = Store::connect(&bed.db.url().through(proxy.address()).unwrap(), StoreOptions::default()).await.unwrap();
    let ready = Ready::on(store, |layer| layer);
    for round in 1..=5 {
        // It was committed: the look finds it, and the answer is the first one.
        let before = ready.effects().await;
        proxy.arm(Fault::CommitAnswerLost);
        let (key, calls) = (format!("done-{round}"), ready.calls());
        let first = ready.send(&key, "").await;
        assert_eq!(proxy.bites(), 2 * round - 1, "the cut bit");
        assert_eq!((first.status.as_u16(), is_replay(&first), ready.effects().await), (200, false, before + 1));
        assert!(is_replay(&ready.send(&key, "").await));
        assert_eq!(ready.calls(), calls + 1);
        // It was not: nobody runs it again but the client.
        proxy.arm(Fault::CommitNotSent);
        let key = format!("lost-{round}");
        let answer = ready.send(&key, "").await;
        assert_eq!(proxy.bites(), 2 * round, "the cut bit");
        assert_eq!((answer.status.as_u16(), ready.calls(), ready.effects().await), (503, calls + 2, before + 1));
        assert!(answer.headers.contains_key("retry-after"));
        ready.assert_unburnt(&key).await;
    }
}
