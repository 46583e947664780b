//! Many concurrent histories of requests with an `Idempotency-Key`, at two processes' worth of stores: other payloads, clients
//! that leave, handlers that lose their connection. Each must look as if one request had been done at a time.
//!
//! `TWICEPROOF_TEST_HISTORIES=2000` runs as many on each database; usually it is 200.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use futures_util::StreamExt;
use http::{HeaderMap, Request, StatusCode};
use twiceproof::receiver::idempotency::IdempotencyLayer;
use twiceproof_shared::key::Key;
use twiceproof_shared::random::Random;
use twiceproof_shared::store::{Loan, Store, StoreError};

use crate::harness::{Bed, Suite};
use crate::idempotency::{is_replay, send};
use crate::kit::{ADD_EFFECT, effects, make_effects};
use crate::linear::{Op, Seen, judge};

pub fn register(suite: &mut Suite) {
    suite.both("idempotency::a2_concurrent_histories_look_as_if_one_request_were_done_at_a_time", histories);
}

/// Requests of one history, but for the last one, which comes when the others have ended.
const REQUESTS: usize = 8;
/// Histories at a time.
const LANES: usize = 4;

/// What one client does.
#[derive(Debug, Clone, Copy)]
struct Plan {
    payload: u64,
    process: usize,
    /// It begins this much later.
    waits: Duration,
    /// The handler takes this long.
    takes: Duration,
    crash: Option<Crash>,
}

#[derive(Debug, Clone, Copy)]
enum Crash {
    /// The client leaves after this time.
    Client(Duration),
    /// The handler's connection is lost.
    Connection,
}

impl Plan {
    /// One in ten has another payload, one in twenty crashes.
    fn draw(random: &Random) -> Self {
        let micros = |most| Duration::from_micros(random.below(most));
        let crash = match random.below(40) {
            0 => Some(Crash::Client(micros(3_000))),
            1 => Some(Crash::Connection),
            _ => None,
        };
        Self {
            payload: u64::from(random.below(10) == 0),
            process: usize::try_from(random.below(2)).unwrap(),
            waits: micros(2_000),
            takes: micros(2_000),
            crash,
        }
    }
}

async fn work(Extension(loan): Extension<Loan>, headers: HeaderMap, body: axum::body::Bytes) -> Response {
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let op = text("x-op");
    let by = op.clone();
    let done: Result<u64, StoreError> = loan
        .work(|conn| Box::pin(async move { conn.execute(ADD_EFFECT, &[by.as_str().into(), (&*body).into()]).await }))
        .await;
    tokio::time::sleep(Duration::from_micros(text("x-takes").parse().unwrap())).await;
    if text("x-loses") == "true" {
        drop(loan.take());
    }
    if done.is_ok() { op.into_response() } else { StatusCode::SERVICE_UNAVAILABLE.into_response() }
}

fn process(store: &Store) -> Router {
    let layer = IdempotencyLayer::new(store, |_| Key::new("t").ok()).deadline(Duration::from_secs(60));
    Router::new().route("/work", post(work)).route_layer(layer)
}

/// Sends one request of a history and says what was seen of it.
async fn run(processes: [Router; 2], tick: Arc<AtomicU64>, (history, op): (usize, usize), plan: Plan) -> Op {
    tokio::time::sleep(plan.waits).await;
    let request = Request::post("/work")
        .header("idempotency-key", format!("history-{history}"))
        .header("x-op", format!("{history}/{op}"))
        .header("x-takes", plan.takes.as_micros().to_string())
        .header("x-loses", matches!(plan.crash, Some(Crash::Connection)).to_string())
        .body(Body::from(plan.payload.to_string()))
        .unwrap();
    let began = tick.fetch_add(1, Ordering::SeqCst);
    let patience = match plan.crash {
        Some(Crash::Client(patience)) => patience,
        _ => Duration::from_secs(120),
    };
    let answer = tokio::time::timeout(patience, send(&processes[plan.process], request)).await;
    let ended = tick.fetch_add(1, Ordering::SeqCst);
    let seen = match answer {
        Ok(answer) if answer.status == 200 => {
            let text = String::from_utf8(answer.body.to_vec()).unwrap();
            let (by_history, by) = text.split_once('/').unwrap();
            assert_eq!(by_history.parse(), Ok(history), "another key's answer");
            let by: usize = by.parse().unwrap();
            assert!(is_replay(&answer) || by == op, "{op} has the answer of {by}");
            if is_replay(&answer) { Seen::Replayed(by) } else { Seen::Ran }
        }
        Ok(answer) if answer.status == 422 => Seen::Refused,
        Ok(answer) if answer.status == 409 => Seen::Busy,
        Ok(answer) if answer.status == 500 => {
            assert!(matches!(plan.crash, Some(Crash::Connection)), "nothing had happened to it");
            Seen::Failed
        }
        _ => Seen::Unknown,
    };
    Op { payload: plan.payload, began, ended, seen }
}

async fn histories(bed: Bed) {
    let count = std::env::var("TWICEPROOF_TEST_HISTORIES").ok().and_then(|count| count.parse().ok()).unwrap_or(200);
    let seed = std::env::var("TWICEPROOF_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_201);
    println!("seed {seed}: run again with TWICEPROOF_TEST_SEED={seed} TWICEPROOF_TEST_HISTORIES={count}");
    let random = Random::seeded(seed);
    let stores = [bed.db.store(None).await.unwrap(), bed.db.store(None).await.unwrap()];
    make_effects(&stores[0]).await;
    let processes = [process(&stores[0]), process(&stores[1])];
    let tick = Arc::new(AtomicU64::new(0));
    let plans: Vec<[Plan; REQUESTS]> = (0..count).map(|_| [(); REQUESTS].map(|()| Plan::draw(&random))).collect();
    let ran: Vec<(usize, Vec<Op>)> = futures_util::stream::iter(plans.into_iter().enumerate())
        .map(|(history, plans)| {
            let (processes, tick) = (processes.clone(), Arc::clone(&tick));
            async move {
                let at = |op| (processes.clone(), Arc::clone(&tick), (history, op));
                let ops = plans.into_iter().enumerate().map(|(op, plan)| {
                    let (processes, tick, name) = at(op);
                    tokio::spawn(run(processes, tick, name, plan))
                });
                let ops: Vec<_> = ops.collect();
                let mut seen = Vec::new();
                for op in ops {
                    seen.push(op.await.unwrap());
                }
                // Whatever has happened to it, the key can be used: only what was left behind may hold it, for a moment.
                let last = Plan { crash: None, waits: Duration::ZERO, takes: Duration::ZERO, ..plans[0] };
                for _ in 0..2_000 {
                    let (processes, tick, name) = at(seen.len());
                    let op = run(processes, tick, name, last).await;
                    if op.seen != Seen::Busy {
                        seen.push(op);
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                (history, seen)
            }
        })
        .buffer_unordered(LANES)
        .collect()
        .await;

    let mut by_history: HashMap<usize, Vec<usize>> = HashMap::new();
    for (op, _) in effects(&stores[0]).await {
        let (history, op) = op.split_once('/').unwrap();
        by_history.entry(history.parse().unwrap()).or_default().push(op.parse().unwrap());
    }
    let mut wrong = Vec::new();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut overlaps = 0;
    for (history, ops) in &ran {
        let effects = by_history.get(history).map_or(&[][..], Vec::as_slice);
        if let Err(reason) = judge(ops, effects) {
            wrong.push(format!("history {history}: {reason}: {ops:#?}, effects {effects:?}"));
        }
        let last = ops.last().unwrap().seen;
        assert!(ops.len() > REQUESTS && last != Seen::Failed && last != Seen::Unknown, "{history}: {ops:#?}");
        let at_once = &ops[..REQUESTS];
        overlaps +=
            at_once.iter().map(|op| at_once.iter().filter(|other| op.overlaps(other)).count() - 1).sum::<usize>();
        for op in ops {
            *seen
                .entry(match op.seen {
                    Seen::Ran => "ran",
                    Seen::Replayed(_) => "replayed",
                    Seen::Refused => "refused",
                    Seen::Busy => "busy",
                    Seen::Failed => "failed",
                    Seen::Unknown => "unknown",
                })
                .or_default() += 1;
        }
    }
    let overlap = overlaps as f64 / (count * REQUESTS) as f64;
    println!("{count} histories, mean overlap {overlap:.1}, {seen:?}");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong[0]);
    assert!(overlap >= 3.0, "the requests of a history ran one after another: mean overlap {overlap}");
    assert_eq!(seen.len(), 6, "something never happened: {seen:?}");
}
