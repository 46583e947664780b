//! A replay whose program is killed again and again: it goes on where it was.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use twiceproof::dispatcher::replay::{self, NewReplay, State, What};
use twiceproof::dispatcher::{EndpointPolicy, Policy, Publisher};
use twiceproof::prove::Front;
use twiceproof_shared::store::Store;

use crate::dispatch::{answer, endpoint, event, only, states, tenant, url};
use crate::harness::{Bed, Suite};
use crate::kill::Program;

pub fn register(suite: &mut Suite) {
    suite.both("replays::a_replay_killed_in_the_middle_passes_nothing_over_and_counts_truly", killed);
}

async fn leased(store: &Store) -> i64 {
    states(store).await.get("leased").copied().unwrap_or(0)
}

/// `TWICEPROOF_TEST_REPLAY=100000` makes it as many.
async fn killed(bed: Bed) {
    let count: usize = std::env::var("TWICEPROOF_TEST_REPLAY").map_or(3_000, |count| count.parse().unwrap());
    let store = bed.db.store(None).await.unwrap();
    let requests: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let log = Arc::clone(&requests);
    let front = Front::open(move |message| {
        let id = message.headers["webhook-id"].to_str().unwrap_or_default().to_owned();
        *log.lock().unwrap().entry(id).or_default() += 1;
        async move { Ok(answer(200)) }
    });
    let front = front.await.unwrap();
    let id = endpoint(&store, url(&front), |new| {
        new.policy = EndpointPolicy::without_breaker();
        new.timeout = Some(Duration::from_secs(2));
    })
    .await;
    let publisher = Publisher::new(&store, &Policy::default());
    for _ in 0..count / 500 {
        let mut tx = store.begin().await.unwrap();
        let _unsent = publisher.publish_many(&mut tx.conn(), vec![event("{}"); 500]).await.unwrap();
        let sql = "UPDATE twiceproof_deliveries SET state = 'dead', state_reason = 'horizon', final_at = 1
             WHERE state = 'pending'";
        tx.conn().execute(sql, &[]).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(states(&store).await, only("dead", count as i64));
    let (now, replay) = (store.now(), replay::mint(&store));
    let (since, until) = (now.minus(Duration::from_secs(3_600)), now.plus(Duration::from_secs(1)));
    let new = NewReplay { tenant: tenant(), endpoint: id.clone(), what: What::Failed, since, until, rate_limit: None };
    let mut tx = store.begin().await.unwrap();
    replay::ask(&mut tx.conn(), &replay, &new, now).await.unwrap();
    tx.commit().await.unwrap();

    let came = || requests.lock().unwrap().len();
    let mut held = Vec::new();
    for kill in 1..=4 {
        let program = Program::start(bed.db.url(), None);
        let patience = Instant::now() + Duration::from_secs(240);
        while came() < count * kill / 6 {
            assert!(Instant::now() < patience, "kill {kill}: {} of {count} came", came());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(program);
        held.push(leased(&store).await);
    }
    let _program = Program::start(bed.db.url(), None);
    let patience = Instant::now() + Duration::from_secs(300);
    while states(&store).await.get("delivered") != Some(&(count as i64)) {
        assert!(Instant::now() < patience, "{:?}", states(&store).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let done = loop {
        let mut reader = store.read().await.unwrap();
        let found = replay::find(&mut reader.conn(), &tenant(), &id, replay.as_str()).await.unwrap().unwrap();
        if found.state == State::Done {
            break found;
        }
        assert!(Instant::now() < patience, "{found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let requests = requests.lock().unwrap();
    let double: i64 = requests.values().map(|times| i64::from(*times) - 1).sum();
    println!("{count} events, killed with {held:?} under way, {double} sent twice");
    assert_eq!((requests.len(), done.sent), (count, count as u64), "each was made pending once");
    assert!(double <= held.iter().sum(), "{double} were sent twice, {held:?} were under way at the kills");
}
