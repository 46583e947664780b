//! The facts of a history by client's id and by event.

use std::collections::{BTreeMap, BTreeSet};

use crate::prove::history::{Entry, Fact};

/// Everything that is known, by id.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) uids: BTreeMap<String, Uid>,
    pub(super) events: BTreeMap<String, Event>,
    /// Whether the history knows what clients were told; without it no effect is a phantom.
    pub(super) has_clients: bool,
    /// Whether the history knows the ledger.
    pub(super) has_ledger: bool,
}

/// What a client knows of its event.
#[derive(Debug, Default)]
pub(super) struct Uid {
    pub(super) offered: u64,
    /// It writes a row of its own beside the event, …
    pub(super) with_row: bool,
    /// … and so many stand.
    pub(super) rows: u64,
    pub(super) told: Vec<Told>,
    pub(super) unknown: u64,
    pub(super) stored: Vec<String>,
}

/// What a client was told.
#[derive(Debug)]
pub(super) enum Told {
    Accepted { event: String, fresh: bool },
    Failed,
    RolledBack,
}

impl Uid {
    pub(super) fn accepted(&self) -> impl Iterator<Item = &str> {
        self.told.iter().filter_map(|told| match told {
            Told::Accepted { event, .. } => Some(event.as_str()),
            Told::Failed | Told::RolledBack => None,
        })
    }
}

/// What is known of an event.
#[derive(Debug, Default)]
pub(super) struct Event {
    /// It is stored, or somebody was told that it is accepted.
    pub(super) is_known: bool,
    pub(super) bodies: Vec<String>,
    pub(super) answers: Vec<Answer>,
    pub(super) effects: Vec<Option<String>>,
    pub(super) processed: Vec<Processed>,
    pub(super) states: BTreeSet<String>,
    pub(super) attempts: Vec<Attempt>,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) replayed: bool,
    pub(super) body: String,
}

#[derive(Debug)]
pub(super) struct Processed {
    pub(super) done: bool,
    pub(super) answer: Option<String>,
}

#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) number: i64,
    pub(super) token: i64,
    pub(super) delivered: bool,
    pub(super) late: bool,
}

impl Event {
    pub(super) fn is_dead(&self) -> bool {
        self.states.contains("dead")
    }
}

impl Index {
    pub(super) fn of(history: &[Entry]) -> Self {
        let mut index = Self::default();
        for entry in history {
            index.take(&entry.fact);
        }
        index
    }

    fn take(&mut self, fact: &Fact) {
        match fact {
            Fact::Offered { uid, with_row } => {
                self.has_clients = true;
                let uid = self.uid(uid);
                uid.offered += 1;
                uid.with_row |= with_row;
            }
            Fact::Row { uid } => self.uid(uid).rows += 1,
            Fact::Accepted { uid, event, fresh } => {
                self.has_clients = true;
                self.uid(uid).told.push(Told::Accepted { event: event.clone(), fresh: *fresh });
                self.event(event).is_known = true;
            }
            Fact::Failed { uid, .. } => self.uid(uid).told.push(Told::Failed),
            Fact::RolledBack { uid } => self.uid(uid).told.push(Told::RolledBack),
            Fact::Unknown { uid, .. } => self.uid(uid).unknown += 1,
            Fact::Stored { uid, event } => {
                if !uid.is_empty() {
                    self.uid(uid).stored.push(event.clone());
                }
                self.event(event).is_known = true;
            }
            Fact::Arrived { event, body } => self.event(event).bodies.push(body.clone()),
            Fact::Answered { event, status, replayed, body } => {
                let answer = Answer { status: *status, replayed: *replayed, body: body.clone() };
                self.event(event).answers.push(answer);
            }
            Fact::Effect { event, answer } => self.event(event).effects.push(answer.clone()),
            Fact::Processed { event, done, answer } => {
                self.has_ledger = true;
                self.event(event).processed.push(Processed { done: *done, answer: answer.clone() });
            }
            Fact::Delivery { event, state } => drop(self.event(event).states.insert(state.clone())),
            Fact::Attempt { event, number, token, delivered, late } => {
                let attempt = Attempt { number: *number, token: *token, delivered: *delivered, late: *late };
                self.event(event).attempts.push(attempt);
            }
            Fact::Struck { .. } => {}
        }
    }

    fn uid(&mut self, uid: &str) -> &mut Uid {
        self.uids.entry(uid.to_owned()).or_default()
    }

    fn event(&mut self, event: &str) -> &mut Event {
        self.events.entry(event.to_owned()).or_default()
    }
}
