//! What the tests of this crate share: raw servers on the loopback address, and a database with a clock of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server on a free port that counts its connections.
pub(crate) struct RawServer {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl RawServer {
    pub(crate) async fn start<F, Fut>(serve: F) -> Self
    where
        F: Fn(TcpStream) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream));
            }
        });
        Self { address, connections }
    }

    /// Reads each request of a connection and answers it with these bytes.
    pub(crate) async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = Arc::new(answer.into());
        Self::start(move |mut stream| {
            let answer = Arc::clone(&answer);
            async move {
                while read_request(&mut stream).await.is_some() {
                    if stream.write_all(&answer).await.is_err() {
                        break;
                    }
                }
            }
        })
        .await
    }

    /// Connections that are made here were not to be made.
    pub(crate) async fn trap() -> Self {
        Self::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/geheim?token=geheim", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// One whole request, or none if the connection ended before.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return Some(text);
            }
        }
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await.ok()?;
        if read == 0 {
            return None;
        }
        bytes.extend_from_slice(&chunk[..read]);
    }
}

#[cfg(feature = "sqlite")]
pub(crate) mod bed {
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use std::time::Duration;

    use twiceproof_shared::clock::{ManualClock, Timestamp};
    use twiceproof_shared::key::Key;
    use twiceproof_shared::store::Store;
    #[cfg(feature = "postgres")]
    use twiceproof_shared::store::{DatabaseUrl, StoreOptions};
    use twiceproof_shared::testing::TestDatabase;

    use super::*;
    use crate::store::counts::{Counts, counts};
    use crate::store::fixtures::{self, AttemptView, DeliveryView};
    use crate::{
        AddressPolicy, Dispatcher, DispatcherOptions, Manager, NewEndpoint, NewEvent, Policy, Publisher, SenderOptions,
    };

    /// Runs the same tests on this PostgreSQL, each in a schema of its own: for work on the SQL of both.
    #[cfg(feature = "postgres")]
    const POSTGRES: &str = "TWICEPROOF_TEST_POSTGRES_URL";

    /// A migrated database, and the clock that it goes by.
    pub(crate) struct Bed {
        pub(crate) store: Store,
        pub(crate) clock: ManualClock,
        _database: Option<TestDatabase>,
    }

    impl Bed {
        pub(crate) async fn new() -> Self {
            let clock = ManualClock::new(Timestamp::from_secs(1_700_000_000));
            #[cfg(feature = "postgres")]
            if let Ok(url) = std::env::var(POSTGRES) {
                return Self { store: postgres(&url, &clock).await, clock, _database: None };
            }
            let database = TestDatabase::sqlite();
            let store = database.store(Some(Arc::new(clock.clone()))).await.unwrap();
            Self { store, clock, _database: Some(database) }
        }

        pub(crate) fn manager(&self) -> Manager {
            Manager::new(&self.store, AddressPolicy::AllowPrivate, &Policy::default())
        }

        pub(crate) fn publisher(&self) -> Publisher {
            Publisher::new(&self.store, &Policy::default())
        }

        pub(crate) async fn dispatcher(&self) -> Dispatcher {
            self.dispatcher_with(Policy::default()).await
        }

        pub(crate) async fn dispatcher_with(&self, policy: Policy) -> Dispatcher {
            let sender = SenderOptions { addresses: AddressPolicy::AllowPrivate, ..SenderOptions::default() };
            let grace = Duration::from_secs(2);
            let options = DispatcherOptions { policy, sender, grace, ..DispatcherOptions::default() };
            Dispatcher::start(&self.store, options).await.unwrap()
        }

        /// An endpoint that gets everything; its id.
        pub(crate) async fn endpoint(&self, url: &str) -> String {
            self.manager().create_now(NewEndpoint::new(tenant(), url)).await.unwrap().endpoint.id
        }

        /// Publishes an event and returns its id.
        pub(crate) async fn publish(&self, payload: &str) -> String {
            let event = NewEvent::json(tenant(), "order.paid", payload.to_owned());
            self.publisher().publish_now(event).await.unwrap().id.to_string()
        }

        pub(crate) async fn counts(&self) -> Counts {
            let mut reader = self.store.read().await.unwrap();
            counts(&mut reader.conn(), None).await.unwrap()
        }

        pub(crate) async fn delivery(&self) -> DeliveryView {
            fixtures::delivery(&self.store).await
        }

        pub(crate) async fn attempts(&self) -> Vec<AttemptView> {
            fixtures::attempts(&self.store).await
        }

        pub(crate) fn pass(&self, seconds: u64) {
            self.clock.advance(Duration::from_secs(seconds));
        }
    }

    #[cfg(feature = "postgres")]
    async fn postgres(url: &str, clock: &ManualClock) -> Store {
        static SCHEMAS: AtomicUsize = AtomicUsize::new(0);
        let name = format!("d{}_{}", std::process::id(), SCHEMAS.fetch_add(1, Ordering::SeqCst));
        let url = DatabaseUrl::parse(url).unwrap();
        let url = twiceproof_shared::store::create_schema(&url, &name).await.unwrap();
        let mut options = StoreOptions::default();
        options.clock = Some(Arc::new(clock.clone()));
        options.allow_unsafe_durability = true;
        let store = Store::connect(&url, options).await.unwrap();
        store.migrate().await.unwrap();
        store
    }

    pub(crate) fn tenant() -> Key {
        Key::new("default").unwrap()
    }

    /// A receiver that answers as it is told, and remembers what it got.
    #[derive(Clone)]
    pub(crate) struct Receiver {
        pub(crate) url: String,
        answers: Arc<Mutex<VecDeque<String>>>,
        seen: Arc<Mutex<Vec<String>>>,
    }

    impl Receiver {
        /// Answers 200 after a while.
        pub(crate) async fn start_slow(delay: Duration) -> Self {
            let answers: Arc<Mutex<VecDeque<String>>> = Arc::default();
            let seen: Arc<Mutex<Vec<String>>> = Arc::default();
            let (told, log) = (Arc::clone(&answers), Arc::clone(&seen));
            let server = RawServer::start(move |mut stream| {
                let (told, log) = (Arc::clone(&told), Arc::clone(&log));
                async move {
                    while let Some(request) = read_request(&mut stream).await {
                        log.lock().unwrap().push(request);
                        let answer = told.lock().unwrap().pop_front().unwrap_or_else(|| "200 OK".to_owned());
                        tokio::time::sleep(delay).await;
                        let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                }
            })
            .await;
            Self { url: server.url(), answers, seen }
        }

        pub(crate) async fn start() -> Self {
            Self::start_slow(Duration::ZERO).await
        }

        /// The next answers: status lines, also with headers; after them 200.
        pub(crate) fn answer(&self, answers: &[&str]) {
            self.answers.lock().unwrap().extend(answers.iter().map(|answer| (*answer).to_owned()));
        }

        pub(crate) fn seen(&self) -> Vec<String> {
            self.seen.lock().unwrap().clone()
        }

        /// The bodies, in the order in which they came.
        pub(crate) fn bodies(&self) -> Vec<String> {
            let body = |request: &String| request.split_once("\r\n\r\n").unwrap().1.to_owned();
            self.seen().iter().map(body).collect()
        }

        /// A header of each request, in the order in which they came.
        pub(crate) fn headers(&self, name: &str) -> Vec<String> {
            let prefix = format!("{name}: ");
            let header = |request: &String| {
                request.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_default().to_owned()
            };
            self.seen().iter().map(header).collect()
        }
    }
}
