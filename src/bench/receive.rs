//! Receive: signed requests over real sockets through the receiver's own router: ledger, effect and outcome.
//!
//! Two limits: the plain client against the sink, and against a plain handler that verifies and inserts the same row. That
//! handler writes what came meanwhile with one statement and one commit, the fastest shape there is, and would double the effect
//! of every redelivery.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use twiceproof_receiver::{Event, Handler, HandlerError, Receiver, Reply, Source};
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{self, SignedHeaders};
use twiceproof_shared::store::{Conn, Store, StoreError};

use super::bed::Bed;
use super::meter::Sum;
use super::report::Result as Measured;
use super::{BenchError, sink, store as tables};
use crate::server::{Server, ServerOptions};

/// The most rows that the plain handler commits at once.
const MOST_ROWS: usize = 64;

/// Measures it.
///
/// # Errors
/// As [`BenchError`] says.
pub async fn measure(bed: &Bed) -> Result<Measured, BenchError> {
    let stop = CancellationToken::new();
    let _stopping = stop.clone().drop_guard();
    let source = Source::standard_webhooks("bench").secret(bed.secret.clone()).share_transactions(true).build();
    let source = source.map_err(|error| BenchError::Setup(error.into()))?;
    let receiver = Receiver::new(bed.store.clone()).source(source, Effect);
    let receiver = receiver.map_err(|error| BenchError::Setup(error.into()))?;
    let router = receiver.router().merge(plain(&bed.store, &bed.secret));
    let server = Server::bind("127.0.0.1:0", ServerOptions::default()).await?;
    let address = server.address();
    let serving = tokio::spawn(server.serve(router, stop.clone().cancelled_owned()));

    let (mut subject, mut handler, mut client) = (Sum::default(), Sum::default(), Sum::default());
    let post = async |path: &str, sum: &mut Sum| {
        let url = format!("http://{address}{path}");
        let work = bed.client.post_all(&url, bed.events(), bed.connections(), &bed.options);
        bed.turn(bed.events(), work, sum).await
    };
    let mut effects = 0;
    for _ in 0..bed.options.rounds {
        bed.plain_client(bed.events(), &mut client).await?;
        post("/plain", &mut handler).await?;
        let before = tables::effects(&bed.store).await?;
        post("/bench", &mut subject).await?;
        effects += tables::effects(&bed.store).await? - before;
    }
    stop.cancel();
    // Connections that the client keeps alive would be waited for.
    serving.abort();
    let counts = super::report::Counts { effects, ..tables::count(&bed.store).await? };
    let limits = vec![handler.figures("plain handler"), client.figures("plain client")];
    Ok(Measured::new(bed.scenario, bed.connections(), subject.figures("receive"), limits, counts))
}

/// Writes one row.
struct Effect;

impl Handler for Effect {
    async fn handle<'a>(&'a self, conn: &'a mut Conn<'_>, event: &'a Event) -> Result<Reply, HandlerError> {
        let number = sink::number(event.body()).unwrap_or(0);
        tables::add_effect(conn, event.id().as_str(), number as i64).await?;
        Ok(Reply::ok())
    }
}

type Row = (String, i64, oneshot::Sender<()>);

/// The plain handler.
fn plain(store: &Store, secret: &Secret) -> Router {
    let (rows, queue) = mpsc::channel(1024);
    tokio::spawn(write(store.clone(), queue));
    let state = Arc::new((store.clone(), secret.clone(), rows));
    Router::new().route("/plain", post(take)).with_state(state)
}

async fn take(
    State(state): State<Arc<(Store, Secret, mpsc::Sender<Row>)>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let (store, secret, rows) = &*state;
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (id, timestamp) = (header(signature::ID), header(signature::TIMESTAMP));
    let signed = SignedHeaders { id, timestamp, signature: header(signature::SIGNATURE) };
    let secrets = std::slice::from_ref(secret);
    if signature::verify(&signed, &body, secrets, store.now(), signature::TOLERANCE).is_err() {
        return StatusCode::UNAUTHORIZED;
    }
    let (done, committed) = oneshot::channel();
    let row = (id.to_owned(), sink::number(&body).unwrap_or(0) as i64, done);
    match rows.send(row).await {
        Ok(()) if committed.await.is_ok() => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Commits what is queued, together and with one statement.
async fn write(store: Store, mut queue: mpsc::Receiver<Row>) {
    let mut queued = Vec::new();
    while queue.recv_many(&mut queued, MOST_ROWS).await > 0 {
        let (rows, done): (Vec<_>, Vec<_>) =
            queued.drain(..).map(|(event, number, done)| ((event, number), done)).unzip();
        let rows = Arc::new(rows);
        let written: Result<(), StoreError> = store
            .run_own(move |conn| {
                let rows = Arc::clone(&rows);
                Box::pin(async move { tables::add_effects(conn, &rows).await })
            })
            .await;
        for done in done {
            if written.is_ok() {
                // A request whose client left needs no answer.
                let _ = done.send(());
            }
        }
    }
}
