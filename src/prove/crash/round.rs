//! One round: a database of its own, load, strikes, recovery, and what stands then.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use twiceproof_dispatcher::{AddressPolicy, EndpointPolicy, Manager, NewEndpoint, Policy};
use twiceproof_shared::key::Key;
use twiceproof_shared::kill::Part;
use twiceproof_shared::random::Random;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::store::{Database, DatabaseUrl, Store, StoreOptions};

use super::actor::{EVENT_TYPE, SOURCE, TENANT};
use super::book::Book;
use super::plan::{Round, Strike};
use super::troupe::{Process, Stage};
use super::{Bed, CrashError, store as tables};
use crate::prove::Proxy;
use crate::prove::history::Entry;

/// The deadline of a request.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Between two offers of the client.
const TACT: Duration = Duration::from_millis(2);
/// How long the first events may take, and everything until its end after the strikes.
const WARM: Duration = Duration::from_secs(20);
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
    let book = Arc::new(Book::new(round.number, random));
    let mut play = Play::open(bed, &store, database, folder, book).await?;
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
pub(super) type Armed = Option<(Part, (&'static str, u64))>;

pub(super) struct Play {
    pub(super) stage: Stage,
    cast: Arc<Mutex<Cast>>,
    pub(super) requests: Proxy,
    /// To PostgreSQL: of publisher and worker, and of the receiver.
    pub(super) statements: Option<[Proxy; 2]>,
    pub(super) database: Database,
    stop_new: CancellationToken,
    stop_offers: CancellationToken,
}

/// Who is on.
#[derive(Debug, Default)]
pub(super) struct Cast {
    publisher: Option<Process>,
    worker: Option<Process>,
    receiver: Option<Process>,
    /// Workers that were stopped and go on beside their successor.
    pub(super) ghosts: Vec<Process>,
}

impl Cast {
    pub(super) fn slot(&mut self, part: Part) -> &mut Option<Process> {
        match part {
            Part::Publisher => &mut self.publisher,
            Part::Worker => &mut self.worker,
            Part::Receiver => &mut self.receiver,
        }
    }

    /// Whether one of the three has ended.
    fn is_missing_somebody(&mut self) -> Result<bool, CrashError> {
        for process in [&mut self.publisher, &mut self.worker, &mut self.receiver].into_iter().flatten() {
            if process.has_ended()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn put(&mut self, part: Part, process: Process) {
        *self.slot(part) = Some(process);
    }
}

impl Play {
    async fn open(
        bed: &Bed,
        store: &Store,
        database: &DatabaseUrl,
        folder: &TempDir,
        book: Arc<Book>,
    ) -> Result<Self, CrashError> {
        // A port that is ours for the whole round: the receiver comes back on it.
        let listen = free_address(&Random::from_system())?;
        let requests = Proxy::open(listen.clone()).await?;
        let statements = match database.server() {
            Some((host, port)) => {
                let server = format!("{host}:{port}");
                Some([Proxy::open(server.clone()).await?, Proxy::open(server).await?])
            }
            None => None,
        };
        let (reached, effects) = match &statements {
            Some([own, effects]) => (database.through(own.address())?, database.through(effects.address())?),
            None => (database.clone(), database.clone()),
        };
        let secret = Secret::generate(store.random());
        let setup = |error: Box<dyn std::error::Error + Send + Sync>| CrashError::Setup(error);
        let tenant = Key::new(TENANT).map_err(|error| setup(error.into()))?;
        let mut endpoint = NewEndpoint::new(tenant, format!("http://{}/{SOURCE}", requests.address()));
        endpoint.event_types = vec![EVENT_TYPE.to_owned()];
        endpoint.secret = Some(secret.clone().into());
        endpoint.timeout = Some(TIMEOUT);
        // What is struck is struck again and again, and nothing is to wait for it.
        endpoint.policy = EndpointPolicy::without_breaker();
        let manager = Manager::new(store, AddressPolicy::AllowPrivate, &Policy::default());
        manager.create_now(endpoint).await.map_err(|error| setup(error.into()))?;
        let stage = Stage {
            program: bed.program.clone(),
            folder: folder.path().to_owned(),
            database: reached,
            effects,
            listen,
            secret: secret.to_text().to_string(),
            book,
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

    pub(super) fn cast(&self) -> std::sync::MutexGuard<'_, Cast> {
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
        let deadline = Instant::now() + WARM;
        while self.stage.book.answered() < 5 && Instant::now() < deadline {
            if self.cast().is_missing_somebody()? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
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

/// An address that the receiver can be started at again and again. Its port is below those that systems give out by
/// themselves, so that nobody gets it while the receiver is down.
fn free_address(random: &Random) -> std::io::Result<String> {
    const TRIES: u32 = 100;
    let mut refused = std::io::Error::other("no port was tried");
    for _ in 0..TRIES {
        let address = format!("127.0.0.1:{}", 20_000 + random.below(10_000));
        match std::net::TcpListener::bind(&address) {
            Ok(_) => return Ok(address),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}
