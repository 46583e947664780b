//! The ledger's four answers, on both databases.

use std::time::Duration;

use bytes::Bytes;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::key::Key;
use twiceproof_shared::ledger::{self, Answer, LedgerKey, Outcome, RawRequest, Request};
use twiceproof_shared::store::{Store, StoreError};

use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("ledger::a_finished_key_answers_with_the_stored_bytes", replay);
    suite.both("ledger::another_payload_is_a_conflict_and_the_outcome_is_untouched", conflict);
    suite.both("ledger::a_rolled_back_first_leaves_no_trace", rolled_back);
    suite.both("ledger::tenants_and_consumers_never_meet", scopes);
    suite.both("ledger::rel_b01_a_committed_claim_is_not_done_and_is_taken_over_after_its_lease", claimed);
    suite.both("ledger::a_former_holder_cannot_write_the_outcome", fenced);
    suite.both("ledger::fingerprints_of_other_versions_are_never_a_conflict", versions);
    suite.postgres("ledger::an_uncommitted_twin_is_in_flight_without_waiting", in_flight);
    suite.postgres("ledger::a_failed_transaction_cannot_finish", failed);
}

const DAY: Duration = Duration::from_secs(86_400);

fn key(tenant: &str, scope: &str, key: &str) -> LedgerKey {
    let part = |text: &str| Key::new(text).unwrap();
    LedgerKey { tenant: part(tenant), scope: part(scope), key: part(key) }
}

fn request(body: &str) -> Request {
    Request::of_body(key("t", "stripe/orders", "evt_1"), body.as_bytes(), 30 * DAY)
}

fn outcome(body: &'static [u8]) -> Outcome {
    Outcome { status: 201, headers: vec![("x-invoice".into(), "17".into())], body: Bytes::from_static(body) }
}

fn now() -> Timestamp {
    Timestamp::from_secs(1_700_000_000)
}

/// Accepts in a transaction of its own and finishes when new; the answer's name.
async fn once(store: &Store, request: &Request, body: &'static [u8]) -> String {
    let mut tx = store.begin().await.unwrap();
    let answer = ledger::accept(&mut tx.conn(), request, now()).await.unwrap();
    let name = match answer {
        Answer::New(claim) => {
            ledger::finish(&mut tx.conn(), claim, &outcome(body), now()).await.unwrap();
            "new".to_owned()
        }
        Answer::Replay(replay) => {
            let stored = replay.outcome.unwrap();
            assert_eq!((stored.status, stored.headers), (201, outcome(b"").headers));
            format!("replay {:?}", stored.body)
        }
        Answer::Conflict => "conflict".to_owned(),
        Answer::InFlight => "in flight".to_owned(),
    };
    tx.commit().await.unwrap();
    name
}

async fn replay(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    assert_eq!(once(&store, &request("a"), b"\x00\xff random 4711").await, "new");
    for _ in 0..3 {
        assert_eq!(once(&store, &request("a"), b"other").await, r#"replay b"\0\xff random 4711""#);
    }
}

async fn conflict(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    assert_eq!(once(&store, &request("a"), b"first").await, "new");
    assert_eq!(once(&store, &request("b"), b"second").await, "conflict");
    for _ in 0..2 {
        let mut tx = store.begin().await.unwrap();
        let raw = RawRequest { headers: "[]", body: b"b" };
        ledger::keep_conflict(&mut tx.conn(), &request("b"), &raw, now()).await.unwrap();
        tx.commit().await.unwrap();
    }
    let mut reader = store.read().await.unwrap();
    let kept: Vec<(Vec<u8>, i64, String)> =
        reader.conn().fetch_all("SELECT request_body, seen_count, state FROM twiceproof_conflicts", &[]).await.unwrap();
    assert_eq!(kept, [(b"b".to_vec(), 2, "open".to_owned())]);
    assert_eq!(once(&store, &request("a"), b"third").await, r#"replay b"first""#);
}

async fn rolled_back(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let Answer::New(claim) = ledger::accept(&mut tx.conn(), &request("a"), now()).await.unwrap() else {
        panic!("the first is new")
    };
    ledger::finish(&mut tx.conn(), claim, &outcome(b"lost"), now()).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(once(&store, &request("a"), b"kept").await, "new");
}

async fn scopes(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    for (tenant, scope) in [("a", "s/one"), ("b", "s/one"), ("a", "s/two"), ("b", "s/two")] {
        let request = Request::of_body(key(tenant, scope, "1"), tenant.as_bytes(), DAY);
        assert_eq!(once(&store, &request, b"own").await, "new", "{tenant} {scope}");
    }
}

async fn claimed(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let leased = Request { lease: Some(Duration::from_secs(60)), ..request("a") };
    let at = async |now: Timestamp| {
        let mut tx = store.begin().await.unwrap();
        let answer = ledger::accept(&mut tx.conn(), &leased, now).await.unwrap();
        tx.commit().await.unwrap();
        answer
    };
    assert!(matches!(at(now()).await, Answer::New(_)));
    // Claimed is not done: while the lease holds it is in flight, afterwards it runs again.
    assert!(matches!(at(now().plus(Duration::from_secs(59))).await, Answer::InFlight));
    assert!(matches!(at(now().plus(Duration::from_secs(60))).await, Answer::New(_)));
    assert!(matches!(at(now().plus(Duration::from_secs(61))).await, Answer::InFlight));
}

async fn fenced(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let leased = Request { lease: Some(Duration::from_secs(60)), ..request("a") };
    let claim = async |now: Timestamp| {
        let mut tx = store.begin().await.unwrap();
        let Answer::New(claim) = ledger::accept(&mut tx.conn(), &leased, now).await.unwrap() else { panic!("not new") };
        tx.commit().await.unwrap();
        claim
    };
    let former = claim(now()).await;
    let current = claim(now().plus(Duration::from_secs(61))).await;
    let mut tx = store.begin().await.unwrap();
    let result = ledger::finish(&mut tx.conn(), former, &outcome(b"late"), now()).await;
    assert!(matches!(result, Err(StoreError::LeaseLost)), "{result:?}");
    ledger::finish(&mut tx.conn(), current, &outcome(b"right"), now()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(once(&store, &request("a"), b"").await, r#"replay b"right""#);
}

async fn versions(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    assert_eq!(once(&store, &request("a"), b"first").await, "new");
    let mut newer = request("b");
    newer.fingerprint.version += 1;
    assert_eq!(once(&store, &newer, b"").await, r#"replay b"first""#);
}

async fn in_flight(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let mut first = store.begin().await.unwrap();
    let Answer::New(claim) = ledger::accept(&mut first.conn(), &request("a"), now()).await.unwrap() else {
        panic!("the first is new")
    };
    assert_eq!(once(&store, &request("a"), b"").await, "in flight");
    // Whatever the payload: nothing is known of the first yet.
    assert_eq!(once(&store, &request("b"), b"").await, "in flight");
    ledger::finish(&mut first.conn(), claim, &outcome(b"first"), now()).await.unwrap();
    first.commit().await.unwrap();
    assert_eq!(once(&store, &request("a"), b"").await, r#"replay b"first""#);
}

async fn failed(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let Answer::New(claim) = ledger::accept(&mut tx.conn(), &request("a"), now()).await.unwrap() else {
        panic!("the first is new")
    };
    assert!(tx.conn().execute("SELECT 1 / 0", &[]).await.is_err());
    let result = ledger::finish(&mut tx.conn(), claim, &outcome(b""), now()).await;
    assert!(matches!(result, Err(StoreError::TransactionFailed(_))), "{result:?}");
    drop(tx);
    assert_eq!(once(&store, &request("a"), b"").await, "new");
}
