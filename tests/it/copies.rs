//! A thousand copies of one request at once, at two receiver processes: one effect, and one answer for all.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use twiceproof_shared::store::Database;

use crate::fixture::{How, ReceiverProcess};
use crate::harness::{Bed, Suite};
use crate::kit::{effects, make_effects, send_all, signed};

pub fn register(suite: &mut Suite) {
    suite.both("copies::a_thousand_copies_at_two_processes_have_one_effect_and_one_answer", thousand);
}

const COPIES: usize = 1_000;
/// Connections to each process.
const LANES: usize = 64;
/// Other events that each process took before.
const WARM: usize = 16;

async fn thousand(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    // PostgreSQL's handlers hold a transaction of their own for 200 ms; on SQLite they would hold everybody's.
    let takes = match bed.database() {
        Database::Sqlite => Duration::from_millis(20),
        Database::Postgres => Duration::from_millis(200),
    };
    let receivers =
        [(); 2].map(|()| ReceiverProcess::start(bed.db.url(), "127.0.0.1:0", How { takes, ..How::default() }));
    for (n, process) in receivers.iter().enumerate() {
        // Their connections to the database are opened before it counts.
        let warm = (0..WARM).map(|m| signed(&format!("warm_{n}_{m}"), "a", store.now())).collect();
        send_all(&process.hop, warm, WARM).await;
    }
    let message = Arc::new(signed("msg_1", r#"{"order":1}"#, store.now()));

    let barrier = Arc::new(Barrier::new(2 * LANES));
    let lanes: Vec<_> = (0..2 * LANES)
        .map(|lane| {
            let (barrier, message) = (Arc::clone(&barrier), Arc::clone(&message));
            let (process, hop) = (lane % 2, receivers[lane % 2].hop.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                let mut answers = Vec::new();
                for copy in 0..COPIES {
                    if copy % (2 * LANES) == lane {
                        answers.push((process, hop.send(&message).await.unwrap()));
                    }
                }
                answers
            })
        })
        .collect();
    let mut answers = Vec::new();
    for lane in lanes {
        answers.extend(lane.await.unwrap());
    }
    assert_eq!(answers.len(), COPIES);
    let in_flight = |process| answers.iter().filter(|(by, answer)| *by == process && answer.status == 503).count();
    println!("in flight: {} at one process, {} at the other", in_flight(0), in_flight(1));
    assert!(answers.iter().all(|(_, answer)| answer.status == 200 || answer.status == 503));
    for (_, answer) in answers.iter().filter(|(_, answer)| answer.status == 503) {
        assert!(answer.headers.contains_key("retry-after"));
    }
    if bed.database() == Database::Postgres {
        assert!(in_flight(0) > 0 && in_flight(1) > 0, "in-flight answers come from both processes");
    }
    assert_eq!(effects(&store).await.len(), 1 + 2 * WARM, "one effect");

    // Afterwards all thousand get the stored bytes, which hold a random number.
    let stored = receivers[0].hop.send(&message).await.unwrap();
    assert!(stored.headers.contains_key("idempotent-replayed"));
    for process in &receivers {
        let again = send_all(&process.hop, vec![(*message).clone(); COPIES / 2], LANES).await;
        assert!(again.iter().all(|answer| answer.status == 200 && answer.body == stored.body));
    }
    for (_, answer) in answers.iter().filter(|(_, answer)| answer.status == 200) {
        assert_eq!(answer.body, stored.body);
    }
    assert_eq!(effects(&store).await.len(), 1 + 2 * WARM, "still one effect");
}
