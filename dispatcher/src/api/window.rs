//! Which part of a history is asked for: a page, a span of time, and what the entries must have.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use twiceproof_shared::id::{Id, Prefix};
use utoipa::IntoParams;

use super::error::ApiError;
use super::page::{Ordering, Page, page};
use super::time::DateTime;
use crate::event::check_event_type;
use crate::store::history::Window;

/// As finely as ids tell times.
const STEP: Duration = Duration::from_millis(4);

/// What of a history is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(super) struct HistoryQuery {
    /// The most entries to return: 1 to 250, 50 if it is left out.
    limit: Option<u64>,
    /// `iterator` or `prevIterator` of the page that was seen last.
    iterator: Option<String>,
    /// Messages with this channel.
    channel: Option<String>,
    /// Messages with one of these event types: several names, or one with commas.
    #[serde(deserialize_with = "names")]
    event_types: Vec<String>,
    /// Of before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    before: Option<DateTime>,
    /// Of after this time.
    #[param(value_type = Option<String>, format = DateTime)]
    after: Option<DateTime>,
    /// With payloads and bodies.
    with_content: bool,
    /// 0: success, 1: pending, 2: fail, 3: sending.
    status: Option<u8>,
    /// 100 to 500: answers of this class; 0: no answer.
    status_code_class: Option<i64>,
    /// Of this endpoint.
    endpoint_id: Option<String>,
}

impl Default for HistoryQuery {
    fn default() -> Self {
        Self {
            limit: None,
            iterator: None,
            channel: None,
            event_types: Vec::new(),
            before: None,
            after: None,
            with_content: true,
            status: None,
            status_code_class: None,
            endpoint_id: None,
        }
    }
}

/// A query that was checked.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) page: Page,
    pub(super) with_content: bool,
    pub(super) endpoint: Option<String>,
    /// The first digit of a status, 0 for no answer, -1 for any.
    pub(super) class: i64,
    after: String,
    before: String,
    channel: String,
    event_types: String,
    states: &'static str,
}

impl HistoryQuery {
    /// For lists of messages, whose entries have the ids of messages.
    pub(super) fn events(self) -> Result<Read, ApiError> {
        self.read(Prefix::Event, |_| "")
    }

    /// For lists of messages of an endpoint, which have a state.
    pub(super) fn deliveries(self) -> Result<Read, ApiError> {
        self.read(Prefix::Event, |status| match status {
            0 => ",delivered,",
            1 => ",pending,backoff,parked,blocked,",
            2 => ",dead,",
            _ => ",leased,",
        })
    }

    /// For lists of attempts. An attempt has ended, so none of them is pending.
    pub(super) fn attempts(self) -> Result<Read, ApiError> {
        self.read(Prefix::Attempt, |status| match status {
            0 => ",delivered,",
            2 => ",refused,not_sent,unknown,",
            _ => ",none,",
        })
    }

    fn read(self, prefix: Prefix, states: impl Fn(u8) -> &'static str) -> Result<Read, ApiError> {
        if self.status.is_some_and(|status| status > 3) {
            return Err(ApiError::query("status", "is 0 (success), 1 (pending), 2 (fail) or 3 (sending)"));
        }
        let class = match self.status_code_class {
            None => -1,
            Some(class @ (0 | 100 | 200 | 300 | 400 | 500)) => class / 100,
            Some(_) => return Err(ApiError::query("status_code_class", "is 0, 100, 200, 300, 400 or 500")),
        };
        for name in &self.event_types {
            check_event_type(name).map_err(|invalid| ApiError::query("event_types", invalid.to_string()))?;
        }
        let bound = |time: Option<DateTime>, open: &str| match time {
            Some(time) => Id::lowest_at(prefix, time.0).to_string(),
            None => open.to_owned(),
        };
        // A text and a list of texts always can be written as JSON.
        let json = |value: &serde_json::Value| value.to_string();
        Ok(Read {
            page: page(self.limit, self.iterator, Ordering::Descending)?,
            with_content: self.with_content,
            endpoint: self.endpoint_id,
            class,
            // What has this very time is not after it, nor before it.
            after: bound(self.after.map(|time| DateTime(time.0.plus(STEP))), ""),
            before: bound(self.before, "~"),
            channel: self.channel.map_or_else(String::new, |channel| json(&channel.into())),
            event_types: match self.event_types.is_empty() {
                true => String::new(),
                false => json(&self.event_types.into()),
            },
            states: self.status.map_or("", states),
        })
    }
}

impl Read {
    pub(super) fn window(&self) -> Window<'_> {
        Window {
            from: &self.page.from,
            down: self.page.down,
            after: &self.after,
            before: &self.before,
            channel: &self.channel,
            event_types: &self.event_types,
            states: self.states,
            with_content: self.with_content,
            limit: self.page.rows(),
        }
    }
}

fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let lists = Vec::<String>::deserialize(deserializer)?;
    Ok(lists.iter().flat_map(|list| list.split(',')).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}
