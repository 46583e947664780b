//! What a round knows while it runs: the history so far, and which offers are open or to be made again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use twiceproof_shared::random::Random;

use super::actor::{Offer, Way};
use super::plan::Moment;
use crate::prove::history::{Entry, Fact};

/// The book of a round. Shared by the client that offers, and by whoever hears what came of it.
#[derive(Debug)]
pub(super) struct Book {
    started: Instant,
    /// The number of the round.
    round: usize,
    random: Random,
    pages: Mutex<Pages>,
    /// Something was written down.
    noted: Notify,
}

#[derive(Debug, Default)]
struct Pages {
    entries: Vec<Entry>,
    /// Offered, and no word yet.
    open: BTreeMap<String, Way>,
    /// To be offered again: the client was refused, or does not know.
    again: VecDeque<Offer>,
    next: u64,
    accepted: u64,
    arrived: u64,
    answered: u64,
}

/// A moment is waited for until it has come so often: it shall be in the middle of things.
const OFTEN: u64 = 5;

/// The most offers without an answer.
const MOST_OPEN: usize = 24;

impl Book {
    pub(super) fn new(round: usize, random: &Random) -> Self {
        Self { started: Instant::now(), round, random: random.clone(), pages: Mutex::default(), noted: Notify::new() }
    }

    /// Writes a fact down, and what follows from it for the client.
    pub(super) fn note(&self, fact: Fact) {
        let mut pages = self.pages();
        match &fact {
            Fact::Accepted { uid, .. } => {
                pages.open.remove(uid);
                pages.accepted += 1;
            }
            Fact::RolledBack { uid } => drop(pages.open.remove(uid)),
            Fact::Arrived { .. } => pages.arrived += 1,
            Fact::Failed { uid, .. } => {
                if let Some(way) = pages.open.remove(uid) {
                    pages.again.push_back(Offer { uid: uid.clone(), way });
                }
            }
            Fact::Unknown { uid, .. } => self.unknown(&mut pages, uid.clone()),
            Fact::Answered { .. } => pages.answered += 1,
            _ => {}
        }
        pages.entries.push(Entry { at_ms: self.now(), fact });
        drop(pages);
        self.noted.notify_waiters();
    }

    /// Waits until this has been seen a few times from now on; false after `patience`.
    pub(super) async fn seen(&self, moment: Moment, patience: Duration) -> bool {
        let count = || {
            let pages = self.pages();
            match moment {
                Moment::EventAccepted => pages.accepted,
                Moment::RequestArrived => pages.arrived,
                Moment::AnswerLeaves => pages.answered,
            }
        };
        let enough = count() + OFTEN;
        let waiting = async {
            loop {
                let mut noted = std::pin::pin!(self.noted.notified());
                noted.as_mut().enable();
                if count() >= enough {
                    return;
                }
                noted.await;
            }
        };
        tokio::time::timeout(patience, waiting).await.is_ok()
    }

    /// The publisher has gone: what became of its open offers is unknown.
    pub(super) fn publisher_gone(&self) {
        let mut pages = self.pages();
        let open: Vec<String> = pages.open.keys().cloned().collect();
        for uid in open {
            self.unknown(&mut pages, uid.clone());
            let fact = Fact::Unknown { uid, error: "the publisher was killed".to_owned() };
            pages.entries.push(Entry { at_ms: self.now(), fact });
        }
    }

    /// Most are offered again, so that the unknown is resolved; some are left open for ever.
    fn unknown(&self, pages: &mut Pages, uid: String) {
        if let Some(way) = pages.open.remove(&uid)
            && way != Way::RolledBack
            && self.random.below(8) > 0
        {
            pages.again.push_back(Offer { uid, way });
        }
    }

    /// The next offer, if the client has a hand free: one that has to be made again, else a `new` one.
    pub(super) fn next_offer(&self, new: bool) -> Option<Offer> {
        let mut pages = self.pages();
        if pages.open.len() >= MOST_OPEN {
            return None;
        }
        let offer = match pages.again.pop_front() {
            Some(offer) => offer,
            None if new => {
                pages.next += 1;
                let way = match self.random.below(8) {
                    0..4 => Way::Shared,
                    4..7 => Way::Own,
                    _ => Way::RolledBack,
                };
                Offer { uid: format!("{}-{}", self.round, pages.next), way }
            }
            None => return None,
        };
        pages.open.insert(offer.uid.clone(), offer.way);
        let fact = Fact::Offered { uid: offer.uid.clone(), with_row: offer.way == Way::Own };
        pages.entries.push(Entry { at_ms: self.now(), fact });
        Some(offer)
    }

    /// No offer is open, and none is to be made again.
    pub(super) fn is_settled(&self) -> bool {
        let pages = self.pages();
        pages.open.is_empty() && pages.again.is_empty()
    }

    /// Answers of the receiver so far.
    pub(super) fn answered(&self) -> u64 {
        self.pages().answered
    }

    /// The history so far.
    pub(super) fn entries(&self) -> Vec<Entry> {
        self.pages().entries.clone()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
