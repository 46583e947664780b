//! Endpoints over the REST API: who may do what with them, and what is refused.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use twiceproof::dispatcher::{AddressPolicy, Manager, NewEndpoint, Policy};
use twiceproof_shared::key::Key;

use crate::api_bed::{Caller, Rest, complaint, text};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("api_endpoints::one_is_created_read_changed_and_deleted", life);
    suite.both("api_endpoints::put_creates_under_the_uid_of_the_path_and_repeats_find_it", put_uid);
    suite.both("api_endpoints::a_uid_works_wherever_an_id_does", by_uid);
    suite.both("api_endpoints::a_uid_belongs_to_one_endpoint_of_its_application", uid_taken);
    suite.both("api_endpoints::lists_go_on_and_back", pages);
    suite.both("api_endpoints::other_organisations_and_applications_see_nothing", isolation);
    suite.both("api_endpoints::the_owner_of_an_application_manages_its_own_endpoints_only", portal);
    suite.both("api_endpoints::a_repeated_create_with_one_idempotency_key_makes_one", repeated);
    suite.both("api_endpoints::send_c10_fifty_puts_of_one_uid_make_one_endpoint", fifty_puts);
    suite.both("api_endpoints::send_c10_a_uid_that_many_want_at_once_goes_to_one", many_want);
    suite.postgres("api_endpoints::send_c10_a_uid_that_an_open_transaction_takes_is_waited_for", open_twin);
}

const URL: &str = "https://example.com/hook";

async fn life(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let all = format!("/app/{app}/endpoint");
    let asked = json!({
        "url": URL, "uid": "mine", "description": "for orders", "eventTypes": ["b.c", "a-b"], "channels": ["c2", "c1"],
        "throttleRate": 5, "metadata": { "k": "v" },
    });
    let (status, made) = api.post(&all, asked).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let one = format!("{all}/{}", text(&made["id"]));
    assert!(text(&made["id"]).starts_with("ep_"));
    for (field, value) in [
        ("url", json!(URL)),
        ("uid", json!("mine")),
        ("description", json!("for orders")),
        ("eventTypes", json!(["a-b", "b.c"])),
        ("channels", json!(["c1", "c2"])),
        ("throttleRate", json!(5)),
        ("metadata", json!({ "k": "v" })),
        ("disabled", json!(false)),
        ("version", json!(1)),
        ("createdAt", json!("2023-11-14T22:13:20Z")),
        ("updatedAt", json!("2023-11-14T22:13:20Z")),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    assert_eq!(api.get(&one).await, (StatusCode::OK, made.clone()), "what was answered is what is stored");

    rest.clock.advance(std::time::Duration::from_secs(60));
    let (status, patched) = api.patch(&one, json!({ "description": "", "channels": null, "uid": null })).await;
    assert_eq!(status, StatusCode::OK, "{patched}");
    let mut expected = made.clone();
    for (field, value) in [("description", json!("")), ("channels", Value::Null), ("uid", Value::Null)] {
        expected[field] = value;
    }
    expected["updatedAt"] = json!("2023-11-14T22:14:20Z");
    assert_eq!(patched, expected, "what a patch leaves out stays");

    let (status, put) = api.put(&one, json!({ "url": "https://example.com/other", "disabled": true })).await;
    assert_eq!(status, StatusCode::OK, "{put}");
    for (field, value) in [
        ("id", made["id"].clone()),
        ("url", json!("https://example.com/other")),
        ("eventTypes", Value::Null),
        ("throttleRate", Value::Null),
        ("metadata", json!({})),
        ("disabled", json!(true)),
    ] {
        assert_eq!(put[field], value, "a put sets all: {field}");
    }
    assert_eq!(api.get(&one).await.1, put);

    assert_eq!(api.delete(&one).await, (StatusCode::NO_CONTENT, Value::Null));
    for (method, path) in [(Method::GET, one.clone()), (Method::DELETE, one.clone()), (Method::GET, one + "/secret")] {
        assert_eq!(api.send(method, &path, None).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(api.get(&all).await.1["data"], json!([]));
}

async fn put_uid(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let one = format!("/app/{app}/endpoint/mine");
    let (status, made) = api.put(&one, json!({ "url": URL })).await;
    assert_eq!((status, &made["uid"]), (StatusCode::CREATED, &json!("mine")), "{made}");
    let (status, again) = api.put(&one, json!({ "url": URL, "description": "2" })).await;
    assert_eq!((status, &again["id"], &again["uid"]), (StatusCode::OK, &made["id"], &json!("mine")));
    let (status, renamed) = api.put(&one, json!({ "url": URL, "uid": "yours" })).await;
    assert_eq!((status, &renamed["id"], &renamed["uid"]), (StatusCode::OK, &made["id"], &json!("yours")));
    assert_eq!(api.get(&one).await.0, StatusCode::NOT_FOUND);
    // What looks like an id of ours is never made under that name.
    let id = text(&made["id"]);
    let other = format!("{}{}", &id[..id.len() - 1], if id.ends_with('1') { '2' } else { '1' });
    for name in [other.as_str(), "a%20b", "%C3%A4"] {
        let (status, answer) = api.put(&format!("/app/{app}/endpoint/{name}"), json!({ "url": URL })).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{name}: {answer}");
    }
    assert_eq!(api.get(&format!("/app/{app}/endpoint")).await.1["data"].as_array().unwrap().len(), 1);
}

async fn by_uid(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let (status, _) = api.post("/app", json!({ "name": "shop", "uid": "shop" })).await;
    assert_eq!(status, StatusCode::CREATED);
    api.endpoint("shop", json!({ "url": URL, "uid": "mine" })).await;
    for (method, path, body, expected) in ROUTES {
        let path = format!("/app/shop/endpoint/mine{path}");
        let (status, answer) = api.send(method.parse().unwrap(), &path, body.map(read)).await;
        assert_eq!(status, *expected, "{method} {path}: {answer}");
    }
}

/// Every route of one endpoint, and what it answers to who may use it. Deleting comes last.
const ROUTES: &[(&str, &str, Option<&str>, u16)] = &[
    ("GET", "", None, 200),
    ("PUT", "", Some(r#"{"url":"https://example.com/2","uid":"mine"}"#), 200),
    ("PATCH", "", Some(r#"{"description":"x"}"#), 200),
    ("GET", "/headers", None, 200),
    ("PUT", "/headers", Some(r#"{"headers":{"x-a":"1"}}"#), 204),
    ("PATCH", "/headers", Some(r#"{"headers":{"x-a":null}}"#), 204),
    ("GET", "/secret", None, 200),
    ("POST", "/secret/rotate", Some("{}"), 200),
    ("GET", "/stats", None, 200),
    ("POST", "/pause", None, 200),
    ("POST", "/resume", None, 200),
    ("POST", "/send-example", Some(r#"{"eventType":"order.paid"}"#), 200),
    ("DELETE", "", None, 204),
];

fn read(body: &str) -> Value {
    serde_json::from_str(body).unwrap()
}

async fn uid_taken(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let (one, two) = (api.app("one").await, api.app("two").await);
    let first = api.endpoint(&one, json!({ "url": URL, "uid": "mine" })).await;
    let second = api.endpoint(&one, json!({ "url": URL })).await;
    let all = format!("/app/{one}/endpoint");
    let taken = [
        api.post(&all, json!({ "url": URL, "uid": "mine" })).await,
        api.patch(&format!("{all}/{second}"), json!({ "uid": "mine" })).await,
        api.put(&format!("{all}/{second}"), json!({ "url": URL, "uid": "mine" })).await,
    ];
    for (status, answer) in taken {
        assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("uid_taken")), "{answer}");
        assert!(text(&answer["detail"]).contains(&first), "{answer}");
    }
    api.endpoint(&two, json!({ "url": URL, "uid": "mine" })).await;
    // Its own it may keep, and what is given up is free again.
    assert_eq!(api.patch(&format!("{all}/{first}"), json!({ "uid": "mine" })).await.0, StatusCode::OK);
    assert_eq!(api.patch(&format!("{all}/{first}"), json!({ "uid": null })).await.0, StatusCode::OK);
    assert_eq!(api.patch(&format!("{all}/{second}"), json!({ "uid": "mine" })).await.0, StatusCode::OK);
    assert_eq!(api.get(&format!("{all}/mine")).await.1["id"], json!(second));
    let looks = api.post(&all, json!({ "url": URL, "uid": first })).await;
    assert!(complaint(&looks).1.contains("look like an id"), "{}", looks.1);
}

async fn pages(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(api.endpoint(&app, json!({ "url": URL, "eventTypes": [format!("t{n}")] })).await);
        rest.clock.advance(std::time::Duration::from_millis(8));
    }
    for order in ["ascending", "descending"] {
        let (mut seen, mut after, mut back) = (Vec::new(), String::new(), String::new());
        loop {
            let (_, page) = api.get(&format!("/app/{app}/endpoint?limit=2&order={order}{after}")).await;
            for entry in page["data"].as_array().unwrap() {
                let place = ids.iter().position(|id| *id == text(&entry["id"])).unwrap();
                assert_eq!(entry["eventTypes"], json!([format!("t{place}")]), "each has its own filter");
                seen.push(place);
            }
            after = format!("&iterator={}", text(&page["iterator"]));
            if page["done"] == json!(true) {
                break;
            }
            back = format!("&iterator={}", text(&page["prevIterator"]));
        }
        let expected: Vec<usize> = if order == "ascending" { (0..5).collect() } else { (0..5).rev().collect() };
        assert_eq!(seen, expected);
        let (_, page) = api.get(&format!("/app/{app}/endpoint?limit=2&order={order}{back}")).await;
        let first: Vec<String> = page["data"].as_array().unwrap().iter().map(|entry| text(&entry["id"])).collect();
        assert_eq!(first, [ids[expected[0]].clone(), ids[expected[1]].clone()], "back to the first page");
    }
}

/// Asks for everything that can be done with an endpoint, and is told each time that it is not there.
async fn sees_nothing(caller: &Caller, app: &str, endpoint: &str) {
    for (method, path, body, _) in ROUTES {
        let path = format!("/app/{app}/endpoint/{endpoint}{path}");
        let (status, answer) = caller.send(method.parse().unwrap(), &path, body.map(read)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}: {answer}");
    }
    assert_eq!(caller.get(&format!("/app/{app}/endpoint")).await.0, StatusCode::NOT_FOUND);
    let made = caller.post(&format!("/app/{app}/endpoint"), json!({ "url": URL })).await;
    assert_eq!(made.0, StatusCode::NOT_FOUND);
}

async fn isolation(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let (api, stranger) = (rest.operator(), rest.stranger());
    let (_, app) = api.post("/app", json!({ "name": "shop", "uid": "shop" })).await;
    let app = text(&app["id"]);
    let id = api.endpoint(&app, json!({ "url": URL })).await;
    let before = api.get(&format!("/app/{app}/endpoint/{id}")).await;
    // The same uid of a tenant is another tenant in another organisation.
    for app in [app.as_str(), "shop"] {
        sees_nothing(&stranger, app, &id).await;
    }
    let (status, theirs) = stranger.post("/app", json!({ "name": "shop", "uid": "shop" })).await;
    assert_eq!(status, StatusCode::CREATED, "{theirs}");
    // An endpoint is found under its own application only; an id of another's is free to be no name at all.
    let other = api.app("other").await;
    for (method, path, body, _) in ROUTES {
        for (caller, app) in [(&stranger, "shop"), (&api, other.as_str())] {
            let path = format!("/app/{app}/endpoint/{id}{path}");
            let (status, answer) = caller.send(method.parse().unwrap(), &path, body.map(read)).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}: {answer}");
        }
    }
    assert_eq!(api.get(&format!("/app/{app}/endpoint/{id}")).await, before, "nothing has changed");
    assert_eq!(rest.counts().await.accepted(), 0);
}

async fn portal(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let (mine, theirs) = (api.app("mine").await, api.app("theirs").await);
    let other = api.endpoint(&theirs, json!({ "url": URL })).await;
    let owner = rest.portal(&mine);
    owner.endpoint(&mine, json!({ "url": URL, "uid": "mine" })).await;
    sees_nothing(&owner, &theirs, &other).await;
    for (method, path, body, expected) in ROUTES {
        let path = format!("/app/{mine}/endpoint/mine{path}");
        let (status, answer) = owner.send(method.parse().unwrap(), &path, body.map(read)).await;
        assert_eq!(status, *expected, "{method} {path}: {answer}");
    }
    // What belongs to the organisation is not the owner's.
    for (method, path, body) in [
        (Method::GET, "/app".to_owned(), None),
        (Method::POST, "/app".to_owned(), Some(json!({ "name": "more" }))),
        (Method::DELETE, format!("/app/{mine}"), None),
        (Method::PATCH, format!("/app/{mine}"), Some(json!({ "name": "new" }))),
        (Method::POST, format!("/app/{mine}/msg"), Some(json!({ "eventType": "a", "payload": {} }))),
    ] {
        let (status, answer) = owner.send(method.clone(), &path, body).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{method} {path}: {answer}");
    }
}

async fn repeated(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let path = format!("/app/{app}/endpoint");
    let create = |key: &'static str| {
        let (api, path) = (api.clone(), path.clone());
        async move { api.send_with(Method::POST, &path, Some(json!({ "url": URL })), &[("idempotency-key", key)]).await }
    };
    let first = create("k1").await;
    assert_eq!(first.0, StatusCode::CREATED);
    assert_eq!(create("k1").await, first, "the stored answer");
    assert_ne!(create("k2").await.1["id"], first.1["id"]);
    assert_eq!(api.get(&path).await.1["data"].as_array().unwrap().len(), 2);
}

async fn fifty_puts(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let path = format!("/app/{app}/endpoint/mine");
    let puts = (0..50).map(|n| {
        let (api, path) = (api.clone(), path.clone());
        let body = json!({ "url": format!("https://example.com/{n}"), "eventTypes": [format!("t{n}")] });
        tokio::spawn(async move { api.put(&path, body).await })
    });
    let answers: Vec<_> = join_all(puts).await.into_iter().map(Result::unwrap).collect();
    let mut ids = BTreeSet::new();
    for (status, answer) in &answers {
        assert!(matches!(status.as_u16(), 200 | 201 | 409), "{status}: {answer}");
        if status.is_success() {
            ids.insert(text(&answer["id"]));
        }
    }
    assert_eq!(ids.len(), 1, "all write the same endpoint");
    assert_eq!(answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).count(), 1);
    let (_, last) = api.get(&path).await;
    let number = text(&last["url"]).rsplit_once('/').unwrap().1.to_owned();
    assert_eq!(last["eventTypes"], json!([format!("t{number}")]), "nothing of one put is mixed with another");
    assert_eq!(api.get(&format!("/app/{app}/endpoint")).await.1["data"].as_array().unwrap().len(), 1);
}

async fn many_want(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let all = format!("/app/{app}/endpoint");
    let mut wishes = Vec::new();
    for n in 0..20 {
        let wish = if n % 2 == 0 {
            let id = api.endpoint(&app, json!({ "url": URL })).await;
            (Method::PATCH, format!("{all}/{id}"), json!({ "uid": "mine" }))
        } else {
            (Method::POST, all.clone(), json!({ "url": URL, "uid": "mine" }))
        };
        wishes.push(wish);
    }
    let wishes = wishes.into_iter().map(|(method, path, body)| {
        let api = api.clone();
        tokio::spawn(async move { api.send(method, &path, Some(body)).await })
    });
    let answers: Vec<_> = join_all(wishes).await.into_iter().map(Result::unwrap).collect();
    let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(status, _)| status.is_success());
    assert_eq!(won.len(), 1, "{won:?}");
    for (status, answer) in lost {
        assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("uid_taken")), "{answer}");
    }
    assert_eq!(api.get(&format!("{all}/mine")).await.1["id"], won[0].1["id"]);
}

/// An UPDATE to a uid that another transaction has entered and not yet committed would fail as a statement.
async fn open_twin(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let id = api.endpoint(&app, json!({ "url": URL })).await;
    let mut new = NewEndpoint::new(Key::new(app.clone()).unwrap(), URL);
    new.uid = Some(Key::new("mine").unwrap());
    let manager = Manager::new(&rest.store, AddressPolicy::AllowPrivate, &Policy::default());
    let mut tx = rest.store.begin().await.unwrap();
    let holder = manager.create(&mut tx.conn(), new).await.unwrap().endpoint.id;
    let (pid,): (i64,) = tx.conn().fetch_one("SELECT pg_backend_pid()::bigint", &[]).await.unwrap();
    let path = format!("/app/{app}/endpoint/{id}");
    let patch = tokio::spawn(async move { api.patch(&path, json!({ "uid": "mine" })).await });
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)::bigint[])";
    let mut waiting = 0_i64;
    for _ in 0..3_000 {
        let mut reader = rest.store.read().await.unwrap();
        (waiting,) = reader.conn().fetch_one(blocked, &[pid.into()]).await.unwrap();
        if waiting == 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(waiting, 1, "the patch waits for the open transaction");
    tx.commit().await.unwrap();
    let (status, answer) = patch.await.unwrap();
    assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("uid_taken")), "{answer}");
    assert!(text(&answer["detail"]).contains(&holder), "{answer}");
}
