//! Pages: a limit, the id to go on from, and a direction.
//!
//! An iterator is the id of the last entry of a page; with a `-` in front it is that of the first one, and asks for the page
//! before. Entries keep their place, so nothing is passed over or seen twice while others are added.
//! Invariants: a page is one seek in an index and at most `limit` + 1 rows.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::error::ApiError;

/// The most entries of a page.
const LONGEST: u64 = 250;
/// Entries of a page when nobody says how many.
const USUAL: u64 = 50;
/// Above every id.
const END: &str = "~";

/// In which order entries are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ordering {
    /// Oldest first.
    Ascending,
    /// Newest first.
    Descending,
}

/// Which page of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// The most entries to return: 1 to 250, 50 if it is left out.
    limit: Option<u64>,
    /// `iterator` or `prevIterator` of the page that was seen last.
    iterator: Option<String>,
    /// The order of the entries.
    order: Option<Ordering>,
}

/// What to read for a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    /// The id to read behind, in the direction of the read.
    pub(super) from: String,
    /// Read towards lower ids.
    pub(super) down: bool,
    limit: usize,
    /// The page lies before `from` in the order of the list.
    backwards: bool,
}

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListResponse<T> {
    data: Vec<T>,
    /// Goes on behind the last entry.
    iterator: Option<String>,
    /// Goes back before the first entry.
    prev_iterator: Option<String>,
    /// There is no more in this direction.
    done: bool,
}

impl PageQuery {
    /// The page that is asked for, of a list whose usual order is `usual`.
    pub(super) fn page(self, usual: Ordering) -> Result<Page, ApiError> {
        page(self.limit, self.iterator, self.order.unwrap_or(usual))
    }
}

/// The page of a list with one order.
pub(super) fn page(limit: Option<u64>, iterator: Option<String>, order: Ordering) -> Result<Page, ApiError> {
    let limit = limit.unwrap_or(USUAL);
    if limit == 0 || limit > LONGEST {
        return Err(ApiError::query("limit", format!("lies between 1 and {LONGEST}")));
    }
    let iterator = iterator.unwrap_or_default();
    let (backwards, id) = match iterator.strip_prefix('-') {
        Some(id) => (true, id),
        None => (false, iterator.as_str()),
    };
    if !id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)) {
        return Err(ApiError::query("iterator", "is no iterator that a list has returned"));
    }
    let down = (order == Ordering::Descending) != backwards;
    let from = if id.is_empty() && down { END } else { id };
    Ok(Page { from: from.to_owned(), down, limit: limit as usize, backwards })
}

impl Page {
    /// How many rows to read: one more than the page has, which tells whether there are more.
    pub(super) fn rows(&self) -> i64 {
        self.limit as i64 + 1
    }

    /// The answer, made of the rows that were read; `id` names an entry.
    pub(super) fn answer<R, T>(
        &self,
        mut rows: Vec<R>,
        id: impl Fn(&R) -> &str,
        entry: impl FnMut(R) -> T,
    ) -> ListResponse<T> {
        let done = rows.len() <= self.limit;
        rows.truncate(self.limit);
        if self.backwards {
            rows.reverse();
        }
        ListResponse {
            iterator: rows.last().map(|row| id(row).to_owned()),
            prev_iterator: rows.first().map(|row| format!("-{}", id(row))),
            data: rows.into_iter().map(entry).collect(),
            done,
        }
    }
}

impl<T> ListResponse<T> {
    /// The same where the walk stopped at an id before the page was full: it goes on there, also from a page that is empty.
    pub(super) fn stopped_at(mut self, page: &Page, end: Option<String>) -> Self {
        if let Some(end) = end.filter(|_| self.done) {
            self.done = false;
            match page.backwards {
                true => self.prev_iterator = Some(format!("-{end}")),
                false => self.iterator = Some(end),
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a page of the ids a to e as the database would.
    fn read(limit: u64, iterator: Option<&str>, order: Ordering) -> ListResponse<String> {
        let page = page(Some(limit), iterator.map(str::to_owned), order).unwrap();
        let mut ids: Vec<String> = ["a", "b", "c", "d", "e"].map(str::to_owned).into();
        if page.down {
            ids.retain(|id| *id < page.from);
            ids.reverse();
        } else {
            ids.retain(|id| *id > page.from);
        }
        ids.truncate(page.rows() as usize);
        page.answer(ids, |id| id, |id| id)
    }

    #[test]
    fn pages_go_on_and_back_in_both_orders() {
        for (order, first, second, third) in
            [(Ordering::Ascending, "ab", "cd", "e"), (Ordering::Descending, "ed", "cb", "a")]
        {
            let one = read(2, None, order);
            assert_eq!((one.data.concat().as_str(), one.done), (first, false));
            let two = read(2, one.iterator.as_deref(), order);
            assert_eq!((two.data.concat().as_str(), two.done), (second, false));
            let three = read(2, two.iterator.as_deref(), order);
            assert_eq!((three.data.concat().as_str(), three.done), (third, true));
            let back = read(2, three.prev_iterator.as_deref(), order);
            assert_eq!((back.data.concat().as_str(), back.done), (second, false));
            let start = read(2, back.prev_iterator.as_deref(), order);
            assert_eq!((start.data.concat().as_str(), start.done), (first, true));
        }
    }

    #[test]
    fn an_empty_page_leads_nowhere() {
        let end = read(5, Some("e"), Ordering::Ascending);
        assert!(end.data.is_empty() && end.done && end.iterator.is_none() && end.prev_iterator.is_none());
    }

    #[test]
    fn limits_outside_of_what_is_allowed_are_refused() {
        for limit in [0, 251, u64::MAX] {
            assert!(page(Some(limit), None, Ordering::Ascending).is_err(), "{limit}");
        }
        assert!(page(None, Some("a b".to_owned()), Ordering::Ascending).is_err());
    }
}
