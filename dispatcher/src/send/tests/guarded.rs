//! No connection is made where none is allowed: literals, names, redirects, rebinding, proxies.

use std::io;
use std::net::IpAddr;

use reqwest::dns::Resolve as _;

use super::*;
use crate::guard::Refused;

/// A sender whose names resolve as `lookup` says.
pub(super) fn resolving<F, Fut>(addresses: AddressPolicy, lookup: F) -> Sender
where
    F: Fn(String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
{
    let options = SenderOptions { addresses, ..SenderOptions::default() };
    let resolver = GuardedResolver::with_lookup(addresses, move |name| Box::pin(lookup(name)));
    Sender::with_resolver(&options, resolver).unwrap()
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn blocked(exchange: &Exchange) -> bool {
    matches!(exchange, Exchange::NotSent(NotSent::Blocked(_)))
}

#[tokio::test]
async fn send_t03_a_literal_that_was_stored_without_a_check_is_blocked_when_sending() {
    let trap = RawServer::trap().await;
    let port = trap.address.port();
    for url in [
        format!("http://127.0.0.1:{port}/"),
        format!("https://127.0.0.1:{port}/"),
        "https://127.0.0.1/".to_owned(),
        "https://2130706433/".to_owned(),
        "https://[::1]/".to_owned(),
        "https://[::ffff:127.0.0.1]/".to_owned(),
        "https://localhost/".to_owned(),
    ] {
        let exchange = send(&public(), &url).await;
        assert!(blocked(&exchange), "{url}: {exchange:?}");
    }
    assert_eq!(trap.connections(), 0);
}

#[tokio::test]
async fn send_t03_a_blocked_literal_is_reported_as_blocked_ip() {
    let exchange = send(&public(), "https://10.0.0.1/").await;
    assert!(exchange.error().unwrap().contains("blocked_ip"));
    assert_eq!(exchange.outcome(), "not_sent");
}

#[tokio::test]
async fn send_t04_a_name_that_resolves_to_a_private_address_is_blocked() {
    let trap = RawServer::trap().await;
    let sender = resolving(AddressPolicy::PublicOnly, |_| async { Ok(ips(&["127.0.0.1", "::1"])) });
    let exchange = send(&sender, "https://inside.example/").await;
    assert!(blocked(&exchange), "{exchange:?}");
    assert_eq!(trap.connections(), 0);
}

#[tokio::test]
async fn send_t04_a_name_is_resolved_and_checked_at_every_attempt() {
    let calls = AtomicUsize::new(0);
    let resolver = GuardedResolver::with_lookup(AddressPolicy::PublicOnly, move |_| {
        let first = calls.fetch_add(1, Ordering::SeqCst) == 0;
        let found = ips(if first { &["8.8.8.8"] } else { &["127.0.0.1"] });
        Box::pin(async move { Ok(found) })
    });
    let name = || "rebinding.example".parse().unwrap();
    assert!(resolver.resolve(name()).await.is_ok());
    assert!(resolver.resolve(name()).await.is_err());
}

/// A name that turns from a public address to an inner one: the attempt that finds the inner one makes no connection.
/// The other way round, a name that was refused is asked again by the next attempt.
#[tokio::test]
async fn send_s3_a_name_that_is_rebound_between_attempts_is_judged_by_what_it_is_now() {
    let trap = RawServer::trap().await;
    let now = Arc::new(std::sync::Mutex::new("169.254.169.254"));
    let current = Arc::clone(&now);
    let sender = resolving(AddressPolicy::AllowPrivate, move |_| {
        let found = ips(&[*current.lock().unwrap()]);
        async move { Ok(found) }
    });
    let url = format!("http://rebinding.example:{}/", trap.address.port());
    for _ in 0..3 {
        *now.lock().unwrap() = "169.254.169.254";
        assert!(blocked(&send(&sender, &url).await));
        assert_eq!(trap.connections(), 0);
    }
    *now.lock().unwrap() = "127.0.0.1";
    assert_eq!(answer(send(&sender, &url).await).status, 200);
    assert_eq!(trap.connections(), 1);
}

/// Through the connector: of a mixed answer the allowed address is connected to, whatever stands before or behind it.
#[tokio::test]
async fn send_t04_of_mixed_answers_the_connector_takes_the_allowed_one_alone() {
    let server = RawServer::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    for mixed in [["169.254.169.254", "127.0.0.1"], ["127.0.0.1", "169.254.169.254"], ["fd00:ec2::254", "127.0.0.1"]] {
        let sender = resolving(AddressPolicy::AllowPrivate, move |_| async move { Ok(ips(&mixed)) });
        let url = format!("http://mixed.example:{}/", server.address.port());
        assert_eq!(answer(send(&sender, &url).await).status, 200, "{mixed:?}");
    }
    assert_eq!(server.connections(), 3);
    let inner = resolving(AddressPolicy::PublicOnly, |_| async {
        Ok(ips(&["127.0.0.1", "::1", "10.0.0.1", "::ffff:127.0.0.1"]))
    });
    for host in ["inner.example", "inner.example."] {
        let exchange = send(&inner, &format!("https://{host}:8443/")).await;
        assert!(exchange.error().unwrap().starts_with("blocked: blocked_ip"), "{exchange:?}");
    }
}

#[test]
fn send_t04_of_mixed_answers_only_the_allowed_addresses_are_handed_on() {
    let mixed = ips(&["127.0.0.1", "8.8.8.8", "::1", "2606:4700::1111", "10.0.0.1"]);
    let allowed = resolve::allowed(AddressPolicy::PublicOnly, mixed).unwrap();
    assert_eq!(allowed, ips(&["8.8.8.8", "2606:4700::1111"]));
}

#[tokio::test]
async fn a_resolver_that_fails_or_finds_nothing_means_not_sent() {
    for sender in [
        resolving(AddressPolicy::PublicOnly, |_| async { Err(io::Error::other("the resolver is out of order")) }),
        resolving(AddressPolicy::PublicOnly, |_| async { Ok(Vec::new()) }),
    ] {
        let exchange = send(&sender, "https://example.com/").await;
        assert!(matches!(exchange, Exchange::NotSent(NotSent::Dns(_))), "{exchange:?}");
    }
}

#[tokio::test]
async fn metadata_services_are_blocked_even_with_private_addresses_allowed() {
    let sender = resolving(AddressPolicy::AllowPrivate, |_| async { Ok(ips(&["169.254.169.254"])) });
    for url in ["http://169.254.169.254/latest/", "http://harmless.example/"] {
        let exchange = send(&sender, url).await;
        assert!(matches!(exchange, Exchange::NotSent(NotSent::Blocked(Refused::Metadata(_)))), "{exchange:?}");
    }
}

#[tokio::test]
async fn send_t05_redirects_are_not_followed() {
    let trap = RawServer::trap().await;
    for status in [301, 302, 303, 307, 308] {
        let redirect = format!("HTTP/1.1 {status} Elsewhere\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", trap.url());
        let server = RawServer::answering(redirect).await;
        assert_eq!(answer(send(&local(), &server.url()).await).status, status);
    }
    assert_eq!(trap.connections(), 0);
}

/// The program is started once more with proxy variables set; the same test then runs in there.
#[tokio::test]
async fn send_t06_the_systems_proxy_is_not_used() {
    const INSIDE: &str = "TWICEPROOF_TEST_BEHIND_PROXY";
    let server = RawServer::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    if std::env::var_os(INSIDE).is_some() {
        assert_eq!(answer(send(&local(), &server.url()).await).status, 200);
        assert_eq!(server.connections(), 1);
        return;
    }
    let trap = RawServer::trap().await;
    let proxy = format!("http://{}", trap.address);
    let name = "send::tests::guarded::send_t06_the_systems_proxy_is_not_used";
    let status = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(INSIDE, "1")
        .envs(["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy"].map(|key| (key, &proxy)))
        .stdout(std::process::Stdio::null())
        .status()
        .await
        .unwrap();
    assert!(status.success());
    assert_eq!(trap.connections(), 0);
}
