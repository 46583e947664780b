//! The desk: what comes while earlier work is under way waits and goes together with the next.
//!
//! Used by publishes that share a commit, and by received webhooks whose handlers may.
//! Invariants: nobody waits for company (what comes to an idle desk goes at once); no more tasks than were asked for work
//! through the queue at a time; each caller gets the answer to its own, and hears of it where the one that served it did not come to its end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Something that waits, and its caller.
#[derive(Debug)]
pub struct Waiting<T, A> {
    /// What waits.
    pub item: T,
    answer: oneshot::Sender<A>,
}

impl<T, A> Waiting<T, A> {
    /// Answers the caller. One that went away needs no answer.
    pub fn answer(self, answer: A) {
        let _ = self.answer.send(answer);
    }
}

/// A queue that is worked through in batches. Clones share it.
#[derive(Debug)]
pub struct Desk<T, A>(Arc<Mutex<Queue<T, A>>>);

#[derive(Debug)]
struct Queue<T, A> {
    waiting: VecDeque<Waiting<T, A>>,
    /// How many work through it.
    serving: usize,
    /// How many may.
    most: usize,
}

impl<T, A> Desk<T, A>
where
    T: Send + 'static,
    A: Send + 'static,
{
    /// Puts something among what waits, and waits for its answer. Where another may work through the queue, `serve` does
    /// from now on, in a task of its own. None: whoever served it did not come to its end.
    pub async fn ask<S>(&self, item: T, serve: impl FnOnce(Serving<T, A>) -> S) -> Option<A>
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let is_wanted = {
            let mut queue = self.queue();
            queue.waiting.push_back(Waiting { item, answer });
            let is_wanted = queue.serving < queue.most;
            queue.serving += usize::from(is_wanted);
            is_wanted
        };
        if is_wanted {
            tokio::spawn(serve(Serving { desk: self.clone(), is_done: false }));
        }
        answered.await.ok()
    }
}

impl<T, A> Desk<T, A> {
    /// A desk where `most` may work through the queue at a time; the default is one.
    #[must_use]
    pub fn with_serving(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Queue { waiting: VecDeque::new(), serving: 0, most: most.max(1) })))
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T, A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, A> Clone for Desk<T, A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T, A> Default for Desk<T, A> {
    fn default() -> Self {
        Self::with_serving(1)
    }
}

/// One that works through the queue. Whatever makes it go, its place at the desk is free again afterwards.
#[derive(Debug)]
pub struct Serving<T, A> {
    desk: Desk<T, A>,
    /// It saw nobody waiting; another may serve the desk already.
    is_done: bool,
}

impl<T, A> Serving<T, A> {
    /// What goes together next: the first that waits, and those behind it as long as they `fit`. Empty once nobody waits;
    /// then its place is free.
    pub fn next(&mut self, mut fits: impl FnMut(&T) -> bool) -> Vec<Waiting<T, A>> {
        let mut queue = self.desk.queue();
        let count = queue.waiting.iter().take_while(|one| fits(&one.item)).count();
        // The first goes alone where it does not fit.
        let count = count.max(1).min(queue.waiting.len());
        self.is_done = count == 0;
        queue.serving -= usize::from(self.is_done);
        queue.waiting.drain(..count).collect()
    }
}

impl<T, A> Drop for Serving<T, A> {
    fn drop(&mut self) {
        if !self.is_done {
            let mut queue = self.desk.queue();
            queue.serving -= 1;
            // It did not come to its end, and nobody else may come: whoever waits is told so, by the end of its channel.
            queue.waiting.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Desk, Serving};

    async fn echo(mut serving: Serving<u32, (u32, usize)>) {
        loop {
            let batch = serving.next(|item| *item < 100);
            if batch.is_empty() {
                return;
            }
            tokio::task::yield_now().await;
            let count = batch.len();
            for one in batch {
                let item = one.item;
                one.answer((item, count));
            }
        }
    }

    #[tokio::test]
    async fn what_comes_meanwhile_goes_together_and_what_does_not_fit_goes_alone() {
        let desk = Desk::default();
        let asked = [1, 2, 3, 100, 4].map(|item| desk.ask(item, echo));
        let answers = futures_util::future::join_all(asked).await;
        assert_eq!(answers, [Some((1, 3)), Some((2, 3)), Some((3, 3)), Some((100, 1)), Some((4, 1))]);
        assert_eq!(desk.ask(5, echo).await, Some((5, 1)), "the desk is free again");
    }

    #[tokio::test]
    async fn the_desk_is_free_again_after_a_panic_and_whoever_waited_is_told() {
        let desk: Desk<u32, (u32, usize)> = Desk::default();
        let answer = desk.ask(1, |_serving| async { panic!("on purpose") }).await;
        assert_eq!(answer, None);
        assert_eq!(desk.ask(2, echo).await, Some((2, 1)));
    }
}
