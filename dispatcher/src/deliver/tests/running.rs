//! The worker as it runs: wake-ups, polling, isolation of slow endpoints, stopping.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::deliver::Totals;
use crate::fixtures::bed::{Bed, Receiver, tenant};
use crate::fixtures::{RawServer, read_request};
use crate::{NewEndpoint, NewEvent, Policy};

struct Running {
    stop: oneshot::Sender<()>,
    worker: JoinHandle<Totals>,
}

impl Running {
    async fn start(bed: &Bed, policy: Policy) -> Self {
        let (stop, stopped) = oneshot::channel();
        let dispatcher = bed.dispatcher_with(policy).await;
        let worker = tokio::spawn(dispatcher.run(async {
            let _ = stopped.await;
        }));
        Self { stop, worker }
    }

    async fn stop(self) -> Totals {
        self.stop.send(()).unwrap();
        timeout(Duration::from_secs(10), self.worker).await.unwrap().unwrap()
    }
}

async fn until_delivered(bed: &Bed, count: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while bed.counts().await.delivered < count {
        assert!(Instant::now() < deadline, "{:?}", bed.counts().await);
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_is_published_while_it_runs_arrives_once() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    bed.endpoint(&receiver.url).await;
    let running = Running::start(&bed, Policy::default()).await;
    let publishes = (0..500).map(|number| {
        let publisher = bed.publisher();
        let event = NewEvent::json(tenant(), "order.paid", number.to_string());
        async move { publisher.publish_now(event).await.unwrap() }
    });
    futures_util::future::join_all(publishes).await;
    until_delivered(&bed, 500).await;
    let totals = running.stop().await;
    assert_eq!((totals.claimed, totals.recorded.delivered, totals.recorded.late), (500, 500, 0));
    let bodies = receiver.bodies();
    assert_eq!((bodies.len(), bodies.into_iter().collect::<HashSet<_>>().len()), (500, 500));
}

#[tokio::test(flavor = "multi_thread")]
async fn send_l20_polling_finds_what_no_wake_up_told_of() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    bed.endpoint(&receiver.url).await;
    let running = Running::start(&bed, Policy::default()).await;
    for number in 0..100 {
        let mut tx = bed.store.begin().await.unwrap();
        let event = NewEvent::json(tenant(), "order.paid", number.to_string());
        let (_, wake) = bed.publisher().publish(&mut tx.conn(), event).await.unwrap();
        tx.commit().await.unwrap();
        drop(wake);
    }
    until_delivered(&bed, 100).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_is_faster_than_the_poll() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    bed.endpoint(&receiver.url).await;
    let running = Running::start(&bed, Policy::default()).await;
    // Long enough for the poll to have slowed down to twice a second.
    sleep(Duration::from_millis(1_500)).await;
    let published = Instant::now();
    bed.publish("{}").await;
    while receiver.seen().is_empty() {
        assert!(published.elapsed() < Duration::from_millis(300));
        sleep(Duration::from_millis(1)).await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn send_t13_a_black_hole_with_a_backlog_does_not_delay_a_healthy_endpoint() {
    let bed = Bed::new().await;
    let (hole, healthy) = (Receiver::start_slow(Duration::from_secs(60)).await, Receiver::start().await);
    let to_hole = NewEndpoint { event_types: vec!["hole".to_owned()], ..NewEndpoint::new(tenant(), &hole.url) };
    bed.manager().create_now(to_hole).await.unwrap();
    let to_healthy =
        NewEndpoint { event_types: vec!["healthy".to_owned()], ..NewEndpoint::new(tenant(), &healthy.url) };
    bed.manager().create_now(to_healthy).await.unwrap();
    let events = (0..2_000).map(|_| NewEvent::json(tenant(), "hole", "{}")).collect();
    let mut tx = bed.store.begin().await.unwrap();
    let (_, wake) = bed.publisher().publish_many(&mut tx.conn(), events).await.unwrap();
    tx.commit().await.unwrap();
    wake.send();
    let running = Running::start(&bed, Policy { slots_per_worker: 64, ..Policy::default() }).await;
    for number in 1..=20 {
        let published = Instant::now();
        bed.publisher().publish_now(NewEvent::json(tenant(), "healthy", "{}")).await.unwrap();
        while healthy.seen().len() < number {
            assert!(published.elapsed() < Duration::from_secs(2));
            sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(hole.seen().len(), 32);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn send_h7_requests_under_way_end_in_order_when_the_worker_is_stopped() {
    let bed = Bed::new().await;
    let receiver = Receiver::start_slow(Duration::from_millis(800)).await;
    bed.endpoint(&receiver.url).await;
    for _ in 0..60 {
        bed.publish("{}").await;
    }
    let running = Running::start(&bed, Policy::default()).await;
    while receiver.seen().len() < 20 {
        sleep(Duration::from_millis(5)).await;
    }
    let totals = running.stop().await;
    // A full endpoint's worth was under way; the others were never claimed.
    assert_eq!((totals.claimed, totals.recorded.delivered), (32, 32));
    let counts = bed.counts().await;
    assert_eq!((counts.delivered, counts.pending, counts.leased), (32, 28, 0));
    let running = Running::start(&bed, Policy::default()).await;
    until_delivered(&bed, 60).await;
    running.stop().await;
    assert_eq!(receiver.seen().len(), 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_outlasts_the_grace_ends_as_unknown_and_is_sent_again_later() {
    let bed = Bed::new().await;
    let receiver = Receiver::start_slow(Duration::from_secs(60)).await;
    bed.endpoint(&receiver.url).await;
    bed.publish("{}").await;
    let running = Running::start(&bed, Policy::default()).await;
    while receiver.seen().is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    let totals = running.stop().await;
    assert_eq!((totals.recorded.retried, totals.unrecorded), (1, 0));
    let (_, outcome, _, _, error) = bed.attempts().await.pop().unwrap();
    assert_eq!(outcome, "unknown");
    assert!(error.unwrap().starts_with("shutdown: "));
    assert_eq!(bed.counts().await.backoff, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn results_survive_a_database_that_cannot_be_written_for_a_while() {
    let bed = Bed::new().await;
    let receiver = Receiver::start_slow(Duration::from_millis(200)).await;
    bed.endpoint(&receiver.url).await;
    for _ in 0..10 {
        bed.publish("{}").await;
    }
    let running = Running::start(&bed, Policy::default()).await;
    while receiver.seen().len() < 10 {
        sleep(Duration::from_millis(5)).await;
    }
    // Nobody else can write while this transaction is open, and the answers come in meanwhile.
    let blocker = bed.store.begin().await.unwrap();
    sleep(Duration::from_secs(7)).await;
    drop(blocker);
    until_delivered(&bed, 10).await;
    let totals = running.stop().await;
    assert_eq!((totals.recorded.delivered, totals.recorded.late, totals.unrecorded), (10, 0, 0));
    assert_eq!(receiver.seen().len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn send_d1_a_slow_answer_is_not_overtaken_by_a_second_request() {
    let bed = Bed::new().await;
    let receiver = Receiver::start_slow(Duration::from_millis(700)).await;
    let new = NewEndpoint { timeout: Some(Duration::from_millis(500)), ..NewEndpoint::new(tenant(), &receiver.url) };
    bed.manager().create_now(new).await.unwrap();
    bed.publish("{}").await;
    let running = Running::start(&bed, Policy::default()).await;
    sleep(Duration::from_millis(1_500)).await;
    // It timed out, was recorded, and waits for its next attempt: one request so far.
    assert_eq!(receiver.seen().len(), 1);
    assert_eq!(
        bed.attempts().await,
        [(1, "unknown".to_owned(), 0, None, Some("timeout: no answer within the deadline".to_owned()))]
    );
    bed.pass(10);
    while receiver.seen().len() < 2 {
        sleep(Duration::from_millis(5)).await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_requests_are_under_way_to_an_endpoint_than_it_has_slots_though_more_are_claimed() {
    let bed = Bed::new().await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counter, highest) = (Arc::clone(&now), Arc::clone(&most));
    let server = RawServer::start(move |mut stream| {
        let (now, most) = (Arc::clone(&counter), Arc::clone(&highest));
        async move {
            while read_request(&mut stream).await.is_some() {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_millis(2)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            }
        }
    })
    .await;
    let new = NewEndpoint { slots: Some(4), ..NewEndpoint::new(tenant(), server.url()) };
    bed.manager().create_now(new).await.unwrap();
    for _ in 0..200 {
        bed.publish("{}").await;
    }
    let running = Running::start(&bed, Policy::default()).await;
    until_delivered(&bed, 200).await;
    let totals = running.stop().await;
    assert_eq!((totals.claimed, totals.recorded.late), (200, 0));
    assert!((2..=4).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_one_slot_serves_its_endpoints_in_turn() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    for name in ["a", "b", "c"] {
        bed.endpoint(&format!("{}?{name}", receiver.url)).await;
    }
    for _ in 0..10 {
        bed.publish("{}").await;
    }
    let running = Running::start(&bed, Policy { slots_per_worker: 1, ..Policy::default() }).await;
    until_delivered(&bed, 30).await;
    running.stop().await;
    let first = receiver.seen().into_iter().take(15);
    let to_a = first.filter(|request| request.contains("?a ")).count();
    assert_eq!(to_a, 5, "five of the first fifteen");
}
