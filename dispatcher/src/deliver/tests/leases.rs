//! Claims, leases and fencing tokens, driven through the store's functions as several workers would.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::store::Database;

use crate::decide::Decision;
use crate::exchange::{Answer, Exchange};
use crate::fixtures::bed::{Bed, Receiver, tenant};
use crate::store::claim::{ClaimRequest, Claimed, ClaimedDelivery, claim};
use crate::store::record::{Finished, Recorded, Span, record, release};
use crate::store::workers::heartbeat;
use crate::{Dispatcher, DispatcherOptions, LockError, NewEndpoint, StartError};

struct Peer<'a> {
    bed: &'a Bed,
    id: Id,
    after: String,
    quick: HashSet<String>,
}

impl<'a> Peer<'a> {
    fn new(bed: &'a Bed) -> Self {
        Self {
            bed,
            id: Id::mint(Prefix::Worker, bed.store.now(), bed.store.random()),
            after: String::new(),
            quick: HashSet::new(),
        }
    }

    async fn live(&self) {
        let mut tx = self.bed.store.begin().await.unwrap();
        heartbeat(&mut tx.conn(), &self.id, self.bed.store.now()).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn claim(&mut self, free: u32, busy: &[(&str, u32)]) -> Claimed {
        let request = ClaimRequest {
            busy: busy.iter().map(|(endpoint, count)| ((*endpoint).to_owned(), *count)).collect(),
            after: self.after.clone(),
            quick: self.quick.clone(),
            ..ClaimRequest::new(self.id.clone(), free, Duration::from_secs(15))
        };
        let mut tx = self.bed.store.begin().await.unwrap();
        let claimed = claim(&mut tx.conn(), &request, self.bed.store.now()).await.unwrap();
        tx.commit().await.unwrap();
        self.after.clone_from(&claimed.after);
        claimed
    }

    async fn record(&self, batch: &[Finished]) -> Recorded {
        let mut tx = self.bed.store.begin().await.unwrap();
        let recorded = record(&mut tx.conn(), batch, self.bed.store.now()).await.unwrap();
        tx.commit().await.unwrap();
        recorded
    }

    fn finish(&self, claimed: ClaimedDelivery, status: u16, decision: Decision) -> Finished {
        let now = self.bed.store.now();
        let attempt = Id::mint(Prefix::Attempt, now, self.bed.store.random());
        let span = Span { started_at: now, ended_at: now };
        claimed.finish(attempt, Exchange::Answered(Answer::of_status(status)), decision, span)
    }
}

fn later(bed: &Bed) -> Decision {
    Decision::Retry { due_at: bed.store.now().plus(Duration::from_secs(5)) }
}

#[tokio::test]
async fn a_lease_lasts_as_long_as_the_endpoints_timeout_and_the_margin() {
    let bed = Bed::new().await;
    let timeout = Some(Duration::from_secs(40));
    let new = NewEndpoint { timeout, ..NewEndpoint::new(tenant(), "http://127.0.0.1:9/") };
    bed.manager().create_now(new).await.unwrap();
    bed.publish("{}").await;
    let claimed = Peer::new(&bed).claim(10, &[]).await.deliveries.pop().unwrap();
    assert_eq!(claimed.lease_until(), bed.store.now().plus(Duration::from_secs(55)));
    assert_eq!((claimed.token(), claimed.attempts()), (1, 0));
}

#[tokio::test]
async fn send_d14_two_workers_never_hold_the_same_delivery() {
    let bed = Bed::new().await;
    bed.endpoint("http://127.0.0.1:9/").await;
    for _ in 0..50 {
        bed.publish("{}").await;
    }
    let (mut one, mut other) = (Peer::new(&bed), Peer::new(&bed));
    let mut seen = HashSet::new();
    for _ in 0..5 {
        for peer in [&mut one, &mut other] {
            for claimed in peer.claim(6, &[]).await.deliveries {
                assert!(seen.insert(claimed.key().clone()));
            }
        }
    }
    assert_eq!((seen.len(), bed.counts().await.leased), (50, 50));
}

#[tokio::test]
async fn send_d17_the_result_of_a_lost_lease_is_kept_as_late_and_changes_nothing() {
    let bed = Bed::new().await;
    bed.endpoint("http://127.0.0.1:9/").await;
    bed.publish("{}").await;
    let (mut slow, mut quick) = (Peer::new(&bed), Peer::new(&bed));
    let stalled = slow.claim(10, &[]).await.deliveries.pop().unwrap();
    // Its lease is over, another worker delivers.
    bed.pass(29);
    assert!(quick.claim(10, &[]).await.deliveries.is_empty());
    bed.pass(1);
    let taken = quick.claim(10, &[]).await.deliveries.pop().unwrap();
    assert_eq!(taken.token(), stalled.token() + 1);
    let delivered = quick.finish(taken, 200, Decision::Delivered);
    assert_eq!(quick.record(&[delivered]).await.delivered, 1);
    // The first goes on and reports a failure.
    let failed = slow.finish(stalled, 500, later(&bed));
    assert_eq!(slow.record(&[failed]).await, Recorded { late: 1, ..Recorded::default() });
    assert_eq!(bed.delivery().await.0, "delivered");
    let attempts: Vec<_> = bed.attempts().await.into_iter().map(|attempt| (attempt.0, attempt.2, attempt.3)).collect();
    assert_eq!(attempts, [(1, 0, Some(200)), (1, 1, Some(500))]);
}

#[tokio::test]
async fn a_lost_lease_does_not_disable_the_endpoint_nor_end_the_next_lease() {
    let bed = Bed::new().await;
    bed.endpoint("http://127.0.0.1:9/").await;
    bed.publish("{}").await;
    let (mut slow, mut quick) = (Peer::new(&bed), Peer::new(&bed));
    let stalled = slow.claim(10, &[]).await.deliveries.pop().unwrap();
    bed.pass(30);
    let taken = quick.claim(10, &[]).await.deliveries.pop().unwrap();
    let gone = slow.finish(stalled, 410, Decision::DisableEndpoint);
    assert_eq!(slow.record(&[gone]).await.late, 1);
    assert_eq!((bed.delivery().await.0.as_str(), bed.counts().await.leased), ("leased", 1));
    let delivered = quick.finish(taken, 200, Decision::Delivered);
    assert_eq!(quick.record(&[delivered]).await.delivered, 1);
}

#[tokio::test]
async fn a_batch_that_is_recorded_again_changes_nothing_and_marks_nothing_late() {
    let bed = Bed::new().await;
    bed.endpoint("http://127.0.0.1:9/").await;
    for _ in 0..3 {
        bed.publish("{}").await;
    }
    let mut peer = Peer::new(&bed);
    let claimed = peer.claim(10, &[]).await.deliveries;
    let decisions = [Decision::Delivered, later(&bed), Decision::Delivered];
    let batch: Vec<_> =
        claimed.into_iter().zip(decisions).map(|(claimed, decision)| peer.finish(claimed, 200, decision)).collect();
    let recorded = peer.record(&batch).await;
    assert_eq!((recorded.delivered, recorded.retried), (2, 1));
    let before = (bed.counts().await, bed.attempts().await);
    assert_eq!(peer.record(&batch).await, Recorded::default());
    assert_eq!((bed.counts().await, bed.attempts().await), before);
    assert!(before.1.iter().all(|attempt| attempt.2 == 0));
}

#[tokio::test]
async fn a_released_lease_is_no_attempt_and_can_be_claimed_at_once() {
    let bed = Bed::new().await;
    bed.endpoint("http://127.0.0.1:9/").await;
    bed.publish("{}").await;
    let mut peer = Peer::new(&bed);
    let claimed = peer.claim(10, &[]).await.deliveries;
    let mut tx = bed.store.begin().await.unwrap();
    assert_eq!(release(&mut tx.conn(), &claimed).await.unwrap(), 1);
    assert_eq!(release(&mut tx.conn(), &claimed).await.unwrap(), 0);
    tx.commit().await.unwrap();
    let again = peer.claim(10, &[]).await.deliveries.pop().unwrap();
    assert_eq!((again.token(), again.attempts()), (2, 0));
    assert!(bed.attempts().await.is_empty());
}

#[tokio::test]
async fn send_t13_slots_are_shared_fairly_among_endpoints() {
    let bed = Bed::new().await;
    let mut endpoints = Vec::new();
    for slots in [8, 8, 2] {
        let new = NewEndpoint { slots: Some(slots), ..NewEndpoint::new(tenant(), "http://127.0.0.1:9/") };
        endpoints.push(bed.manager().create_now(new).await.unwrap().endpoint.id);
    }
    for _ in 0..30 {
        bed.publish("{}").await;
    }
    let per_endpoint = |claimed: &Claimed| {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for one in &claimed.deliveries {
            *counts.entry(one.key().endpoint.clone()).or_default() += 1;
        }
        endpoints.iter().map(|id| counts.get(id).copied().unwrap_or(0)).collect::<Vec<_>>()
    };
    let mut peer = Peer::new(&bed);
    assert_eq!(per_endpoint(&peer.claim(12, &[]).await), [5, 5, 2]);
    // What is under way already counts.
    let busy = [(endpoints[0].as_str(), 5), (endpoints[1].as_str(), 8), (endpoints[2].as_str(), 2)];
    let claimed = peer.claim(100, &busy).await;
    assert_eq!(per_endpoint(&claimed), [3, 0, 0]);
    assert!(claimed.hungry && !claimed.again);
    assert!(peer.claim(0, &[]).await.deliveries.is_empty());
}

#[tokio::test]
async fn with_fewer_slots_than_endpoints_each_gets_its_turn() {
    let bed = Bed::new().await;
    for _ in 0..5 {
        bed.endpoint("http://127.0.0.1:9/").await;
    }
    for _ in 0..4 {
        bed.publish("{}").await;
    }
    let mut peer = Peer::new(&bed);
    let mut turns: HashMap<String, usize> = HashMap::new();
    for _ in 0..5 {
        for claimed in peer.claim(2, &[]).await.deliveries {
            *turns.entry(claimed.key().endpoint.clone()).or_default() += 1;
        }
    }
    assert_eq!(turns.len(), 5);
    assert!(turns.values().all(|count| *count == 2), "{turns:?}");
}

#[tokio::test]
async fn send_l23_a_restarted_worker_takes_the_leases_of_its_dead_predecessor_over_at_once() {
    let (bed, receiver) = (Bed::new().await, Receiver::start().await);
    bed.endpoint(&receiver.url).await;
    for _ in 0..100 {
        bed.publish("{}").await;
    }
    let mut dead = Peer::new(&bed);
    dead.live().await;
    let held = dead.claim(100, &[]).await.deliveries;
    assert_eq!(held.len(), 32);
    if bed.store.database() == Database::Postgres {
        // There other workers may live: the dead one is taken for dead when its sign of life is too old.
        bed.pass(16);
    }
    let mut dispatcher = bed.dispatcher().await;
    while dispatcher.step().await.unwrap().claimed > 0 {}
    assert_eq!(bed.counts().await.delivered, 100);
    assert_eq!(receiver.headers("webhook-id").into_iter().collect::<HashSet<_>>().len(), 100);
    let late: Vec<_> = held.into_iter().map(|claimed| dead.finish(claimed, 500, later(&bed))).collect();
    assert_eq!(dead.record(&late).await.late, 32);
    assert_eq!(bed.counts().await.delivered, 100);
}

#[tokio::test]
async fn a_second_worker_on_one_file_is_refused() {
    let bed = Bed::new().await;
    if bed.store.database() == Database::Postgres {
        return;
    }
    let first = bed.dispatcher().await;
    let second = Dispatcher::start(&bed.store, DispatcherOptions::default()).await;
    assert!(matches!(second, Err(StartError::Lock(LockError::Held { .. }))));
    first.stop().await;
    bed.dispatcher().await.stop().await;
}

#[tokio::test]
async fn send_d22_expired_leases_are_found_across_midnight() {
    let bed = Bed::new().await;
    // 23:59:50 UTC
    bed.clock.set(Timestamp::from_secs(1_700_006_390));
    bed.endpoint("http://127.0.0.1:9/").await;
    bed.publish("{}").await;
    let mut peer = Peer::new(&bed);
    assert_eq!(peer.claim(1, &[]).await.deliveries.len(), 1);
    bed.pass(29);
    assert_eq!(peer.claim(1, &[]).await.deliveries.len(), 0);
    bed.pass(1);
    assert_eq!(peer.claim(1, &[]).await.deliveries.len(), 1);
}

#[tokio::test]
async fn a_quick_endpoint_may_have_more_claimed_than_it_has_slots_and_a_slow_one_may_not() {
    let bed = Bed::new().await;
    let new = NewEndpoint { slots: Some(4), ..NewEndpoint::new(tenant(), "http://127.0.0.1:9/") };
    let endpoint = bed.manager().create_now(new).await.unwrap().endpoint.id.to_string();
    for _ in 0..40 {
        bed.publish("{}").await;
    }
    let mut peer = Peer::new(&bed);
    assert_eq!(peer.claim(100, &[]).await.deliveries.len(), 4);
    peer.quick.insert(endpoint.clone());
    assert_eq!(peer.claim(100, &[(&endpoint, 4)]).await.deliveries.len(), 12);
    assert_eq!(peer.claim(100, &[(&endpoint, 16)]).await.deliveries.len(), 0);
}
