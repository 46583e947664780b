//! Attempts through the REST API: what was tried, where, and what came of it.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use twiceproof::dispatcher::{Dispatcher, NewEvent, Policy, Publisher};
use twiceproof::prove::{Answer, Front};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use crate::api_kit::{Client, Rest, text};
use crate::dispatch::{answer, options, sink, timed, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("api::attempts_are_listed_by_endpoint_and_by_message_and_filtered", filters);
    suite.both("api::an_attempt_tells_what_was_answered_or_why_nothing_was", details);
    suite.both("api::send_b12_bytes_that_are_no_text_are_shown_and_never_an_error", not_text);
    suite.both("api::the_state_of_a_delivery_shows_at_its_endpoint_and_its_message", progress);
    suite.both("api::attempts_page_while_others_are_added", pages);
}

/// A receiver that answers with the status that the path asks for.
async fn by_path() -> Front {
    sink(|_, message| {
        let status = message.path.trim_start_matches('/').parse().unwrap();
        let body = Bytes::from(format!("said {status}"));
        Answer { status: StatusCode::from_u16(status).unwrap(), headers: HeaderMap::new(), body }
    })
    .await
    .0
}

async fn stage(store: &Store) -> (Client, Front) {
    let client = Rest::new(store).organisation(1);
    let front = by_path().await;
    client.application("a").await;
    for (uid, status) in [("good", 204), ("bad", 503), ("wrong", 404)] {
        client.endpoint("a", uid, &format!("http://{}/{status}", front.address()), "").await;
    }
    client.endpoint("a", "nobody", "http://127.0.0.1:1/", "").await;
    (client, front)
}

async fn filters(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (client, _front) = stage(&store).await;
    let first = client.message("a", "t.one", r#","channels":["red"]"#).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    assert_eq!(dispatcher.step().await.unwrap().claimed, 4);
    clock.advance(Duration::from_secs(10));
    let second = client.message("a", "t.two", "").await;
    // Three are tried again beside the four new ones.
    assert_eq!(dispatcher.step().await.unwrap().claimed, 7);
    let tried = async |path: &str| client.list(&format!("/app/a/attempt/{path}"), "msgId").await.0;
    let times = |list: Value| text(&list["data"][0]["timestamp"]);
    let late = times(client.get(&format!("/app/a/attempt/msg/{second}")).await.json(200));
    let (one, two) = (first.as_str(), second.as_str());
    for (path, count) in [
        (format!("msg/{one}"), 7),
        (format!("msg/{two}"), 4),
        (format!("msg/{one}?status=0"), 1),
        (format!("msg/{one}?status=2"), 6),
        (format!("msg/{one}?status=1"), 0),
        (format!("msg/{one}?status_code_class=200"), 1),
        (format!("msg/{one}?status_code_class=500"), 2),
        (format!("msg/{one}?status_code_class=400"), 2),
        (format!("msg/{one}?status_code_class=0"), 2),
        (format!("msg/{one}?endpoint_id=bad"), 2),
        (format!("msg/{one}?endpoint_id=bad&before={late}"), 1),
        (format!("msg/{one}?endpoint_id=bad&limit=1"), 1),
        (format!("msg/{one}?channel=red"), 7),
        (format!("msg/{two}?channel=red"), 0),
        (format!("msg/{one}?event_types=t.two,t"), 0),
        ("endpoint/bad".to_owned(), 3),
        ("endpoint/good".to_owned(), 2),
        (format!("endpoint/bad?before={late}"), 1),
        ("endpoint/bad?event_types=t.one".to_owned(), 2),
        ("endpoint/bad?event_types=t.one&event_types=t.two".to_owned(), 3),
        ("endpoint/bad?channel=red".to_owned(), 2),
        ("endpoint/bad?status=0".to_owned(), 0),
        ("endpoint/wrong?status_code_class=400".to_owned(), 3),
        ("endpoint/wrong?status_code_class=500".to_owned(), 0),
    ] {
        assert_eq!(tried(&path).await.len(), count, "{path}");
    }
    let newest = tried("endpoint/good").await;
    assert_eq!(newest, [second.clone(), first.clone()], "newest first");
    for path in ["msg/none", "endpoint/none"] {
        assert_eq!(client.get(&format!("/app/a/attempt/{path}")).await.code(404), "not_found");
    }
    let none = client.get(&format!("/app/a/attempt/msg/{one}?endpoint_id=none")).await;
    assert_eq!(none.code(404), "not_found");
    for wrong in ["status=4", "status_code_class=204", "status=x"] {
        client.get(&format!("/app/a/attempt/endpoint/good?{wrong}")).await.json(422);
    }
}

async fn details(bed: Bed) {
    let (_, store) = timed(&bed).await;
    let (client, front) = stage(&store).await;
    let message = client.message("a", "t", r#","eventId":"m""#).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    let of = async |uid: &str| {
        client.get(&format!("/app/a/attempt/msg/m?endpoint_id={uid}")).await.json(200)["data"][0].clone()
    };
    let bad = of("bad").await;
    let id = text(&bad["id"]);
    assert!(id.starts_with("atmpt_"));
    assert_eq!(bad["endpointId"], client.get("/app/a/endpoint/bad").await.json(200)["id"]);
    assert_eq!((&bad["msgId"], &bad["url"]), (&json!(message), &json!(format!("http://{}/503", front.address()))));
    assert_eq!((&bad["response"], &bad["responseStatusCode"]), (&json!("said 503"), &json!(503)));
    assert_eq!((&bad["status"], &bad["statusText"], &bad["triggerType"]), (&json!(2), &json!("fail"), &json!(0)));
    let good = of("good").await;
    assert_eq!((&good["status"], &good["statusText"]), (&json!(0), &json!("success")));
    let nobody = of("nobody").await;
    assert_eq!((&nobody["status"], &nobody["responseStatusCode"]), (&json!(2), &json!(0)));
    assert!(!text(&nobody["response"]).is_empty(), "it says why there was no answer");
    let bare = client.get("/app/a/attempt/msg/m?endpoint_id=bad&with_content=false").await.json(200);
    assert_eq!((&bare["data"][0]["response"], &bare["data"][0]["responseStatusCode"]), (&json!(""), &json!(503)));

    let path = format!("/app/a/msg/m/attempt/{id}");
    assert_eq!(client.get(&path).await.json(200), bad);
    client.message("a", "t", r#","eventId":"other""#).await;
    assert_eq!(client.get(&path.replace("/m/", "/other/")).await.code(404), "not_found", "of another message");
    assert_eq!(client.delete(&format!("{}/content", path.replace("/m/", "/other/"))).await.code(404), "not_found");
    client.delete(&format!("{path}/content")).await.empty(204);
    let after = client.get(&path).await.json(200);
    assert_eq!((&after["response"], &after["responseStatusCode"]), (&json!(""), &json!(503)), "only the content goes");
    assert_eq!(client.delete(&format!("/app/a/msg/m/attempt/{message}/content")).await.code(404), "not_found");
    client.delete("/app/a/endpoint/bad").await.empty(204);
    assert_eq!(client.get(&path).await.json(200)["url"], "", "what was tried stays known");
}

async fn not_text(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let client = Rest::new(&store).organisation(1);
    let body = Bytes::from_static(b"a\0b\xff\xfec\xf0\x9f");
    let (front, seen) = sink(move |_, _| Answer { body: body.clone(), ..answer(500) }).await;
    client.application("a").await;
    client.endpoint("a", "e", &url(&front), "").await;
    let tenant = text(&client.get("/app/a").await.json(200)["id"]);
    let publisher = Publisher::new(&store, &Policy::default());
    for (uid, content_type, payload) in
        [("xml", "text/xml", &b"<a b=\"c\"/>"[..]), ("raw", "application/octet-stream", b"\xff\0{")]
    {
        let new = NewEvent::json(Key::new(&tenant).unwrap(), "t", payload).with_uid(Key::new(uid).unwrap());
        publisher.publish_now(NewEvent { content_type: content_type.to_owned(), ..new }).await.unwrap();
    }
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    assert_eq!(dispatcher.step().await.unwrap().claimed, 2);
    let sent: Vec<Bytes> = seen.lock().unwrap().iter().map(|message| message.body.clone()).collect();
    assert!(sent.iter().any(|body| body == &b"\xff\0{"[..]), "it is sent as it is");
    let shown = async |uid: &str| client.get(&format!("/app/a/msg/{uid}")).await.json(200)["payload"].clone();
    assert_eq!(shown("xml").await, "<a b=\"c\"/>");
    assert_eq!(shown("raw").await, "\u{fffd}\0{");
    let attempt = client.get("/app/a/attempt/msg/xml").await.json(200);
    assert_eq!(attempt["data"][0]["response"], "a\0b\u{fffd}\u{fffd}c\u{fffd}");
}

async fn progress(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (client, _front) = stage(&store).await;
    client.endpoint("a", "off", "http://127.0.0.1:1/", r#","disabled":true"#).await;
    let message = client.message("a", "t", r#","eventId":"m""#).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    let of = async |uid: &str| {
        let found = client.get(&format!("/app/a/endpoint/{uid}/msg")).await.json(200)["data"][0].clone();
        assert_eq!((&found["id"], &found["eventId"]), (&json!(message), &json!("m")));
        let destinations = client.get("/app/a/msg/m/endpoint").await.json(200);
        let same = destinations["data"].as_array().unwrap().iter().find(|one| one["uid"] == uid).unwrap().clone();
        for field in ["status", "statusText", "nextAttempt"] {
            assert_eq!(found[field], same[field], "{uid}: both lists say the same");
        }
        (found["status"].as_u64().unwrap(), text(&found["statusText"]), found["nextAttempt"].is_string())
    };
    let is = |status: u64, text: &str, next: bool| (status, text.to_owned(), next);
    assert_eq!(of("good").await, is(1, "pending", true));
    assert_eq!(of("off").await, is(1, "pending", false), "nobody knows when it is enabled");
    dispatcher.step().await.unwrap();
    assert_eq!(of("good").await, is(0, "success", false));
    assert_eq!(of("bad").await, is(1, "pending", true));
    let mut tx = store.begin().await.unwrap();
    let leased = "UPDATE twiceproof_deliveries SET state = 'leased', lease_until = 1 WHERE state = 'delivered'";
    tx.conn().execute(leased, &[]).await.unwrap();
    tx.conn().execute("UPDATE twiceproof_deliveries SET state = 'dead' WHERE state = 'backoff'", &[]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(of("good").await, is(3, "sending", false));
    assert_eq!(of("bad").await, is(2, "fail", false));
    for (status, uid) in [(0, "none"), (1, "off"), (2, "bad"), (3, "good")] {
        for other in ["off", "bad", "good"] {
            let (found, _) = client.list(&format!("/app/a/endpoint/{other}/msg?status={status}"), "id").await;
            assert_eq!(found.len(), usize::from(other == uid), "{status} {other}");
        }
    }
    clock.advance(Duration::from_secs(1));
    let (pages, done) = client.list("/app/a/msg/m/endpoint?limit=2", "uid").await;
    assert_eq!((pages.len(), done), (2, false));
}

async fn pages(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let (client, _front) = stage(&store).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    let (mut seen, mut iterator) = (Vec::new(), String::new());
    for n in 0..6 {
        client.message("a", "t", &format!(r#","eventId":"{n}""#)).await;
    }
    dispatcher.step().await.unwrap();
    let all = client.list("/app/a/attempt/endpoint/good", "id").await.0;
    assert_eq!(all.len(), 6);
    loop {
        let page = client.get(&format!("/app/a/attempt/endpoint/good?limit=2{iterator}")).await.json(200);
        seen.extend(page["data"].as_array().unwrap().iter().map(|one| text(&one["id"])));
        if page["done"] == true {
            break;
        }
        iterator = format!("&iterator={}", text(&page["iterator"]));
        clock.advance(Duration::from_secs(1));
        client.message("a", "t", "").await;
        dispatcher.step().await.unwrap();
    }
    assert_eq!(seen, all, "each once, though others came in");
    let (messages, done) = client.list("/app/a/endpoint/good/msg?limit=3", "id").await;
    assert_eq!((messages.len(), done), (3, false));
}
