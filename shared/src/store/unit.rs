//! A unit of work: a closure that runs in one transaction, perhaps more than once, and the waiting caller's answer.

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::{Conn, StoreError};

/// A queued unit, whatever its types.
pub(super) trait Job: Send {
    /// Runs it; true: keep what it wrote.
    fn run<'a>(&'a mut self, conn: &'a mut Conn<'_>) -> BoxFuture<'a, bool>;
    /// It panicked.
    fn panicked(&mut self);
    /// True where its last run ended with an error.
    fn failed(&self) -> bool;
    /// Answers the caller with the last result.
    fn deliver(self: Box<Self>);
    /// Answers the caller with an error of the store.
    fn fail(self: Box<Self>, error: StoreError);
}

/// The unit with its types.
pub(super) struct Unit<F, T, E> {
    work: F,
    result: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, E>>,
}

impl<F, T, E> Unit<F, T, E> {
    pub(super) fn new(work: F) -> (Self, oneshot::Receiver<Result<T, E>>) {
        let (reply, answer) = oneshot::channel();
        (Self { work, result: None, reply }, answer)
    }
}

impl<F, T, E> Job for Unit<F, T, E>
where
    F: for<'a, 'c> Fn(&'a mut Conn<'c>) -> BoxFuture<'a, Result<T, E>> + Send + Sync + 'static,
    T: Send + 'static,
    E: From<StoreError> + Send + 'static,
{
    fn run<'a>(&'a mut self, conn: &'a mut Conn<'_>) -> BoxFuture<'a, bool> {
        self.result = None;
        Box::pin(async move {
            let result = (self.work)(conn).await;
            let keep = result.is_ok();
            self.result = Some(result);
            keep
        })
    }

    fn panicked(&mut self) {
        self.result = Some(Err(StoreError::Panicked.into()));
    }

    fn failed(&self) -> bool {
        matches!(self.result, Some(Err(_)))
    }

    fn deliver(self: Box<Self>) {
        let result = self.result.unwrap_or_else(|| Err(StoreError::Closed.into()));
        // A caller that went away needs no answer: its work is committed or rolled back all the same.
        let _ = self.reply.send(result);
    }

    fn fail(self: Box<Self>, error: StoreError) {
        let _ = self.reply.send(Err(error.into()));
    }
}
