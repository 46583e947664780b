//! Receivers that lie, flood, break off and poison: the outcome is the true one, what is kept is bounded, and a
//! connection in a doubtful state is not used again.

use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;

use super::*;

const GONE: &[u8] = b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n";

/// Sends twice to a receiver that answers every request so. Both must be answered with the status, each on a connection
/// of its own; the answers.
async fn twice_on_two_connections(status: u16, bytes: &[u8]) -> [Answer; 2] {
    let server = RawServer::answering(bytes).await;
    let sender = local();
    let first = answer(send_briefly(&sender, &server.url()).await);
    let second = answer(send_briefly(&sender, &server.url()).await);
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned();
    assert_eq!((first.status, second.status), (status, status), "{shown:?}");
    assert_eq!(server.connections(), 2, "{shown:?}");
    assert!(first.body.len() <= KEEP_LIMIT && second.body.len() <= KEEP_LIMIT);
    [first, second]
}

async fn invalid(bytes: &[u8]) {
    let server = RawServer::answering(bytes).await;
    let exchange = send(&local(), &server.url()).await;
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned();
    assert!(matches!(exchange, Exchange::Unknown(Unknown::InvalidResponse(_))), "{shown:?}: {exchange:?}");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn lies_about_chunks_cut_the_body_and_cost_the_connection() {
    for lie in [
        "zz\r\nabc\r\n0\r\n\r\n",
        "-1\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "ffffffffffffffff\r\nabc",
        "10000000000000000\r\nabc\r\n0\r\n\r\n",
        "3\r\nabcdef\r\n0\r\n\r\n",
        "5\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc\r\n",
        "3\r\nabc\r\n0\r\n",
        "\r\nabc",
        "3\nabc\n0\n\n",
    ] {
        let bytes = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{lie}");
        let [first, second] = twice_on_two_connections(200, bytes.as_bytes()).await;
        assert!(first.body_cut && second.body_cut, "{lie:?}: {first:?}");
    }
}

#[tokio::test]
async fn endless_chunk_extensions_and_trailers_cut_the_body() {
    for start in ["1;", "1\r\na\r\n0\r\nx: "] {
        let head = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{start}");
        let server = RawServer::start(move |mut stream| {
            let head = head.clone();
            async move {
                let _request = read_request(&mut stream).await;
                let _ = stream.write_all(head.as_bytes()).await;
                while stream.write_all(&[b'x'; 8192]).await.is_ok() {}
            }
        })
        .await;
        let answer = answer(send(&local(), &server.url()).await);
        assert!(answer.status == 200 && answer.body_cut && answer.body.len() <= 1, "{start:?}: {answer:?}");
    }
}

#[tokio::test]
async fn a_length_that_promises_too_much_cuts_the_body_at_the_deadline() {
    let [first, _] = twice_on_two_connections(200, b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await;
    assert!(first.body == "abc" && first.body_cut, "{first:?}");
    let most = b"HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551613\r\n\r\nabc";
    let [first, _] = twice_on_two_connections(200, most).await;
    assert!(first.body == "abc" && first.body_cut, "{first:?}");
}

#[tokio::test]
async fn lengths_that_contradict_each_other_or_are_no_numbers_mean_an_invalid_response() {
    for lengths in [
        "content-length: 3\r\ncontent-length: 5",
        "content-length: 3, 5",
        "content-length: -3",
        "content-length: +3",
        "content-length: 3 3",
        "content-length: 99999999999999999999999",
        "content-length: abc",
        "content-length:",
    ] {
        invalid(format!("HTTP/1.1 200 OK\r\n{lengths}\r\n\r\nabcde").as_bytes()).await;
    }
}

#[tokio::test]
async fn what_comes_behind_an_answer_is_never_the_answer_to_the_next_request() {
    for head in [
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        twice_on_two_connections(200, &[head.as_bytes(), GONE].concat()).await;
    }
}

#[tokio::test]
async fn a_body_behind_an_answer_that_has_none_costs_the_connection() {
    for status in [204, 304] {
        for fields in ["", "content-length: 42\r\n", "transfer-encoding: chunked\r\n"] {
            let head = format!("HTTP/1.1 {status} So\r\n{fields}\r\n");
            let [first, _] = twice_on_two_connections(status, &[head.as_bytes(), GONE].concat()).await;
            assert!(first.body.is_empty());
        }
    }
}

#[tokio::test]
async fn an_answer_that_comes_late_onto_an_idle_connection_answers_nothing() {
    let (poison, poisoned) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (wait, tell) = (Arc::clone(&poison), Arc::clone(&poisoned));
    let server = RawServer::start(move |mut stream| {
        let (wait, tell) = (Arc::clone(&wait), Arc::clone(&tell));
        async move {
            let _request = read_request(&mut stream).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            wait.notified().await;
            let _ = stream.write_all(GONE).await;
            tell.notify_one();
            let _request = read_request(&mut stream).await;
        }
    })
    .await;
    let sender = local();
    for _ in 0..20 {
        assert_eq!(answer(send(&sender, &server.url()).await).status, 200);
        poison.notify_one();
        poisoned.notified().await;
    }
    assert_eq!(server.connections(), 20);
}

/// Whether the answer is noticed before the request leaves is a race. What is said about it must be true either way.
#[tokio::test]
async fn after_an_answer_that_was_there_before_the_request_not_sent_means_that_nothing_came() {
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let server = RawServer::start(move |mut stream| {
        let report = report.clone();
        async move {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
            let mut seen = Vec::new();
            let _ = stream.read_to_end(&mut seen).await;
            report.send(seen.len()).unwrap();
        }
    })
    .await;
    for connections in 1..=20 {
        let exchange = send(&local(), &server.url()).await;
        let seen = reports.recv().await.unwrap();
        match &exchange {
            Exchange::NotSent(_) => assert_eq!(seen, 0, "{exchange:?}"),
            Exchange::Unknown(_) => {}
            Exchange::Answered(_) => assert!(seen > 0, "{exchange:?}"),
        }
        assert_eq!(server.connections(), connections);
    }
}

#[tokio::test]
async fn a_flood_of_informational_answers_is_skipped_and_an_endless_one_ends_at_the_deadline() {
    let mut flood = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(5_000);
    flood.extend_from_slice(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n");
    let server = RawServer::answering(flood).await;
    assert_eq!(answer(send(&local(), &server.url()).await).status, 202);

    let endless = RawServer::start(|mut stream| async move {
        let _request = read_request(&mut stream).await;
        while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_ok() {}
    })
    .await;
    assert_eq!(send_briefly(&local(), &endless.url()).await, Exchange::Unknown(Unknown::Deadline));
}

#[tokio::test]
async fn switching_protocols_is_a_refusal_and_the_connection_is_dropped() {
    let bytes = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n\x81\x05hello";
    let [first, _] = twice_on_two_connections(101, bytes).await;
    assert_eq!(Exchange::Answered(first).outcome(), "refused");
}

#[tokio::test]
async fn send_m6_a_compressed_bomb_is_kept_as_it_came_and_cut() {
    for encoding in ["gzip", "deflate", "br", "zstd"] {
        let bomb = vec![0x1f; 10 * READ_LIMIT];
        let fields = format!("content-encoding: {encoding}\r\ncontent-length: {}", bomb.len());
        let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
        let [first, _] = twice_on_two_connections(200, &[head.as_bytes(), &bomb].concat()).await;
        assert!(first.body == bomb[..KEEP_LIMIT] && first.body_cut);
    }
}

/// Closes so that the other side gets a reset instead of an end.
fn reset(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
    drop(stream);
}

#[tokio::test]
async fn a_reset_before_an_answer_is_unknown_and_one_in_the_body_leaves_the_status_standing() {
    for (start, status) in [
        ("", None),
        ("HTTP/1.1 2", None),
        ("HTTP/1.1 200 OK\r\nx: y", None),
        ("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", Some(200)),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc", Some(200)),
        ("HTTP/1.1 500 Oops\r\n\r\nabc", Some(500)),
    ] {
        let server = RawServer::start(move |mut stream| async move {
            let _request = read_request(&mut stream).await;
            let _ = stream.write_all(start.as_bytes()).await;
            // What has arrived is lost to a reset: the other side gets time to read it.
            tokio::time::sleep(Duration::from_millis(200)).await;
            reset(stream);
        })
        .await;
        let exchange = send(&local(), &server.url()).await;
        match (&exchange, status) {
            (Exchange::Answered(answer), Some(status)) => {
                assert!(answer.status == status && answer.body_cut && answer.body == "abc", "{answer:?}");
            }
            (Exchange::Unknown(Unknown::ConnectionLost(_)), None) => {}
            _ => panic!("{start:?}: {exchange:?}"),
        }
        assert_eq!(server.connections(), 1, "{start:?}");
    }
}

#[tokio::test]
async fn a_connection_that_is_never_accepted_means_not_sent() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(connected) = tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
        waiting.push(connected.unwrap());
        assert!(waiting.len() < 100, "the backlog is never full");
    }
    let exchange = send_briefly(&local(), &format!("http://{address}/")).await;
    assert_eq!(exchange, Exchange::NotSent(NotSent::Deadline));
}

#[tokio::test]
async fn what_is_not_http_1_means_an_invalid_response() {
    for bytes in [
        &b"<html><body>It works!</body></html>\r\n\r\n"[..],
        b"HTTP/0.9 200 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx y: z\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x28\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
    ] {
        invalid(bytes).await;
    }
}

#[tokio::test]
async fn as_many_headers_as_are_allowed_are_taken_and_one_more_is_not() {
    let flood = |count: usize| format!("HTTP/1.1 200 OK\r\n{}content-length: 0\r\n\r\n", "x: y\r\n".repeat(count - 1));
    let server = RawServer::answering(flood(MAX_HEADERS)).await;
    assert_eq!(answer(send(&local(), &server.url()).await).status, 200);
    invalid(flood(MAX_HEADERS + 1).as_bytes()).await;
}

#[tokio::test]
async fn an_early_refusal_stands_though_the_payload_was_not_read() {
    let server = RawServer::start(|mut stream| async move {
        let mut chunk = [0; 512];
        let _ = stream.read(&mut chunk).await;
        let _ = stream.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n").await;
        std::future::pending::<()>().await;
    })
    .await;
    let sender = local();
    let payload = vec![b'x'; 16 * 1024 * 1024];
    for connections in 1..=2 {
        let sent = sender.send(request_with(&server.url(), Duration::from_secs(5), &payload)).await;
        assert_eq!(answer(sent.exchange).status, 413);
        assert_eq!(server.connections(), connections);
    }
}
