//! One round: a database of its own, load, strikes, recovery, and what stands then.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use twiceproof_dispatcher::{AddressPolicy, Manager, NewEndpoint, Policy};
use twiceproof_shared::key::Key;
use twiceproof_shared::kill::Part;
use twiceproof_shared::random::Random;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::store::{Database, DatabaseUrl, Store, StoreOptions};

use super::actor::{EVENT_TYPE, SOURCE, TENANT};
use super::book::Book;
use super::plan::{Link, Round, Strike};
use super::troupe::{Process, Stage};
use super::{Bed, CrashError, store as tables};
use crate::prove::Proxy;
use crate::prove::history::{Entry, Fact};

/// The deadline of a request.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Longer than a lease: [`TIMEOUT`] and the worker's margin of 1 s.
const PAST_THE_LEASE: Duration = Duration::from_millis(2_300);
/// Between two offers of the client.
const TACT: Duration = Duration::from_millis(2);
/// How long a strike may take to bite, and everything to come to its end afterwards.
const BITE: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_secs(90);

/// What a round came to.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) history: Vec<Entry>,
    pub(super) struck: u64,
    /// Strikes that did not bite.
    pub(super) missed: u64,
}

/// Plays a round on the bed's database.
pub(super) async fn play(bed: &mut Bed, round: &Round, random: &Random) -> Result<Played, CrashError> {
    let (database, folder, schema) = bed.database().await?;
    let outcome = on(bed, &database, &folder, round, random).await;
    bed.forget(schema).await?;
    outcome
}

async fn on(
    bed: &mut Bed,
    database: &DatabaseUrl,
    folder: &TempDir,
    round: &Round,
    random: &Random,
) -> Result<Played, CrashError> {
    let mut options = StoreOptions::default();
    options.connections = Some(4);
    let store = Store::connect(database, options).await?;
    store.migrate().await?;
    tables::create(&store).await?;
    let mut play = Play::open(bed, &store, database, folder, random).await?;
    let mut armed = play.arms(round.strikes.first());
    let stage = &play.stage;
    for part in [Part::Receiver, Part::Worker, Part::Publisher] {
        let kill_at = armed.take_if(|(own, _)| *own == part).map(|(_, at)| at);
        let process = stage.start(part, kill_at).await?;
        play.cast.lock().unwrap_or_else(PoisonError::into_inner).put(part, process);
    }
    let client = play.client();
    play.warm_up().await?;
    let (mut struck, mut missed) = (0, 0);
    for (at, strike) in round.strikes.iter().enumerate() {
        let next = play.arms(round.strikes.get(at + 1));
        if play.strike(bed, *strike, next).await? { struck += 1 } else { missed += 1 }
    }
    // Whoever came back last shall have something to do.
    tokio::time::sleep(Duration::from_millis(100)).await;
    play.come_to_rest(&store).await?;
    play.stop_offers.cancel();
    let _ = client.await;
    play.end().await?;
    for fact in tables::standing(&store).await? {
        play.stage.book.note(fact);
    }
    store.close().await;
    Ok(Played { history: play.stage.book.entries(), struck, missed })
}

/// A point and its passage, and whose it is.
type Armed = Option<(Part, (&'static str, u64))>;

struct Play {
    stage: Stage,
    cast: Arc<Mutex<Cast>>,
    requests: Proxy,
    statements: Option<Proxy>,
    database: Database,
    stop_new: CancellationToken,
    stop_offers: CancellationToken,
}

/// Who is on.
#[derive(Debug, Default)]
struct Cast {
    publisher: Option<Process>,
    worker: Option<Process>,
    receiver: Option<Process>,
    /// Workers that were stopped and go on beside their successor.
    ghosts: Vec<Process>,
}

impl Cast {
    fn slot(&mut self, part: Part) -> &mut Option<Process> {
        match part {
            Part::Publisher => &mut self.publisher,
            Part::Worker => &mut self.worker,
            Part::Receiver => &mut self.receiver,
        }
    }

    fn put(&mut self, part: Part, process: Process) {
        *self.slot(part) = Some(process);
    }
}

impl Play {
    async fn open(
        bed: &Bed,
        store: &Store,
        database: &DatabaseUrl,
        folder: &TempDir,
        random: &Random,
    ) -> Result<Self, CrashError> {
        // A port that is ours for the whole round: the receiver comes back on it.
        let listen = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let requests = Proxy::open(listen.clone()).await?;
        let statements = match database.server() {
            Some((host, port)) => Some(Proxy::open(format!("{host}:{port}")).await?),
            None => None,
        };
        let reached = match &statements {
            Some(proxy) => database.through(proxy.address())?,
            None => database.clone(),
        };
        let secret = Secret::generate(store.random());
        let setup = |error: Box<dyn std::error::Error + Send + Sync>| CrashError::Setup(error);
        let tenant = Key::new(TENANT).map_err(|error| setup(error.into()))?;
        let mut endpoint = NewEndpoint::new(tenant, format!("http://{}/{SOURCE}", requests.address()));
        endpoint.event_types = vec![EVENT_TYPE.to_owned()];
        endpoint.secret = Some(secret.clone());
        endpoint.timeout = Some(TIMEOUT);
        let manager = Manager::new(store, AddressPolicy::AllowPrivate, &Policy::default());
        manager.create_now(endpoint).await.map_err(|error| setup(error.into()))?;
        let stage = Stage {
            program: bed.program.clone(),
            folder: folder.path().to_owned(),
            database: reached,
            listen,
            secret: secret.to_text().to_string(),
            book: Arc::new(Book::new(random)),
        };
        Ok(Self {
            stage,
            cast: Arc::default(),
            requests,
            statements,
            database: store.database(),
            stop_new: CancellationToken::new(),
            stop_offers: CancellationToken::new(),
        })
    }

    fn cast(&self) -> std::sync::MutexGuard<'_, Cast> {
        self.cast.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arms(&self, strike: Option<&Strike>) -> Armed {
        match strike {
            Some(Strike::At(point, passage)) => Some((point.part, (point.name, *passage))),
            _ => None,
        }
    }

    /// The client: offers at a steady pace, whatever happens to the others.
    fn client(&self) -> JoinHandle<()> {
        let (cast, book) = (Arc::clone(&self.cast), Arc::clone(&self.stage.book));
        let (stop_new, stop) = (self.stop_new.clone(), self.stop_offers.clone());
        tokio::spawn(async move {
            let mut tact = tokio::time::interval(TACT);
            tact.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            while !stop.is_cancelled() {
                tact.tick().await;
                let mut cast = cast.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(publisher) = &mut cast.publisher
                    && let Some(offer) = book.next_offer(!stop_new.is_cancelled())
                {
                    publisher.offer(&offer);
                }
            }
        })
    }

    /// Until the first events have been through, or somebody has died of the first strike.
    async fn warm_up(&self) -> Result<(), CrashError> {
        let deadline = Instant::now() + BITE;
        while self.stage.book.answered() < 5 && Instant::now() < deadline {
            let mut cast = self.cast();
            for part in [Part::Publisher, Part::Worker, Part::Receiver] {
                if let Some(process) = cast.slot(part)
                    && process.has_ended()?
                {
                    return Ok(());
                }
            }
            drop(cast);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Strikes once, and puts whoever died of it back; false if it did not bite.
    async fn strike(&mut self, bed: &mut Bed, strike: Strike, next: Armed) -> Result<bool, CrashError> {
        let bit = match strike {
            Strike::At(point, _) => {
                self.replace(point.part, Some(BITE), next, &format!("killed at {}", point.name)).await?
            }
            Strike::Kill(part, after) => {
                tokio::time::sleep(after).await;
                self.replace(part, None, next, &format!("killed the {part:?}")).await?
            }
            Strike::Freeze(part) => self.freeze(part).await?,
            Strike::Cut(link, fault, after) => {
                tokio::time::sleep(after).await;
                let proxy = match (&self.statements, link) {
                    (Some(proxy), Link::Database) => proxy,
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
        let mut cast = self.cast();
        if has_heir {
            cast.ghosts.push(process)
        } else {
            cast.put(part, process)
        }
        drop(cast);
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(true)
    }

    /// Nothing new is offered; whatever is open comes to its end, or the patience does.
    async fn come_to_rest(&self, store: &Store) -> Result<(), CrashError> {
        self.stop_new.cancel();
        let deadline = Instant::now() + QUIET;
        loop {
            // While a server comes back, it is not at rest.
            let unfinished = tables::unfinished(store).await.unwrap_or(i64::MAX);
            if unfinished == 0 && self.stage.book.is_settled() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                // The judge says what is stuck.
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Everybody ends in their own way: what they had under way is recorded, or rolled back, before it is read.
    async fn end(&self) -> Result<(), CrashError> {
        let cast = std::mem::take(&mut *self.cast());
        let Cast { publisher, worker, receiver, ghosts } = cast;
        for process in [worker, publisher].into_iter().chain(ghosts.into_iter().map(Some)).chain([receiver]).flatten() {
            process.stop().await?;
        }
        Ok(())
    }
}
