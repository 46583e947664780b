//! Replay tests with duplicated deliveries: what comes two to fifty times, shuffled and hours apart, has one effect.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use twiceproof_shared::clock::{Clock, ManualClock, Timestamp};
use twiceproof_shared::random::Random;

use crate::harness::{Bed, Suite};
use crate::kit::{effects, receiving, send_all, signed};

pub fn register(suite: &mut Suite) {
    suite.both("replay::two_thousand_events_two_to_fifty_times_each_have_one_effect", many_times);
    suite.both("replay::two_genuine_events_with_equal_bodies_have_two_effects", equal_bodies);
}

const EVENTS: u64 = 2_000;
/// The deliveries are spread over this many waves, two hours apart.
const WAVES: u64 = 40;

async fn many_times(bed: Bed) {
    let seed = std::env::var("TWICEPROOF_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_260_701);
    println!("seed {seed}: run again with TWICEPROOF_TEST_SEED={seed}");
    let random = Random::seeded(seed);
    let clock = ManualClock::new(Timestamp::from_secs(1_700_000_000));
    let (store, receiving) = receiving(bed.db.store(Some(Arc::new(clock.clone()))).await.unwrap()).await;

    // Every delivery of every event, each in a wave of its own choice: old ones come before new ones and after them.
    let mut waves: Vec<Vec<u64>> = vec![Vec::new(); WAVES as usize];
    let mut total = 0;
    for event in 0..EVENTS {
        for _ in 0..2 + random.below(49) {
            waves[random.below(WAVES) as usize].push(event);
            total += 1;
        }
    }
    let mut first_answers: HashMap<u64, bytes::Bytes> = HashMap::new();
    let mut answered = 0;
    for wave in &mut waves {
        for last in (1..wave.len()).rev() {
            wave.swap(last, random.below(last as u64 + 1) as usize);
        }
        let messages = wave.iter().map(|event| signed(&format!("msg_{event}"), body(*event), clock.now())).collect();
        for (event, answer) in wave.iter().zip(send_all(&receiving.hop, messages, 32).await) {
            if answer.status == 503 {
                // In flight: a sender comes again, and so would this one in a later wave.
                continue;
            }
            assert_eq!(answer.status, 200, "{event}");
            answered += 1;
            let first = first_answers.entry(*event).or_insert_with(|| answer.body.clone());
            assert_eq!(*first, answer.body, "every answer to {event} has the stored bytes, a random number among them");
        }
        clock.advance(Duration::from_secs(2 * 3600));
    }
    println!("{total} deliveries of {EVENTS} events, {answered} answered with the outcome");
    let effects = effects(&store).await;
    assert_eq!(effects.len() as u64, EVENTS, "one effect each");
    for (event, stored) in effects {
        let number: u64 = event.trim_start_matches("msg_").parse().unwrap();
        assert_eq!(stored, body(number).as_bytes());
    }
}

fn body(event: u64) -> String {
    format!(r#"{{"order":{event},"note":"ünïcode \u001B"}}"#)
}

async fn equal_bodies(bed: Bed) {
    let (store, receiving) = receiving(bed.db.store(None).await.unwrap()).await;
    for id in ["msg_1", "msg_2", "msg_1", "msg_2"] {
        assert_eq!(receiving.send(&signed(id, "the same", store.now())).await.status, 200);
    }
    assert_eq!(effects(&store).await.len(), 2);
}
