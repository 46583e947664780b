//! Which keys are running in this process. It spares the database the question; the unique index stays the only truth.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// The keys that run now, of one store. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Running(Arc<Mutex<HashMap<RunningKey, watch::Sender<()>>>>);

/// What makes a running key: tenant, scope, key.
pub type RunningKey = (String, String, String);

impl Running {
    /// Takes the key, waiting at most `wait` for an earlier holder to end. `None`: it still runs.
    ///
    /// The wait holds no database connection.
    pub async fn enter(&self, key: RunningKey, wait: Duration) -> Option<RunningGuard> {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let mut ended = match self.take(&key) {
                Ok(guard) => return Some(guard),
                Err(ended) => ended,
            };
            // The sender is dropped when the holder ends, which is the news.
            tokio::time::timeout_at(deadline, ended.changed()).await.ok()?.ok();
        }
    }

    fn take(&self, key: &RunningKey) -> Result<RunningGuard, watch::Receiver<()>> {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = keys.get(key) {
            return Err(holder.subscribe());
        }
        keys.insert(key.clone(), watch::Sender::new(()));
        Ok(RunningGuard { running: self.clone(), key: key.clone() })
    }
}

/// Holds a key until it is dropped. Keep it until the commit is answered.
#[derive(Debug)]
pub struct RunningGuard {
    running: Running,
    key: RunningKey,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.running.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Running};

    fn key() -> super::RunningKey {
        ("tenant".into(), "scope".into(), "key".into())
    }

    #[tokio::test]
    async fn a_second_holder_is_refused_while_the_first_runs_and_served_after_it() {
        let running = Running::default();
        let first = running.enter(key(), Duration::ZERO).await.unwrap();
        assert!(running.enter(key(), Duration::ZERO).await.is_none());
        let waiting = tokio::spawn({
            let running = running.clone();
            async move { running.enter(key(), Duration::from_secs(60)).await.is_some() }
        });
        tokio::task::yield_now().await;
        drop(first);
        assert!(waiting.await.unwrap());
        assert!(running.0.lock().unwrap().is_empty());
    }
}
