//! What an endpoint may be over the REST API: every rule is kept whichever way a value comes, and says what it is about.

use http::StatusCode;
use serde_json::{Value, json};
use twiceproof::dispatcher::guard::AddressPolicy;

use crate::api_bed::{Rest, complaint, text};
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("api_endpoints::what_breaks_a_rule_is_refused_at_its_place", rules);
    suite.both("api_endpoints::send_c7_a_rate_limit_can_be_set_and_taken_away", rate_limit);
    suite.both("api_endpoints::send_s4_the_url_is_guarded_at_create_update_and_patch", guarded);
    suite.both("api_endpoints::send_c9_valid_host_names_are_taken_and_filters_are_sets", hosts);
    suite.both("api_endpoints::send_g11_g12_headers_that_cannot_be_sent_are_refused_by_name", bad_headers);
    suite.both("api_endpoints::credentials_in_headers_are_not_shown_again", sensitive);
}

const URL: &str = "https://example.com/hook";

async fn rules(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let all = format!("/app/{app}/endpoint");
    for (field, value, place) in [
        ("url", json!("nonsense"), "url"),
        ("url", json!(5), "url"),
        ("uid", json!("a b"), "uid"),
        ("uid", json!(""), "uid"),
        ("eventTypes", json!([]), "eventTypes"),
        ("eventTypes", json!(["a b"]), "eventTypes"),
        ("channels", json!([]), "channels"),
        ("channels", json!(["ok", "a b"]), "channels"),
        ("secret", json!("whsec_geheim"), "secret"),
        ("throttleRate", json!(-1), "throttleRate"),
    ] {
        let mut body = json!({ "url": URL });
        body[field] = value.clone();
        let answer = api.post(&all, body).await;
        let (loc, text) = complaint(&answer);
        assert_eq!(loc[..2], ["body", place], "{field} {value}: {text}");
        assert!(!text.contains("geheim"), "a secret is not repeated");
    }
    for body in [json!({ "throttleRate": 0 }), json!({ "description": "x".repeat(1_025) }), json!({ "uid": "\u{0}" })] {
        let mut body = body;
        body["url"] = json!(URL);
        complaint(&api.post(&all, body).await);
    }
    assert_eq!(complaint(&api.post(&all, json!({})).await).0[0], "body", "the url is missing");
    assert_eq!(api.get(&all).await.1["data"], json!([]), "nothing was stored");
    let id = api.endpoint(&app, json!({ "url": URL })).await;
    for grace in [json!(604_801), json!(-1), json!("1")] {
        let answer = api.post(&format!("{all}/{id}/secret/rotate"), json!({ "gracePeriodSeconds": grace })).await;
        assert_eq!(complaint(&answer).0, ["body", "gracePeriodSeconds"]);
    }
    let answer = api.post(&format!("{all}/{id}/send-example"), json!({ "eventType": "a b" })).await;
    assert_eq!(complaint(&answer).0, ["body", "eventType"]);
}

async fn rate_limit(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let id = api.endpoint(&app, json!({ "url": URL, "throttleRate": 7 })).await;
    let one = format!("/app/{app}/endpoint/{id}");
    for (body, expected) in [
        (json!({ "description": "stays" }), json!(7)),
        (json!({ "throttleRate": 9 }), json!(9)),
        (json!({ "throttleRate": null }), Value::Null),
    ] {
        assert_eq!(api.patch(&one, body).await.1["throttleRate"], expected);
        assert_eq!(api.get(&one).await.1["throttleRate"], expected);
    }
}

async fn guarded(bed: Bed) {
    let rest = Rest::with(&bed, AddressPolicy::PublicOnly).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let all = format!("/app/{app}/endpoint");
    let id = api.endpoint(&app, json!({ "url": URL })).await;
    for url in [
        "http://example.com/hook",
        "https://127.0.0.1/hook",
        "https://2130706433/hook",
        "https://[::1]/hook",
        "https://[::ffff:10.0.0.1]/hook",
        "https://169.254.169.254/latest",
        "https://localhost/hook",
        "https://a.localhost./hook",
        "https://user:geheim@example.com/hook",
        "https://example.com:22/hook",
        "file:///etc/passwd",
        "gopher://example.com/",
        "https://example.com/hook#part",
    ] {
        let body = json!({ "url": url });
        for answer in [
            api.post(&all, body.clone()).await,
            api.put(&format!("{all}/{id}"), body.clone()).await,
            api.put(&format!("{all}/new"), body.clone()).await,
            api.patch(&format!("{all}/{id}"), body.clone()).await,
        ] {
            let (loc, text) = complaint(&answer);
            assert_eq!(loc, ["body", "url"], "{url}");
            assert!(!text.contains("geheim") && !text.contains("/hook"), "the URL is not repeated: {text}");
        }
    }
    let (_, left) = api.get(&all).await;
    let urls: Vec<&Value> = left["data"].as_array().unwrap().iter().map(|one| &one["url"]).collect();
    assert_eq!(urls, [&json!(URL)]);
}

async fn hosts(bed: Bed) {
    let rest = Rest::with(&bed, AddressPolicy::PublicOnly).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    for (url, stored) in [
        ("https://my_host.example.com/hook", "https://my_host.example.com/hook"),
        ("https://bücher.example/hook", "https://xn--bcher-kva.example/hook"),
        ("https://xn--bcher-kva.example/hook", "https://xn--bcher-kva.example/hook"),
        ("https://example.com:8443/hook", "https://example.com:8443/hook"),
        ("https://intranet/hook", "https://intranet/hook"),
        ("https://a.b.c.d.e.example.co.uk", "https://a.b.c.d.e.example.co.uk/"),
        ("https://1password.example/hook", "https://1password.example/hook"),
        ("https://EXAMPLE.com/Hook", "https://example.com/Hook"),
    ] {
        let (status, made) = api.post(&format!("/app/{app}/endpoint"), json!({ "url": url })).await;
        assert_eq!((status, &made["url"]), (StatusCode::CREATED, &json!(stored)), "{url}: {made}");
    }
    let sets = json!({ "url": URL, "eventTypes": ["b", "a", "b"], "channels": ["z", "y", "z"] });
    let (status, made) = api.post(&format!("/app/{app}/endpoint"), sets).await;
    assert_eq!(status, StatusCode::CREATED);
    let one = format!("/app/{app}/endpoint/{}", text(&made["id"]));
    for endpoint in [made, api.get(&one).await.1, api.patch(&one, json!({ "eventTypes": ["b", "a", "a"] })).await.1] {
        assert_eq!((&endpoint["eventTypes"], &endpoint["channels"]), (&json!(["a", "b"]), &json!(["y", "z"])));
    }
}

async fn bad_headers(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let id = api.endpoint(&app, json!({ "url": URL, "headers": { "X-Kept": "1" } })).await;
    let path = format!("/app/{app}/endpoint/{id}/headers");
    let long = "v".repeat(4_097);
    let values = ["a\r\nx-b: c", "a\nb", "a\rb", "a\u{0}b", "zażółć", "a\u{85}b", "\u{7f}", long.as_str()];
    let names = ["Content-Length", "host", "Webhook-Signature", "svix-id", "transfer-encoding", "a b", "a:b", ""];
    let cases = values.iter().map(|value| ("x-bad", *value)).chain(names.iter().map(|name| (*name, "1")));
    for (name, value) in cases {
        let headers = json!({ "headers": { name: value } });
        let mut create = json!({ "url": URL });
        create["headers"] = headers["headers"].clone();
        for answer in [
            api.post(&format!("/app/{app}/endpoint"), create).await,
            api.put(&path, headers.clone()).await,
            api.patch(&path, headers.clone()).await,
        ] {
            let (loc, text) = complaint(&answer);
            assert_eq!(loc, ["body", "headers"], "{name:?}: {value:?}");
            assert!(text.contains(&name.to_lowercase()), "it names the header: {text}");
        }
    }
    let many: serde_json::Map<String, Value> = (0..51).map(|n| (format!("x-{n}"), json!("1"))).collect();
    complaint(&api.put(&path, json!({ "headers": many })).await);
    assert_eq!(api.get(&path).await.1, json!({ "headers": { "x-kept": "1" }, "sensitive": [] }));
}

async fn sensitive(bed: Bed) {
    let rest = Rest::open(&bed).await;
    let api = rest.operator();
    let app = api.app("shop").await;
    let id = api.endpoint(&app, json!({ "url": URL })).await;
    let path = format!("/app/{app}/endpoint/{id}/headers");
    let all = json!({ "headers": { "Authorization": "Bearer geheim", "X-Api-Key": "geheim", "X-Shop": "7" } });
    assert_eq!(api.put(&path, all).await, (StatusCode::NO_CONTENT, Value::Null));
    let shown = json!({ "headers": { "x-shop": "7" }, "sensitive": ["authorization", "x-api-key"] });
    assert_eq!(api.get(&path).await.1, shown);
    let patch = json!({ "headers": { "x-api-key": null, "X-SHOP": "8", "x-new": "9" } });
    assert_eq!(api.patch(&path, patch).await.0, StatusCode::NO_CONTENT);
    let shown = json!({ "headers": { "x-new": "9", "x-shop": "8" }, "sensitive": ["authorization"] });
    assert_eq!(api.get(&path).await.1, shown);
    let endpoint = api.get(&format!("/app/{app}/endpoint/{id}")).await.1.to_string();
    assert!(!endpoint.contains("geheim"), "{endpoint}");
    assert_eq!(api.put(&path, json!({ "headers": {} })).await.0, StatusCode::NO_CONTENT);
    assert_eq!(api.get(&path).await.1, json!({ "headers": {}, "sensitive": [] }));
}
