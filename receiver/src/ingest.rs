//! MAIN PATH of a received webhook: verify → identify → ledger → handler → outcome → commit → answer.
//!
//! What if it dies here? Before the commit of [`Work::once`] nothing happened, and the sender delivers again. After it,
//! the redelivery gets the stored answer.
//! Invariants: a 2xx leaves only after the effect is committed; the database work is a task of its own, so a client that
//! goes away does not cut it in half; the work may run again, and then the ledger tells what the first run did.

use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{self, HeaderMap};
use tokio::time::Instant;
use tracing::{Instrument, Span};
use twiceproof_shared::kill;
use twiceproof_shared::ledger::{self, Outcome, RawRequest};
use twiceproof_shared::store::{Conn, Database, Store, StoreError};

use crate::answer::Answer;
use crate::body::{self, BodyError};
use crate::effect::{self, EffectError};
use crate::event::Event;
use crate::handler::AnyHandler;
use crate::source::Source;
use crate::together::{self, Together};
use crate::verify::{self, Refusal};

/// One source, its handler, and the store that both work on.
pub(crate) struct Route {
    pub(crate) store: Store,
    pub(crate) source: Source,
    pub(crate) handler: Box<dyn AnyHandler>,
    pub(crate) together: Together,
}

/// Takes one request in. The current span learns the event's key in its field `event`.
///
/// # Errors
/// [`IngestError`] says why there is no effect, or none that is known of.
pub(crate) async fn ingest<B>(route: &Arc<Route>, headers: HeaderMap, body: B) -> Result<Answer, IngestError>
where
    B: HttpBody<Data = Bytes>,
{
    let (source, limits) = (&route.source, route.source.limits());
    let body = body::read(&headers, body, limits.body).await?;
    kill::at("body_read");
    let request = verify::verify(source.verifier(), headers, body, route.store.now())?;
    kill::at("verified");
    Span::current().record("event", request.identity().event_key.as_str());
    let work = Work::new(Arc::clone(route), Event::new(source, request));
    let settled = tokio::spawn(settle(work).in_current_span());
    // The handler has its own deadline; this one bounds the waiting for locks and for other units of a batch. The work
    // goes on behind it, and the redelivery finds what came of it.
    let patience = limits.in_flight_wait + limits.handler_deadline + MARGIN;
    match tokio::time::timeout(patience, settled).await {
        Ok(settled) => settled.unwrap_or(Err(IngestError::Store(StoreError::Closed))),
        Err(_) => Ok(Answer::InFlight),
    }
}

/// How long database work may take beside the handler before the sender is told to come again.
const MARGIN: Duration = Duration::from_secs(10);

/// Asks whether the event runs already, then runs it in one transaction, which it may share.
async fn settle(work: Work) -> Result<Answer, IngestError> {
    let store = work.route.store.clone();
    let key = work.request.key.running();
    // Held until the commit is answered.
    let running = store.running().enter(key, work.route.source.limits().in_flight_wait).await;
    if running.is_none()
        && let Some(answer) = work.answered(&store).await?
    {
        return Ok(answer);
    }
    let work = Arc::new(work);
    if work.route.source.shares_transactions(store.database()) {
        return together::settle(work).await;
    }
    alone(work).await
}

/// Runs the event in one transaction of its own.
pub(crate) async fn alone(work: Arc<Work>) -> Result<Answer, IngestError> {
    let store = work.route.store.clone();
    let again = Arc::clone(&work);
    let settled = store.run(move |conn| Arc::clone(&again).boxed(conn)).await;
    if let Err(IngestError::Effect(EffectError::Store(StoreError::EndedByUnit))) = settled
        && store.database() == Database::Postgres
    {
        // Differs because on SQLite nobody but the store can commit. Here the handler's later statements committed by
        // themselves, without the key. To run it again could repeat them.
        hold(&store, work).await?;
    }
    if settled.is_ok() {
        kill::at("commit_before_answer");
    }
    settled
}

/// Keeps the key of an event whose handler may have committed something by itself: it stays in flight until somebody
/// looks.
async fn hold(store: &Store, work: Arc<Work>) -> Result<(), IngestError> {
    store
        .run(move |conn| {
            let work = Arc::clone(&work);
            Box::pin(async move {
                let now = work.route.store.now();
                ledger::accept(conn, &work.request, now).await.map(drop)
            })
        })
        .await?;
    Ok(())
}

/// One event on its way through the ledger. It can run more than once.
pub(crate) struct Work {
    pub(crate) route: Arc<Route>,
    event: Event,
    pub(crate) request: ledger::Request,
    /// Nobody waits for an answer that begins later than this.
    begin_by: Instant,
}

impl Work {
    fn new(route: Arc<Route>, event: Event) -> Self {
        let key = route.source.ledger_key(event.id());
        let mut request = ledger::Request::of_body(key, event.body(), route.source.retention());
        if let Some(fingerprint) = event.fingerprint() {
            request.fingerprint = fingerprint;
        }
        let begin_by = Instant::now() + route.source.limits().in_flight_wait + MARGIN;
        Self { route, event, request, begin_by }
    }

    fn boxed<'a>(self: Arc<Self>, conn: &'a mut Conn<'_>) -> BoxFuture<'a, Result<Answer, IngestError>> {
        Box::pin(async move { self.once(conn).await })
    }

    /// Key, effect and outcome: committed together by the caller, or not at all.
    async fn once(&self, conn: &mut Conn<'_>) -> Result<Answer, IngestError> {
        let Route { store, source, handler, .. } = &*self.route;
        if self.is_too_late() {
            return Err(IngestError::TooLate);
        }
        match ledger::accept(conn, &self.request, store.now()).await? {
            ledger::Answer::New(claim) => {
                kill::at("ledger_before_effect");
                let deadline = source.limits().handler_deadline;
                let began = Instant::now();
                let outcome = effect::run(conn, &**handler, &self.event, deadline).await;
                self.route.together.took(began.elapsed());
                let outcome = outcome?;
                kill::at("effect_before_commit");
                // Last, so that a transaction that failed on the way cannot pass for done.
                ledger::finish(conn, claim, &outcome, store.now()).await?;
                kill::at("outcome_before_commit");
                Ok(Answer::First(outcome))
            }
            ledger::Answer::Replay(replay) => Ok(Answer::of_replay(replay)),
            ledger::Answer::Conflict => {
                let headers = headers_for_review(self.event.headers());
                let raw = RawRequest { headers: &headers, body: self.event.body() };
                ledger::keep_conflict(conn, &self.request, &raw, store.now()).await?;
                Ok(Answer::Conflict(source.limits().conflict_status))
            }
            ledger::Answer::InFlight => Ok(Answer::InFlight),
        }
    }

    /// Runs the handler where other events share the transaction. None: roll back, it has to go alone.
    pub(crate) async fn effect_together(&self, conn: &mut Conn<'_>) -> Option<Outcome> {
        let Route { source, handler, together, .. } = &*self.route;
        let began = Instant::now();
        let outcome = effect::run_bare(conn, &**handler, &self.event, source.limits().handler_deadline).await;
        together.took(began.elapsed());
        outcome
    }

    /// Nobody waits for its answer any more. A queue that has once grown longer than anybody's patience would otherwise only
    /// do work that has already been answered with "come again", and would hold every body in it.
    pub(crate) fn is_too_late(&self) -> bool {
        Instant::now() > self.begin_by
    }

    /// The answer where another request holds this key in this process: a replay if the event is done all the same (the
    /// other one is a redelivery too), else in flight. `None`: it takes a transaction to answer.
    async fn answered(&self, store: &Store) -> Result<Option<Answer>, IngestError> {
        let mut reader = store.read().await?;
        Ok(match ledger::peek(&mut reader.conn(), &self.request).await? {
            None => Some(Answer::InFlight),
            Some(ledger::Answer::Replay(replay)) => Some(Answer::of_replay(replay)),
            Some(_) => None,
        })
    }
}

/// Why there is no effect, or none that is known of.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IngestError {
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Effect(#[from] EffectError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the event waited too long for the database; nothing was begun")]
    TooLate,
}

/// The headers as a JSON list of pairs, without credentials that are not the sender's signature.
pub(crate) fn headers_for_review(headers: &HeaderMap) -> String {
    let credentials = [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE];
    let pairs: Vec<(&str, String)> = headers
        .iter()
        .filter(|(name, _)| !credentials.contains(name))
        .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    serde_json::to_string(&pairs).unwrap_or_else(|_| "[]".to_owned())
}
