//! Failures on the way: what is certain not to have been sent, and what is unknown.

use super::guarded::resolving;
use super::*;

#[tokio::test]
async fn a_refused_connection_means_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let exchange = send(&local(), &url).await;
    assert!(matches!(exchange, Exchange::NotSent(NotSent::Connect(_))), "{exchange:?}");
}

#[tokio::test]
async fn a_refused_connection_means_not_sent_for_an_empty_payload_too() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let sent = local().send(request_with(&url, Duration::from_secs(5), b"")).await;
    assert!(matches!(sent.exchange, Exchange::NotSent(NotSent::Connect(_))), "{sent:?}");
}

#[tokio::test]
async fn send_t11_a_connection_closed_after_reading_means_unknown_and_one_request() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    let server = RawServer::start(move |mut stream| {
        let counter = Arc::clone(&counter);
        async move {
            if read_request(&mut stream).await.is_some() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    let exchange = send(&local(), &server.url()).await;
    assert!(matches!(exchange, Exchange::Unknown(Unknown::ConnectionLost(_))), "{exchange:?}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_reused_connection_closed_after_reading_means_unknown_and_no_second_request() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    let server = RawServer::start(move |mut stream| {
        let counter = Arc::clone(&counter);
        async move {
            // The first request of a connection is answered, the second is read and dropped.
            if read_request(&mut stream).await.is_some() {
                counter.fetch_add(1, Ordering::SeqCst);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            }
            if read_request(&mut stream).await.is_some() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    let sender = local();
    assert_eq!(answer(send(&sender, &server.url()).await).status, 200);
    let exchange = send(&sender, &server.url()).await;
    assert!(matches!(exchange, Exchange::Unknown(Unknown::ConnectionLost(_))), "{exchange:?}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((requests.load(Ordering::SeqCst), server.connections()), (2, 1));
}

#[tokio::test]
async fn no_answer_within_the_deadline_means_unknown() {
    let server = RawServer::start(|mut stream| async move {
        let _request = read_request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let exchange = send_briefly(&local(), &server.url()).await;
    assert_eq!(exchange, Exchange::Unknown(Unknown::Deadline));
}

#[tokio::test]
async fn headers_that_drip_in_do_not_outlast_the_deadline() {
    let server = RawServer::start(|mut stream| async move {
        let _request = read_request(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await;
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let exchange = send_briefly(&local(), &server.url()).await;
    assert_eq!(exchange, Exchange::Unknown(Unknown::Deadline));
}

#[tokio::test]
async fn a_flood_of_headers_means_an_invalid_response() {
    let mut flood = b"HTTP/1.1 200 OK\r\n".to_vec();
    for number in 0..100_000 {
        flood.extend_from_slice(format!("x-{number}: y\r\n").as_bytes());
    }
    let server = RawServer::answering(flood).await;
    let exchange = send(&local(), &server.url()).await;
    assert!(matches!(exchange, Exchange::Unknown(Unknown::InvalidResponse(_))), "{exchange:?}");
}

#[tokio::test]
async fn one_endless_header_means_an_invalid_response() {
    let server = RawServer::start(|mut stream| async move {
        let _request = read_request(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await;
        while stream.write_all(&[b'x'; 8192]).await.is_ok() {}
    })
    .await;
    let exchange = send(&local(), &server.url()).await;
    assert!(matches!(exchange, Exchange::Unknown(Unknown::InvalidResponse(_))), "{exchange:?}");
}

#[tokio::test]
async fn an_answer_that_is_not_http_means_an_invalid_response() {
    let server = RawServer::answering("SSH-2.0-OpenSSH_9.9\r\n").await;
    let exchange = send(&local(), &server.url()).await;
    assert!(matches!(exchange, Exchange::Unknown(Unknown::InvalidResponse(_))), "{exchange:?}");
}

#[tokio::test]
async fn a_stopped_worker_ends_a_request_that_left_as_unknown() {
    let server = RawServer::start(|mut stream| async move {
        let _request = read_request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let stop = tokio::time::sleep(Duration::from_millis(200));
    let sent = local().send_until(request(&server.url(), Duration::from_secs(20)), stop).await;
    assert_eq!(sent.exchange, Exchange::Unknown(Unknown::Shutdown));
    assert!(sent.elapsed < Duration::from_secs(5));
}

#[tokio::test]
async fn a_stopped_worker_ends_a_request_that_did_not_leave_as_not_sent() {
    let sender = resolving(AddressPolicy::AllowPrivate, |_| std::future::pending());
    let stop = tokio::time::sleep(Duration::from_millis(50));
    let sent = sender.send_until(request("http://slow.example/", Duration::from_secs(20)), stop).await;
    assert_eq!(sent.exchange, Exchange::NotSent(NotSent::Shutdown));
}

#[tokio::test]
async fn a_name_look_up_is_under_the_deadline() {
    let sender = resolving(AddressPolicy::AllowPrivate, |_| std::future::pending());
    let exchange = send_briefly(&sender, "http://slow.example/").await;
    assert_eq!(exchange, Exchange::NotSent(NotSent::Deadline));
}

#[tokio::test]
async fn what_went_wrong_repeats_nothing_of_path_or_query() {
    let closing = RawServer::start(|stream| async move { drop(stream) }).await;
    let odd = RawServer::answering("odd\r\n\r\n").await;
    let unused = "http://127.0.0.1:1/geheim?token=geheim";
    let unknown = "http://no-such-host.invalid/geheim?token=geheim";
    for url in [&closing.url(), &odd.url(), unused, unknown] {
        let exchange = send(&local(), url).await;
        let error = exchange.error().unwrap();
        assert!(!error.contains("geheim"), "{error}");
        assert!(!format!("{exchange:?}").contains("geheim"));
    }
}
