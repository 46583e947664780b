//! Messages through the REST API: accepted once, kept to the byte, listed and taken away.

use serde_json::{Value, json};
use twiceproof::dispatcher::store::counts::counts;
use twiceproof::dispatcher::{Dispatcher, Policy, Publisher};
use twiceproof_shared::store::Store;

use crate::api_kit::{Rest, text};
use crate::dispatch::{answer, only, options, sink, states, timed, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("api::send_b9_b10_g14_a_payload_arrives_as_it_was_written", verbatim);
    suite.both("api::send_c1_the_same_event_id_is_a_conflict_that_names_the_message", same_event_id);
    suite.both("api::send_c3_a_payload_may_have_the_limit_and_not_a_byte_more", limits);
    suite.both("api::send_c4_bodies_that_are_no_message_are_refused", odd_bodies);
    suite.both("api::messages_are_listed_newest_first_and_filtered", filters);
    suite.both("api::messages_page_while_others_are_added", pages);
    suite.both("api::a_message_brings_its_application_along_once", inline_application);
    suite.both("api::a_repeated_request_with_a_key_is_one_message_that_is_sent", keyed);
    suite.both("api::an_expunged_message_is_not_sent_and_shows_no_payload", expunged);
}

async fn events(store: &Store) -> i64 {
    let sql = "SELECT count(*) FROM twiceproof_events";
    store.read().await.unwrap().conn().fetch_one::<(i64,)>(sql, &[]).await.unwrap().0
}

async fn verbatim(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let client = Rest::new(&store).organisation(1);
    let (front, seen) = sink(|_, _| answer(200)).await;
    client.application("a").await;
    client.endpoint("a", "e", &url(&front), "").await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    let payloads = [
        r#"{"b":1,"a":2,"n":1.0,"big":12345678901234567890}"#,
        r#"{"a":1e400,"n":0.1000,"a":-0,"u":"\u0000"}"#,
        "{ \"spaced\" :\t[1 ,\n 2] }",
        "{\"emoji\":\"\u{1f600}\",\"separator\":\"\u{2028}\",\"escaped\":\"\\ud83d\\ude00\\/\"}",
        r#"{"lone":"\ud83d","":{}}"#,
        "{}",
    ];
    for (n, payload) in payloads.iter().enumerate() {
        let body = format!(r#"{{"eventType":"t","payload":{payload},"eventId":"{n}"}}"#);
        let made = client.post("/app/a/msg", body).await;
        assert!(made.text.contains(&format!(r#""payload":{payload}"#)), "{}", made.text);
        let got = client.get(&format!("/app/a/msg/{n}")).await;
        assert_eq!((made.status.as_u16(), got.status.as_u16()), (202, 200));
        assert_eq!(got.text, made.text, "what is stored is what was accepted");
        assert_eq!(dispatcher.step().await.unwrap().recorded.delivered, 1);
        assert_eq!(seen.lock().unwrap()[n].body, payload.as_bytes());
    }
}

async fn same_event_id(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let client = Rest::new(&store).organisation(1);
    client.application("a").await;
    client.application("b").await;
    let body = r#"{"eventType":"t","payload":{"n":1},"eventId":"order-1","channels":["x","y"]}"#;
    let id = text(&client.post("/app/a/msg", body).await.json(202)["id"]);
    let turned = body.replace(r#"["x","y"]"#, r#"["y","x","y"]"#);
    for same in [body, &turned] {
        let again = client.post("/app/a/msg", same.to_owned()).await.json(409);
        assert_eq!(again["code"], "already_accepted");
        assert!(text(&again["detail"]).contains(&id), "{again}");
    }
    for (from, to) in [(r#"{"n":1}"#, r#"{"n":1.0}"#), (r#""t""#, r#""u""#), (r#"["x","y"]"#, r#"["x"]"#)] {
        let other = client.post("/app/a/msg", body.replace(from, to)).await.json(409);
        assert_eq!(other["code"], "event_id_conflict");
        assert!(text(&other["detail"]).contains(&id), "{other}");
    }
    assert_eq!(events(&store).await, 1);
    assert_eq!(client.get("/app/a/msg/order-1").await.json(200)["payload"], json!({ "n": 1 }));
    client.post("/app/b/msg", body).await.json(202);
    let minted = body.replace("order-1", &id);
    let refused = client.post("/app/b/msg", minted).await.json(422);
    assert_eq!(refused["detail"][0]["loc"], json!(["body", "eventId"]), "an id of ours names one message only");
}

async fn limits(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let publisher = Publisher::new(&store, &Policy::default()).with_payload_limit(1_000);
    let client = Rest::with(&store, publisher).organisation(1);
    client.application("a").await;
    let sized = |bytes: usize| {
        let payload = format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes - r#"{"a":""}"#.len()));
        assert_eq!(payload.len(), bytes);
        format!(r#"{{"eventType":"t","payload":{payload}}}"#)
    };
    client.post("/app/a/msg", sized(999)).await.json(202);
    client.post("/app/a/msg", sized(1_000)).await.json(202);
    assert_eq!(client.post("/app/a/msg", sized(1_001)).await.code(413), "payload_too_large");
    // So large that it is not read to its end.
    assert_eq!(client.post("/app/a/msg", sized(1_000_000)).await.code(413), "payload_too_large");
    assert_eq!(events(&store).await, 2);
}

async fn odd_bodies(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let client = Rest::new(&store).organisation(1);
    client.application("a").await;
    for body in [r#""text""#, "null", "[]", "", "1", "{}", r#"{"eventType":"t"}"#] {
        assert_eq!(client.post("/app/a/msg", body).await.json(422)["detail"][0]["loc"][0], "body", "{body:?}");
    }
    for payload in [r#""text""#, "null", "[]", "1", "true"] {
        let body = format!(r#"{{"eventType":"t","payload":{payload}}}"#);
        let refused = client.post("/app/a/msg", body).await.json(422);
        assert_eq!(refused["detail"][0]["loc"], json!(["body", "payload"]), "{payload}");
    }
    for body in ["{", r#"{"eventType":"t","payload":{"a":}}"#, r#"{"eventType":"t","payload":{}} x"#, "\u{feff}{}"] {
        assert_eq!(client.post("/app/a/msg", body).await.code(400), "bad_request", "{body:?}");
    }
    let many = json!((0..11).map(|n| format!("c{n}")).collect::<Vec<_>>());
    for (place, more) in [
        ("eventType", json!({ "eventType": "a b" })),
        ("channels", json!({ "channels": many })),
        ("channels", json!({ "channels": ["a b"] })),
        ("eventId", json!({ "eventId": "" })),
    ] {
        let mut body = json!({ "eventType": "t", "payload": {} });
        body.as_object_mut().unwrap().append(&mut more.as_object().unwrap().clone());
        let refused = client.post("/app/a/msg", body.to_string()).await.json(422);
        assert_eq!(refused["detail"][0]["loc"][1], place, "{refused}");
    }
    assert_eq!(events(&store).await, 0);
}

async fn filters(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let client = Rest::new(&store).organisation(1);
    client.application("a").await;
    client.application("b").await;
    let mut times = Vec::new();
    for (n, (event_type, channels)) in
        [("t.one", r#"["red"]"#), ("t.two", r#"["red","blue"]"#), ("t.one", "[]"), ("t", r#"["re"]"#)]
            .iter()
            .enumerate()
    {
        clock.advance(std::time::Duration::from_secs(10));
        let more = format!(r#","channels":{channels},"eventId":"{n}""#);
        client.message("a", event_type, &more).await;
        times.push(text(&client.get(&format!("/app/a/msg/{n}")).await.json(200)["timestamp"]));
    }
    client.message("b", "t.one", r#","eventId":"of-b""#).await;
    for (query, expected) in [
        ("".to_owned(), vec!["3", "2", "1", "0"]),
        ("channel=red".to_owned(), vec!["1", "0"]),
        ("channel=re".to_owned(), vec!["3"]),
        ("channel=red%22%2C%22blue".to_owned(), vec![]),
        ("event_types=t.one".to_owned(), vec!["2", "0"]),
        ("event_types=t".to_owned(), vec!["3"]),
        ("event_types=t.one,t".to_owned(), vec!["3", "2", "0"]),
        ("event_types=t.two&event_types=t".to_owned(), vec!["3", "1"]),
        (format!("before={}", times[2]), vec!["1", "0"]),
        (format!("after={}&before={}", times[1], times[3]), vec!["2"]),
        ("channel=red&event_types=t.two&limit=1".to_owned(), vec!["1"]),
    ] {
        let query = query.replace('+', "%2B");
        let (found, done) = client.list(&format!("/app/a/msg?{query}"), "eventId").await;
        assert_eq!((found, done), (expected.into_iter().map(str::to_owned).collect(), true), "{query}");
    }
    let bare = client.get("/app/a/msg?with_content=false").await.json(200);
    assert!(bare["data"].as_array().unwrap().iter().all(|message| message["payload"] == json!({})));
    for wrong in ["event_types=a%20b", "before=yesterday", "limit=0", "limit=251", "iterator=%20"] {
        let refused = client.get(&format!("/app/a/msg?{wrong}")).await.json(422);
        assert_eq!(refused["detail"][0]["loc"][0], "query", "{wrong}");
    }
}

async fn pages(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let client = Rest::new(&store).organisation(1);
    client.application("a").await;
    let mut made = Vec::new();
    for _ in 0..10 {
        made.push(client.message("a", "t", "").await);
    }
    made.sort_unstable();
    made.reverse();
    let (mut seen, mut iterator, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = client.get(&format!("/app/a/msg?limit=4{iterator}")).await.json(200);
        seen.extend(page["data"].as_array().unwrap().iter().map(|message| text(&message["id"])));
        pages += 1;
        if page["done"] == true {
            break;
        }
        iterator = format!("&iterator={}", text(&page["iterator"]));
        // It comes in before the first page.
        client.message("a", "t", "").await;
    }
    assert_eq!((seen, pages), (made.clone(), 3), "each once, though others came in");
    let end = client.get("/app/a/msg?limit=4").await.json(200);
    let second = client.get(&format!("/app/a/msg?limit=4&iterator={}", text(&end["iterator"]))).await.json(200);
    let back = client.get(&format!("/app/a/msg?limit=4&iterator={}", text(&second["prevIterator"]))).await.json(200);
    assert_eq!(back["data"], end["data"]);
}

async fn inline_application(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let client = Rest::new(&store).organisation(1);
    let body = r#"{"eventType":"t","payload":{},"application":{"name":"New one"}}"#;
    assert_eq!(client.post("/app/new/msg", r#"{"eventType":"t","payload":{}}"#).await.code(404), "not_found");
    let asked = (0..10).map(|_| client.post("/app/new/msg", body));
    for got in futures_util::future::join_all(asked).await {
        got.json(202);
    }
    let made = client.get("/app/new").await.json(200);
    assert_eq!((&made["name"], &made["uid"]), (&json!("New one"), &json!("new")));
    assert_eq!(client.list("/app", "uid").await.0, ["new"]);
    let other = body.replace("New one", "Another");
    client.keyed("k").post("/app/new/msg", other.clone()).await.json(202);
    client.keyed("l").post("/app/newer/msg", other).await.json(202);
    assert_eq!(client.get("/app/new").await.json(200)["name"], "New one", "it is made, never changed");
    assert_eq!(client.get("/app/newer").await.json(200)["name"], "Another");
    assert_eq!(events(&store).await, 12);
}

async fn keyed(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let client = Rest::new(&store).organisation(1);
    let (front, seen) = sink(|_, _| answer(200)).await;
    client.application("a").await;
    client.endpoint("a", "e", &url(&front), "").await;
    let body = r#"{"eventType":"t","payload":{"n":1}}"#;
    let first = client.keyed("k").post("/app/a/msg", body).await;
    let again = client.keyed("k").post("/app/a/msg", body).await;
    assert_eq!((first.status.as_u16(), &first.text), (202, &again.text));
    client.keyed("k").post("/app/a/msg", body.replace('1', "2")).await.json(422);
    assert_eq!(events(&store).await, 1);
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    assert_eq!(dispatcher.step().await.unwrap().recorded.delivered, 1);
    assert_eq!(seen.lock().unwrap().len(), 1);
}

async fn expunged(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let client = Rest::new(&store).organisation(1);
    let (front, seen) = sink(|_, _| answer(500)).await;
    client.application("a").await;
    client.endpoint("a", "e", &url(&front), "").await;
    let waits = client.message("a", "t", r#","eventId":"waits""#).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    assert_eq!(dispatcher.step().await.unwrap().recorded.retried, 1);
    client.message("a", "t", r#","eventId":"new""#).await;
    for id in ["waits", "new"] {
        client.delete(&format!("/app/a/msg/{id}/content")).await.empty(204);
        client.delete(&format!("/app/a/msg/{id}/content")).await.empty(204);
        let got = client.get(&format!("/app/a/msg/{id}")).await.json(200);
        assert_eq!(got["payload"], json!({ "expired": true }));
    }
    assert_eq!(client.delete("/app/a/msg/none/content").await.code(404), "not_found");
    assert_eq!(states(&store).await, only("dead", 2));
    let counted = counts(&mut store.read().await.unwrap().conn(), None).await.unwrap();
    assert_eq!((counted.accepted(), counted.open()), (2, 0), "the sum is what was accepted");
    clock.advance(std::time::Duration::from_secs(3_600));
    assert_eq!(dispatcher.step().await.unwrap().claimed, 0);
    assert_eq!(seen.lock().unwrap().len(), 1);
    let again = client.post(&format!("/app/a/msg/{waits}/endpoint/e/resend"), "").await;
    assert_eq!(again.code(409), "content_expunged");
    let bytes = "SELECT sum(length(payload)) FROM twiceproof_events";
    let (left,): (i64,) = store.read().await.unwrap().conn().fetch_one(bytes, &[]).await.unwrap();
    assert_eq!(left, 0);
    let list: Value = client.get("/app/a/msg?with_content=true").await.json(200);
    assert_eq!(list["data"][0]["payload"], json!({ "expired": true }));
    // Its eventId stays taken: it still is that message.
    let body = r#"{"eventType":"t","payload":{},"eventId":"new"}"#;
    assert_eq!(client.post("/app/a/msg", body).await.code(409), "already_accepted");
}
