//! Deliveries through a forward proxy: it is used, it is judged before, and what goes wrong on the way is told.

use std::net::IpAddr;
use std::sync::Mutex;

use tokio::net::TcpStream;

use super::tls::{Authority, authority, tls_server};
use super::*;

/// What a proxy was asked, head by head.
type Asked = Arc<Mutex<Vec<String>>>;

/// A proxy that makes tunnels to wherever it is asked, `localhost` for every name; or answers every request with `refusal`.
async fn proxy(refusal: Option<&'static str>) -> (RawServer, Asked) {
    let asked = Asked::default();
    let log = Arc::clone(&asked);
    let server = RawServer::start(move |mut client| {
        let log = Arc::clone(&log);
        async move {
            let head = head(&mut client).await;
            let target = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
            let is_tunnel = head.starts_with("CONNECT ");
            log.lock().unwrap().push(head);
            if let Some(refusal) = refusal {
                let _ = client.write_all(refusal.as_bytes()).await;
                return;
            }
            if !is_tunnel {
                let _ = client.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
                return;
            }
            let port = target.rsplit(':').next().unwrap().parse().unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let _ = client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await;
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        }
    })
    .await;
    (server, asked)
}

async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).await.is_ok_and(|read| read == 1) {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn through(proxy: &RawServer, addresses: AddressPolicy, roots: &[&Authority], found: &[&str]) -> Sender {
    let text = format!("http://me:geheim@{}", proxy.address);
    let extra_roots = roots.iter().map(|root| root.der().clone()).collect();
    let options = SenderOptions { addresses, extra_roots, proxy: Some(Proxy::parse(&text).unwrap()) };
    let found: Vec<IpAddr> = found.iter().map(|text| text.parse().unwrap()).collect();
    let resolver = GuardedResolver::with_lookup(addresses, move |_| {
        let found = found.clone();
        Box::pin(async move { Ok(found) })
    });
    Sender::with_resolver(&options, resolver).unwrap()
}

#[tokio::test]
async fn https_goes_through_a_tunnel_and_the_proxys_credentials_go_no_further() {
    let authority = authority();
    let (target, seen) = tls_server(&authority, "hooks.example", |_| {}).await;
    let (proxy, asked) = proxy(None).await;
    let sender = through(&proxy, AddressPolicy::AllowPrivate, &[&authority], &["93.184.215.14"]);
    let url = format!("https://hooks.example:{}/geheim", target.address.port());
    assert_eq!(answer(send(&sender, &url).await).status, 200);
    let asked = asked.lock().unwrap().join("");
    assert!(asked.starts_with(&format!("CONNECT hooks.example:{}", target.address.port())), "{asked}");
    assert!(asked.to_ascii_lowercase().contains("proxy-authorization: basic"), "{asked}");
    assert!(!asked.contains("webhook-"), "nothing of the delivery is for the proxy: {asked}");
    let seen = String::from_utf8(seen.lock().unwrap().clone()).unwrap();
    assert!(seen.contains("webhook-id") && !seen.to_ascii_lowercase().contains("proxy-"), "{seen}");
}

#[tokio::test]
async fn http_is_asked_of_the_proxy() {
    let (proxy, asked) = proxy(None).await;
    let sender = through(&proxy, AddressPolicy::AllowPrivate, &[], &["127.0.0.1"]);
    assert_eq!(answer(send(&sender, "http://hooks.example/a?b=c").await).status, 204);
    assert!(asked.lock().unwrap()[0].starts_with("POST http://hooks.example/a?b=c HTTP/1.1"));
}

#[tokio::test]
async fn what_is_refused_without_a_proxy_is_refused_with_one() {
    let (proxy, _) = proxy(None).await;
    for (url, found) in [
        ("https://127.0.0.1/", &["93.184.215.14"][..]),
        ("https://[::1]/", &["93.184.215.14"]),
        ("https://169.254.169.254/", &["93.184.215.14"]),
        ("https://hooks.example/", &["10.0.0.1"]),
        ("https://hooks.example/", &["93.184.215.14", "10.0.0.1"]),
        ("https://hooks.example/", &["::ffff:127.0.0.1"]),
    ] {
        let sender = through(&proxy, AddressPolicy::PublicOnly, &[], found);
        let exchange = send(&sender, url).await;
        assert!(matches!(exchange, Exchange::NotSent(NotSent::Blocked(_))), "{url} {found:?}: {exchange:?}");
    }
    let sender = through(&proxy, AddressPolicy::PublicOnly, &[], &[]);
    let exchange = send(&sender, "https://hooks.example/").await;
    assert!(matches!(exchange, Exchange::NotSent(NotSent::Dns(_))), "{exchange:?}");
    assert_eq!(proxy.connections(), 0, "the proxy was not even asked");
}

#[tokio::test]
async fn a_proxy_that_makes_no_tunnel_means_that_nothing_was_sent() {
    for refusal in [
        "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200",
        "garbage\r\n\r\n",
        "",
    ] {
        let (proxy, _) = proxy(Some(refusal)).await;
        let sender = through(&proxy, AddressPolicy::AllowPrivate, &[], &["93.184.215.14"]);
        let exchange = send(&sender, "https://hooks.example/").await;
        let Exchange::NotSent(NotSent::Connect(why)) = &exchange else { panic!("{refusal:?}: {exchange:?}") };
        assert!(!why.contains("geheim"), "{why}");
    }
    let silent = RawServer::start(|mut stream| async move {
        let _ = head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let sender = through(&silent, AddressPolicy::AllowPrivate, &[], &["93.184.215.14"]);
    let exchange = send_briefly(&sender, "https://hooks.example/").await;
    assert_eq!(exchange, Exchange::NotSent(NotSent::Deadline));
    drop(silent);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = SenderOptions {
        addresses: AddressPolicy::AllowPrivate,
        proxy: Some(Proxy::parse(&format!("http://{nobody}")).unwrap()),
        ..SenderOptions::default()
    };
    let exchange = send(&Sender::new(options).unwrap(), "https://127.0.0.1/").await;
    assert!(matches!(exchange, Exchange::NotSent(NotSent::Connect(_))), "{exchange:?}");
}
