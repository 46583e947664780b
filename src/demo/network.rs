//! The network between dispatcher and receiver: it loses, repeats, delays, reorders and forges, as the deck says.
//!
//! Each fault is played on the first arrival of its order's event and noted only where it bit. What is noted stands in
//! the database before the dispatcher can learn of the answer.

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use tokio::sync::watch;
use twiceproof_shared::causes::chain;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature;
use twiceproof_shared::store::{Store, StoreError};

use super::deck::Fault;
use super::invoices::{FAIL_AFTER_WRITE, TOLERANCE};
use super::store as tables;
use crate::prove::{Answer, Hop, HungUp, Message};

/// The marker of a replayed answer.
const REPLAYED: &str = "idempotent-replayed";

/// How many younger requests must overtake a held one, and how long it is held at most.
const OVERTAKEN_BY: i64 = 5;
const HELD: Duration = Duration::from_millis(500);

/// The network. Cheap to clone.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    store: Store,
    deck: Arc<Vec<Option<Fault>>>,
    secret: Secret,
    receiver: Hop,
    /// The dispatcher's timeout.
    timeout: Duration,
    /// Orders whose card was played.
    played: Mutex<HashSet<i64>>,
    /// Requests that passed so far.
    passed: watch::Sender<i64>,
    /// What goes on behind answered requests.
    behind: AtomicI64,
}

impl Network {
    pub fn new(store: Store, deck: Arc<Vec<Option<Fault>>>, secret: Secret, receiver: Hop, timeout: Duration) -> Self {
        Self(Arc::new(Inner {
            store,
            deck,
            secret,
            receiver,
            timeout,
            played: Mutex::default(),
            passed: watch::Sender::new(0),
            behind: AtomicI64::new(0),
        }))
    }

    /// True where nothing goes on behind answered requests.
    pub fn is_quiet(&self) -> bool {
        self.0.behind.load(Ordering::Acquire) == 0
    }

    /// One request of the dispatcher's, and what becomes of it.
    pub async fn carry(self, message: Message) -> Result<Answer, HungUp> {
        match self.card(&message) {
            None => self.pass(&message).await,
            Some(fault) => self.play(fault, message).await,
        }
    }

    async fn play(&self, fault: Fault, message: Message) -> Result<Answer, HungUp> {
        match fault {
            // The shop's own fault: nothing of it may ever come here.
            Fault::RolledBack => self.pass(&message).await,
            Fault::ServerError => {
                self.note(fault, &message).await?;
                Ok(Answer::empty(StatusCode::INTERNAL_SERVER_ERROR))
            }
            Fault::AnswerLost => {
                let answer = self.pass(&message).await?;
                self.note_if(answer.status.is_success(), fault, &message).await?;
                Err(HungUp)
            }
            Fault::SlowAnswer => {
                let answer = self.pass(&message).await?;
                self.note_if(answer.status.is_success(), fault, &message).await?;
                tokio::time::sleep(self.0.timeout * 2).await;
                Ok(answer)
            }
            Fault::HandlerFails => {
                let mut failing = message.clone();
                failing.headers.insert(HeaderName::from_static(FAIL_AFTER_WRITE), HeaderValue::from_static("1"));
                let answer = self.pass(&failing).await?;
                self.note_if(answer.status == StatusCode::INTERNAL_SERVER_ERROR, fault, &message).await?;
                Ok(answer)
            }
            Fault::Concurrent => self.at_once(fault, &message).await,
            Fault::Reordered => self.overtaken(fault, &message).await,
            Fault::Replayed => {
                let answer = self.pass(&message).await?;
                if answer.status.is_success() {
                    self.replay_later(fault, message);
                }
                Ok(answer)
            }
            Fault::Tampered => {
                let mut forged = message.clone();
                let mut body = message.body.to_vec();
                if let Some(byte) = body.last_mut() {
                    *byte ^= 1;
                }
                forged.body = Bytes::from(body);
                self.refused_then_pass(fault, &forged, &message).await
            }
            Fault::Stale => {
                let then = self.0.store.now().minus(TOLERANCE * 2);
                let stale = self.signed(&message, message.body.clone(), then)?;
                self.refused_then_pass(fault, &stale, &message).await
            }
            Fault::OtherPayload => {
                let answer = self.pass(&message).await?;
                let body = String::from_utf8_lossy(&message.body).replace("\"amount\":", "\"amount\":9");
                let other = self.signed(&message, Bytes::from(body), self.0.store.now())?;
                let conflict = self.pass(&other).await?;
                let kept = answer.status.is_success() && conflict.status.is_success() && !is_replayed(&conflict);
                self.note_if(kept, fault, &message).await?;
                Ok(answer)
            }
        }
    }

    /// The same request four times at once; one good answer is enough for the sender.
    async fn at_once(&self, fault: Fault, message: &Message) -> Result<Answer, HungUp> {
        let (a, b, c, d) = tokio::join!(self.pass(message), self.pass(message), self.pass(message), self.pass(message));
        let answers = [a?, b?, c?, d?];
        let repeats = answers.iter().filter(|answer| answer.status == 503 || is_replayed(answer)).count();
        self.note_if(repeats > 0, fault, message).await?;
        let [first, ..] = &answers;
        Ok(answers.iter().find(|answer| answer.status.is_success()).unwrap_or(first).clone())
    }

    /// Holds the request until younger ones have passed.
    async fn overtaken(&self, fault: Fault, message: &Message) -> Result<Answer, HungUp> {
        let mut passed = self.0.passed.subscribe();
        let mark = *passed.borrow() + OVERTAKEN_BY;
        let overtaken = tokio::time::timeout(HELD, passed.wait_for(|passed| *passed >= mark)).await;
        self.note_if(overtaken.is_ok_and(|seen| seen.is_ok()), fault, message).await?;
        self.pass(message).await
    }

    /// Sends the request again behind the answer's back, as a sender would that never saw it.
    fn replay_later(&self, fault: Fault, message: Message) {
        let network = self.clone();
        network.0.behind.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            if let Ok(answer) = network.pass(&message).await {
                let _ = network.note_if(is_replayed(&answer), fault, &message).await;
            }
            network.0.behind.fetch_sub(1, Ordering::AcqRel);
        });
    }

    async fn refused_then_pass(&self, fault: Fault, forged: &Message, message: &Message) -> Result<Answer, HungUp> {
        let answer = self.pass(forged).await?;
        self.note_if(answer.status == StatusCode::UNAUTHORIZED, fault, message).await?;
        self.pass(message).await
    }

    /// Hands the request to the receiver and logs what it answered.
    async fn pass(&self, message: &Message) -> Result<Answer, HungUp> {
        let answer = self.0.receiver.send(message).await.map_err(|_| HungUp)?;
        self.0.passed.send_modify(|passed| *passed += 1);
        let noted =
            tables::note_exchange(&self.0.store, event_of(message), answer.status.as_u16(), is_replayed(&answer));
        hang_up_without(noted.await)?;
        Ok(answer)
    }

    async fn note_if(&self, bit: bool, fault: Fault, message: &Message) -> Result<(), HungUp> {
        if bit { self.note(fault, message).await } else { Ok(()) }
    }

    async fn note(&self, fault: Fault, message: &Message) -> Result<(), HungUp> {
        hang_up_without(tables::note_fault(&self.0.store, fault, event_of(message)).await)
    }

    /// The fault of this request, if it is the first of its order.
    fn card(&self, message: &Message) -> Option<Fault> {
        #[derive(Deserialize)]
        struct Order {
            order: i64,
        }
        let Order { order } = serde_json::from_slice(&message.body).ok()?;
        let card = *self.0.deck.get(usize::try_from(order - 1).ok()?)?;
        let first = self.0.played.lock().unwrap_or_else(PoisonError::into_inner).insert(order);
        card.filter(|_| first)
    }

    /// The request with this body and time, signed with the right secret.
    fn signed(&self, message: &Message, body: Bytes, at: Timestamp) -> Result<Message, HungUp> {
        let value = |text: String| HeaderValue::from_str(&text).map_err(|_| HungUp);
        let secrets = std::slice::from_ref(&self.0.secret);
        let signature = signature::sign(secrets, &event_of(message), at, &body);
        let mut headers: HeaderMap = message.headers.clone();
        headers.insert(HeaderName::from_static(signature::TIMESTAMP), value(at.as_secs().to_string())?);
        headers.insert(HeaderName::from_static(signature::SIGNATURE), value(signature)?);
        Ok(Message { path: message.path.clone(), headers, body })
    }
}

/// Where the log cannot be written, the sender gets no answer and comes again.
fn hang_up_without(noted: Result<(), StoreError>) -> Result<(), HungUp> {
    noted.map_err(|error| {
        tracing::warn!(error = %chain(&error), "the demo's log could not be written");
        HungUp
    })
}

fn event_of(message: &Message) -> String {
    let id = message.headers.get(signature::ID).and_then(|value| value.to_str().ok());
    id.unwrap_or_default().to_owned()
}

fn is_replayed(answer: &Answer) -> bool {
    answer.headers.contains_key(REPLAYED)
}
