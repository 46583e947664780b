//! The description of the API: made from the code, and what clients of others' descriptions expect.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::Suite;

pub fn register(suite: &mut Suite) {
    suite.plain("api::the_operations_are_those_of_our_own_list", own_list);
    let given = std::env::var_os("TWICEPROOF_TEST_OPENAPI").map(PathBuf::from);
    suite.plain_given(&given, "api::every_operation_of_the_given_description_is_answered", |file| {
        given_description(&file)
    });
}

/// Method and path of each operation, with the names of its parameters and the statuses of its answers.
type Operations = BTreeMap<(String, String), (BTreeSet<String>, BTreeSet<String>)>;

fn operations(description: &Value) -> Operations {
    const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];
    let mut operations = Operations::new();
    for (path, item) in description["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(name, _)| METHODS.contains(&name.as_str()))
        {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let names = parameters.filter_map(|parameter| parameter["name"].as_str()).map(str::to_owned).collect();
            let statuses = operation["responses"].as_object().unwrap().keys().cloned().collect();
            operations.insert((method.clone(), path.clone()), (names, statuses));
        }
    }
    operations
}

fn ours() -> Operations {
    operations(&serde_json::to_value(twiceproof::dispatcher::api::openapi()).unwrap())
}

/// An operation that comes or goes shows in a change of the list.
fn own_list() {
    let listed = include_str!("../snapshots/api_operations.txt");
    let ours: Vec<String> = ours().keys().map(|(method, path)| format!("{} {path}", method.to_uppercase())).collect();
    assert_eq!(ours, listed.lines().collect::<Vec<_>>(), "tests/snapshots/api_operations.txt lists the operations");
}

/// What the SDKs were made from: each of its operations is there, takes its parameters and has its successful answers.
fn given_description(file: &std::path::Path) {
    // Newer SDKs read the new secret from the answer, older ones pass over a body.
    const WITH_A_BODY: (&str, &str) = ("post", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret/rotate");
    let given: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let ours = ours();
    let mut count = 0;
    for ((method, path), (parameters, statuses)) in operations(&given) {
        let Some((our_parameters, our_statuses)) = ours.get(&(method.clone(), path.clone())) else {
            panic!("{method} {path} is not answered")
        };
        let missing: Vec<&String> =
            parameters.difference(our_parameters).filter(|name| *name != "idempotency-key").collect();
        assert!(missing.is_empty(), "{method} {path} does not take {missing:?}");
        for status in statuses.iter().filter(|status| status.starts_with('2')) {
            let known = our_statuses.contains(status) || (method.as_str(), path.as_str()) == WITH_A_BODY;
            assert!(known, "{method} {path} never answers {status}");
        }
        count += 1;
    }
    assert!(count >= 40, "the description has only {count} operations");
}
