//! Wake-ups between processes: two stores on one database stand for two processes.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use twiceproof::dispatcher::deliver::Totals;
use twiceproof::dispatcher::{Dispatcher, Policy, Publisher};
use twiceproof_shared::store::{Listening, Sleeper, Store, StoreOptions};
use twiceproof_shared::worker::Polling;

use crate::dispatch::{Seen, answer, endpoint, event, only, options, sink, states, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("wake::an_event_of_another_process_is_delivered_without_a_poll", without_a_poll);
    suite.both("wake::an_event_of_a_program_that_ends_at_once_is_heard_of", ends_at_once);
    suite.both("wake::what_another_process_commits_without_a_word_is_found_by_polling", not_a_word);
    suite.postgres("wake::a_lost_listener_is_made_up_for_by_polling_and_comes_back", lost_listener);
    suite.postgres("wake::a_storm_of_wake_ups_is_told_a_few_times", storm);
    suite.postgres("wake::nothing_is_told_where_only_the_own_process_listens", own_ears);
    suite.postgres("wake::another_schema_is_not_woken", other_schema);
}

/// Longer than any poll that is not infinite.
const PATIENCE: Duration = Duration::from_secs(30);
/// As good as infinite.
const NEVER: Polling = Polling { shortest: Duration::from_secs(3600), longest: Duration::from_secs(3600) };

/// Another process's store.
async fn another(bed: &Bed) -> Store {
    Store::connect(bed.db.url(), StoreOptions::default()).await.unwrap()
}

struct Running {
    stop: oneshot::Sender<()>,
    worker: JoinHandle<Totals>,
}

impl Running {
    /// Starts a worker, and waits until it listens.
    async fn start(store: &Store, polling: Polling) -> Self {
        let mut sleeper = store.waker().sleeper();
        sleeper.begin();
        let mut options = options();
        options.polling = polling;
        let dispatcher = Dispatcher::start(store, options).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let worker = tokio::spawn(dispatcher.run(async {
            let _ = stopped.await;
        }));
        hears(&mut sleeper).await;
        Self { stop, worker }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.worker.await.unwrap();
    }
}

async fn hears(sleeper: &mut Sleeper) {
    timeout(PATIENCE, sleeper.woken()).await.expect("nothing was heard");
}

async fn arrived(seen: &Seen, count: usize) {
    let arriving = async {
        while seen.lock().unwrap().len() < count {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, arriving).await.expect("it did not arrive");
}

async fn without_a_poll(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (front, seen) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    let running = Running::start(&store, NEVER).await;
    let elsewhere = another(&bed).await;
    let publisher = Publisher::new(&elsewhere, &Policy::default());
    for count in 1..=5 {
        publisher.publish_now(event("{}")).await.unwrap();
        arrived(&seen, count).await;
    }
    running.stop().await;
    assert_eq!(states(&store).await, only("delivered", 5));
}

async fn ends_at_once(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (front, seen) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    let running = Running::start(&store, NEVER).await;
    let elsewhere = another(&bed).await;
    Publisher::new(&elsewhere, &Policy::default()).publish_now(event("{}")).await.unwrap();
    elsewhere.close().await;
    drop(elsewhere);
    arrived(&seen, 1).await;
    running.stop().await;
}

/// Publishes in a transaction of its own and says nothing.
async fn publish_silently(store: &Store) {
    let mut tx = store.begin().await.unwrap();
    let (_, wake) = Publisher::new(store, &Policy::default()).publish(&mut tx.conn(), event("{}")).await.unwrap();
    tx.commit().await.unwrap();
    drop(wake);
}

async fn not_a_word(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (front, seen) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    let running = Running::start(&store, Polling::default()).await;
    let elsewhere = another(&bed).await;
    for _ in 0..20 {
        publish_silently(&elsewhere).await;
    }
    arrived(&seen, 20).await;
    running.stop().await;
}

/// Ends the sessions that listen for this schema.
const END_LISTENERS: &str = "SELECT count(pg_terminate_backend(l.pid)) FROM pg_locks l, pg_class c WHERE c.oid = to_regclass('twiceproof_deliveries')
    AND l.locktype = 'advisory' AND l.objsubid = 1
    AND (l.classid::bigint << 32) | l.objid::bigint = hashtextextended('twiceproof_' || c.relnamespace, 0)";

async fn lost_listener(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (front, seen) = sink(|_, _| answer(200)).await;
    endpoint(&store, url(&front), |_| {}).await;
    let running = Running::start(&store, Polling::default()).await;
    let elsewhere = another(&bed).await;
    let mut sleeper = store.waker().sleeper();
    sleeper.begin();
    let (ended,): (i64,) = elsewhere.read().await.unwrap().conn().fetch_one(END_LISTENERS, &[]).await.unwrap();
    assert_eq!(ended, 1, "one session listens");
    for _ in 0..20 {
        publish_silently(&elsewhere).await;
    }
    arrived(&seen, 20).await;
    hears(&mut sleeper).await;
    sleeper.begin();
    // It listens again. What a store believes of its listeners may be a second old, so a fresh one tells.
    another(&bed).await.waker().owed().send();
    hears(&mut sleeper).await;
    running.stop().await;
}

/// Hears all that is said in this schema.
struct Ear {
    listener: PgListener,
    channel: String,
    store: Store,
}

impl Ear {
    async fn open(bed: &Bed) -> Self {
        let store = another(bed).await;
        let sql = "SELECT 'twiceproof_' || relnamespace FROM pg_class WHERE oid = to_regclass('twiceproof_deliveries')";
        let (channel,): (String,) = store.read().await.unwrap().conn().fetch_one(sql, &[]).await.unwrap();
        let mut listener = PgListener::connect(&bed.db.url().expose()).await.unwrap();
        listener.listen(&channel).await.unwrap();
        Self { listener, channel, store }
    }

    /// How often something was said until now.
    async fn count(&mut self) -> usize {
        let args = [self.channel.as_str().into()];
        let sql = "SELECT pg_notify($1, 'until here')";
        let mut reader = self.store.read().await.unwrap();
        reader.conn().execute(sql, &args).await.unwrap();
        let mut count = 0;
        while self.listener.recv().await.unwrap().payload() != "until here" {
            count += 1;
        }
        count
    }
}

async fn listens(store: &Store) -> Arc<Listening> {
    let mut sleeper = store.waker().sleeper();
    sleeper.begin();
    let listening = store.listen();
    hears(&mut sleeper).await;
    listening
}

async fn storm(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let mut ear = Ear::open(&bed).await;
    let listening = listens(&store).await;
    let elsewhere = another(&bed).await;
    for _ in 0..1_000 {
        elsewhere.waker().owed().send();
    }
    elsewhere.close().await;
    let told = ear.count().await;
    assert!((1..=10).contains(&told), "a thousand wake-ups were told {told} times");
    drop(listening);
}

async fn own_ears(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let mut ear = Ear::open(&bed).await;
    let listening = listens(&store).await;
    store.waker().owed().send();
    store.close().await;
    assert_eq!(ear.count().await, 0, "it was told what it knows");
    // Closed, but it listens on: for others there is somebody.
    let elsewhere = another(&bed).await;
    elsewhere.waker().owed().send();
    elsewhere.close().await;
    assert_eq!(ear.count().await, 1);
    drop(listening);
}

async fn other_schema(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let mut ear = Ear::open(&bed).await;
    let listening = listens(&store).await;
    let name = format!("neighbour_{}", &ear.channel);
    let url = twiceproof_shared::store::create_schema(bed.db.url(), &name).await.unwrap();
    let neighbour = Store::connect(&url, StoreOptions::default()).await.unwrap();
    neighbour.migrate().await.unwrap();
    let its_own = listens(&Store::connect(&url, StoreOptions::default()).await.unwrap()).await;
    neighbour.waker().owed().send();
    neighbour.close().await;
    assert_eq!(ear.count().await, 0, "another schema's work was told here");
    drop((listening, its_own));
}
