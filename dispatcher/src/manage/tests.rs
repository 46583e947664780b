//! What an endpoint may be, and what can be done with it.

#![cfg(feature = "sqlite")]

use super::*;
use crate::fixtures::bed::{Bed, tenant};

const URL: &str = "https://example.com/geheim?k=geheim";

fn public(bed: &Bed) -> Manager {
    Manager::new(&bed.store, AddressPolicy::PublicOnly, &Policy::default())
}

#[tokio::test]
async fn a_new_endpoint_has_the_policys_limits_and_a_generated_secret() {
    let bed = Bed::new().await;
    let created = public(&bed).create_now(NewEndpoint::new(tenant(), URL)).await.unwrap();
    assert_eq!(created.secret.expose().len(), 32);
    let mut reader = bed.store.read().await.unwrap();
    let found = public(&bed).get(&mut reader.conn(), &tenant(), &created.endpoint.id).await.unwrap();
    assert_eq!((found.timeout, found.slots, found.enabled), (Duration::from_secs(15), 32, true));
    assert_eq!(found.expose_url(), URL);
    assert_eq!(found.created_at, bed.store.now());
    assert!(found.event_types.is_empty());
}

#[tokio::test]
async fn urls_that_are_not_allowed_are_refused_and_nothing_is_stored() {
    let bed = Bed::new().await;
    for url in ["http://example.com/", "https://127.0.0.1/", "https://a:b@example.com/", "https://h:6379/", "nonsense"]
    {
        let refused = public(&bed).create_now(NewEndpoint::new(tenant(), url)).await;
        assert!(matches!(refused, Err(ManageError::Url(_))), "{url}: {refused:?}");
    }
    let mut reader = bed.store.read().await.unwrap();
    assert!(public(&bed).list(&mut reader.conn(), &tenant(), "", 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn limits_that_make_no_sense_are_refused() {
    let bed = Bed::new().await;
    let base = || NewEndpoint::new(tenant(), URL);
    for new in [
        NewEndpoint { slots: Some(0), ..base() },
        NewEndpoint { timeout: Some(Duration::ZERO), ..base() },
        NewEndpoint { timeout: Some(Duration::from_secs(301)), ..base() },
        NewEndpoint { description: "\0".to_owned(), ..base() },
        NewEndpoint { description: "x".repeat(1_025), ..base() },
    ] {
        assert!(matches!(public(&bed).create_now(new).await, Err(ManageError::Limit(_))));
    }
    let new = NewEndpoint { event_types: vec!["a b".to_owned()], ..base() };
    assert!(matches!(public(&bed).create_now(new).await, Err(ManageError::EventType(_))));
}

#[tokio::test]
async fn send_c10_a_uid_belongs_to_one_endpoint() {
    let bed = Bed::new().await;
    let uid = || Some(Key::new("mine").unwrap());
    let first = public(&bed).create_now(NewEndpoint { uid: uid(), ..NewEndpoint::new(tenant(), URL) }).await.unwrap();
    let second = public(&bed).create_now(NewEndpoint { uid: uid(), ..NewEndpoint::new(tenant(), URL) }).await;
    assert!(matches!(second, Err(ManageError::UidTaken(holder)) if holder == first.endpoint.id));
}

#[tokio::test]
async fn a_unit_that_runs_again_creates_one_endpoint() {
    let bed = Bed::new().await;
    let ready = public(&bed).ready(NewEndpoint::new(tenant(), URL)).unwrap();
    for _ in 0..2 {
        let mut tx = bed.store.begin().await.unwrap();
        insert(&mut tx.conn(), &bed.store, &ready).await.unwrap();
        tx.commit().await.unwrap();
    }
    let mut reader = bed.store.read().await.unwrap();
    assert_eq!(public(&bed).list(&mut reader.conn(), &tenant(), "", 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn pages_of_endpoints_follow_one_another() {
    let bed = Bed::new().await;
    for _ in 0..5 {
        public(&bed).create_now(NewEndpoint::new(tenant(), URL)).await.unwrap();
    }
    let (mut after, mut seen) = (String::new(), Vec::new());
    let mut reader = bed.store.read().await.unwrap();
    loop {
        let page = public(&bed).list(&mut reader.conn(), &tenant(), &after, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after.clone_from(&last.id);
        seen.extend(page.into_iter().map(|endpoint| endpoint.id));
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted());
}

#[tokio::test]
async fn an_endpoint_has_a_bounded_number_of_live_secrets() {
    let bed = Bed::new().await;
    let manager = public(&bed);
    let created = manager.create_now(NewEndpoint::new(tenant(), URL)).await.unwrap();
    let tenant = tenant();
    let key = |key_id| SecretKey { tenant: tenant.as_str(), endpoint: &created.endpoint.id, key_id };
    let secret = Secret::from_bytes(vec![1; 24]).unwrap().into();
    let mut tx = bed.store.begin().await.unwrap();
    let mut conn = tx.conn();
    let key_ids: Vec<_> = (1..MAX_SIGNATURES).map(|number| Key::new(format!("k{number}")).unwrap()).collect();
    for key_id in &key_ids {
        manager.add_secret(&mut conn, key(key_id), &secret).await.unwrap();
        // The same again changes nothing; another under the same id is refused.
        manager.add_secret(&mut conn, key(key_id), &secret).await.unwrap();
        let other = Secret::from_bytes(vec![2; 24]).unwrap().into();
        let refused = manager.add_secret(&mut conn, key(key_id), &other).await;
        assert!(matches!(refused, Err(ManageError::SecretIdTaken)));
    }
    let one_more = Key::new("one-more").unwrap();
    let refused = manager.add_secret(&mut conn, key(&one_more), &secret).await;
    assert!(matches!(refused, Err(ManageError::TooManySecrets)));
    manager.expire_secret(&mut conn, key(&created.key_id), bed.store.now()).await.unwrap();
    manager.add_secret(&mut conn, key(&one_more), &secret).await.unwrap();
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let bed = Bed::new().await;
    let manager = public(&bed);
    let mine = manager.create_now(NewEndpoint::new(tenant(), URL)).await.unwrap().endpoint.id;
    let (stranger, key_id) = (Key::new("stranger").unwrap(), Key::new("k").unwrap());
    let mut tx = bed.store.begin().await.unwrap();
    let mut conn = tx.conn();
    let key = SecretKey { tenant: stranger.as_str(), endpoint: &mine, key_id: &key_id };
    let secret = Secret::from_bytes(vec![1; 24]).unwrap().into();
    let now = bed.store.now();
    // Another tenant's endpoint is not there either.
    assert!(matches!(manager.get(&mut conn, &stranger, &mine).await, Err(ManageError::NotFound)));
    assert!(matches!(manager.disable(&mut conn, &stranger, &mine).await, Err(ManageError::NotFound)));
    assert!(matches!(manager.enable(&mut conn, &stranger, &mine).await, Err(ManageError::NotFound)));
    assert!(matches!(manager.add_secret(&mut conn, key, &secret).await, Err(ManageError::NotFound)));
    assert!(matches!(manager.expire_secret(&mut conn, key, now).await, Err(ManageError::NotFound)));
}

#[tokio::test]
async fn debug_output_shows_neither_url_nor_secret() {
    let bed = Bed::new().await;
    let new = NewEndpoint::new(tenant(), URL);
    let shown = format!("{new:?}");
    let created = public(&bed).create_now(new).await.unwrap();
    let shown = format!("{shown}{created:?}");
    assert!(shown.contains("https://example.com#"), "{shown}");
    assert!(!shown.contains("geheim") && !shown.contains(&*created.secret.to_text()), "{shown}");
}
