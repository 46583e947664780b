//! What is sent, and how answers of all sizes and speeds are read.

use std::sync::Mutex;

use super::guarded::resolving;
use super::*;

#[tokio::test]
async fn the_request_on_the_wire_is_the_golden_one() {
    let seen = Arc::new(Mutex::new(String::new()));
    let log = Arc::clone(&seen);
    let server = RawServer::start(move |mut stream| {
        let log = Arc::clone(&log);
        async move {
            let request = read_request(&mut stream).await.unwrap();
            *log.lock().unwrap() = request;
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        }
    })
    .await;
    let answer = answer(send(&local(), &server.url()).await);
    assert_eq!(answer.status, 204);
    let seen = seen.lock().unwrap().clone();
    let (head, body) = seen.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, r#"{"type":"order.paid"}"#);
    let mut lines = head.lines();
    assert_eq!(lines.next(), Some("POST /geheim?token=geheim HTTP/1.1"));
    let mut names: Vec<_> = lines.map(|line| line.split_once(':').unwrap().0).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "accept",
            "accept-encoding",
            "content-length",
            "content-type",
            "host",
            "user-agent",
            "webhook-id",
            "webhook-signature",
            "webhook-timestamp"
        ]
    );
    assert!(head.contains("accept-encoding: identity"), "{head}");
    assert!(head.contains("webhook-id: msg_2mXBNqy0Bx0YlJPkEVTHaMWlKYz"), "{head}");
    assert!(head.contains("webhook-timestamp: 1700000000"), "{head}");
}

#[tokio::test]
async fn an_empty_payload_is_sent_with_its_length() {
    let server = RawServer::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let request = request_with(&server.url(), Duration::from_secs(5), b"");
    let sent = local().send(request).await;
    assert_eq!(answer(sent.exchange).status, 200);
}

#[tokio::test]
async fn a_large_payload_arrives_whole() {
    let server = RawServer::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let payload = vec![b'x'; 1024 * 1024];
    let request = request_with(&server.url(), Duration::from_secs(10), &payload);
    assert_eq!(answer(local().send(request).await.exchange).status, 200);
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = RawServer::answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let sender = local();
    for _ in 0..5 {
        let answer = answer(send(&sender, &server.url()).await);
        assert_eq!(answer.body, "ok");
        assert!(!answer.body_cut);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn send_m3_a_large_body_is_cut_and_its_connection_dropped() {
    let mut bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n".to_vec();
    bytes.extend(std::iter::repeat_n(b'x', 1_000_000));
    let server = RawServer::answering(bytes).await;
    let sender = local();
    for connections in 1..=2 {
        let answer = answer(send(&sender, &server.url()).await);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body.len(), KEEP_LIMIT);
        assert!(answer.body_cut);
        assert_eq!(server.connections(), connections);
    }
}

#[tokio::test]
async fn send_d21_bytes_that_are_no_text_are_kept_as_they_are() {
    let mut body = b"a".to_vec();
    body.extend("é".repeat(2_000).bytes());
    let mut bytes = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(&body);
    let server = RawServer::answering(bytes).await;
    let answer = answer(send(&local(), &server.url()).await);
    assert_eq!(answer.body, &body[..KEEP_LIMIT]);
    assert!(answer.body_cut);
}

#[tokio::test]
async fn send_m4_an_endless_body_is_cut() {
    let server = RawServer::start(|mut stream| async move {
        if read_request(&mut stream).await.is_some() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            while stream.write_all(&[b'x'; 8192]).await.is_ok() {}
        }
    })
    .await;
    let answer = answer(send(&local(), &server.url()).await);
    assert_eq!((answer.status, answer.body.len(), answer.body_cut), (200, KEEP_LIMIT, true));
}

#[tokio::test]
async fn send_m4_a_dripping_body_is_cut_at_the_deadline_and_the_status_stands() {
    let server = RawServer::start(|mut stream| async move {
        if read_request(&mut stream).await.is_some() {
            let _ = stream.write_all(b"HTTP/1.1 500 Oops\r\n\r\n").await;
            while stream.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    })
    .await;
    let answer = answer(send_briefly(&local(), &server.url()).await);
    assert_eq!(answer.status, 500);
    assert!(answer.body.len() < 20 && answer.body_cut, "{answer:?}");
}

#[tokio::test]
async fn a_body_that_breaks_off_leaves_the_status_standing() {
    let server = RawServer::start(|mut stream| async move {
        if read_request(&mut stream).await.is_some() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await;
        }
    })
    .await;
    let answer = answer(send(&local(), &server.url()).await);
    assert_eq!((answer.status, answer.body_cut), (200, true));
    assert_eq!(answer.body, "abc");
}

#[tokio::test]
async fn send_m6_a_compressed_body_is_not_decompressed() {
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\x48\xcd\xc9\xc9\x07\x00\x86\xa6\x10\x36\x05\x00\x00\x00";
    let head = format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", gzip.len());
    let server = RawServer::answering([head.as_bytes(), gzip].concat()).await;
    let answer = answer(send(&local(), &server.url()).await);
    assert_eq!(answer.body, &gzip[..]);
}

#[tokio::test]
async fn retry_after_and_date_are_taken_from_the_answer() {
    let server = RawServer::answering(
        "HTTP/1.1 503 Busy\r\nretry-after: 60\r\nRetry-After: 120\r\nretry-after: \u{e9}\r\n\
         date: Wed, 21 Oct 2015 07:28:00 GMT\r\ncontent-length: 0\r\n\r\n",
    )
    .await;
    let answer = answer(send(&local(), &server.url()).await);
    assert_eq!(answer.retry_after, ["60", "120"]);
    assert_eq!(answer.date.as_deref(), Some("Wed, 21 Oct 2015 07:28:00 GMT"));
}

#[tokio::test]
async fn send_g13_header_bytes_outside_of_ascii_do_no_harm() {
    let server =
        RawServer::answering(&b"HTTP/1.1 200 OK\r\nx-name: \x80\xe9\xff\r\ncontent-length: 0\r\n\r\n"[..]).await;
    assert_eq!(answer(send(&local(), &server.url()).await).status, 200);
}

#[tokio::test]
async fn informational_answers_are_skipped() {
    let server = RawServer::answering(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n",
    )
    .await;
    assert_eq!(answer(send(&local(), &server.url()).await).status, 202);
}

#[tokio::test]
async fn an_attempt_knows_where_its_time_went_and_a_connection_that_was_open_has_no_times() {
    let pause = Duration::from_millis(30);
    let server = RawServer::start(move |mut stream| async move {
        while read_request(&mut stream).await.is_some() {
            tokio::time::sleep(pause).await;
            if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.is_err() {
                break;
            }
        }
    })
    .await;
    let sender = resolving(AddressPolicy::AllowPrivate, move |_| async move {
        tokio::time::sleep(pause).await;
        Ok(vec!["127.0.0.1".parse().unwrap()])
    });
    let url = format!("http://slow.example:{}/", server.address.port());
    let first = sender.send(request(&url, Duration::from_secs(5))).await;
    let Timings { resolved: Some(resolved), connected: Some(connected), answered: Some(answered) } = first.timings
    else {
        panic!("{first:?}")
    };
    assert!(resolved >= pause && connected >= resolved && answered >= connected + pause, "{first:?}");
    assert!(first.elapsed >= answered);
    let second = sender.send(request(&url, Duration::from_secs(5))).await;
    assert_eq!((second.timings.resolved, second.timings.connected), (None, None), "{second:?}");
    assert!(second.timings.answered.is_some_and(|answered| answered >= pause));
    let refused = public().send(request("http://127.0.0.1:9/", Duration::from_secs(5))).await;
    assert_eq!(refused.timings, Timings::default());
}
