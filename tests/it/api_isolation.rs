//! Who may see and do what through the REST API.

use std::time::Duration;

use http::Method;
use serde_json::json;
use twiceproof::dispatcher::Dispatcher;

use crate::api_kit::{Client, Rest, text};
use crate::dispatch::{answer, options, sink, timed, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("api::send_c6_what_belongs_to_others_is_not_found", others);
    suite.both("api::a_portal_reads_and_resends_in_its_own_application_and_nothing_else", portal);
    suite.both("api::a_portal_token_ends_after_seven_days", portal_ends);
    suite.both("api::a_portal_brings_its_application_along_once", portal_brings_application);
    suite.both("api::a_request_without_a_valid_token_is_refused_before_anything_is_read", no_token);
}

/// An application with an endpoint, a message and a failed attempt, all of which only `client` may see.
async fn furnish(client: &Client, app: &str, url: &str) -> [String; 3] {
    client.application(app).await;
    let endpoint = client.endpoint(app, &format!("of-{app}"), url, "").await;
    let message = client.message(app, "t", &format!(r#","eventId":"of-{app}""#)).await;
    let app = text(&client.get(&format!("/app/{app}")).await.json(200)["id"]);
    [app, endpoint, message]
}

/// Every route that names a message or an attempt.
fn routes(app: &str, endpoint: &str, message: &str, attempt: &str) -> Vec<(Method, String)> {
    let get = |path: String| (Method::GET, format!("/app/{app}/{path}"));
    let delete = |path: String| (Method::DELETE, format!("/app/{app}/{path}"));
    vec![
        get(format!("msg/{message}")),
        get(format!("msg/{message}/endpoint")),
        get(format!("attempt/msg/{message}")),
        get(format!("attempt/endpoint/{endpoint}")),
        get(format!("endpoint/{endpoint}/msg")),
        get(format!("msg/{message}/attempt/{attempt}")),
        delete(format!("msg/{message}/attempt/{attempt}/content")),
        (Method::POST, format!("/app/{app}/msg/{message}/endpoint/{endpoint}/resend")),
    ]
}

async fn others(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let rest = Rest::new(&store);
    let (front, seen) = sink(|_, _| answer(500)).await;
    let (one, two) = (rest.organisation(1), rest.organisation(2));
    let [a, endpoint_a, message_a] = furnish(&one, "a", &url(&front)).await;
    let [b, endpoint_b, message_b] = furnish(&one, "b", &url(&front)).await;
    let [c, ..] = furnish(&two, "c", &url(&front)).await;
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    assert_eq!(dispatcher.step().await.unwrap().claimed, 3);
    let attempts = one.list(&format!("/app/{a}/attempt/msg/{message_a}"), "id").await.0;
    let attempt_a = attempts[0].as_str();
    let access = one.post(&format!("/auth/app-portal-access/{b}"), "{}").await.json(200);
    let portal_b = rest.client(&text(&access["token"]));
    // Somebody else's token; the own application with somebody else's things; names in place of ids.
    let mut tried = Vec::new();
    for (client, app) in
        [(&two, a.as_str()), (&two, "a"), (&two, c.as_str()), (&portal_b, a.as_str()), (&portal_b, "b"), (&one, "b")]
    {
        let ids = routes(app, &endpoint_a, &message_a, attempt_a);
        let names = routes(app, "of-a", "of-a", attempt_a);
        tried.extend(ids.into_iter().chain(names).map(|(method, path)| (client, method, path)));
    }
    // The own message at somebody else's endpoint, and the other way round.
    for (endpoint, message) in [(&endpoint_a, &message_b), (&endpoint_b, &message_a)] {
        tried.push((&one, Method::POST, format!("/app/b/msg/{message}/endpoint/{endpoint}/resend")));
    }
    tried.push((&two, Method::GET, "/app/a/msg".to_owned()));
    tried.push((&two, Method::POST, "/auth/app-portal-access/a".to_owned()));
    tried.push((&two, Method::DELETE, format!("/app/a/msg/{message_a}/content")));
    for (client, method, path) in tried {
        assert_eq!(client.send(method.clone(), &path, "").await.code(404), "not_found", "{method} {path}");
    }
    let body = r#"{"eventType":"t","payload":{}}"#;
    assert_eq!(two.post("/app/a/msg", body).await.code(404), "not_found");
    assert_eq!(dispatcher.step().await.unwrap().claimed, 0, "nothing was sent for anybody");
    assert_eq!(seen.lock().unwrap().len(), 3);
    // An application brought along by a message is the caller's own, though another organisation has one of this name.
    two.post("/app/a/msg", r#"{"eventType":"t","payload":{},"application":{"name":"mine"}}"#).await.json(202);
    assert_eq!(one.list("/app/a/msg", "id").await.0, [message_a]);
}

async fn portal(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let rest = Rest::new(&store);
    let (front, _) = sink(|_, _| answer(500)).await;
    let operator = rest.organisation(1);
    let [app, endpoint, message] = furnish(&operator, "a", &url(&front)).await;
    operator.post("/event-type", r#"{"name":"t","description":""}"#).await.json(201);
    let mut dispatcher = Dispatcher::start(&store, options()).await.unwrap();
    dispatcher.step().await.unwrap();
    let access = operator.post("/auth/app-portal-access/a", "").await.json(200);
    let token = text(&access["token"]);
    assert_eq!(access["url"], format!("https://hooks.example/console#key={token}"), "behind the #, which is not sent");
    let portal = rest.client(&token);
    let attempt = portal.list(&format!("/app/a/attempt/msg/{message}"), "id").await.0.remove(0);
    for (method, path) in routes(&app, &endpoint, &message, &attempt) {
        let got = portal.send(method.clone(), &path, "").await;
        assert!(got.status.is_success(), "{method} {path}: {}", got.text);
    }
    assert_eq!(dispatcher.step().await.unwrap().claimed, 1, "it may send again");
    assert_eq!(portal.list("/event-type", "name").await.0, ["t"]);
    assert_eq!(portal.list("/app/a/msg", "id").await.0, std::slice::from_ref(&message));
    for (method, path, body) in [
        (Method::POST, "/app/a/msg".to_owned(), json!({ "eventType": "t", "payload": {} })),
        (Method::DELETE, format!("/app/a/msg/{message}/content"), json!({})),
        (Method::POST, "/event-type".to_owned(), json!({ "name": "u", "description": "" })),
        (Method::PUT, "/event-type/t".to_owned(), json!({ "description": "" })),
        (Method::PATCH, "/event-type/t".to_owned(), json!({})),
        (Method::DELETE, "/event-type/t".to_owned(), json!({})),
        (Method::POST, "/auth/app-portal-access/a".to_owned(), json!({})),
    ] {
        let got = portal.send(method.clone(), &path, body.to_string()).await;
        assert_eq!(got.code(403), "permission_denied", "{method} {path}");
    }
}

async fn portal_ends(bed: Bed) {
    let (clock, store) = timed(&bed).await;
    let rest = Rest::new(&store);
    let operator = rest.organisation(1);
    operator.application("a").await;
    let access = operator.post("/auth/app-portal-access/a", "{}").await.json(200);
    let portal = rest.client(&text(&access["token"]));
    clock.advance(Duration::from_secs(7 * 86_400));
    portal.get("/app/a/msg").await.json(200);
    // Tokens are not stored: the client forgets its own.
    portal.post("/auth/logout", "").await.empty(204);
    clock.advance(Duration::from_secs(60));
    assert_eq!(portal.get("/app/a/msg").await.code(401), "authentication_failed");
    assert_eq!(portal.post("/auth/logout", "").await.code(401), "authentication_failed");
}

async fn portal_brings_application(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let rest = Rest::new(&store);
    let operator = rest.organisation(1);
    assert_eq!(operator.post("/auth/app-portal-access/new", "{}").await.code(404), "not_found");
    let body = r#"{"application":{"name":"New one"}}"#;
    for (client, app) in [(operator.clone(), "new"), (operator.clone(), "new"), (operator.keyed("k"), "newer")] {
        let access = client.post(&format!("/auth/app-portal-access/{app}"), body).await.json(200);
        let portal = rest.client(&text(&access["token"]));
        assert_eq!(portal.get(&format!("/app/{app}")).await.json(200)["name"], "New one");
    }
    assert_eq!(operator.list("/app", "uid").await.0.len(), 2);
}

async fn no_token(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let rest = Rest::new(&store);
    let operator = rest.organisation(1);
    operator.application("a").await;
    let nobody = rest.client("none");
    for (method, path) in routes("a", "e", "m", "x") {
        assert_eq!(nobody.send(method, &path, "").await.code(401), "authentication_failed");
    }
    for body in ["{}", "not read", r#"{"eventType":"t","payload":{}}"#] {
        assert_eq!(nobody.post("/app/a/msg", body).await.code(401), "authentication_failed");
        assert_eq!(nobody.keyed("k").post("/event-type", body).await.code(401), "authentication_failed");
    }
    assert_eq!(operator.list("/app/a/msg", "id").await.0.len(), 0);
}
