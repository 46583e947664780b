//! Events of one source that share a transaction: one look into the ledger, their handlers one after another, one record of
//! their outcomes, one commit.
//!
//! Place in the path: between the registry of running keys and the ledger, for sources that allow it
//! ([`SourceBuilder::share_transactions`](crate::SourceBuilder::share_transactions)).
//! Invariants: all or none: where anything is not as in the common case (a handler refuses, fails or is slow, a key is known
//! already), the transaction is rolled back or that event left out, and each goes alone, as it would have without the
//! others. Slow handlers and those that often fail are not put together, because they would wait for each other.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future;
use twiceproof_shared::causes::chain;
use twiceproof_shared::desk::{self, Serving};
use twiceproof_shared::kill;
use twiceproof_shared::ledger::{self, Outcome};
use twiceproof_shared::store::{Conn, StoreError, begin_effect, keep_effect};

use crate::answer::Answer;
use crate::ingest::{IngestError, Work, alone};

/// How many transactions run at a time: while one waits for the database, another's requests are read and answered.
const AT_A_TIME: usize = 2;
/// The most events of one transaction.
const MOST_AT_ONCE: usize = 64;
/// About how long all handlers of a transaction may take.
const MOST_TIME: Duration = Duration::from_millis(25);

type Settled = Result<Answer, IngestError>;
type Waiting = desk::Waiting<Arc<Work>, Settled>;

/// Events of a source that wait for the next transaction, and what is known of their handler.
pub(crate) struct Together {
    desk: desk::Desk<Arc<Work>, Settled>,
    /// How long its handler takes, in microseconds; a running mean.
    handler_time: AtomicU64,
    /// How many went well together lately.
    went_well: AtomicUsize,
}

impl Default for Together {
    fn default() -> Self {
        // Until one has run, a handler may be slow.
        let handler_time = AtomicU64::new(u64::try_from(MOST_TIME.as_micros()).unwrap_or(u64::MAX));
        Self { desk: desk::Desk::with_serving(AT_A_TIME), handler_time, went_well: AtomicUsize::new(MOST_AT_ONCE) }
    }
}

impl Together {
    /// Notes how long a handler took.
    pub(crate) fn took(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let mean = self.handler_time.load(Ordering::Relaxed);
        // A slow one counts at once, quick ones little by little.
        self.handler_time.store(if time > mean { time } else { (mean * 3 + time) / 4 }, Ordering::Relaxed);
    }

    /// How many may go together now.
    fn most(&self) -> usize {
        let fit = MOST_TIME.as_micros() / u128::from(self.handler_time.load(Ordering::Relaxed).max(1));
        usize::try_from(fit).unwrap_or(MOST_AT_ONCE).min(self.went_well.load(Ordering::Relaxed)).max(1)
    }

    fn went(&self, well: bool) {
        let most = self.went_well.load(Ordering::Relaxed);
        let most = if well { (most * 2).min(MOST_AT_ONCE) } else { (most / 2).max(1) };
        self.went_well.store(most, Ordering::Relaxed);
    }
}

/// Takes an event through the ledger with those that come at the same time.
pub(crate) async fn settle(work: Arc<Work>) -> Settled {
    let desk = work.route.together.desk.clone();
    desk.ask(work, serve).await.unwrap_or(Err(IngestError::Store(StoreError::Closed)))
}

async fn serve(mut serving: Serving<Arc<Work>, Settled>) {
    let mut most = 1;
    loop {
        let mut count = 0;
        let batch = serving.next(|work| {
            most = work.route.together.most();
            count += 1;
            count <= most
        });
        if batch.is_empty() {
            return;
        }
        if most == 1 {
            // Nobody shall wait for it.
            tokio::spawn(each_alone(batch));
        } else {
            together(batch).await;
        }
    }
}

async fn each_alone(batch: Vec<Waiting>) {
    let each = batch.into_iter().map(|one| async move {
        let settled = alone(Arc::clone(&one.item)).await;
        // One that went alone well is a reason to try again whether several do.
        one.item.route.together.went(settled.is_ok());
        one.answer(settled);
    });
    future::join_all(each).await;
}

async fn together(batch: Vec<Waiting>) {
    let Some(first) = batch.first() else { return };
    let route = Arc::clone(&first.item.route);
    let works: Arc<Vec<Arc<Work>>> = Arc::new(batch.iter().map(|one| Arc::clone(&one.item)).collect());
    let shared = route.store.run_shared(move |conn| {
        let works = Arc::clone(&works);
        Box::pin(async move { once(conn, &works).await })
    });
    match shared.await {
        Ok(outcomes) => {
            kill::at("commit_before_answer");
            route.together.went(true);
            let (done, known): (Vec<_>, Vec<_>) =
                batch.into_iter().zip(outcomes).partition(|(_, outcome)| outcome.is_some());
            for (one, outcome) in done {
                if let Some(outcome) = outcome {
                    one.answer(Ok(Answer::First(outcome)));
                }
            }
            if !known.is_empty() {
                tokio::spawn(each_alone(known.into_iter().map(|(one, _)| one).collect()));
            }
        }
        Err(error) => {
            route.together.went(false);
            tracing::debug!(error = %chain(&error), events = batch.len(), "events that shared a transaction go one by one");
            tokio::spawn(each_alone(batch));
        }
    }
}

/// Keys, effects and outcomes of all that are new: committed together by the caller, or not at all. None: it is not new.
async fn once(conn: &mut Conn<'_>, works: &[Arc<Work>]) -> Result<Vec<Option<Outcome>>, Apart> {
    let Some(first) = works.first() else { return Ok(Vec::new()) };
    if works.iter().any(|work| work.is_too_late()) {
        return Err(Apart::Uncommon);
    }
    let now = first.route.store.now();
    // A key that is twice among them would be claimed once and answered twice.
    let requests: Vec<&ledger::Request> = works.iter().map(|work| &work.request).collect();
    let mut seen = HashSet::new();
    if !requests.iter().all(|request| seen.insert(request.key.key.as_str())) {
        return Err(Apart::Uncommon);
    }
    let claims = ledger::accept_all(conn, &requests, now).await?;
    kill::at("ledger_before_effect");
    // One savepoint for all: what a handler ends, or leaves open, is noticed at its end.
    let mark = begin_effect(conn).await?;
    let mut outcomes = Vec::with_capacity(works.len());
    for (work, claim) in works.iter().zip(&claims) {
        outcomes.push(match claim {
            Some(_) => Some(work.effect_together(conn).await.ok_or(Apart::Uncommon)?),
            None => None,
        });
    }
    keep_effect(conn, mark).await?;
    kill::at("effect_before_commit");
    let done: Vec<_> = works
        .iter()
        .zip(claims)
        .zip(&outcomes)
        .filter_map(|((work, claim), outcome)| Some((&work.request, claim?, outcome.as_ref()?)))
        .collect();
    if !done.is_empty() {
        // Last, so that a transaction that failed on the way cannot pass for done.
        ledger::finish_all(conn, &done, first.route.store.now()).await?;
    }
    kill::at("outcome_before_commit");
    Ok(outcomes)
}

/// Why events do not share a transaction after all.
#[derive(Debug, thiserror::Error)]
enum Apart {
    #[error("an event is not as in the common case")]
    Uncommon,
    #[error(transparent)]
    Store(#[from] StoreError),
}
