//! What the settings of an endpoint over the REST API mean for what it is sent.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use twiceproof::dispatcher::guard::AddressPolicy;
use twiceproof::dispatcher::{Counts, Manager, NewEndpoint, Policy};
use twiceproof::prove::Message;
use twiceproof_shared::key::Key;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{self, SignedHeaders};

use crate::api_bed::{Caller, Rest, text};
use crate::dispatch::{answer, header, sink, url};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("api_endpoints::custom_headers_arrive_and_never_replace_the_systems", headers);
    suite.both("api_endpoints::send_g2_an_old_secret_signs_for_its_grace_and_no_longer", grace);
    suite.both("api_endpoints::send_g5_the_grace_of_a_day_holds_for_three_rotations_in_a_row", three_rotations);
    suite.both("api_endpoints::a_rotation_without_grace_ends_the_old_secret_at_once", no_grace);
    suite.both("api_endpoints::many_rotations_never_make_more_signatures_than_a_receiver_reads", many_rotations);
    suite.both("api_endpoints::an_example_reaches_its_endpoint_alone_whatever_the_filter", example);
    suite.both("api_endpoints::an_example_to_a_refused_address_is_not_sent", refused_example);
    suite.both("api_endpoints::send_c8_what_a_paused_endpoint_missed_follows_in_order", paused);
    suite.both("api_endpoints::events_go_to_endpoints_that_have_one_of_their_channels", channels);
    suite.both("api_endpoints::stats_count_by_state_and_time", stats);
    suite.both("api_endpoints::what_a_deleted_endpoint_was_owed_comes_to_its_end", deleted);
}

/// Every request that a sink saw since the last look.
fn taken(seen: &crate::dispatch::Seen) -> Vec<Message> {
    std::mem::take(&mut *seen.lock().unwrap())
}

fn paid() -> Value {
    json!({ "eventType": "order.paid", "payload": { "order": 1 } })
}

async fn headers(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let (front, seen) = sink(|_, _| answer(200)).await;
    let app = api.app("shop").await;
    let custom = json!({ "X-Shop": "a b\tc", "authorization": "Bearer geheim" });
    let id = api.endpoint(&app, json!({ "url": url(&front), "headers": custom })).await;
    let secret = secret_of(&api, &app, &id).await;
    let mut dispatcher = rest.dispatcher().await;
    api.message(&app, paid()).await;
    dispatcher.step().await.unwrap();
    let [first] = &taken(&seen)[..] else { panic!("one request") };
    assert_eq!((header(first, "x-shop"), header(first, "authorization")), ("a b\tc", "Bearer geheim"));
    assert_eq!(matching(&rest, first, &secret), Some(0));

    let path = format!("/app/{app}/endpoint/{id}/headers");
    assert_eq!(api.patch(&path, json!({ "headers": { "x-shop": null } })).await.0, StatusCode::NO_CONTENT);
    // Written by nobody's rules: whatever stands in the database cannot take the place of the system's own.
    let forged = json!({
        "x-kept": "1", "webhook-id": "forged", "webhook-signature": "v1,forged", "webhook-timestamp": "1",
        "content-type": "text/forged", "content-length": "1", "host": "forged", "user-agent": "forged",
        "transfer-encoding": "chunked", "x-broken": "a\r\nx-injected: 1",
    });
    let sql = "UPDATE twiceproof_endpoints SET headers = $2 WHERE id = $1";
    let mut tx = rest.store.begin().await.unwrap();
    tx.conn().execute(sql, &[id.as_str().into(), forged.to_string().as_str().into()]).await.unwrap();
    tx.commit().await.unwrap();
    let event = api.message(&app, paid()).await;
    dispatcher.step().await.unwrap();
    let [second] = &taken(&seen)[..] else { panic!("one request") };
    assert_eq!((header(second, "webhook-id"), header(second, "x-kept")), (event.as_str(), "1"));
    assert_eq!(matching(&rest, second, &secret), Some(0));
    assert_eq!(header(second, "content-type"), "application/json");
    assert_eq!(second.body.as_ref(), br#"{"order":1}"#);
    let shown = format!("{:?}", second.headers);
    assert!(!shown.contains("forged") && !shown.contains("inject"), "{shown}");
}

/// The secret that the API shows.
async fn secret_of(api: &Caller, app: &str, endpoint: &str) -> Secret {
    let (status, secret) = api.get(&format!("/app/{app}/endpoint/{endpoint}/secret")).await;
    assert_eq!(status, StatusCode::OK, "{secret}");
    Secret::parse(&text(&secret["key"])).unwrap()
}

async fn rotate(api: &Caller, app: &str, endpoint: &str, body: Value) -> Secret {
    let (status, new) = api.post(&format!("/app/{app}/endpoint/{endpoint}/secret/rotate"), body).await;
    assert_eq!(status, StatusCode::OK, "{new}");
    let shown = secret_of(api, app, endpoint).await;
    assert_eq!(new, json!({ "key": shown.to_text().as_str() }), "what is answered is what signs");
    shown
}

/// How many signatures a request has.
fn signatures(message: &Message) -> usize {
    header(message, signature::SIGNATURE).split(' ').count()
}

/// Whether one of the request's signatures is by this secret, as a receiver finds out that has this one only.
fn matching(rest: &Rest, message: &Message, secret: &Secret) -> Option<usize> {
    let signed = SignedHeaders {
        id: header(message, signature::ID),
        timestamp: header(message, signature::TIMESTAMP),
        signature: header(message, signature::SIGNATURE),
    };
    let now = rest.store.now();
    let tolerance = Duration::from_secs(300);
    signature::verify(&signed, &message.body, std::slice::from_ref(secret), now, tolerance)
        .ok()
        .map(|verified| verified.secret_index)
}

/// An endpoint over the API, and what it takes to have it sent something.
struct Line {
    rest: Rest,
    api: Caller,
    app: String,
    endpoint: String,
    seen: crate::dispatch::Seen,
    dispatcher: twiceproof::dispatcher::Dispatcher,
    _front: twiceproof::prove::Front,
}

impl Line {
    async fn open(bed: &Bed) -> Self {
        let rest = Rest::open(bed).await;
        let api = rest.operator();
        let (front, seen) = sink(|_, _| answer(200)).await;
        let app = api.app("shop").await;
        let endpoint = api.endpoint(&app, json!({ "url": url(&front) })).await;
        let dispatcher = rest.dispatcher().await;
        Self { rest, api, app, endpoint, seen, dispatcher, _front: front }
    }

    async fn secret(&self) -> Secret {
        secret_of(&self.api, &self.app, &self.endpoint).await
    }

    async fn rotate(&self, body: Value) -> Secret {
        rotate(&self.api, &self.app, &self.endpoint, body).await
    }

    /// Has one message sent; the request.
    async fn send(&mut self) -> Message {
        self.api.message(&self.app, paid()).await;
        self.dispatcher.step().await.unwrap();
        let mut requests = taken(&self.seen);
        assert_eq!(requests.len(), 1);
        requests.remove(0)
    }

    /// Which of the secrets have signed the request.
    fn signed_by(&self, message: &Message, secrets: &[&Secret]) -> Vec<bool> {
        secrets.iter().map(|secret| matching(&self.rest, message, secret).is_some()).collect()
    }
}

async fn grace(bed: Bed) {
    let mut line = Line::open(&bed).await;
    let old = line.secret().await;
    let given = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let new = line.rotate(json!({ "key": given, "gracePeriodSeconds": 3600 })).await;
    assert_eq!(new.to_text().as_str(), given);
    let request = line.send().await;
    assert_eq!((signatures(&request), line.signed_by(&request, &[&old, &new])), (2, vec![true, true]));
    line.rest.clock.advance(Duration::from_secs(3599));
    let request = line.send().await;
    assert_eq!((signatures(&request), line.signed_by(&request, &[&old, &new])), (2, vec![true, true]));
    line.rest.clock.advance(Duration::from_secs(61));
    let request = line.send().await;
    assert_eq!((signatures(&request), line.signed_by(&request, &[&old, &new])), (1, vec![false, true]));
}

async fn three_rotations(bed: Bed) {
    let mut line = Line::open(&bed).await;
    let mut secrets = vec![line.secret().await];
    for _ in 0..3 {
        secrets.push(line.rotate(json!({})).await);
        line.rest.clock.advance(Duration::from_secs(3600));
    }
    let [first, second, third, fourth] = &secrets[..] else { panic!("four secrets") };
    let all = [first, second, third, fourth];
    let request = line.send().await;
    assert_eq!((signatures(&request), line.signed_by(&request, &all)), (4, vec![true; 4]));
    // A day after the first rotation, one hour before that of the second: a later rotation gives no secret more time.
    line.rest.clock.advance(Duration::from_secs(21 * 3600));
    let request = line.send().await;
    assert_eq!(line.signed_by(&request, &all), [false, true, true, true]);
    line.rest.clock.advance(Duration::from_secs(2 * 3600));
    let request = line.send().await;
    assert_eq!((signatures(&request), line.signed_by(&request, &all)), (1, vec![false, false, false, true]));
}

async fn no_grace(bed: Bed) {
    let mut line = Line::open(&bed).await;
    let old = line.secret().await;
    let new = line.rotate(json!({ "gracePeriodSeconds": 0 })).await;
    let request = line.send().await;
    assert_eq!((signatures(&request), line.signed_by(&request, &[&old, &new])), (1, vec![false, true]));
}

async fn many_rotations(bed: Bed) {
    let mut line = Line::open(&bed).await;
    let mut secrets = vec![line.secret().await];
    for _ in 0..12 {
        line.rest.clock.advance(Duration::from_millis(1));
        secrets.push(line.rotate(json!({ "gracePeriodSeconds": 604_800 })).await);
    }
    let request = line.send().await;
    assert_eq!(signatures(&request), signature::MAX_SIGNATURES);
    let secrets: Vec<&Secret> = secrets.iter().collect();
    let signed = line.signed_by(&request, &secrets);
    let newest = secrets.len() - signature::MAX_SIGNATURES;
    let expected: Vec<bool> = (0..secrets.len()).map(|place| place >= newest).collect();
    assert_eq!(signed, expected, "the newest sign");
}

async fn example(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let (front, seen) = sink(|_, _| answer(200)).await;
    let (other, seen_other) = sink(|_, _| answer(200)).await;
    let app = api.app("shop").await;
    let filter = json!({ "url": url(&front), "eventTypes": ["something.else"], "channels": ["none"] });
    let one = api.endpoint(&app, filter).await;
    api.endpoint(&app, json!({ "url": url(&other) })).await;
    let schemas = json!({ "1": { "type": "object", "examples": [{ "old": 1 }] },
                          "2": { "type": "object", "examples": [{ "order": 7 }, { "order": 8 }] } });
    let (status, made) =
        api.post("/event-type", json!({ "name": "order.paid", "description": "", "schemas": schemas })).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let mut dispatcher = rest.dispatcher().await;
    for (event_type, payload) in [
        ("order.paid", json!({ "order": 7 })),
        ("order.unknown", json!({ "example": true, "eventType": "order.unknown" })),
    ] {
        let path = format!("/app/{app}/endpoint/{one}/send-example");
        let (status, message) = api.post(&path, json!({ "eventType": event_type })).await;
        assert_eq!(status, StatusCode::OK, "{message}");
        assert_eq!((&message["eventType"], &message["payload"]), (&json!(event_type), &payload));
        dispatcher.step().await.unwrap();
        let [request] = &taken(&seen)[..] else { panic!("one request") };
        assert_eq!(header(request, signature::ID), text(&message["id"]));
        assert_eq!(serde_json::from_slice::<Value>(&request.body).unwrap(), payload);
        // It is a message like any other, with one delivery.
        let (status, stored) = api.get(&format!("/app/{app}/msg/{}", text(&message["id"]))).await;
        assert_eq!((status, &stored["payload"]), (StatusCode::OK, &payload));
    }
    assert!(seen_other.lock().unwrap().is_empty(), "nobody else is sent it");
    assert_eq!(rest.counts().await, Counts { delivered: 2, ..Counts::default() });
}

/// The guard stands before every request, also where somebody asked for it by hand.
async fn refused_example(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let (front, seen) = sink(|_, _| answer(200)).await;
    let app = api.app("shop").await;
    let id = api.endpoint(&app, json!({ "url": url(&front) })).await;
    let path = format!("/app/{app}/endpoint/{id}/send-example");
    assert_eq!(api.post(&path, json!({ "eventType": "order.paid" })).await.0, StatusCode::OK);
    let mut options = crate::dispatch::options();
    options.sender.addresses = AddressPolicy::PublicOnly;
    let mut dispatcher = twiceproof::dispatcher::Dispatcher::start(&rest.store, options).await.unwrap();
    assert_eq!(dispatcher.step().await.unwrap().claimed, 1);
    assert!(seen.lock().unwrap().is_empty());
    assert_eq!(rest.counts().await.delivered, 0);
}

async fn paused(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let (front, seen) = sink(|n, _| answer(if n == 0 { 500 } else { 200 })).await;
    let app = api.app("shop").await;
    // One request at a time, so that their order can be seen.
    let mut new = NewEndpoint::new(Key::new(app.clone()).unwrap(), url(&front));
    new.slots = Some(1);
    let manager = Manager::new(&rest.store, AddressPolicy::AllowPrivate, &Policy::default());
    let id = manager.create_now(new).await.unwrap().endpoint.id;
    let one = format!("/app/{app}/endpoint/{id}");
    let mut dispatcher = rest.dispatcher().await;
    let pause = async |paused: bool, by_patch: bool| {
        let (status, endpoint) = match (by_patch, paused) {
            (true, _) => api.patch(&one, json!({ "disabled": paused })).await,
            (false, true) => api.post(&format!("{one}/pause"), json!({})).await,
            (false, false) => api.post(&format!("{one}/resume"), json!({})).await,
        };
        assert_eq!((status, &endpoint["disabled"]), (StatusCode::OK, &json!(paused)), "{endpoint}");
        assert_eq!(endpoint["disabledReason"], if paused { json!("manual") } else { Value::Null });
    };
    // The first fails once and waits for its next attempt when the endpoint is paused.
    let mut sent = vec![api.message(&app, paid()).await];
    dispatcher.step().await.unwrap();
    assert_eq!(rest.counts().await.backoff, 1);
    taken(&seen);
    for by_patch in [false, true] {
        sent.push(api.message(&app, paid()).await);
        pause(true, by_patch).await;
        for _ in 0..4 {
            sent.push(api.message(&app, paid()).await);
        }
        // Long past the horizon: the time of a pause does not count.
        rest.clock.advance(Duration::from_secs(100 * 86_400));
        dispatcher.step().await.unwrap();
        assert!(seen.lock().unwrap().is_empty(), "a paused endpoint is sent nothing");
        assert_eq!(rest.counts().await.parked, sent.len() as u64, "and all is kept");
        pause(false, by_patch).await;
        for _ in 0..2 * sent.len() {
            dispatcher.step().await.unwrap();
        }
        let order: Vec<String> = taken(&seen).iter().map(|message| header(message, signature::ID).to_owned()).collect();
        assert_eq!(order, sent, "oldest first");
        assert_eq!(rest.counts().await.open(), 0);
        sent.clear();
    }
}

async fn channels(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let mut sinks = Vec::new();
    for filter in [
        json!({}),
        json!({ "channels": ["red"] }),
        json!({ "channels": ["blue", "red"] }),
        json!({ "channels": ["red"], "eventTypes": ["order.sent"] }),
    ] {
        let (front, seen) = sink(|_, _| answer(200)).await;
        let mut body = filter;
        body["url"] = json!(url(&front));
        api.endpoint(&app, body).await;
        sinks.push((front, seen));
    }
    let mut dispatcher = rest.dispatcher().await;
    for (channels, event_type, expected) in [
        (Value::Null, "order.paid", [1, 0, 0, 0]),
        (json!(["green"]), "order.paid", [1, 0, 0, 0]),
        (json!(["red"]), "order.paid", [1, 1, 1, 0]),
        (json!(["green", "blue"]), "order.paid", [1, 0, 1, 0]),
        (json!(["red", "blue"]), "order.sent", [1, 1, 1, 1]),
        (json!(["re"]), "order.sent", [1, 0, 0, 0]),
    ] {
        let message = json!({ "eventType": event_type, "payload": {}, "channels": channels });
        api.message(&app, message).await;
        dispatcher.step().await.unwrap();
        let got: Vec<usize> = sinks.iter().map(|(_, seen)| taken(seen).len()).collect();
        assert_eq!(got, expected, "{event_type} {channels}");
    }
}

async fn stats(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let (front, _seen) = sink(|n, _| answer(if n == 0 { 500 } else { 200 })).await;
    let app = api.app("shop").await;
    let id = api.endpoint(&app, json!({ "url": url(&front) })).await;
    let other = api.endpoint(&app, json!({ "url": url(&front), "disabled": true })).await;
    let mut dispatcher = rest.dispatcher().await;
    let counted = async |id: &str, query: &str| {
        let (status, stats) = api.get(&format!("/app/{app}/endpoint/{id}/stats{query}")).await;
        assert_eq!(status, StatusCode::OK, "{stats}");
        ["success", "pending", "sending", "fail", "canceled"].map(|name| stats[name].as_u64().unwrap())
    };
    assert_eq!(counted(&id, "").await, [0; 5]);
    for _ in 0..2 {
        api.message(&app, paid()).await;
        dispatcher.step().await.unwrap();
    }
    assert_eq!(counted(&id, "").await, [1, 1, 0, 0, 0], "one delivered, one waiting for its next attempt");
    assert_eq!(counted(&other, "").await, [0, 2, 0, 0, 0], "kept for a disabled endpoint");
    rest.clock.advance(Duration::from_secs(3600));
    api.message(&app, paid()).await;
    assert_eq!(counted(&id, "?since=2023-11-14T23:00:00Z").await, [0, 1, 0, 0, 0]);
    assert_eq!(counted(&id, "?until=2023-11-14T23:00:00Z").await, [1, 1, 0, 0, 0]);
    assert_eq!(counted(&id, "?since=2023-11-14T22:30:00Z&until=2023-11-14T23:00:00Z").await, [0; 5]);
    let (status, _) = api.get(&format!("/app/{app}/endpoint/{id}/stats?since=yesterday")).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}

async fn deleted(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let (front, seen) = sink(|n, _| answer(if n == 0 { 200 } else { 500 })).await;
    let app = api.app("shop").await;
    let id = api.endpoint(&app, json!({ "url": url(&front) })).await;
    let kept = api.endpoint(&app, json!({ "url": url(&front), "disabled": true })).await;
    let mut dispatcher = rest.dispatcher().await;
    for _ in 0..2 {
        api.message(&app, paid()).await;
        dispatcher.step().await.unwrap();
    }
    api.message(&app, paid()).await;
    assert_eq!(rest.counts().await, Counts { delivered: 1, backoff: 1, pending: 1, parked: 3, ..Counts::default() });
    for endpoint in [&id, &kept] {
        assert_eq!(api.delete(&format!("/app/{app}/endpoint/{endpoint}")).await.0, StatusCode::NO_CONTENT);
    }
    taken(&seen);
    for _ in 0..10 {
        rest.clock.advance(Duration::from_secs(3600));
        dispatcher.step().await.unwrap();
    }
    assert!(seen.lock().unwrap().is_empty(), "nothing more is sent");
    assert_eq!(rest.counts().await, Counts { delivered: 1, dead: 5, ..Counts::default() }, "and nothing vanishes");
    let tables = "SELECT (SELECT count(*) FROM twiceproof_endpoint_secrets)
                      + (SELECT count(*) FROM twiceproof_endpoint_event_types) + (SELECT count(*) FROM twiceproof_endpoints)";
    let (left,): (i64,) = rest.store.read().await.unwrap().conn().fetch_one(tables, &[]).await.unwrap();
    assert_eq!(left, 0, "secrets and filters go too");
}
