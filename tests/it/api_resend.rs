//! Sending again by hand through the REST API: the same message, beside the schedule.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::json;
use twiceproof::dispatcher::Dispatcher;
use twiceproof::dispatcher::store::claim::{ClaimRequest, claim};
use twiceproof::dispatcher::store::counts::counts;
use twiceproof::prove::Front;
use twiceproof_shared::clock::ManualClock;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::signature;
use twiceproof_shared::store::Store;

use crate::api_kit::{Client, Rest, text};
use crate::dispatch::{Seen, answer, header, only, options, sink, states, timed, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("api::send_r9_a_failed_attempt_by_hand_leaves_the_next_automatic_one_as_it_was", r9_fails);
    suite.both("api::send_r9_a_successful_attempt_by_hand_ends_the_schedule", r9_succeeds);
    suite.both("api::what_was_delivered_or_is_dead_is_sent_again_and_falls_back_to_what_it_was", final_ones);
    suite.both("api::an_attempt_by_hand_whose_worker_dies_is_made_again_by_hand", lease_expiry);
    suite.both("api::a_resend_to_an_endpoint_that_never_got_the_message_makes_its_delivery", never_owed);
    suite.both("api::a_resend_beside_an_attempt_that_is_due_changes_nothing", already_due);
    suite.both("api::a_resend_that_cannot_be_is_refused_with_its_own_code", refusals);
    suite.both("api::an_endpoint_that_is_gone_by_hand_parks_what_waits", gone_by_hand);
}

/// An application `a` with the endpoint `e`, which answers as it is told to.
struct Stage {
    clock: ManualClock,
    store: Store,
    client: Client,
    status: Arc<AtomicU16>,
    seen: Seen,
    front: Front,
    dispatcher: Dispatcher,
}

impl Stage {
    async fn new(bed: &Bed) -> Self {
        let (clock, store) = timed(bed).await;
        let client = Rest::new(&store).organisation(1);
        let status = Arc::new(AtomicU16::new(500));
        let told = Arc::clone(&status);
        let (front, seen) = sink(move |_, _| answer(told.load(Ordering::SeqCst))).await;
        client.application("a").await;
        client.endpoint("a", "e", &url(&front), "").await;
        let dispatcher = Dispatcher::start(&store, options()).await.unwrap();
        Self { clock, store, client, status, seen, front, dispatcher }
    }

    /// What it answers from now on.
    fn answers(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// Attempts of one step. Each has a time of its own, so that lists have them in their order.
    async fn step(&mut self) -> usize {
        self.clock.advance(Duration::from_millis(10));
        self.dispatcher.step().await.unwrap().claimed
    }

    async fn resend(&self, message: &str) {
        assert_eq!(self.client.post(&format!("/app/a/msg/{message}/endpoint/e/resend"), "").await.json(202), json!({}));
    }

    /// State, reason and time of the one delivery, and its attempts by the schedule.
    async fn delivery(&self) -> (String, Option<String>, i64, i64) {
        let sql = "SELECT state, state_reason, due_at, attempts FROM twiceproof_deliveries";
        self.store.read().await.unwrap().conn().fetch_one(sql, &[]).await.unwrap()
    }

    /// The trigger types of all attempts for the message, oldest first.
    async fn triggers(&self, message: &str) -> Vec<u64> {
        let list = self.client.get(&format!("/app/a/attempt/msg/{message}")).await.json(200);
        list["data"].as_array().unwrap().iter().rev().map(|one| one["triggerType"].as_u64().unwrap()).collect()
    }

    /// What was accepted is all there, and nothing of the resend is left behind.
    async fn adds_up(&self, accepted: u64) {
        let mut reader = self.store.read().await.unwrap();
        assert_eq!(counts(&mut reader.conn(), None).await.unwrap().accepted(), accepted);
        let sql = "SELECT count(*) FROM twiceproof_deliveries WHERE state NOT IN ('pending', 'leased')
                   AND (resume_state IS NOT NULL OR resume_reason IS NOT NULL OR resume_due_at IS NOT NULL)";
        assert_eq!(reader.conn().fetch_one::<(i64,)>(sql, &[]).await.unwrap().0, 0);
    }
}

/// Two automatic attempts have failed; the third is due later.
async fn between_two_and_three(bed: &Bed) -> (Stage, String) {
    let mut stage = Stage::new(bed).await;
    let message = stage.client.message("a", "t", "").await;
    assert_eq!(stage.step().await, 1);
    stage.clock.advance(Duration::from_secs(5));
    assert_eq!(stage.step().await, 1);
    (stage, message)
}

async fn r9_fails(bed: Bed) {
    let (mut stage, message) = between_two_and_three(&bed).await;
    let before = stage.delivery().await;
    assert_eq!((before.0.as_str(), before.3), ("backoff", 2));
    stage.resend(&message).await;
    assert_eq!(stage.step().await, 1, "at once");
    assert_eq!(stage.delivery().await, before, "as if nothing had happened");
    assert_eq!(stage.step().await, 0, "and not again before its time");
    stage.clock.advance(Duration::from_secs(15));
    assert_eq!(stage.step().await, 1, "the third automatic attempt is made when it was due");
    let after = stage.delivery().await;
    assert_eq!((after.0.as_str(), after.3), ("backoff", 3), "the schedule goes on behind it");
    assert_eq!(stage.triggers(&message).await, [0, 0, 1, 0]);
    {
        let seen = stage.seen.lock().unwrap();
        assert!(seen.len() == 4 && seen.iter().all(|one| header(one, signature::ID) == message), "one id for all");
    }
    stage.adds_up(1).await;
}

async fn r9_succeeds(bed: Bed) {
    let (mut stage, message) = between_two_and_three(&bed).await;
    stage.answers(200);
    stage.resend(&message).await;
    assert_eq!(stage.step().await, 1);
    assert_eq!(states(&stage.store).await, only("delivered", 1));
    stage.clock.advance(Duration::from_secs(86_400));
    assert_eq!(stage.step().await, 0, "the third automatic attempt is not made any more");
    assert_eq!(stage.triggers(&message).await, [0, 0, 1]);
    assert_eq!(stage.delivery().await.3, 2, "an attempt by hand is none of the schedule's");
    stage.adds_up(1).await;
}

async fn final_ones(bed: Bed) {
    let mut stage = Stage::new(&bed).await;
    stage.answers(200);
    let message = stage.client.message("a", "t", "").await;
    assert_eq!(stage.step().await, 1);
    stage.answers(500);
    stage.resend(&message).await;
    assert_eq!(stage.step().await, 1);
    assert_eq!(stage.delivery().await.0, "delivered", "a failed repetition takes nothing back");
    stage.adds_up(1).await;
    let sql = "UPDATE twiceproof_deliveries SET state = 'dead', state_reason = 'horizon', deadline_at = 1";
    let mut tx = stage.store.begin().await.unwrap();
    tx.conn().execute(sql, &[]).await.unwrap();
    tx.commit().await.unwrap();
    stage.resend(&message).await;
    assert_eq!(stage.step().await, 1, "though its time is over");
    let dead = stage.delivery().await;
    assert_eq!((dead.0.as_str(), dead.1.as_deref()), ("dead", Some("horizon")));
    stage.adds_up(1).await;
    stage.answers(200);
    stage.resend(&message).await;
    assert_eq!(stage.step().await, 1);
    let delivered = stage.delivery().await;
    assert_eq!((delivered.0.as_str(), delivered.1), ("delivered", None));
    assert_eq!(stage.triggers(&message).await, [0, 1, 1, 1]);
    stage.adds_up(1).await;
}

async fn lease_expiry(bed: Bed) {
    let (mut stage, message) = between_two_and_three(&bed).await;
    let before = stage.delivery().await;
    stage.resend(&message).await;
    // Another worker claims it and is never heard of again.
    let now = stage.store.now();
    let worker = Id::mint(Prefix::Worker, now, stage.store.random());
    let request = ClaimRequest::new(worker, 1, Duration::from_secs(1));
    let mut tx = stage.store.begin().await.unwrap();
    assert_eq!(claim(&mut tx.conn(), &request, now).await.unwrap().deliveries.len(), 1);
    tx.commit().await.unwrap();
    assert_eq!(stage.step().await, 0, "it has the lease");
    // The next automatic attempt falls due meanwhile; one attempt is made, and it is the one by hand.
    stage.clock.advance(Duration::from_secs(60));
    assert_eq!(stage.step().await, 1);
    assert_eq!(stage.delivery().await, before);
    assert_eq!(stage.triggers(&message).await, [0, 0, 1]);
    assert_eq!(stage.step().await, 1, "then the schedule goes on");
    assert_eq!(stage.triggers(&message).await, [0, 0, 1, 0]);
    stage.adds_up(1).await;
}

async fn never_owed(bed: Bed) {
    let mut stage = Stage::new(&bed).await;
    stage.answers(200);
    let message = stage.client.message("a", "t", "").await;
    assert_eq!(stage.step().await, 1);
    stage.client.endpoint("a", "late", &url(&stage.front), r#","filterTypes":["other"]"#).await;
    let path = format!("/app/a/msg/{message}/endpoint/late/resend");
    assert_eq!(stage.client.list(&format!("/app/a/msg/{message}/endpoint"), "uid").await.0, ["e"]);
    stage.client.post(&path, "").await.json(202);
    assert_eq!(stage.step().await, 1);
    assert_eq!(states(&stage.store).await, only("delivered", 2));
    assert_eq!(stage.client.list(&format!("/app/a/msg/{message}/endpoint"), "uid").await.0.len(), 2);
    stage.adds_up(2).await;
}

async fn already_due(bed: Bed) {
    let mut stage = Stage::new(&bed).await;
    let message = stage.client.message("a", "t", "").await;
    for _ in 0..3 {
        stage.resend(&message).await;
    }
    assert_eq!((stage.step().await, stage.step().await), (1, 0));
    assert_eq!(stage.triggers(&message).await, [0]);
    // Asked for twice, and again under one key: one attempt.
    for _ in 0..2 {
        let path = format!("/app/a/msg/{message}/endpoint/e/resend");
        stage.client.keyed("k").post(&path, "").await.json(202);
        stage.resend(&message).await;
    }
    assert_eq!((stage.step().await, stage.step().await), (1, 0));
    assert_eq!(stage.triggers(&message).await, [0, 1]);
    let path = format!("/app/a/msg/{message}/endpoint/e/resend");
    stage.client.keyed("k").post(&path, "").await.json(202);
    assert_eq!(stage.step().await, 0, "a repeated request asks for nothing new");
    stage.adds_up(1).await;
}

async fn refusals(bed: Bed) {
    let mut stage = Stage::new(&bed).await;
    stage.answers(200);
    let message = stage.client.message("a", "t", "").await;
    assert_eq!(stage.step().await, 1);
    let post = async |path: &str| stage.client.post(&format!("/app/a/msg/{path}/resend"), "").await;
    assert_eq!(post(&format!("{message}/endpoint/none")).await.code(404), "not_found");
    assert_eq!(post("none/endpoint/e").await.code(404), "not_found");
    stage.client.patch("/app/a/endpoint/e", r#"{"disabled":true}"#).await.json(200);
    assert_eq!(post(&format!("{message}/endpoint/e")).await.code(409), "endpoint_disabled");
    assert_eq!(states(&stage.store).await, only("delivered", 1));
    stage.client.patch("/app/a/endpoint/e", r#"{"disabled":false}"#).await.json(200);
    post(&format!("{message}/endpoint/e")).await.json(202);
    assert_eq!(states(&stage.store).await, only("pending", 1));
    stage.client.delete(&format!("/app/a/msg/{message}/content")).await.empty(204);
    assert_eq!(post(&format!("{message}/endpoint/e")).await.code(409), "content_expunged");
    assert_eq!(states(&stage.store).await, only("delivered", 1), "what was delivered stays delivered");
    stage.adds_up(1).await;
}

async fn gone_by_hand(bed: Bed) {
    let (mut stage, message) = between_two_and_three(&bed).await;
    stage.answers(410);
    stage.resend(&message).await;
    assert_eq!(stage.step().await, 1);
    assert_eq!(stage.client.get("/app/a/endpoint/e").await.json(200)["disabled"], true);
    assert_eq!(states(&stage.store).await, only("parked", 1));
    stage.adds_up(1).await;
    stage.answers(200);
    stage.client.patch("/app/a/endpoint/e", r#"{"disabled":false}"#).await.json(200);
    assert_eq!(stage.step().await, 1);
    assert_eq!(states(&stage.store).await, only("delivered", 1));
    assert_eq!(text(&stage.client.get(&format!("/app/a/msg/{message}")).await.json(200)["id"]), message);
}
