//! The strikes of a round, each with what puts its victim back.

use std::time::Duration;

use tokio::time::Instant;
use twiceproof_shared::kill::Part;
use twiceproof_shared::store::Database;

use super::plan::{Link, Strike};
use super::round::{Armed, Play};
use super::{Bed, CrashError};
use crate::prove::history::Fact;

/// Longer than a lease: the deadline of a request, 1 s, and the worker's margin of 1 s.
const PAST_THE_LEASE: Duration = Duration::from_millis(2_300);
/// How long a strike may take to bite.
const BITE: Duration = Duration::from_secs(20);

impl Play {
    /// Strikes once, and puts whoever died of it back; false if it did not bite.
    pub(super) async fn strike(&mut self, bed: &mut Bed, strike: Strike, next: Armed) -> Result<bool, CrashError> {
        let bit = match strike {
            Strike::At(point, _) => {
                self.replace(point.part, Some(BITE), next, &format!("killed at {}", point.name)).await?
            }
            Strike::When(moment) => {
                let seen = self.stage.book.seen(moment, BITE).await;
                let killed = self.replace(moment.part(), None, next, &format!("killed when {}", moment.name())).await?;
                seen && killed
            }
            Strike::Kill(part, after) => {
                tokio::time::sleep(after).await;
                self.replace(part, None, next, &format!("killed the {part:?}")).await?
            }
            Strike::Freeze(part) => self.freeze(part).await?,
            Strike::Cut(link, fault, after) => {
                tokio::time::sleep(after).await;
                let proxy = match (&self.statements, link) {
                    (Some([proxy, _]), Link::Database) => proxy,
                    (Some([_, proxy]), Link::Effects) => proxy,
                    _ => &self.requests,
                };
                let before = proxy.bites();
                proxy.arm(fault);
                let bit = proxy.bitten(before, BITE).await;
                proxy.disarm();
                self.stage.book.note(Fact::Struck { fault: format!("{link:?}: {fault:?}") });
                bit
            }
            Strike::Server { after, killed } => {
                tokio::time::sleep(after).await;
                self.stage.book.note(Fact::Struck { fault: format!("PostgreSQL ended, killed: {killed}") });
                bed.crash_server(killed)?;
                // Something shall be under way before the next one.
                tokio::time::sleep(Duration::from_millis(300)).await;
                true
            }
        };
        // Whoever is armed next is another process than the one that was just put back.
        if let Some((part, _)) = next
            && !matches!(strike, Strike::At(point, _) if point.part == part)
        {
            self.replace(part, None, next, "put in place of another").await?;
        }
        Ok(bit)
    }

    /// Waits for the end of a process, or ends it; then starts the next in its place. False: it did not end by itself.
    async fn replace(
        &self,
        part: Part,
        by_itself: Option<Duration>,
        next: Armed,
        why: &str,
    ) -> Result<bool, CrashError> {
        let deadline = Instant::now() + by_itself.unwrap_or_default();
        let mut bit = by_itself.is_none();
        while !bit && Instant::now() < deadline {
            bit = match self.cast().slot(part) {
                Some(process) => process.has_ended()?,
                None => true,
            };
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let taken = self.cast().slot(part).take();
        if let Some(mut process) = taken {
            process.kill();
        }
        self.stage.book.note(Fact::Struck { fault: why.to_owned() });
        let kill_at = next.filter(|(own, _)| *own == part).map(|(_, at)| at);
        let process = self.stage.start(part, kill_at).await?;
        self.cast().put(part, process);
        Ok(bit)
    }

    /// Stops a process past its lease. On PostgreSQL another worker takes over, and the stopped one goes on beside it; a
    /// SQLite file has one worker, which finds its own leases over.
    async fn freeze(&self, part: Part) -> Result<bool, CrashError> {
        let Some(process) = self.cast().slot(part).take() else { return Ok(false) };
        process.signal("STOP")?;
        self.stage.book.note(Fact::Struck { fault: format!("stopped the {part:?}") });
        let has_heir = part == Part::Worker && self.database == Database::Postgres;
        if has_heir {
            let heir = self.stage.start(part, None).await?;
            self.cast().put(part, heir);
        }
        tokio::time::sleep(PAST_THE_LEASE).await;
        process.signal("CONT")?;
        self.stage.book.note(Fact::Struck { fault: format!("let the {part:?} go on") });
        if has_heir {
            self.cast().ghosts.push(process);
        } else {
            self.cast().put(part, process);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(true)
    }
}
