//! What a change does, what it leaves, and what it may not do.

#![cfg(feature = "sqlite")]

use twiceproof_shared::store::Tx;

use super::*;
use crate::fixtures::bed::{Bed, tenant};
use crate::{AddressPolicy, Policy};

const URL: &str = "https://example.com/geheim";

fn manager(bed: &Bed) -> Manager {
    Manager::new(&bed.store, AddressPolicy::PublicOnly, &Policy::default())
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn headers(name: &str, value: &str) -> CustomHeaders {
    CustomHeaders::new([(name.to_owned(), value.to_owned())]).unwrap()
}

/// An endpoint with something in every field.
async fn full(bed: &Bed) -> Endpoint {
    let mut new = NewEndpoint::new(tenant(), URL);
    new.uid = Some(key("mine"));
    new.description = "for orders".to_owned();
    new.event_types = vec!["order.paid".to_owned()];
    new.channels = vec![key("red")];
    new.headers = headers("x-shop", "7");
    new.metadata = Metadata::from([("k".to_owned(), "v".to_owned())]);
    new.rate_limit = Some(5);
    manager(bed).create_now(new).await.unwrap().endpoint
}

async fn change(bed: &Bed, id: &str, change: EndpointChange) -> Result<Endpoint, ManageError> {
    let mut tx: Tx = bed.store.begin().await?;
    let changed = manager(bed).change(&mut tx.conn(), &tenant(), id, change).await?;
    tx.commit().await?;
    changed.wake.send();
    Ok(changed.endpoint)
}

async fn stored(bed: &Bed, id: &str) -> Endpoint {
    manager(bed).get(&mut bed.store.read().await.unwrap().conn(), &tenant(), id).await.unwrap()
}

/// All that can be told apart of an endpoint.
fn view(endpoint: &Endpoint) -> String {
    let Endpoint { uid, description, event_types, channels, metadata, rate_limit, timeout, slots, enabled, .. } =
        endpoint;
    let headers: Vec<_> = endpoint.headers.expose().collect();
    let url = endpoint.expose_url();
    format!(
        "{url} {uid:?} {description} {event_types:?} {channels:?} {headers:?} {metadata:?} {rate_limit:?} {timeout:?} {slots} {enabled}"
    )
}

#[tokio::test]
async fn what_is_not_named_stays() {
    let bed = Bed::new().await;
    let old = full(&bed).await;
    bed.clock.advance(Duration::from_secs(1));
    let new = change(&bed, &old.id, EndpointChange::default()).await.unwrap();
    assert_eq!(view(&new), view(&old));
    assert_eq!((new.created_at, new.updated_at), (old.created_at, bed.store.now()));
}

#[tokio::test]
async fn every_field_can_be_changed_alone() {
    let bed = Bed::new().await;
    let id = full(&bed).await.id;
    let none = EndpointChange::default;
    let changes = [
        EndpointChange { url: Some("https://EXAMPLE.com:8443/b".to_owned()), ..none() },
        EndpointChange { uid: Some(Some(key("yours"))), ..none() },
        EndpointChange { uid: Some(None), ..none() },
        EndpointChange { description: Some(String::new()), ..none() },
        EndpointChange { event_types: Some(vec!["b".to_owned(), "a-1".to_owned(), "b".to_owned()]), ..none() },
        EndpointChange { event_types: Some(Vec::new()), ..none() },
        EndpointChange { channels: Some(vec![key("z"), key("y"), key("z")]), ..none() },
        EndpointChange { channels: Some(Vec::new()), ..none() },
        EndpointChange { headers: Some(headers("x-other", "8")), ..none() },
        EndpointChange { metadata: Some(Metadata::new()), ..none() },
        EndpointChange { rate_limit: Some(Some(9)), ..none() },
        EndpointChange { rate_limit: Some(None), ..none() },
        EndpointChange { timeout: Some(Duration::from_secs(3)), ..none() },
        EndpointChange { slots: Some(2), ..none() },
        EndpointChange { enabled: Some(false), ..none() },
        EndpointChange { enabled: Some(true), ..none() },
    ];
    let mut views = vec![view(&stored(&bed, &id).await)];
    for wish in changes {
        let changed = change(&bed, &id, wish).await.unwrap();
        let view = view(&changed);
        assert_eq!(view, self::view(&stored(&bed, &id).await), "what is answered is what is stored");
        assert_ne!(views.last(), Some(&view), "it has changed");
        views.push(view);
    }
    assert_eq!(views.last().unwrap(), r#"https://example.com:8443/b None  [] [] [("x-other", "8")] {} None 3s 2 true"#);
    assert!(views[5].contains(r#"["a-1", "b"]"#) && views[7].contains(r#"["y", "z"]"#), "sorted, each once");
}

#[tokio::test]
async fn what_breaks_a_rule_changes_nothing() {
    let bed = Bed::new().await;
    let old = full(&bed).await;
    let none = EndpointChange::default;
    let id_like = || key(&old.id);
    let many = |count: usize| (0..count).map(|n| key(&format!("c{n}"))).collect::<Vec<_>>();
    for wish in [
        EndpointChange { url: Some("http://example.com/".to_owned()), ..none() },
        EndpointChange { url: Some("https://10.0.0.1/".to_owned()), ..none() },
        EndpointChange { uid: Some(Some(id_like())), ..none() },
        EndpointChange { description: Some("x".repeat(MAX_DESCRIPTION_BYTES + 1)), ..none() },
        EndpointChange { event_types: Some(vec!["ok".to_owned(), "a b".to_owned()]), ..none() },
        EndpointChange { channels: Some(many(MAX_CHANNELS + 1)), ..none() },
        EndpointChange { metadata: Some(Metadata::from([("k".to_owned(), "v".repeat(20_000))])), ..none() },
        EndpointChange { metadata: Some(Metadata::from([("k".to_owned(), "\0".to_owned())])), ..none() },
        EndpointChange { rate_limit: Some(Some(0)), ..none() },
        EndpointChange { timeout: Some(Duration::ZERO), ..none() },
        EndpointChange { timeout: Some(MAX_TIMEOUT + Duration::from_millis(1)), ..none() },
        EndpointChange { slots: Some(0), ..none() },
    ] {
        let refused = change(&bed, &old.id, wish).await;
        assert!(
            matches!(refused, Err(ManageError::Url(_) | ManageError::EventType(_) | ManageError::Limit(_))),
            "{refused:?}"
        );
        assert_eq!(view(&stored(&bed, &old.id).await), view(&old));
    }
    let most = EndpointChange { channels: Some(many(MAX_CHANNELS)), ..none() };
    assert_eq!(change(&bed, &old.id, most).await.unwrap().channels.len(), MAX_CHANNELS);
}

#[tokio::test]
async fn a_refused_change_leaves_the_callers_transaction_usable() {
    let bed = Bed::new().await;
    let (first, manager) = (full(&bed).await, manager(&bed));
    let second = manager.create_now(NewEndpoint::new(tenant(), URL)).await.unwrap().endpoint.id;
    let mut tx = bed.store.begin().await.unwrap();
    let mut conn = tx.conn();
    let wish = |uid: &str| EndpointChange { uid: Some(Some(key(uid))), ..EndpointChange::default() };
    let refused = manager.change(&mut conn, &tenant(), &second, wish("mine")).await;
    assert!(matches!(refused, Err(ManageError::UidTaken(holder)) if holder == first.id));
    manager.change(&mut conn, &tenant(), &second, wish("free")).await.unwrap();
    // One's own uid is no other's.
    manager.change(&mut conn, &tenant(), &first.id, wish("mine")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(stored(&bed, &second).await.uid.as_deref(), Some("free"));
}

#[tokio::test]
async fn a_deleted_endpoint_is_gone_with_its_secrets_and_its_filter() {
    let bed = Bed::new().await;
    let (endpoint, manager) = (full(&bed).await, manager(&bed));
    let mut tx = bed.store.begin().await.unwrap();
    let mut conn = tx.conn();
    let stranger = manager.delete(&mut conn, &key("stranger"), &endpoint.id).await;
    assert!(matches!(stranger, Err(ManageError::NotFound)));
    manager.delete(&mut conn, &tenant(), &endpoint.id).await.unwrap();
    let again = manager.delete(&mut conn, &tenant(), &endpoint.id).await;
    assert!(matches!(again, Err(ManageError::NotFound)));
    let secret = manager.newest_secret(&mut conn, &tenant(), &endpoint.id).await;
    assert!(matches!(secret, Err(ManageError::NotFound)));
    assert!(endpoints::event_types(&mut conn, tenant().as_str(), &endpoint.id).await.unwrap().is_empty());
    // Its uid is free again.
    manager.create(&mut conn, NewEndpoint { uid: Some(key("mine")), ..NewEndpoint::new(tenant(), URL) }).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_url_is_found_however_it_is_spelt_and_by_its_tenant_only() {
    let bed = Bed::new().await;
    let (endpoint, manager) = (full(&bed).await, manager(&bed));
    let mut reader = bed.store.read().await.unwrap();
    let mut conn = reader.conn();
    let found = manager.with_url(&mut conn, &tenant(), "https://EXAMPLE.com:443/geheim").await.unwrap();
    assert_eq!(found.map(|found| found.id), Some(endpoint.id));
    for (tenant, url) in [(tenant(), "https://example.com/other"), (key("stranger"), URL)] {
        assert!(manager.with_url(&mut conn, &tenant, url).await.unwrap().is_none(), "{url}");
    }
}
