use std::time::Instant;

use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::*;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n";

struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Drained>,
}

async fn start(router: Router, options: ServerOptions) -> Running {
    let server = Server::bind("127.0.0.1:0", options).await.unwrap();
    let address = server.address();
    let (stop, stopped) = oneshot::channel();
    let ended = tokio::spawn(server.serve(router, async move {
        let _ = stopped.await;
    }));
    Running { address, stop, ended }
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// A route that says when it has begun and answers when it is let go.
fn held(begun: &Arc<Notify>, go: &Arc<Notify>) -> Router {
    let (begun, go) = (Arc::clone(begun), Arc::clone(go));
    Router::new().route(
        "/",
        get(move || async move {
            begun.notify_one();
            go.notified().await;
            "late"
        }),
    )
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Reads what has come until `wanted` is in it; fails if the peer closes first.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 1024];
    while !text.contains(wanted) {
        let length = stream.read(&mut buffer).await.unwrap();
        assert!(length > 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    text
}

#[tokio::test]
async fn it_answers_on_the_address_it_reports_and_keeps_connections_open() {
    let running = start(hello(), ServerOptions::default()).await;
    let mut stream = connect(running.address).await;
    for _ in 0..2 {
        stream.write_all(REQUEST).await.unwrap();
        assert!(read_until(&mut stream, "hello").await.starts_with("HTTP/1.1 200"));
    }
    running.stop.send(()).unwrap();
    assert_eq!(running.ended.await.unwrap(), Drained { cut: 0 });
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "an idle connection is closed at once");
}

#[tokio::test]
async fn handlers_see_the_peer() {
    let router =
        Router::new().route("/", get(|ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.to_string() }));
    let running = start(router, ServerOptions::default()).await;
    let mut stream = connect(running.address).await;
    let own = stream.local_addr().unwrap().to_string();
    stream.write_all(REQUEST).await.unwrap();
    assert!(read_until(&mut stream, &own).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_head_that_dribbles_is_cut_at_its_deadline() {
    let options = ServerOptions { head_timeout: Duration::from_millis(200), ..ServerOptions::default() };
    let running = start(hello(), options).await;
    let begun = Instant::now();
    for sent in [&b""[..], b"GET / HT", b"GET / HTTP/1.1\r\nhost: "] {
        let mut stream = connect(running.address).await;
        stream.write_all(sent).await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(!String::from_utf8_lossy(&rest).contains("hello"));
    }
    assert!(begun.elapsed() >= Duration::from_millis(600));
}

#[tokio::test]
async fn a_head_beyond_the_limit_is_refused() {
    let running = start(hello(), ServerOptions::default()).await;
    let mut stream = connect(running.address).await;
    let head = format!("GET / HTTP/1.1\r\nlong: {}\r\n\r\n", "x".repeat(2 * HEAD_LIMIT));
    let _ = stream.write_all(head.as_bytes()).await;
    // The refusal itself may be lost: the system resets a connection that is closed with unread bytes.
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn connections_beyond_the_cap_wait_for_a_free_slot() {
    let running = start(hello(), ServerOptions { connections: 1, ..ServerOptions::default() }).await;
    let mut first = connect(running.address).await;
    first.write_all(REQUEST).await.unwrap();
    read_until(&mut first, "hello").await;

    let mut second = connect(running.address).await;
    second.write_all(REQUEST).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(200), second.read(&mut [0; 1])).await;
    assert!(waited.is_err(), "the second was served beside the first");
    drop(first);
    read_until(&mut second, "hello").await;
}

#[tokio::test]
async fn a_shutdown_lets_the_answer_under_way_finish() {
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let running = start(held(&begun, &go), ServerOptions::default()).await;
    let mut stream = connect(running.address).await;
    stream.write_all(REQUEST).await.unwrap();
    begun.notified().await;
    running.stop.send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(TcpStream::connect(running.address).await.is_err(), "a draining server takes no connection");
    go.notify_one();
    read_until(&mut stream, "late").await;
    assert_eq!(running.ended.await.unwrap(), Drained { cut: 0 });
}

#[tokio::test]
async fn what_outlasts_the_drain_time_is_cut_and_counted() {
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let options = ServerOptions { drain: Duration::from_millis(100), ..ServerOptions::default() };
    let running = start(held(&begun, &go), options).await;
    let mut stream = connect(running.address).await;
    stream.write_all(REQUEST).await.unwrap();
    begun.notified().await;
    running.stop.send(()).unwrap();
    assert_eq!(running.ended.await.unwrap(), Drained { cut: 1 });
    assert!(matches!(stream.read(&mut [0; 1]).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn a_handler_that_panics_takes_only_its_own_connection_along() {
    let router = hello().route(
        "/panic",
        get(|| async {
            if true {
                panic!("on purpose")
            }
        }),
    );
    let running = start(router, ServerOptions::default()).await;
    let mut stream = connect(running.address).await;
    stream.write_all(b"GET /panic HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
    let mut stream = connect(running.address).await;
    stream.write_all(REQUEST).await.unwrap();
    read_until(&mut stream, "hello").await;
}

#[tokio::test]
async fn a_peer_that_reads_no_answers_does_not_keep_its_connection() {
    let options =
        ServerOptions { write_timeout: Duration::from_millis(200), connections: 1, ..ServerOptions::default() };
    let running = start(hello(), options).await;
    let mut greedy = connect(running.address).await;
    let many = REQUEST.repeat(1000);
    let began = Instant::now();
    // Its requests fill the server's buffers with answers, and then nothing moves any more.
    while greedy.write_all(&many).await.is_ok() {
        assert!(began.elapsed() < Duration::from_secs(30), "it is still served");
    }
    let mut polite = connect(running.address).await;
    polite.write_all(REQUEST).await.unwrap();
    assert!(read_until(&mut polite, "hello").await.starts_with("HTTP/1.1 200"));
}
