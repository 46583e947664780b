//! The wake-up after a commit: a hint that there is work, never the only way to find it. Polling covers its loss.
//!
//! Place in the path: whoever made work sends its [`Wake`] after the commit. It wakes the sleepers of this process at
//! once; `announce` tells other processes where the database can carry that, and `listen` hears of theirs.

use std::sync::Arc;
#[cfg(feature = "postgres")]
use std::sync::atomic::AtomicI32;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// Wakes the workers of this process that wait on one store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Waker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    news: watch::Sender<u64>,
    /// Counts what other processes shall hear of.
    owed: watch::Sender<u64>,
    /// How many sleepers wait.
    resting: Arc<AtomicUsize>,
    /// The PostgreSQL session in which this process listens; 0 where it does not.
    #[cfg(feature = "postgres")]
    own_session: Arc<AtomicI32>,
}

impl Waker {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            news: watch::Sender::new(0),
            owed: watch::Sender::new(0),
            resting: Arc::default(),
            #[cfg(feature = "postgres")]
            own_session: Arc::default(),
        }))
    }

    /// Wakes every sleeper of this process.
    pub fn wake(&self) {
        self.0.news.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// A sleeper. Make it before you look for work: a wake-up that comes between the look and the sleep is kept.
    #[must_use]
    pub fn sleeper(&self) -> Sleeper {
        Sleeper { news: self.0.news.subscribe(), resting: Arc::clone(&self.0.resting) }
    }

    /// The wake-up that is owed once the transaction that made work has been committed.
    pub fn owed(&self) -> Wake {
        Wake(Some(self.clone()))
    }

    /// Whether anybody sleeps who could be woken.
    #[cfg(feature = "sqlite")]
    pub(super) fn is_awaited(&self) -> bool {
        self.0.resting.load(Ordering::Acquire) > 0
    }

    /// What is to be announced; it ends with the last waker.
    #[cfg(feature = "postgres")]
    pub(super) fn announcements(&self) -> watch::Receiver<u64> {
        self.0.owed.subscribe()
    }

    #[cfg(feature = "postgres")]
    pub(super) fn own_session(&self) -> Arc<AtomicI32> {
        Arc::clone(&self.0.own_session)
    }
}

/// Waits for wake-ups.
#[derive(Debug)]
pub struct Sleeper {
    news: watch::Receiver<u64>,
    resting: Arc<AtomicUsize>,
}

impl Sleeper {
    /// Forgets the wake-ups so far. Call it before you look for work.
    pub fn begin(&mut self) {
        self.news.mark_unchanged();
    }

    /// Returns when a wake-up has come since [`Sleeper::begin`].
    pub async fn woken(&mut self) {
        let _resting = Resting::new(&self.resting);
        if self.news.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Counts a sleeper as long as it sleeps.
struct Resting<'a>(&'a AtomicUsize);

impl<'a> Resting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
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
            waker.0.owed.send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}
