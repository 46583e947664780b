//! The processes that a crash run kills, beside the worker, which is `serve`: a client that publishes, and a receiver whose
//! effect is in the transaction of its event. Both are told what to do by lines on their input, and say on their output what
//! happened, each fact before anybody else can learn of it. They end with their input.

use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use twiceproof_dispatcher::{NewEvent, Policy, PublishError, Publisher};
use twiceproof_receiver::{Event, Handler, HandlerError, Receiver, Reply, Source};
use twiceproof_shared::key::Key;
use twiceproof_shared::kill;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature;
use twiceproof_shared::store::{Conn, DatabaseUrl, Store, StoreError, StoreOptions};

use super::{CrashError, store as tables};
use crate::prove::history::Fact;
use crate::server::{Server, ServerOptions};

/// The receiver's only source, and the type of all events.
pub(super) const SOURCE: &str = "prove";
pub(super) const EVENT_TYPE: &str = "prove.made";
pub(super) const TENANT: &str = "default";
/// What an actor says once it is ready.
pub(super) const READY: &str = "ready";
/// Connections of an actor to its database.
const CONNECTIONS: u32 = 8;
/// The largest body of a request or an answer.
const BODY_LIMIT: usize = 64 * 1024;
/// How often a port is tried that an earlier process has just left.
const BIND_TRIES: u32 = 100;

/// The first line of an actor's input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) database: String,
    pub(super) role: Role,
}

/// What an actor is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    Publisher,
    Receiver { listen: String, secret: String },
}

/// Each further line of a publisher's input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) uid: String,
    pub(super) way: Way,
}

/// How an event is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// In a transaction of the dispatcher's, shared with others.
    Shared,
    /// In a transaction of the client's, beside a row of its own.
    Own,
    /// The same, and rolled back.
    RolledBack,
}

/// Plays the part that the first line of `input` says, until `input` ends.
///
/// # Errors
/// [`CrashError`] where the part cannot be set up.
pub async fn act(input: impl BufRead + Send + 'static, output: impl Write + Send + 'static) -> Result<(), CrashError> {
    let mut lines = input.lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let setup: Setup = serde_json::from_str(&first).map_err(io::Error::from)?;
    let mut options = StoreOptions::default();
    options.connections = Some(CONNECTIONS);
    let store = Store::connect(&DatabaseUrl::parse(&setup.database)?, options).await?;
    let voice = Voice(Arc::new(Mutex::new(Box::new(output))));
    let (give, offers) = mpsc::unbounded_channel();
    // Reading blocks, so it has a thread of its own; it ends with the process.
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if give.send(line).is_err() {
                break;
            }
        }
    });
    match setup.role {
        Role::Publisher => publish(store, voice, offers).await,
        Role::Receiver { listen, secret } => receive(store, voice, offers, (&listen, &secret)).await,
    }
}

/// Says facts on the output.
#[derive(Clone)]
struct Voice(Arc<Mutex<Box<dyn Write + Send>>>);

impl Voice {
    fn say(&self, line: &str) {
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody listens any more: this process is about to end with its input.
        let _ = output.write_all(format!("{line}\n").as_bytes()).and_then(|()| output.flush());
    }

    fn tell(&self, fact: &Fact) {
        // A fact always can be written as JSON.
        self.say(&serde_json::to_string(fact).unwrap_or_default());
    }
}

async fn publish(store: Store, voice: Voice, mut offers: mpsc::UnboundedReceiver<String>) -> Result<(), CrashError> {
    let publisher = Publisher::new(&store, &Policy::default());
    voice.say(READY);
    while let Some(line) = offers.recv().await {
        let offer: Offer = serde_json::from_str(&line).map_err(io::Error::from)?;
        let (store, publisher, voice) = (store.clone(), publisher.clone(), voice.clone());
        tokio::spawn(async move { voice.tell(&publish_one(&store, &publisher, offer).await) });
    }
    store.close().await;
    Ok(())
}

async fn publish_one(store: &Store, publisher: &Publisher, Offer { uid, way }: Offer) -> Fact {
    let published = match way {
        Way::Shared => match event(&uid) {
            Ok(event) => publisher.publish_now(event).await.map(Some),
            Err(error) => Err(error.into()),
        },
        Way::Own | Way::RolledBack => publish_own(store, publisher, &uid, way).await,
    };
    match published {
        Ok(Some(published)) => Fact::Accepted { uid, event: published.id.to_string(), fresh: published.fresh },
        Ok(None) => Fact::RolledBack { uid },
        Err(PublishError::Store(error @ (StoreError::Unknown(_) | StoreError::Closed))) => {
            Fact::Unknown { uid, error: error.to_string() }
        }
        Err(error) => Fact::Failed { uid, error: error.to_string() },
    }
}

/// `None`: it was rolled back.
async fn publish_own(
    store: &Store,
    publisher: &Publisher,
    uid: &str,
    way: Way,
) -> Result<Option<twiceproof_dispatcher::Published>, PublishError> {
    let mut tx = store.begin().await?;
    let (published, wake) = publisher.publish(&mut tx.conn(), event(uid)?).await?;
    if way == Way::RolledBack {
        // Not acknowledged or acknowledged: nothing is committed.
        let _ = tx.rollback().await;
        return Ok(None);
    }
    if published.fresh {
        tables::add_row(&mut tx.conn(), uid).await?;
    }
    tx.commit().await?;
    kill::at("publish_after_commit");
    wake.send();
    Ok(Some(published))
}

/// The same bytes each time, so that offering it again is recognised.
fn event(uid: &str) -> Result<NewEvent, StoreError> {
    let refused = |error: twiceproof_shared::key::InvalidKey| StoreError::Refused(error.to_string().into());
    let payload = format!(r#"{{"uid":"{uid}","padding":"{}"}}"#, "x".repeat(200));
    Ok(NewEvent::json(Key::new(TENANT).map_err(refused)?, EVENT_TYPE, payload)
        .with_uid(Key::new(uid.to_owned()).map_err(refused)?))
}

async fn receive(
    store: Store,
    voice: Voice,
    mut orders: mpsc::UnboundedReceiver<String>,
    (listen, secret): (&str, &str),
) -> Result<(), CrashError> {
    let setup = |error: twiceproof_receiver::BoxError| CrashError::Setup(error);
    let secret = Secret::parse(secret).map_err(|error| setup(error.into()))?;
    let source = Source::standard_webhooks(SOURCE).tenant(TENANT).secret(secret).build();
    let source = source.map_err(|error| setup(error.into()))?;
    let handler = Effect { store: store.clone() };
    let receiver = Receiver::new(store.clone()).source(source, handler).map_err(|error| setup(error.into()))?;
    let server = bind(listen).await?;
    let said = voice.clone();
    let router = receiver.router().layer(axum::middleware::from_fn(move |request: Request, next: Next| {
        let voice = said.clone();
        async move { witness(&voice, request, next).await }
    }));
    voice.say(READY);
    let (stop, mut stopped) = watch::channel(());
    tokio::spawn(async move {
        while orders.recv().await.is_some() {}
        drop(stop);
    });
    server
        .serve(router, async move {
            let _ = stopped.changed().await;
        })
        .await;
    store.close().await;
    Ok(())
}

async fn bind(listen: &str) -> io::Result<Server> {
    let mut tries = 0;
    loop {
        let options = ServerOptions { drain: Duration::from_secs(3), ..ServerOptions::default() };
        match Server::bind(listen, options).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < BIND_TRIES => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => return other,
        }
    }
}

/// Notes each request before the receiver sees it, and each answer before its sender does.
async fn witness(voice: &Voice, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let id = head.headers.get(signature::ID).and_then(|value| value.to_str().ok());
    let event = id.unwrap_or_default().to_owned();
    let Ok(body) = axum::body::to_bytes(body, BODY_LIMIT).await else {
        // Its connection was cut before it had come whole.
        return StatusCode::BAD_REQUEST.into_response();
    };
    voice.tell(&Fact::Arrived { event: event.clone(), body: String::from_utf8_lossy(&body).into_owned() });
    let response = next.run(Request::from_parts(head, Body::from(body))).await;
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, BODY_LIMIT).await.unwrap_or_default();
    voice.tell(&Fact::Answered {
        event,
        status: head.status.as_u16(),
        replayed: head.headers.contains_key("idempotent-replayed"),
        body: String::from_utf8_lossy(&body).into_owned(),
    });
    Response::from_parts(head, Body::from(body))
}

/// Writes an effect that can be told from every other, and answers with it.
struct Effect {
    store: Store,
}

impl Handler for Effect {
    async fn handle<'a>(&'a self, conn: &'a mut Conn<'_>, event: &'a Event) -> Result<Reply, HandlerError> {
        let mut number = [0; 8];
        self.store.random().fill(&mut number);
        let reply = serde_json::json!({ "number": format!("{:016x}", u64::from_be_bytes(number)) });
        tables::add_effect(conn, event.id().as_ref(), &reply.to_string()).await?;
        Ok(Reply::ok().json(&reply)?)
    }
}
