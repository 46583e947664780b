//! The wake-up after a commit: a hint that there is work, never the only way to find it. Polling covers its loss.

use tokio::sync::watch;

/// Wakes the workers of this process that wait on one store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Waker(watch::Sender<u64>);

impl Waker {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Wakes every sleeper.
    pub fn wake(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// A sleeper. Make it before you look for work: a wake-up that comes between the look and the sleep is kept.
    #[must_use]
    pub fn sleeper(&self) -> Sleeper {
        Sleeper(self.0.subscribe())
    }

    /// The wake-up that is owed once the transaction that made work has been committed.
    pub fn owed(&self) -> Wake {
        Wake(Some(self.clone()))
    }
}

/// Waits for wake-ups.
#[derive(Debug)]
pub struct Sleeper(watch::Receiver<u64>);

impl Sleeper {
    /// Forgets the wake-ups so far. Call it before you look for work.
    pub fn begin(&mut self) {
        self.0.mark_unchanged();
    }

    /// Returns when a wake-up has come since [`Sleeper::begin`].
    pub async fn woken(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// A wake-up to be sent after the commit. Losing it costs time (until the next poll), never an event.
#[derive(Debug)]
#[must_use = "send it after the commit, or the event waits for the next poll"]
pub struct Wake(Option<Waker>);

impl Wake {
    /// A wake-up that wakes nobody, for work that made nothing new.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Sends it. Call this after the commit.
    pub fn send(self) {
        if let Some(waker) = self.0 {
            waker.wake();
        }
    }
}
