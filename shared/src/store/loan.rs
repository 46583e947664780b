//! A transaction that a layer lends to the request it wraps.
//!
//! A layer that answers repeats (for `Idempotency-Key`, say) begins the transaction, records the key in it, and lends it to
//! the handler, so that key, effect and stored answer commit together. A borrowed [`Conn`] does not fit into a request's
//! extensions; an owned [`Tx`] behind a lock does.
//! Invariants: one borrower at a time; a borrower that calls back into the store, which could wait for the lent transaction,
//! is refused; wake-ups that the borrower owes are sent by the lender, after its commit.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;

use super::{Conn, StoreError, Tx, Wake, reentrancy};

/// A lent transaction. Clones are the same loan.
#[derive(Debug, Clone)]
pub struct Loan(Arc<Mutex<Purse>>);

#[derive(Debug)]
struct Purse {
    tx: Option<Tx>,
    /// Somebody has worked in it.
    is_used: bool,
    wakes: Vec<Wake>,
}

impl Loan {
    /// Lends a transaction.
    #[must_use]
    pub fn new(tx: Tx) -> Self {
        Self(Arc::new(Mutex::new(Purse { tx: Some(tx), is_used: false, wakes: Vec::new() })))
    }

    /// Runs the borrower. Where it asks the store for another transaction meanwhile, in its own task, it gets
    /// [`StoreError::Reentrant`] instead of waiting for the lent one.
    pub async fn lend_to<F: Future>(&self, borrower: F) -> F::Output {
        reentrancy::inside(borrower).await
    }

    /// Works in the lent transaction. If the future is dropped before it is ready, the transaction is rolled back, and the
    /// lender finds that it has gone.
    ///
    /// # Errors
    /// The work's own, or [`StoreError::Reentrant`] where somebody else has the transaction now.
    pub async fn work<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: for<'a, 'c> FnOnce(&'a mut Conn<'c>) -> BoxFuture<'a, Result<T, E>> + Send,
        E: From<StoreError>,
    {
        let mut tx = self.take().ok_or(StoreError::Reentrant)?;
        let result = work(&mut tx.conn()).await;
        self.purse().tx = Some(tx);
        result
    }

    /// Takes the transaction out, for work that cannot borrow it. Give it back with [`Loan::give_back`].
    #[must_use]
    pub fn take(&self) -> Option<Tx> {
        let mut purse = self.purse();
        purse.is_used = true;
        purse.tx.take()
    }

    /// True where somebody has worked in the transaction.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.purse().is_used
    }

    /// Gives a transaction back that was taken out.
    pub fn give_back(&self, tx: Tx) {
        self.purse().tx = Some(tx);
    }

    /// Leaves a wake-up for the lender to send after its commit.
    pub fn owe(&self, wake: Wake) {
        self.purse().wakes.push(wake);
    }

    /// Ends the loan: the transaction, unless a borrower has it still or dropped it, and the wake-ups that are owed.
    #[must_use]
    pub fn end(&self) -> (Option<Tx>, Vec<Wake>) {
        let mut purse = self.purse();
        (purse.tx.take(), std::mem::take(&mut purse.wakes))
    }

    fn purse(&self) -> std::sync::MutexGuard<'_, Purse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
