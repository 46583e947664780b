//! Event types through the REST API.

use serde_json::json;

use crate::api_kit::Rest;
use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("api::an_event_type_is_created_changed_archived_and_removed", lifecycle);
    suite.both("api::a_patch_of_an_event_type_leaves_alone_what_it_does_not_name", patches);
    suite.both("api::event_types_page_in_both_orders_while_others_are_added", pages);
    suite.both("api::event_types_belong_to_their_organisation", isolation);
    suite.both("api::names_that_are_no_event_types_are_refused", names);
}

async fn rest(bed: &Bed) -> Rest {
    Rest::new(&bed.db.store(None).await.unwrap())
}

async fn lifecycle(bed: Bed) {
    let client = rest(&bed).await.organisation(1);
    let body = r#"{"name":"order.paid","description":"Paid","featureFlag":"beta","schemas":{"1":{"type":"object"}}}"#;
    let made = client.post("/event-type", body).await.json(201);
    assert_eq!((&made["archived"], &made["deprecated"]), (&json!(false), &json!(false)));
    assert_eq!(client.post("/event-type", body).await.code(409), "event_type_exists");
    let got = client.get("/event-type/order.paid").await.json(200);
    assert_eq!(got, made);
    assert_eq!((&got["schemas"]["1"]["type"], &got["featureFlag"]), (&json!("object"), &json!("beta")));
    let list = client.get("/event-type").await.json(200);
    assert_eq!(list["data"][0]["schemas"], json!(null), "schemas only where they are asked for");
    let list = client.get("/event-type?with_content=true").await.json(200);
    assert_eq!(list["data"][0], made);

    let new = r#"{"description":"Paid in full","deprecated":true}"#;
    let changed = client.put("/event-type/order.paid", new).await.json(200);
    assert_eq!((&changed["description"], &changed["deprecated"]), (&json!("Paid in full"), &json!(true)));
    assert_eq!((&changed["schemas"], &changed["featureFlag"]), (&json!(null), &json!(null)), "PUT sets all");
    client.put("/event-type/order.sent", new).await.json(201);

    client.delete("/event-type/order.paid").await.empty(204);
    assert_eq!(client.list("/event-type", "name").await, (vec!["order.sent".to_owned()], true));
    let all = client.list("/event-type?include_archived=true", "name").await.0;
    assert_eq!(all, ["order.paid", "order.sent"]);
    assert_eq!(client.get("/event-type/order.paid").await.json(200)["archived"], true);
    client.delete("/event-type/order.paid?expunge=true").await.empty(204);
    assert_eq!(client.get("/event-type/order.paid").await.code(404), "not_found");
    assert_eq!(client.delete("/event-type/order.paid").await.code(404), "not_found");
    client.post("/event-type", body).await.json(201);
}

async fn patches(bed: Bed) {
    let client = rest(&bed).await.organisation(1);
    let body = r#"{"name":"a","description":"A","featureFlag":"beta","schemas":{"1":{}}}"#;
    client.post("/event-type", body).await.json(201);
    let patched = client.patch("/event-type/a", r#"{"description":"B"}"#).await.json(200);
    assert_eq!((&patched["description"], &patched["featureFlag"]), (&json!("B"), &json!("beta")));
    assert_eq!(patched["schemas"], json!({ "1": {} }));
    let patched = client.patch("/event-type/a", r#"{"featureFlag":null,"archived":true}"#).await.json(200);
    assert_eq!((&patched["featureFlag"], &patched["archived"]), (&json!(null), &json!(true)));
    assert_eq!(patched["schemas"], json!({ "1": {} }), "null takes away only what it names");
    let patched = client.patch("/event-type/a", r#"{"schemas":null}"#).await.json(200);
    assert_eq!((&patched["schemas"], &patched["description"]), (&json!(null), &json!("B")));
    assert_eq!(client.patch("/event-type/b", "{}").await.code(404), "not_found");
}

async fn pages(bed: Bed) {
    let client = rest(&bed).await.organisation(1);
    let make = async |name: &str| {
        client.post("/event-type", format!(r#"{{"name":"{name}","description":""}}"#)).await.json(201);
    };
    for name in ["b", "d", "f", "h"] {
        make(name).await;
    }
    for (order, names, added) in [("ascending", ["b", "d", "f", "h"], "a"), ("descending", ["h", "f", "d", "b"], "i")] {
        let first = client.get(&format!("/event-type?limit=2&order={order}")).await.json(200);
        make(added).await;
        let next = first["iterator"].as_str().unwrap();
        let second = client.get(&format!("/event-type?limit=2&order={order}&iterator={next}")).await.json(200);
        let seen = [&first, &second].map(|page| [&page["data"][0]["name"], &page["data"][1]["name"]]).concat();
        assert_eq!(seen, names, "what comes in before the place changes no page behind it");
        client.delete(&format!("/event-type/{added}?expunge=true")).await.empty(204);
    }
}

async fn isolation(bed: Bed) {
    let rest = rest(&bed).await;
    let (one, two) = (rest.organisation(1), rest.organisation(2));
    one.post("/event-type", r#"{"name":"a","description":"of one"}"#).await.json(201);
    assert_eq!(two.get("/event-type/a").await.code(404), "not_found");
    assert_eq!(two.patch("/event-type/a", "{}").await.code(404), "not_found");
    assert_eq!(two.list("/event-type?include_archived=true", "name").await, (vec![], true));
    two.post("/event-type", r#"{"name":"a","description":"of two"}"#).await.json(201);
    two.delete("/event-type/a?expunge=true").await.empty(204);
    assert_eq!(one.get("/event-type/a").await.json(200)["description"], "of one");
}

async fn names(bed: Bed) {
    let client = rest(&bed).await.organisation(1);
    for name in ["", ".", "a.", "a b", "ä"] {
        let body = json!({ "name": name, "description": "" }).to_string();
        let refused = client.post("/event-type", body).await.json(422);
        assert!(refused["detail"][0]["msg"].is_string(), "{refused}");
    }
    assert_eq!(client.post("/event-type", r#"{"name":"a"}"#).await.json(422)["detail"][0]["loc"][0], "body");
    assert_eq!(client.list("/event-type?include_archived=true", "name").await.0.len(), 0);
}
