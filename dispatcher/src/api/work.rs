//! The transaction of a mutating request: its own, or the one that a layer lends.
//!
//! Invariants: what a handler writes and what the layer stores for repeats commit together; a handler never holds both a lent
//! transaction and another connection.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use futures_util::future::BoxFuture;
use twiceproof_shared::store::{Conn, Loan, Store, Wake};

use super::Api;
use super::error::ApiError;

/// Where a mutating handler writes.
#[derive(Debug)]
pub(super) struct Work {
    store: Store,
    loan: Option<Loan>,
}

impl Work {
    /// Runs a unit of work with what it needs. Without a loan it is committed when this returns, and the unit may run
    /// again, so what it writes must be recognisable by its own key.
    pub(super) async fn run<S, T, F>(&self, input: S, unit: F) -> Result<T, ApiError>
    where
        S: Send + Sync + 'static,
        T: Send + 'static,
        F: for<'a, 'c> Fn(&'a mut Conn<'c>, Arc<S>) -> BoxFuture<'a, Result<T, ApiError>> + Send + Sync + 'static,
    {
        let input = Arc::new(input);
        match &self.loan {
            Some(loan) => loan.work(|conn| unit(conn, input)).await,
            None => self.store.run(move |conn| unit(conn, Arc::clone(&input))).await,
        }
    }

    /// Wakes the workers once the work is committed.
    pub(super) fn wake(&self, wake: Wake) {
        match &self.loan {
            Some(loan) => loan.owe(wake),
            None => wake.send(),
        }
    }

    /// Whether the transaction is lent, and a unit runs once.
    pub(super) fn is_lent(&self) -> bool {
        self.loan.is_some()
    }
}

impl FromRequestParts<Api> for Work {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Infallible> {
        Ok(Self { store: api.store().clone(), loan: parts.extensions.get::<Loan>().cloned() })
    }
}
