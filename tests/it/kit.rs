//! A receiver on a real socket, with a handler whose effects can go wrong: no unique constraint stands on them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::task::JoinHandle;
use twiceproof::prove::{Answer, Hop, HopError, Message};
use twiceproof::receiver::{Event, Handler, HandlerError, Receiver, Reply, Source, SourceBuilder};
use twiceproof::server::{Server, ServerOptions};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature;
use twiceproof_shared::store::{Conn, Store};

pub const EFFECTS: &str = "CREATE TABLE effects (event TEXT NOT NULL, body BYTEA NOT NULL)";
const EFFECTS_SQLITE: &str = "CREATE TABLE effects (event TEXT NOT NULL, body BLOB NOT NULL)";
pub const ADD_EFFECT: &str = "INSERT INTO effects (event, body) VALUES ($1, $2)";

/// Makes the table of effects.
pub async fn make_effects(store: &Store) {
    let mut tx = store.begin().await.unwrap();
    let sql = match store.database() {
        twiceproof_shared::store::Database::Sqlite => EFFECTS_SQLITE,
        twiceproof_shared::store::Database::Postgres => EFFECTS,
    };
    tx.conn().execute_script(sql).await.unwrap();
    tx.commit().await.unwrap();
}

/// All effects, by event.
pub async fn effects(store: &Store) -> Vec<(String, Vec<u8>)> {
    let mut reader = store.read().await.unwrap();
    reader.conn().fetch_all("SELECT event, body FROM effects ORDER BY event, body", &[]).await.unwrap()
}

pub fn secret() -> Secret {
    Secret::parse("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=").unwrap()
}

/// The source `shop`; its only secret is [`secret`].
pub fn source() -> SourceBuilder {
    Source::standard_webhooks("shop").secret(secret())
}

/// Writes the event and its body as the effect and answers with a random number.
#[derive(Clone)]
pub struct Effect {
    pub store: Store,
    /// How long it takes, holding its transaction.
    pub takes: Duration,
}

impl Handler for Effect {
    async fn handle<'a>(&'a self, conn: &'a mut Conn<'_>, event: &'a Event) -> Result<Reply, HandlerError> {
        conn.execute(ADD_EFFECT, &[event.id().into(), event.body().as_ref().into()]).await?;
        tokio::time::sleep(self.takes).await;
        let mut number = [0; 8];
        self.store.random().fill(&mut number);
        Ok(Reply::ok().json(&serde_json::json!({ "number": u64::from_be_bytes(number) }))?)
    }
}

/// A running receiver.
pub struct Receiving {
    pub address: SocketAddr,
    pub hop: Hop,
    _serving: JoinHandle<()>,
}

impl Receiving {
    /// Serves `handler` behind `source` at `/shop`.
    pub async fn start(store: &Store, source: SourceBuilder, handler: impl Handler) -> Self {
        let receiver = Receiver::new(store.clone()).source(source.build().unwrap(), handler).unwrap();
        Self::serve(receiver.router()).await
    }

    /// Serves a router.
    pub async fn serve(router: axum::Router) -> Self {
        let server = Server::bind("127.0.0.1:0", ServerOptions::default()).await.unwrap();
        let address = server.address();
        let serving = tokio::spawn(async move {
            server.serve(router, std::future::pending()).await;
        });
        Self { address, hop: Hop::new(address, Duration::from_secs(60)), _serving: serving }
    }

    pub async fn send(&self, message: &Message) -> Answer {
        self.try_send(message).await.unwrap()
    }

    pub async fn try_send(&self, message: &Message) -> Result<Answer, HopError> {
        self.hop.send(message).await
    }
}

/// A store with the table of effects, and a receiver with the ordinary handler.
pub async fn receiving(store: Store) -> (Store, Receiving) {
    make_effects(&store).await;
    let handler = Effect { store: store.clone(), takes: Duration::ZERO };
    let receiving = Receiving::start(&store, source(), handler).await;
    (store, receiving)
}

/// A request signed at `at`.
pub fn signed(id: &str, body: impl Into<Bytes>, at: Timestamp) -> Message {
    let body = body.into();
    let signature = signature::sign(&[secret()], id, at, &body);
    let mut headers = HeaderMap::new();
    let mut set = |name: &'static str, value: &str| {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    };
    set(signature::ID, id);
    set(signature::TIMESTAMP, &at.as_secs().to_string());
    set(signature::SIGNATURE, &signature);
    set("content-type", "application/json");
    Message { path: "/shop".to_owned(), headers, body }
}

/// Sends `count` messages, `lanes` at a time; the answers in order.
pub async fn send_all(hop: &Hop, messages: Vec<Message>, lanes: usize) -> Vec<Answer> {
    use futures_util::StreamExt;
    let hop = Arc::new(hop.clone());
    futures_util::stream::iter(messages)
        .map(|message| {
            let hop = Arc::clone(&hop);
            async move { hop.send(&message).await.unwrap() }
        })
        .buffered(lanes)
        .collect()
        .await
}
