//! Receivers must prove who they are before a byte of a request is sent.

use std::sync::Mutex;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use super::*;

pub(super) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(super) fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A server with a certificate for `localhost`, adjusted by `adjust`; and the bytes of the requests that it got.
pub(super) async fn tls_server(
    authority: &Authority,
    name: &str,
    adjust: impl FnOnce(&mut CertificateParams),
) -> (RawServer, Arc<Mutex<Vec<u8>>>) {
    tls_server_answering(authority, name, adjust, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await
}

/// Closes after an answer that does not say where it ends, and says no goodbye.
async fn tls_server_answering(
    authority: &Authority,
    name: &str,
    adjust: impl FnOnce(&mut CertificateParams),
    bytes: &'static [u8],
) -> (RawServer, Arc<Mutex<Vec<u8>>>) {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    adjust(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let server = RawServer::start(move |stream| {
        let (acceptor, log) = (acceptor.clone(), Arc::clone(&log));
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                return;
            };
            let mut chunk = [0; 8192];
            while let Ok(read @ 1..) = stream.read(&mut chunk).await {
                log.lock().unwrap().extend_from_slice(&chunk[..read]);
                let _ = stream.write_all(bytes).await;
                let _ = stream.flush().await;
                if !bytes.windows(15).any(|part| part == b"content-length:") {
                    break;
                }
            }
        }
    })
    .await;
    (server, seen)
}

fn trusting(authority: &Authority) -> Sender {
    let (addresses, extra_roots) = (AddressPolicy::AllowPrivate, vec![authority.der().clone()]);
    Sender::new(SenderOptions { addresses, extra_roots, ..SenderOptions::default() }).unwrap()
}

fn url(server: &RawServer) -> String {
    format!("https://localhost:{}/geheim", server.address.port())
}

#[tokio::test]
async fn send_s8_an_endpoint_of_a_trusted_private_authority_is_reached() {
    let authority = authority();
    let (server, seen) = tls_server(&authority, "localhost", |_| ()).await;
    let answer = answer(send(&trusting(&authority), &url(&server)).await);
    assert_eq!(answer.status, 200);
    assert!(seen.lock().unwrap().starts_with(b"POST /geheim HTTP/1.1"));
}

#[tokio::test]
async fn send_t09_receivers_that_do_not_prove_who_they_are_get_no_byte_of_a_request() {
    let authority = authority();
    let (untrusted, untrusted_seen) = tls_server(&authority, "localhost", |_| ()).await;
    let (expired, expired_seen) = tls_server(&authority, "localhost", |params| {
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
    })
    .await;
    let (other, other_seen) = tls_server(&authority, "other.example", |_| ()).await;
    for (sender, server, seen) in [
        (local(), untrusted, untrusted_seen),
        (trusting(&authority), expired, expired_seen),
        (trusting(&authority), other, other_seen),
    ] {
        let exchange = send(&sender, &url(&server)).await;
        assert!(matches!(exchange, Exchange::NotSent(NotSent::Tls(_))), "{exchange:?}");
        assert!(exchange.error().unwrap().starts_with("tls_error: "));
        assert!(seen.lock().unwrap().is_empty());
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn a_receiver_that_does_not_speak_tls_gets_no_byte_of_a_request() {
    let server = RawServer::start(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let mut chunk = [0; 1024];
        while let Ok(1..) = stream.read(&mut chunk).await {}
    })
    .await;
    let exchange = send(&local(), &url(&server)).await;
    assert!(matches!(exchange, Exchange::NotSent(NotSent::Tls(_))), "{exchange:?}");
}

#[tokio::test]
async fn a_handshake_that_breaks_off_means_not_sent() {
    for answer in [&b""[..], b"\x16\x03\x03", b"\x15\x03\x03\x00\x02\x02\x28", b"\x16\x03\x03\xff\xff"] {
        let server = RawServer::start(move |mut stream| async move {
            let mut hello = [0; 4096];
            let _ = stream.read(&mut hello).await;
            let _ = stream.write_all(answer).await;
        })
        .await;
        let exchange = send(&local(), &url(&server)).await;
        let (NotSent::Tls(reason) | NotSent::Connect(reason)) = not_sent(&exchange) else { panic!("{exchange:?}") };
        assert!(answer.len() >= 5 || reason.contains("handshake"), "{answer:?}: {exchange:?}");
        assert_eq!(server.connections(), 1);
    }
}

fn not_sent(exchange: &Exchange) -> &NotSent {
    match exchange {
        Exchange::NotSent(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// An end without TLS's own goodbye may be somebody else's doing.
#[tokio::test]
async fn a_body_that_ends_without_a_goodbye_is_cut() {
    let authority = authority();
    let (server, _) = tls_server_answering(&authority, "localhost", |_| (), b"HTTP/1.1 200 OK\r\n\r\nabc").await;
    let answer = answer(send(&trusting(&authority), &url(&server)).await);
    assert!(answer.status == 200 && answer.body == "abc" && answer.body_cut, "{answer:?}");
}

#[tokio::test]
async fn a_handshake_is_under_the_deadline() {
    let server = RawServer::start(|mut stream| async move {
        let mut chunk = [0; 1024];
        while let Ok(1..) = stream.read(&mut chunk).await {}
    })
    .await;
    let exchange = send_briefly(&local(), &url(&server)).await;
    assert_eq!(exchange, Exchange::NotSent(NotSent::Deadline));
}

#[test]
fn an_extra_root_that_is_no_certificate_is_an_error() {
    let options = SenderOptions { extra_roots: vec![CertificateDer::from(vec![1, 2, 3])], ..SenderOptions::default() };
    assert!(matches!(Sender::new(options), Err(SenderError::ExtraRoot(_))));
}
