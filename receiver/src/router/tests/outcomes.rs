//! First, repeated, refused, failed: what is stored, what is answered, and what is left in the database.

use super::*;

#[tokio::test]
async fn a_redelivery_gets_the_stored_answer_byte_for_byte() {
    let world = World::new(writes_effect()).await;
    let first = world.deliver("msg_1", "{}").await;
    assert_eq!((first.status, first.replayed()), (201, false));
    for _ in 0..3 {
        let again = world.deliver("msg_1", "{}").await;
        assert!(again.replayed());
        let first = world.deliver("msg_1", "{}").await.without_marker();
        assert_eq!(again.without_marker(), first);
    }
    assert_eq!(world.deliver("msg_1", "{}").await.without_marker(), first);
    assert_ne!(world.deliver("msg_2", "{}").await.body, first.body);
    assert_eq!((world.effects().await, world.keys().await), (2, 2));
}

#[tokio::test]
async fn a_handler_can_be_a_trait_with_an_async_method() {
    let world = World::new(Invoices).await;
    assert_eq!(world.deliver("msg_1", "{\"number\":7}").await.body, "7");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_duplicates_have_one_effect_and_are_told_to_come_again() {
    let world = World::new(scripted(|_, _| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(Reply::ok())
        })
    }))
    .await;
    let answers = join_all((0..64).map(|_| world.deliver("msg_1", "{}"))).await;
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 503)), "{answers:?}");
    assert!(answers.iter().any(|answer| answer.status == 200));
    let waiting: Vec<_> = answers.iter().filter(|answer| answer.status == 503).collect();
    assert!(!waiting.is_empty());
    assert!(waiting.iter().all(|answer| answer.headers["retry-after"] == "1"));
    let after = join_all((0..64).map(|_| world.deliver("msg_1", "{}"))).await;
    assert!(after.iter().all(|answer| answer.status == 200 && answer.replayed()));
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn a_source_may_let_redeliveries_wait() {
    let slow = scripted(|_, _| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(Reply::ok())
        })
    });
    let world = World::with(|source| source.in_flight_wait(Duration::from_secs(5)), slow).await;
    let answers = join_all((0..8).map(|_| world.deliver("msg_1", "{}"))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!(answers.iter().filter(|answer| answer.replayed()).count(), 7);
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn another_payload_under_a_known_id_is_kept_for_review_and_not_applied() {
    let world = World::new(writes_effect()).await;
    let first = world.deliver("msg_1", "{\"amount\":1}").await;
    for _ in 0..2 {
        let conflict = world.deliver("msg_1", "{\"amount\":100}").await;
        assert_eq!((conflict.status, conflict.replayed()), (202, false));
    }
    assert_eq!(world.deliver("msg_1", "{\"amount\":1}").await.without_marker(), first);
    assert_eq!(world.effects().await, 1);
    assert_eq!(world.conflicts_of("{\"amount\":100}").await, 2);
}

#[tokio::test]
async fn a_source_says_how_a_conflict_is_answered() {
    let world = World::with(|source| source.conflict_status(StatusCode::CONFLICT), writes_effect()).await;
    world.deliver("msg_1", "1").await;
    let conflict = world.deliver("msg_1", "2").await;
    assert_eq!(conflict.status, 409);
    assert_eq!(conflict.headers["content-type"], "application/problem+json");
    assert_eq!(world.conflicts_of("2").await, 1);
}

#[tokio::test]
async fn a_refusal_undoes_the_effect_and_its_answer_is_stored() {
    let world = World::new(scripted(|_, _| {
        Box::pin(async { Err(HandlerError::Refuse(Reply::new(StatusCode::UNPROCESSABLE_ENTITY).text("sold out"))) })
    }))
    .await;
    let refused = world.deliver("msg_1", "{}").await;
    assert_eq!((refused.status, &refused.body[..]), (422, &b"sold out"[..]));
    let again = world.deliver("msg_1", "{}").await;
    assert!(again.replayed());
    assert_eq!(again.without_marker(), refused);
    assert_eq!((world.effects().await, world.keys().await), (0, 1));
}

#[tokio::test]
async fn a_failure_leaves_nothing_and_runs_again() {
    let world = World::new(scripted(|run, _| {
        Box::pin(async move { if run == 0 { Err(HandlerError::fail("not today")) } else { Ok(Reply::ok()) } })
    }))
    .await;
    let failed = world.deliver("msg_1", "{}").await;
    assert_eq!(failed.status, 500);
    assert_eq!(failed.headers["content-type"], "application/problem+json");
    assert!(!String::from_utf8_lossy(&failed.body).contains("today"));
    assert_eq!((world.effects().await, world.keys().await), (0, 0));
    let again = world.deliver("msg_1", "{}").await;
    assert_eq!((again.status, again.replayed()), (200, false));
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn a_handler_that_finds_the_store_down_is_a_503() {
    let world = World::new(handler_fn(|_, _| Box::pin(async { Err(StoreError::Closed.into()) }))).await;
    let answer = world.deliver("msg_1", "{}").await;
    assert_eq!(answer.status, 503);
    assert!(answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn a_panic_leaves_nothing_and_harms_nobody_else() {
    let world = World::new(scripted(|_, event| {
        let bad = event.id().as_str() == "msg_bad";
        Box::pin(async move { if bad { panic!("as the test wants") } else { Ok(Reply::ok()) } })
    }))
    .await;
    let ids = ["msg_1", "msg_bad", "msg_2"];
    let statuses: Vec<_> =
        join_all(ids.iter().map(|id| world.deliver(id, "{}"))).await.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 500, 200]);
    assert_eq!((world.effects().await, world.keys().await), (2, 2));
}

#[tokio::test]
async fn a_handler_over_its_deadline_is_rolled_back() {
    let handler = scripted(|run, _| {
        Box::pin(async move {
            if run == 0 {
                std::future::pending::<()>().await;
            }
            Ok(Reply::ok())
        })
    });
    let world = World::with(|source| source.handler_deadline(Duration::from_millis(50)), handler).await;
    let late = world.deliver("msg_1", "{}").await;
    assert_eq!(late.status, 503);
    assert!(late.headers.contains_key("retry-after"));
    assert_eq!((world.effects().await, world.keys().await), (0, 0));
    assert_eq!(world.deliver("msg_1", "{}").await.status, 200);
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn the_work_goes_on_when_the_client_leaves() {
    let world = World::new(scripted(|_, _| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(Reply::ok())
        })
    }))
    .await;
    let gone = tokio::time::timeout(Duration::from_millis(20), world.deliver("msg_1", "{}")).await;
    assert!(gone.is_err());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.effects().await, 1);
    assert!(world.deliver("msg_1", "{}").await.replayed());
}

#[tokio::test]
async fn a_reply_that_cannot_be_stored_is_a_failure() {
    let world = World::new(scripted(|_, _| Box::pin(async { Ok(Reply::new(StatusCode::CONTINUE)) }))).await;
    assert_eq!(world.deliver("msg_1", "{}").await.status, 500);
    assert_eq!((world.effects().await, world.keys().await), (0, 0));
}

#[tokio::test]
async fn a_store_that_is_down_is_a_503() {
    let world = World::new(writes_effect()).await;
    world.store.close().await;
    let answer = world.deliver("msg_1", "{}").await;
    assert_eq!(answer.status, 503);
    assert!(answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn a_handler_that_calls_back_into_the_store_fails_at_once() {
    let database = TestDatabase::sqlite();
    let store = database.store(None).await.unwrap();
    let inner = store.clone();
    let handler = handler_fn(move |_, _| {
        let store = inner.clone();
        Box::pin(async move {
            store.begin().await?.commit().await?;
            Ok(Reply::ok())
        })
    });
    let source = Source::standard_webhooks("orders").secret_text(SECRET).build().unwrap();
    let router = Receiver::new(store.clone()).source(source, handler).unwrap().router();
    let request = signed_at("msg_1", "{}", store.now(), "/orders");
    let response = tokio::time::timeout(Duration::from_secs(5), router.oneshot(request)).await;
    assert_eq!(response.unwrap().unwrap().status(), 500);
}
