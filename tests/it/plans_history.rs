//! How the databases would run what looks back: pages of messages, attempts and deliveries among a million others.

use twiceproof::dispatcher::store::history::{self, AttemptsOf, Window};
use twiceproof::dispatcher::store::resend;
use twiceproof_shared::store::{Database, Store};
use twiceproof_shared::testing::Statement;

use crate::harness::{Bed, Suite};
use crate::plans::{none_reads_a_whole_table, plans, taken_down};

pub fn register(suite: &mut Suite) {
    suite.both("plans::send_b5_pages_of_the_past_walk_along_their_own_index", pages);
}

/// The index that a page walks along, by a part of its statement. An order by id could tempt a planner to walk over all of a
/// tenant's rows, in the hope of soon finding as many as the page has.
const WALKED: [(&str, &str); 5] = [
    ("SELECT v.id, v.uid", "twiceproof_events_id"),
    ("a.endpoint = $10", "twiceproof_attempts_endpoint"),
    ("a.event = $10", "twiceproof_attempts_delivery"),
    ("d.endpoint = $9", "twiceproof_deliveries_endpoint"),
    ("SELECT endpoint, state, due_at", "twiceproof_deliveries_key"),
];

async fn pages(bed: Bed) {
    taken_down(bed, |store| {
        Box::pin(async move {
            twiceproof_shared::testing::record();
            everything(store).await;
            let seen = twiceproof_shared::testing::recorded();
            // Before the statistics of the other check, and after it.
            walk(store, &seen).await;
            none_reads_a_whole_table(store, &seen).await;
            walk(store, &seen).await;
        })
    })
    .await;
}

async fn walk(store: &Store, seen: &[Statement]) {
    for (part, index) in WALKED {
        let statements: Vec<&Statement> = seen.iter().filter(|statement| statement.sql.contains(part)).collect();
        assert!(statements.len() >= 2, "{part} in both directions");
        for statement in statements {
            for plan in plans(store, statement).await {
                // SQLite's plan begins with what is walked along.
                let walked = match store.database() {
                    Database::Sqlite => plan.lines().next().unwrap_or_default(),
                    Database::Postgres => &plan,
                };
                assert!(walked.contains(index), "{index} is not walked along:\n{plan}\n    of {}", statement.sql);
            }
        }
    }
}

/// All that a client can ask of the past, up and down, with every filter and without.
async fn everything(store: &Store) {
    let mut tx = store.begin().await.unwrap();
    let conn = &mut tx.conn();
    let event = format!("msg_{:027}", 21);
    let attempt = format!("atmpt_{:027}", 21);
    let (endpoint, now) = ("ep_10021", store.now());
    for down in [false, true] {
        let bare = Window {
            from: if down { "~" } else { "" },
            down,
            after: "",
            before: "~",
            channel: "",
            event_types: "",
            states: "",
            with_content: true,
            limit: 51,
        };
        let thin = Window { channel: "\"red\"", event_types: r#"["order.t1"]"#, with_content: false, ..bare };
        for window in [bare, thin] {
            history::events(conn, "t1", &window).await.unwrap();
            let states = if window.channel.is_empty() { "" } else { ",dead," };
            history::owed(conn, "t1", endpoint, &Window { states, ..window }).await.unwrap();
            for of in
                [AttemptsOf::Endpoint(endpoint), AttemptsOf::Event(&event, ""), AttemptsOf::Event(&event, endpoint)]
            {
                history::attempts(conn, "t1", of, -1, &window).await.unwrap();
                history::attempts(conn, "t1", of, 5, &window).await.unwrap();
            }
        }
        assert_eq!(history::destinations(conn, "t1", &event, (bare.from, down), 51).await.unwrap().len(), 1);
    }
    assert!(history::event(conn, "t1", &event, true).await.unwrap().is_some());
    assert!(history::event(conn, "t1", "u21", false).await.unwrap().is_some(), "by its uid");
    assert!(history::attempt(conn, "t1", &event, &attempt).await.unwrap().is_some());
    assert!(history::expunge_attempt(conn, "t1", &event, &attempt).await.unwrap());
    assert!(resend::again(conn, "t1", &event, endpoint, now).await.unwrap());
    assert!(!resend::owe(conn, "t1", &event, endpoint, (now, now)).await.unwrap());
    assert!(history::expunge_event(conn, "t1", &event, now).await.unwrap());
    tx.rollback().await.unwrap();
}
