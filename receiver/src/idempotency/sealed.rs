//! Stored answers under the store's master key, if it has one: an answer may hold what the handler keeps sealed itself, such as
//! the new secret of a rotation.
//!
//! Invariants: sealed for this tenant, route and key alone; the mark of a sealed answer is ours, and never sent.

use std::borrow::Cow;

use bytes::Bytes;
use twiceproof_shared::ledger::{LedgerKey, Outcome};
use twiceproof_shared::seal::Sealed;
use twiceproof_shared::store::Store;

use super::problem::Problem;

/// The header that says under which master key a stored body is sealed.
pub(super) const MARK: &str = "x-twiceproof-sealed-by";

/// What the ledger stores of an answer.
pub(super) fn seal<'a>(store: &Store, key: &LedgerKey, outcome: &'a Outcome) -> Cow<'a, Outcome> {
    let Sealed { bytes, by: Some(by) } = store.seal().seal(store.random(), &outcome.body, &belongs_to(key)) else {
        return Cow::Borrowed(outcome);
    };
    let mut headers = outcome.headers.clone();
    headers.push((MARK.to_owned(), by));
    Cow::Owned(Outcome { status: outcome.status, headers, body: Bytes::from(bytes) })
}

/// The answer that was stored.
pub(super) fn open(store: &Store, key: &LedgerKey, mut outcome: Outcome) -> Result<Outcome, Problem> {
    let Some(place) = outcome.headers.iter().position(|(name, _)| name == MARK) else { return Ok(outcome) };
    let (_, by) = outcome.headers.remove(place);
    let sealed = Sealed { bytes: outcome.body.to_vec(), by: Some(by) };
    let opened = store.seal().open(sealed, &belongs_to(key)).map_err(|error| {
        tracing::error!(%error, "a stored answer cannot be given again");
        Problem::Failed
    })?;
    Ok(Outcome { body: Bytes::copy_from_slice(&opened), ..outcome })
}

fn belongs_to(key: &LedgerKey) -> [&str; 4] {
    ["stored answer", key.tenant.as_str(), key.scope.as_str(), key.key.as_str()]
}
