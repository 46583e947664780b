//! The past sent again: what failed, what was missed, a piece at a time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use twiceproof::dispatcher::manage::change::EndpointChange;
use twiceproof::dispatcher::replay::{self, NewReplay, Replay, Replayer, State, What};
use twiceproof::dispatcher::{
    AddressPolicy, Counts, Dispatcher, Manager, NewEndpoint, NewEvent, Policy, Publisher, counts,
};
use twiceproof::prove::{Answer, Front};
use twiceproof_shared::clock::{Clock as _, ManualClock};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::{Store, StoreError};

use crate::dispatch::{options, timed};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("replays::what_failed_is_sent_again_under_the_same_ids", failed);
    suite.both("replays::send_c11_what_an_endpoint_missed_is_counted_before_and_then_sent", missing);
    suite.both("replays::a_replay_that_is_cut_off_goes_on_where_it_was", cut_off);
    suite.both("replays::a_replay_keeps_its_rate", rate);
    suite.both("replays::a_cancelled_replay_sends_no_more", cancelled);
    suite.both("replays::new_events_do_not_stand_behind_all_of_the_past", room);
    suite.both("replays::what_fails_again_is_as_dead_as_before", fails_again);
}

fn tenant() -> Key {
    Key::new("default").unwrap()
}

/// A tenant with one endpoint and a sink behind it.
struct Past {
    clock: ManualClock,
    store: Store,
    manager: Manager,
    endpoint: String,
    seen: Arc<Mutex<Vec<String>>>,
    _front: Front,
}

impl Past {
    async fn open(bed: &Bed, status: u16) -> Self {
        let (clock, store) = timed(bed).await;
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&seen);
        let front = Front::open(move |message| {
            log.lock().unwrap().push(message.headers["webhook-id"].to_str().unwrap().to_owned());
            async move { Ok(Answer::empty(StatusCode::from_u16(status).unwrap())) }
        });
        let front = front.await.unwrap();
        let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &Policy::default());
        let url = format!("http://{}/hook", front.address());
        let endpoint = manager.create_now(NewEndpoint::new(tenant(), url)).await.unwrap().endpoint.id;
        Self { clock, store, manager, endpoint, seen, _front: front }
    }

    /// Publishes events of a type; their ids.
    async fn publish(&self, event_type: &str, count: usize) -> BTreeSet<String> {
        let publisher = Publisher::new(&self.store, &Policy::default());
        let event = || NewEvent::json(tenant(), event_type, Bytes::from_static(b"{}"));
        let mut tx = self.store.begin().await.unwrap();
        let (published, _) = publisher.publish_many(&mut tx.conn(), vec![event(); count]).await.unwrap();
        tx.commit().await.unwrap();
        self.clock.advance(Duration::from_millis(10));
        published.into_iter().map(|one| one.unwrap().id.to_string()).collect()
    }

    /// Every delivery has come to its end without success.
    async fn all_failed(&self) {
        let mut tx = self.store.begin().await.unwrap();
        let sql = "UPDATE twiceproof_deliveries SET state = 'dead', state_reason = 'horizon', final_at = $1";
        tx.conn().execute(sql, &[self.clock.now().into()]).await.unwrap();
        tx.commit().await.unwrap();
    }

    fn of_the_last_hour(&self, what: What, rate_limit: Option<u32>) -> NewReplay {
        let now = self.clock.now();
        let (since, until) = (now.minus(Duration::from_secs(3600)), now.plus(Duration::from_secs(1)));
        NewReplay { tenant: tenant(), endpoint: self.endpoint.clone(), what, since, until, rate_limit }
    }

    async fn preview(&self, new: &NewReplay) -> u64 {
        replay::preview(&mut self.store.read().await.unwrap().conn(), new).await.unwrap()
    }

    async fn ask(&self, new: NewReplay) -> String {
        let (id, now) = (replay::mint(&self.store), self.clock.now());
        let input = Arc::new((id, new));
        let asked: Result<Replay, StoreError> = self
            .store
            .run(move |conn| {
                let input = Arc::clone(&input);
                Box::pin(async move { replay::ask(conn, &input.0, &input.1, now).await })
            })
            .await;
        asked.unwrap().id
    }

    async fn find(&self, id: &str) -> Replay {
        let mut reader = self.store.read().await.unwrap();
        replay::find(&mut reader.conn(), &tenant(), &self.endpoint, id).await.unwrap().unwrap()
    }

    fn replayer(&self) -> Replayer {
        Replayer::new(&self.store, &Policy::default())
    }

    /// Sends pieces and delivers, until there is neither.
    async fn all(&self) {
        let replayer = self.replayer();
        let mut dispatcher = Dispatcher::start(&self.store, options()).await.unwrap();
        loop {
            let sent = replayer.step().await.unwrap();
            while dispatcher.step().await.unwrap().claimed > 0 {}
            self.clock.advance(Duration::from_millis(250));
            if !sent {
                break;
            }
        }
        dispatcher.stop().await;
    }

    async fn counts(&self) -> Counts {
        counts(&mut self.store.read().await.unwrap().conn(), None).await.unwrap()
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

async fn failed(bed: Bed) {
    let past = Past::open(&bed, 200).await;
    let dead = past.publish("order.paid", 30).await;
    past.all_failed().await;
    let delivered = past.publish("order.paid", 5).await;
    past.all().await;
    assert_eq!(past.seen().len(), 5);

    let new = past.of_the_last_hour(What::Failed, None);
    assert_eq!(past.preview(&new).await, 30);
    let id = past.ask(new).await;
    assert_eq!(past.find(&id).await.state, State::Running);
    past.all().await;
    let seen = past.seen();
    assert_eq!(seen.len(), 30);
    assert_eq!(BTreeSet::from_iter(seen), dead, "the same ids, and nothing that was delivered");
    assert_eq!(past.counts().await, Counts { delivered: 35, ..Counts::default() });
    let replay = past.find(&id).await;
    assert_eq!((replay.state, replay.sent), (State::Done, 30));

    let id = past.ask(past.of_the_last_hour(What::Everything, None)).await;
    past.all().await;
    assert_eq!(BTreeSet::from_iter(past.seen()), &dead | &delivered);
    assert_eq!(past.find(&id).await.sent, 35);
}

async fn missing(bed: Bed) {
    let past = Past::open(&bed, 200).await;
    let narrow = EndpointChange { event_types: Some(vec!["order.shipped".to_owned()]), ..EndpointChange::default() };
    let change = async |change: EndpointChange| {
        let mut tx = past.store.begin().await.unwrap();
        past.manager.change(&mut tx.conn(), &tenant(), &past.endpoint, change).await.unwrap();
        tx.commit().await.unwrap();
    };
    change(narrow).await;
    let missed = past.publish("order.paid", 7).await;
    past.publish("order.other", 3).await;
    let got = past.publish("order.shipped", 2).await;
    past.all().await;
    assert_eq!(BTreeSet::from_iter(past.seen()), got);
    let both = vec!["order.shipped".to_owned(), "order.paid".to_owned()];
    change(EndpointChange { event_types: Some(both), ..EndpointChange::default() }).await;

    let new = past.of_the_last_hour(What::Missing, None);
    assert_eq!(past.preview(&new).await, 7);
    let id = past.ask(new.clone()).await;
    past.all().await;
    assert_eq!(BTreeSet::from_iter(past.seen()), missed, "what its filter takes now, and it never was to get");
    assert_eq!((past.find(&id).await.sent, past.preview(&new).await), (7, 0));
}

async fn cut_off(bed: Bed) {
    const EVENTS: usize = 3_000;
    let past = Past::open(&bed, 200).await;
    past.publish("order.paid", EVENTS).await;
    past.all_failed().await;
    let id = past.ask(past.of_the_last_hour(What::Failed, None)).await;
    // A piece, and then the process is gone; a transaction that was begun goes with it.
    assert!(past.replayer().step().await.unwrap());
    let before = past.find(&id).await.sent;
    assert!(before > 0 && before < EVENTS as u64, "{before}");
    let replayer = past.replayer();
    let begun = replayer.step();
    let _ = tokio::time::timeout(Duration::from_micros(300), begun).await;
    past.all().await;
    let replay = past.find(&id).await;
    assert_eq!((replay.state, replay.sent), (State::Done, EVENTS as u64));
    let seen = past.seen();
    assert_eq!((seen.len(), BTreeSet::from_iter(seen).len()), (EVENTS, EVENTS), "none was left out or sent twice");
}

async fn rate(bed: Bed) {
    let past = Past::open(&bed, 200).await;
    past.publish("order.paid", 35).await;
    past.all_failed().await;
    let id = past.ask(past.of_the_last_hour(What::Failed, Some(10))).await;
    let replayer = past.replayer();
    for sent in [10, 20, 30] {
        assert!(replayer.step().await.unwrap());
        assert_eq!(past.find(&id).await.sent, sent);
        past.clock.advance(Duration::from_millis(999));
        assert!(!replayer.step().await.unwrap(), "not before a second has passed");
        past.clock.advance(Duration::from_millis(1));
    }
    assert!(replayer.step().await.unwrap());
    assert_eq!((past.find(&id).await.sent, past.find(&id).await.state), (35, State::Done));
}

async fn cancelled(bed: Bed) {
    let past = Past::open(&bed, 200).await;
    past.publish("order.paid", 35).await;
    past.all_failed().await;
    let id = past.ask(past.of_the_last_hour(What::Failed, Some(10))).await;
    assert!(past.replayer().step().await.unwrap());
    let mut tx = past.store.begin().await.unwrap();
    assert!(replay::cancel(&mut tx.conn(), &tenant(), &id, past.clock.now()).await.unwrap());
    assert!(!replay::cancel(&mut tx.conn(), &tenant(), &id, past.clock.now()).await.unwrap());
    tx.commit().await.unwrap();
    past.clock.advance(Duration::from_secs(60));
    past.all().await;
    assert_eq!(past.seen().len(), 10, "what was ready is sent");
    assert_eq!(past.find(&id).await.state, State::Cancelled);
    assert_eq!(past.counts().await, Counts { delivered: 10, dead: 25, ..Counts::default() });
}

async fn room(bed: Bed) {
    let past = Past::open(&bed, 200).await;
    past.publish("order.paid", 2_500).await;
    past.all_failed().await;
    let id = past.ask(past.of_the_last_hour(What::Failed, None)).await;
    let replayer = past.replayer();
    for _ in 0..20 {
        replayer.step().await.unwrap();
        past.clock.advance(Duration::from_millis(250));
    }
    let waiting = past.counts().await.pending;
    assert!((1_000..=1_500).contains(&waiting), "{waiting} wait at once");
    assert_eq!(past.find(&id).await.state, State::Running);
    past.all().await;
    assert_eq!(past.find(&id).await.state, State::Done);
}

async fn fails_again(bed: Bed) {
    let past = Past::open(&bed, 500).await;
    past.publish("order.paid", 3).await;
    past.all_failed().await;
    past.ask(past.of_the_last_hour(What::Failed, None)).await;
    past.all().await;
    assert_eq!(past.seen().len(), 3, "one attempt by hand each");
    assert_eq!(past.counts().await, Counts { dead: 3, ..Counts::default() });
    let sql = "SELECT DISTINCT state_reason, attempts FROM twiceproof_deliveries";
    let rows: Vec<(String, i64)> = past.store.read().await.unwrap().conn().fetch_all(sql, &[]).await.unwrap();
    assert_eq!(rows, [("horizon".to_owned(), 0)], "as it was, and no attempt of the schedule was used");
}
