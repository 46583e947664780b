//! MAIN PATH of a request with a key: body → ledger → handler in the lent transaction → outcome → commit → answer.
//!
//! What if it dies here? Before the commit nothing happened, and the client's repeat runs as the first one. After it, the
//! repeat gets the stored answer.
//! Invariants: the outcome is written last; no answer of the handler's leaves before the commit; the handler is called once
//! at most; once the body is there, a client that leaves changes nothing.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures_util::FutureExt;
use http::request::Parts;
use tower::Service;
use tracing::Instrument;
use twiceproof_shared::causes::chain;
use twiceproof_shared::key::Key;
use twiceproof_shared::ledger::{self, Claim, LedgerKey, Outcome, RawRequest, Replay};
use twiceproof_shared::store::{EffectMark, Loan, StoreError, Tx, begin_effect, keep_effect, undo_effect};

use super::ending::undo;
use super::fingerprint;
use super::layer::Settings;
use super::outcome::{Keep, Unstorable, Whole};
use super::problem::Problem;
use super::rule::{Expired, Policy, Rule};
use super::sealed;
use crate::answer;
use crate::body;
use crate::ingest::headers_for_review;

/// How long a request waits for its turn at the database before it is told to come again.
const BEGIN_WAIT: Duration = Duration::from_secs(10);
/// Answers a request with a key.
pub(super) async fn once<S>(
    settings: Arc<Settings>,
    rule: Rule,
    (tenant, key): (Key, Key),
    request: Request,
    service: S,
) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
    S::Future: Send,
{
    let (head, body) = request.into_parts();
    let body = match body::read_as_it_is(body, settings.body).await {
        Ok(body) => body,
        Err(error) => return settings.refuse(&error.into()),
    };
    let scope = rule.scope.clone().unwrap_or_else(|| fingerprint::scope(&head));
    let mut asked = ledger::Request::of_body(LedgerKey { tenant, scope, key }, &body, rule.retention);
    asked.fingerprint = fingerprint::of(&head, &body);
    let once = Once { settings: Arc::clone(&settings), rule, asked };
    let settled = tokio::spawn(async move { once.settle(head, body, service).await }.in_current_span()).await;
    match settled {
        Ok(Ok(response)) => response,
        Ok(Err(problem)) => settings.refuse(&problem),
        Err(error) => {
            tracing::error!(%error, "a request with an idempotency key ended early");
            settings.refuse(&Problem::Failed)
        }
    }
}

pub(super) struct Once {
    pub(super) settings: Arc<Settings>,
    rule: Rule,
    pub(super) asked: ledger::Request,
}

/// What the ledger says.
enum Said {
    /// The key is ours, in this transaction.
    Mine(Claim, Tx),
    /// It is not.
    Known(Response),
}

impl Once {
    async fn settle<S>(self, head: Parts, body: Bytes, service: S) -> Result<Response, Problem>
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        let store = &self.settings.store;
        // Held until the commit is answered.
        let running = store.running().enter(self.asked.key.running(), self.settings.wait).await;
        if running.is_none() {
            return self.while_it_runs().await;
        }
        let tx = tokio::time::timeout(BEGIN_WAIT, store.begin()).await.map_err(|_| Problem::Unavailable)??;
        let (claim, mut tx) = match self.ask(tx, &head, &body).await? {
            Said::Mine(claim, tx) => (claim, tx),
            Said::Known(response) => return Ok(response),
        };
        let mark = match self.rule.policy {
            Policy::ReplayAll => Some(begin_effect(&mut tx.conn()).await?),
            Policy::ReplaySuccesses | Policy::Off => None,
        };
        let loan = Loan::new(tx);
        let handled = self.handle(&loan, head, body, service).await;
        let (tx, wakes) = loan.end();
        let (keep, whole) = match handled {
            Ok(Handled::ToKeep(keep, whole)) => (keep, whole),
            Ok(Handled::ToForget(response)) => {
                undo(tx).await;
                return Ok(response);
            }
            Err(problem) => {
                undo(tx).await;
                return Err(problem);
            }
        };
        let Some(tx) = tx else {
            tracing::error!("a handler kept or dropped the transaction that it was lent; everything is rolled back");
            return Err(Problem::Failed);
        };
        let committed = self.commit(tx, mark, claim, (keep, &whole)).await;
        if matches!(committed, Ok(()) | Err(StoreError::Unknown(_))) {
            // A wake-up for what was not committed finds nothing, and harms nobody.
            wakes.into_iter().for_each(|wake| wake.send());
        }
        match committed {
            Ok(()) => Ok(whole.into_response()),
            Err(StoreError::Unknown(_)) => match self.found().await {
                Some(found) if found == *whole.outcome() => Ok(whole.into_response()),
                // A repeat at another process was quicker than our look.
                Some(found) => Ok(answer::replayed(answer::stored(found))),
                None => Err(Problem::Unavailable),
            },
            Err(StoreError::LeaseLost) => {
                // Our claim has gone, which nobody but the handler can have rolled back. What it wrote after that stands.
                self.hold().await;
                Err(Problem::Failed)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The answer where another request holds this key in this process. It takes no lock, and a connection for a moment only.
    async fn while_it_runs(&self) -> Result<Response, Problem> {
        let mut reader = self.settings.store.read().await?;
        match ledger::peek(&mut reader.conn(), &self.asked).await? {
            Some(ledger::Answer::Replay(Replay { outcome: Some(outcome), .. })) => self.replay(outcome),
            Some(ledger::Answer::Conflict) if !self.rule.keeps_conflicts && self.rule.expired == Expired::Refuse => {
                Err(Problem::KeyReused)
            }
            // To say more takes a transaction: the client comes again.
            _ => Err(Problem::InFlight),
        }
    }

    /// Asks the ledger in this transaction, which is ended unless the key is ours.
    async fn ask(&self, mut tx: Tx, head: &Parts, body: &Bytes) -> Result<Said, Problem> {
        let now = self.settings.store.now();
        let mut said = ledger::accept(&mut tx.conn(), &self.asked, now).await?;
        let may_be_expired =
            matches!(said, ledger::Answer::Replay(Replay { outcome: None, .. }) | ledger::Answer::Conflict);
        if may_be_expired
            && self.rule.expired == Expired::New
            && let Some(claim) = ledger::renew(&mut tx.conn(), &self.asked, now).await?
        {
            said = ledger::Answer::New(claim);
        }
        match said {
            ledger::Answer::New(claim) => return Ok(Said::Mine(claim, tx)),
            ledger::Answer::Conflict if self.rule.keeps_conflicts => {
                let raw = RawRequest { headers: &headers_for_review(&head.headers), body };
                ledger::keep_conflict(&mut tx.conn(), &self.asked, &raw, now).await?;
                tx.commit().await?;
            }
            _ => undo(Some(tx)).await,
        }
        match said {
            ledger::Answer::Replay(Replay { outcome: Some(outcome), .. }) => self.replay(outcome).map(Said::Known),
            ledger::Answer::Replay(Replay { .. }) if self.rule.expired == Expired::Refuse => {
                tracing::warn!("a request came after the answer of its idempotency key was forgotten; it was refused");
                Err(Problem::KeyExpired)
            }
            ledger::Answer::Conflict => {
                tracing::warn!("an idempotency key was used again with another payload; it was refused");
                Err(Problem::KeyReused)
            }
            // An expired key that is new again, and somebody else has taken just now, is in flight too.
            _ => Err(Problem::InFlight),
        }
    }

    /// Calls the handler: within its deadline, whatever it does to the loan.
    async fn handle<S>(&self, loan: &Loan, mut head: Parts, body: Bytes, mut service: S) -> Result<Handled, Problem>
    where
        S: Service<Request, Response = Response, Error = Infallible>,
    {
        head.extensions.insert(loan.clone());
        let request = Request::from_parts(head, Body::from(body));
        let (policy, limit) = (self.rule.policy, self.settings.answer_limit);
        let handling = async {
            let Ok(response) = service.call(request).await;
            match Keep::of(policy, response.status(), loan.is_used()) {
                Keep::Nothing => Ok(Handled::ToForget(response)),
                keep => Whole::read(response, limit).await.map(|whole| Handled::ToKeep(keep, whole)),
            }
        };
        let handling = AssertUnwindSafe(loan.lend_to(handling)).catch_unwind();
        match tokio::time::timeout(self.settings.deadline, handling).await {
            Ok(Ok(Ok(handled))) => Ok(handled),
            Ok(Ok(Err(unstorable))) => Err(unstorable.into()),
            Ok(Err(_)) => {
                tracing::error!("a handler panicked; everything is rolled back");
                Err(Problem::Failed)
            }
            Err(_) => {
                tracing::error!("a handler missed its deadline; everything is rolled back");
                Err(Problem::Unavailable)
            }
        }
    }

    /// A stored answer, given again.
    fn replay(&self, outcome: Outcome) -> Result<Response, Problem> {
        let outcome = sealed::open(&self.settings.store, &self.asked.key, outcome)?;
        Ok(answer::replayed(answer::stored(outcome)))
    }

    /// Effect, key and outcome: together, or not at all.
    async fn commit(
        &self,
        mut tx: Tx,
        mark: Option<EffectMark>,
        claim: Claim,
        (keep, whole): (Keep, &Whole),
    ) -> Result<(), StoreError> {
        let conn = &mut tx.conn();
        match (mark, keep) {
            (Some(mark), Keep::Answer) => undo_effect(conn, mark).await?,
            (Some(mark), _) => keep_effect(conn, mark).await?,
            (None, _) => {}
        }
        // Last, so that a transaction that failed on the way cannot pass for done.
        let stored = sealed::seal(&self.settings.store, &self.asked.key, whole.outcome());
        ledger::finish(conn, claim, &stored, self.settings.store.now()).await?;
        tx.commit_last_write().await
    }
}

/// What the handler answered.
enum Handled {
    ToKeep(Keep, Whole),
    ToForget(Response),
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if error.is_retryable() || matches!(error, StoreError::Closed) {
            tracing::warn!(error = %chain(&error), "a request with an idempotency key was not completed for now");
            Self::Unavailable
        } else {
            tracing::error!(error = %chain(&error), "a request with an idempotency key failed");
            Self::Failed
        }
    }
}

impl From<Unstorable> for Problem {
    fn from(unstorable: Unstorable) -> Self {
        tracing::error!(%unstorable, "an answer cannot be stored; everything is rolled back");
        Self::Failed
    }
}
