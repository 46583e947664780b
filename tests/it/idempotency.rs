//! Requests with an `Idempotency-Key`: what each of the ledger's answers is on the wire.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::{get, post};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use tokio::sync::{Barrier, Semaphore};
use tower::ServiceExt;
use twiceproof::prove::Answer;
use twiceproof::receiver::idempotency::{Expired, IdempotencyLayer, Policy, Rule};
use twiceproof_shared::clock::{ManualClock, Timestamp};
use twiceproof_shared::key::Key;
use twiceproof_shared::ledger;
use twiceproof_shared::store::{Loan, Store, StoreError};

use crate::harness::{Bed, Suite};
use crate::kit::{ADD_EFFECT, effects, make_effects};

pub fn register(suite: &mut Suite) {
    suite.both("idempotency::a3_a4_a_repeat_gets_the_stored_answer_byte_for_byte_and_runs_nothing", replay);
    suite.both("idempotency::a5_d5_another_payload_is_refused_and_kept_for_review", conflict);
    suite.both("idempotency::b2_a_request_in_flight_is_refused_as_retryable", in_flight);
    suite.both("idempotency::a2_copies_at_once_have_one_effect_and_one_answer", copies);
    suite.both("idempotency::b1_keys_are_checked_before_anything_is_looked_up", keys);
    suite.both("idempotency::a8_reads_and_requests_without_a_key_pass_without_a_query", untouched);
    suite.both("idempotency::b3_two_tenants_with_the_same_key_never_meet", tenants);
    suite.both("idempotency::a10_a_key_on_two_routes_is_two_operations_unless_they_share_a_scope", routes);
    suite.both("idempotency::a6_b4_a_forgotten_key_is_refused_or_new_as_the_route_says", forgotten);
}

/// How an API under test behaves.
#[derive(Clone)]
pub struct Bench {
    pub store: Store,
    /// The handler gives a permit for each effect.
    pub written: Arc<Semaphore>,
    /// The handler asks for a permit between its effect and its answer.
    pub gate: Arc<Semaphore>,
}

impl Bench {
    pub async fn new(store: Store) -> Self {
        make_effects(&store).await;
        Self::on(store)
    }

    /// Another process on a database that has the table of effects.
    pub fn on(store: Store) -> Self {
        Self { store, written: Arc::new(Semaphore::new(0)), gate: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)) }
    }

    /// The gate is shut; `open` of the answers that come.
    pub fn gated(mut self, open: usize) -> Self {
        self.gate = Arc::new(Semaphore::new(open));
        self
    }

    /// The layer; the tenant stands in a header.
    pub fn layer(&self) -> IdempotencyLayer {
        IdempotencyLayer::new(&self.store, |head| Key::new(head.headers.get("x-tenant")?.to_str().ok()?).ok())
            .deadline(Duration::from_secs(60))
    }

    /// Two routes that write, one that reads.
    pub fn app(&self, layer: IdempotencyLayer) -> Router {
        Router::new()
            .route("/invoices", post(write).get(read).put(write))
            .route("/orders/{id}/invoice", post(write))
            .route("/outside", post(read))
            .route("/health", get(read))
            .route_layer(layer)
            .with_state(self.clone())
    }

    pub fn ordinary(&self) -> Router {
        self.app(self.layer())
    }
}

/// Writes the effect and says who did: the request's `x-op`.
async fn write(
    State(bench): State<Bench>,
    axum::Extension(loan): axum::Extension<Loan>,
    headers: HeaderMap,
    body: axum::body::Bytes,
) -> Result<(StatusCode, HeaderMap, String), StatusCode> {
    let op = headers["x-op"].to_str().unwrap().to_owned();
    let by = op.clone();
    let done: Result<u64, StoreError> = loan
        .work(|conn| Box::pin(async move { conn.execute(ADD_EFFECT, &[by.as_str().into(), (&*body).into()]).await }))
        .await;
    done.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    bench.written.add_permits(1);
    bench.gate.acquire().await.unwrap().forget();
    let mut answer = HeaderMap::new();
    for (name, value) in [("x-made", "one"), ("x-made", "two"), ("set-cookie", "a=b"), ("content-type", "text/x-made")]
    {
        answer.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Ok((StatusCode::CREATED, answer, op))
}

async fn read() -> &'static str {
    "read"
}

/// A request of tenant `t` with this key, said by `op`.
pub fn request(key: &str, op: &str, body: &str) -> Request<Body> {
    Request::post("/invoices")
        .header("idempotency-key", key)
        .header("x-tenant", "t")
        .header("x-op", op)
        .body(Body::from(body.to_owned()))
        .unwrap()
}

/// The request at another path.
pub fn at(path: &str, mut request: Request<Body>) -> Request<Body> {
    *request.uri_mut() = path.parse().unwrap();
    request
}

pub async fn send(app: &Router, request: Request<Body>) -> Answer {
    let (head, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    Answer { status: head.status, headers: head.headers, body }
}

pub fn is_replay(answer: &Answer) -> bool {
    answer.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
}

/// A refusal as a problem document of this type.
fn assert_problem(answer: &Answer, status: u16, name: &str) {
    let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer.status, status, "{document}");
    assert_eq!(answer.headers["content-type"], "application/problem+json");
    assert_eq!(document["type"], format!("urn:twiceproof:problem:{name}"));
    assert_eq!(document["status"], status);
}

async fn replay(bed: Bed) {
    let bench = Bench::new(bed.db.store(None).await.unwrap()).await;
    let app = bench.ordinary();
    let first = send(&app, request("k", "a", "{}")).await;
    assert_eq!((first.status.as_u16(), &first.body[..], is_replay(&first)), (201, &b"a"[..], false));
    assert!(first.headers.contains_key("set-cookie"));
    // The draft's quoted string is the same key, and other headers make no other request.
    for repeat in [request("k", "b", "{}"), request("\"k\"", "c", "{}")] {
        let repeat = send(&app, repeat).await;
        assert!(is_replay(&repeat));
        assert_eq!((repeat.status, &repeat.body), (first.status, &first.body));
        let (mut stored, mut given) = (repeat.headers.clone(), first.headers.clone());
        stored.remove("idempotent-replayed");
        given.remove("set-cookie");
        assert_eq!(stored, given, "what belongs to one client is not given to another");
    }
    assert_eq!(effects(&bench.store).await, [("a".to_owned(), b"{}".to_vec())]);
}

async fn conflict(bed: Bed) {
    let bench = Bench::new(bed.db.store(None).await.unwrap()).await;
    let app = bench.ordinary();
    let first = send(&app, request("k", "a", "{}")).await;
    let mut other_method = request("k", "b", "{}");
    *other_method.method_mut() = Method::PUT;
    assert_eq!(send(&app, other_method).await.status, 201, "another method is another route");
    for other in [request("k", "c", "{ }"), at("/invoices?dry", request("k", "c", "{}")), {
        let mut other = request("k", "c", "{}");
        other.headers_mut().insert("content-type", HeaderValue::from_static("text/plain"));
        other
    }] {
        let refused = send(&app, other).await;
        assert_problem(&refused, 422, "idempotency-key-reused");
        assert!(String::from_utf8_lossy(&refused.body).contains("with a different request payload."));
    }
    let again = send(&app, request("k", "d", "{}")).await;
    assert_eq!((is_replay(&again), &again.body), (true, &first.body), "the stored answer is untouched");
    assert_eq!(effects(&bench.store).await.len(), 2);
    let kept =
        "SELECT count(*) FROM twiceproof_conflicts WHERE tenant = 't' AND scope = 'POST:/invoices' AND key = 'k'";
    let (kept,): (i64,) = bench.store.read().await.unwrap().conn().fetch_one(kept, &[]).await.unwrap();
    assert_eq!(kept, 2, "two bodies");

    let silent = bench.app(bench.layer().rule(Rule::default().without_review()));
    assert_eq!(send(&silent, request("k", "e", "secret")).await.status, 422);
    let sql = "SELECT count(*) FROM twiceproof_conflicts";
    let (all,): (i64,) = bench.store.read().await.unwrap().conn().fetch_one(sql, &[]).await.unwrap();
    assert_eq!(all, kept);
}

async fn in_flight(bed: Bed) {
    let bench = Bench::new(bed.db.store(None).await.unwrap()).await.gated(0);
    let app = bench.ordinary();
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request("k", "a", "{}")).await }
    });
    bench.written.acquire().await.unwrap().forget();
    // Whatever the payload: there is no outcome yet that it could differ from.
    for repeat in [request("k", "b", "{}"), request("k", "c", "other")] {
        let refused = send(&app, repeat).await;
        assert_problem(&refused, 409, "idempotency-key-in-flight");
        assert_eq!(refused.headers["retry-after"], "1");
        assert!(String::from_utf8_lossy(&refused.body).contains("is still being processed, retry shortly."));
    }
    // Who may wait gets the first answer.
    let patient = bench.app(bench.layer().in_flight_wait(Duration::from_secs(60)));
    let waiting = tokio::spawn(async move { send(&patient, request("k", "d", "{}")).await });
    bench.gate.add_permits(1);
    let (first, waited) = (first.await.unwrap(), waiting.await.unwrap());
    assert_eq!((first.status.as_u16(), is_replay(&first)), (201, false));
    assert_eq!((&waited.body, is_replay(&waited)), (&first.body, true));
    assert_eq!(effects(&bench.store).await.len(), 1);
}

const COPIES: usize = 128;

async fn copies(bed: Bed) {
    // Two processes, each with a registry of its own.
    let (one, other) = (bed.db.store(None).await.unwrap(), bed.db.store(None).await.unwrap());
    let bench = Bench::new(one).await;
    let apps = [bench.ordinary(), Bench::on(other).ordinary()];
    let barrier = Arc::new(Barrier::new(COPIES));
    let copies: Vec<_> = (0..COPIES)
        .map(|copy| {
            let (app, barrier) = (apps[copy % 2].clone(), Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                send(&app, request("k", &copy.to_string(), "{}")).await
            })
        })
        .collect();
    let mut answers = Vec::new();
    for copy in copies {
        answers.push(copy.await.unwrap());
    }
    let effects = effects(&bench.store).await;
    assert_eq!(effects.len(), 1);
    let (firsts, others): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| answer.status == 201 && !is_replay(answer));
    assert_eq!(firsts.len(), 1);
    for answer in others {
        assert!(answer.status == 409 || is_replay(answer), "{answer:?}");
    }
    for answer in answers.iter().filter(|answer| answer.status == 201) {
        assert_eq!(answer.body, effects[0].0.as_bytes());
    }
}

async fn keys(bed: Bed) {
    let bench = Bench::new(bed.db.store(None).await.unwrap()).await;
    let app = bench.app(bench.layer().rule(Rule::default().required()));
    // There is no database: nothing that is asked of it could be answered.
    bench.store.close().await;
    let long = "k".repeat(256);
    for key in ["", "\"\"", "a b", "\"a", "a,b", "\"a\";q=1", "\"a\", \"b\"", long.as_str()] {
        assert_problem(&send(&app, request(key, "a", "{}")).await, 400, "idempotency-key-invalid");
    }
    let mut twice = request("k", "a", "{}");
    twice.headers_mut().append("idempotency-key", HeaderValue::from_static("k"));
    assert_problem(&send(&app, twice).await, 400, "idempotency-key-invalid");
    let mut none = request("k", "a", "{}");
    none.headers_mut().remove("idempotency-key");
    assert_problem(&send(&app, none).await, 400, "idempotency-key-missing");
    let asked = send(&app, request(&long[1..], "a", "{}")).await;
    assert_problem(&asked, 503, "unavailable");
    assert!(asked.headers.contains_key("retry-after"));
}

async fn untouched(bed: Bed) {
    let bench = Bench::new(bed.db.store(None).await.unwrap()).await;
    let layer = bench.layer().route(Method::POST, "/orders/{id}/invoice", Rule::new(Policy::Off));
    let app = Router::new()
        .route("/invoices", get(read).post(read).put(read).patch(read).delete(read))
        .route("/orders/{id}/invoice", post(read))
        .route_layer(layer.clone())
        .merge(Router::new().route("/required", get(read)).route_layer(layer.rule(Rule::default().required())));
    bench.store.close().await;
    for method in ["GET", "HEAD"] {
        for path in ["/invoices", "/required"] {
            let mut safe = at(path, request("k", "a", ""));
            *safe.method_mut() = method.parse().unwrap();
            assert_eq!(send(&app, safe).await.status, 200, "a {method} needs no key and has none");
        }
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let mut keyless = request("k", "a", "");
        keyless.headers_mut().remove("idempotency-key");
        *keyless.method_mut() = method.parse().unwrap();
        assert_eq!(send(&app, keyless).await.body, "read", "{method}");
        let mut keyed = request("k", "a", "");
        *keyed.method_mut() = method.parse().unwrap();
        assert_eq!(send(&app, keyed).await.status, 503, "{method} with a key asks the database");
    }
    assert_eq!(send(&app, at("/orders/7/invoice", request("k", "a", ""))).await.body, "read", "its route is off");
    assert_eq!(send(&app, at("/nowhere", request("k", "a", ""))).await.status, 404);
    let mut nobody = request("k", "a", "");
    nobody.headers_mut().remove("x-tenant");
    assert_eq!(send(&app, nobody).await.body, "read", "who nobody knows is the handler's to refuse");
}

async fn tenants(bed: Bed) {
    let bench = Bench::new(bed.db.store(None).await.unwrap()).await;
    let app = bench.ordinary();
    for (tenant, body) in [("t", "{}"), ("u", "{}"), ("v", "other")] {
        let mut theirs = request("k", tenant, body);
        theirs.headers_mut().insert("x-tenant", HeaderValue::from_static(tenant));
        let answer = send(&app, theirs).await;
        assert_eq!((answer.status.as_u16(), is_replay(&answer)), (201, false));
        assert_eq!(answer.body, tenant);
    }
    assert_eq!(effects(&bench.store).await.len(), 3);
}

async fn routes(bed: Bed) {
    let bench = Bench::new(bed.db.store(None).await.unwrap()).await;
    let app = bench.ordinary();
    let order = |id: u32, op: &str| at(&format!("/orders/{id}/invoice"), request("k", op, "{}"));
    assert_eq!(send(&app, request("k", "a", "{}")).await.body, "a");
    assert_eq!(send(&app, order(7, "b")).await.body, "b");
    assert!(is_replay(&send(&app, order(7, "c")).await));
    // One route, another order: the same key with another request.
    assert_eq!(send(&app, order(8, "d")).await.status, 422);
    assert_eq!(effects(&bench.store).await.len(), 2);

    let shared = bench.app(bench.layer().rule(Rule::default().scope(Key::new("invoice").unwrap())));
    let (one, other) = (request("n", "e", "{}"), at("/orders/7/invoice", request("n", "f", "{}")));
    assert_eq!(send(&shared, one).await.status, 201);
    assert_eq!(send(&shared, other).await.status, 422);
    assert_eq!(effects(&bench.store).await.len(), 3);
}

const DAY: Duration = Duration::from_secs(86_400);

async fn forgotten(bed: Bed) {
    let clock = ManualClock::new(Timestamp::from_secs(1_700_000_000));
    let bench = Bench::new(bed.db.store(Some(Arc::new(clock.clone()))).await.unwrap()).await;
    let rule = Rule::default().retention(7 * DAY);
    let refusing = bench.app(bench.layer().rule(rule.clone()));
    let renewing = bench.app(bench.layer().rule(rule.expired(Expired::New)));
    assert_eq!(send(&refusing, request("k", "a", "{}")).await.status, 201);
    let forget = async || ledger::purge(&bench.store, &ledger::Retention::default()).await.unwrap().emptied;
    clock.advance(7 * DAY - Duration::from_millis(1));
    assert_eq!(forget().await, 0);
    assert!(is_replay(&send(&refusing, request("k", "b", "{}")).await), "as long as it was promised");
    clock.advance(Duration::from_millis(1));
    assert_eq!(forget().await, 1);

    assert_problem(&send(&refusing, request("k", "c", "{}")).await, 422, "idempotency-key-expired");
    assert_problem(&send(&refusing, request("k", "c", "other")).await, 422, "idempotency-key-reused");
    assert_eq!(effects(&bench.store).await.len(), 1);
    // Where an expired key is new, it is new for any payload, and then as known as any other.
    let first = send(&renewing, request("k", "d", "other")).await;
    assert_eq!((&first.body[..], is_replay(&first)), (&b"d"[..], false));
    let again = send(&renewing, request("k", "e", "other")).await;
    assert_eq!((&again.body[..], is_replay(&again)), (&b"d"[..], true));
    assert_eq!(send(&renewing, request("k", "f", "{}")).await.status, 422);
    assert_eq!(effects(&bench.store).await.len(), 2);
    clock.advance(7 * DAY);
    assert_eq!(forget().await, 1, "it is kept as long as the first");
}
