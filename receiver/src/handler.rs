//! The host's part: a handler writes the effect of one event through the connection that it is lent.
//!
//! Place in the path: between the ledger's *new* and the stored outcome, in the same transaction.
//! Invariants: what a handler writes through its connection is committed together with the event's key and the answer,
//! or not at all. It makes no network call, since a transaction is open; it leaves COMMIT and ROLLBACK to us.

use std::fmt;

use futures_util::future::BoxFuture;
use twiceproof_shared::store::Conn;

use crate::event::Event;
use crate::reply::Reply;

/// Writes the effect of one event.
///
/// It may run several times for one event (after a failure, a missed deadline, a commit whose outcome is unknown), but
/// only one run is ever committed. Its future must be `Send`, so it is written as `async fn` in an `impl` of this
/// trait, or as a closure for [`handler_fn`].
pub trait Handler: Send + Sync + 'static {
    /// Writes the effect through `conn` and says what to answer.
    ///
    /// # Errors
    /// [`HandlerError::Refuse`] where the host's rules say no; [`HandlerError::Fail`], which every error becomes under
    /// `?`, where it should be tried again.
    fn handle<'a>(
        &'a self,
        conn: &'a mut Conn<'_>,
        event: &'a Event,
    ) -> impl Future<Output = Result<Reply, HandlerError>> + Send + 'a;
}

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How a handler ends without an effect.
#[derive(Debug)]
pub enum HandlerError {
    /// The host's rules refuse the event for good: what the handler wrote is rolled back, this answer is stored, and
    /// redeliveries get it without running anything.
    Refuse(Reply),
    /// Something failed: everything is rolled back, nothing is stored, and the handler runs again when the sender
    /// delivers again.
    Fail(BoxError),
}

impl HandlerError {
    /// [`HandlerError::Fail`] with a text for the log.
    pub fn fail(reason: impl Into<BoxError>) -> Self {
        Self::Fail(reason.into())
    }
}

/// Every error fails the handler, so that `?` does the safe thing.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::Fail(Box::new(error))
    }
}

/// Makes a handler of a closure that returns a boxed future:
///
/// ```
/// use twiceproof_receiver::{Reply, handler_fn};
///
/// let handler = handler_fn(|conn, event| {
///     Box::pin(async move {
///         let sql = "INSERT INTO invoices (event) VALUES ($1)";
///         conn.execute(sql, &[event.id().into()]).await?;
///         Ok(Reply::ok())
///     })
/// });
/// ```
pub fn handler_fn<F>(function: F) -> HandlerFn<F>
where
    F: for<'a, 'c> Fn(&'a mut Conn<'c>, &'a Event) -> BoxFuture<'a, Result<Reply, HandlerError>>,
    F: Send + Sync + 'static,
{
    HandlerFn(function)
}

/// A closure as a [`Handler`]; made by [`handler_fn`].
#[derive(Clone)]
pub struct HandlerFn<F>(F);

impl<F> Handler for HandlerFn<F>
where
    F: for<'a, 'c> Fn(&'a mut Conn<'c>, &'a Event) -> BoxFuture<'a, Result<Reply, HandlerError>>,
    F: Send + Sync + 'static,
{
    fn handle<'a>(
        &'a self,
        conn: &'a mut Conn<'_>,
        event: &'a Event,
    ) -> impl Future<Output = Result<Reply, HandlerError>> + Send + 'a {
        (self.0)(conn, event)
    }
}

impl<F> fmt::Debug for HandlerFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandlerFn(..)")
    }
}

/// A [`Handler`] whose type is forgotten, so that sources with different handlers fit one receiver.
pub(crate) trait AnyHandler: Send + Sync + 'static {
    fn handle_boxed<'a>(
        &'a self,
        conn: &'a mut Conn<'_>,
        event: &'a Event,
    ) -> BoxFuture<'a, Result<Reply, HandlerError>>;
}

impl<H: Handler> AnyHandler for H {
    fn handle_boxed<'a>(
        &'a self,
        conn: &'a mut Conn<'_>,
        event: &'a Event,
    ) -> BoxFuture<'a, Result<Reply, HandlerError>> {
        Box::pin(self.handle(conn, event))
    }
}
