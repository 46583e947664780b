//! The newcomer's demo: a shop, a dispatcher, a network that misbehaves on purpose, a receiver that writes invoices,
//! and a count at the end of what was lost, doubled or gapped.
//!
//! [`run`] is the whole story. `--sabotage` wires the same story without one protection, to show the damage that the
//! protection prevents; nothing in the libraries can be switched off for it.

mod deck;
mod invoices;
mod network;
mod report;
mod shop;
mod store;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use twiceproof_dispatcher::{
    AddressPolicy, Dispatcher, DispatcherOptions, EndpointPolicy, Manager, NewEndpoint, Policy, PublishError,
    Publisher, Schedule, SenderOptions, StartError,
};
use twiceproof_receiver::BoxError;
use twiceproof_shared::key::Key;
use twiceproof_shared::random::Random;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::store::{DatabaseUrl, Store, StoreError, StoreOptions};

pub use deck::Fault;
pub use report::{Counts, Report};

use crate::prove::{Front, Hop};
use crate::server::{Server, ServerOptions};
use network::Network;

/// The dispatcher's timeout in the demo; slow answers take twice as long.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What the demo is run with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DemoOptions {
    /// The database; on PostgreSQL the demo makes a schema of its own there.
    pub database: DatabaseUrl,
    /// Deals the faults; the same seed deals the same ones.
    pub seed: u64,
    /// How many orders are placed, those that are rolled back among them.
    pub orders: usize,
    /// The protection to leave out.
    pub sabotage: Option<Sabotage>,
    /// Keep the schema that is made on PostgreSQL; else it is dropped at the end.
    pub keep: bool,
}

impl DemoOptions {
    /// 600 orders and every protection.
    #[must_use]
    pub fn new(database: DatabaseUrl, seed: u64) -> Self {
        Self { database, seed, orders: 600, sabotage: None, keep: false }
    }
}

/// A protection to leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// The receiver never asks whether an event came before.
    Ledger,
    /// The effect is written on a second connection instead of in the event's transaction.
    Transaction,
    /// Each delivery is tried once.
    Retry,
}

impl Sabotage {
    /// What is left out.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Ledger => "the ledger, so that a handler runs at every arrival",
            Self::Transaction => "the common transaction, so that an effect outlives its failed handler",
            Self::Retry => "the retries, so that each delivery has one chance",
        }
    }
}

/// Why the demo could not be run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The database did not do its part.
    #[error("the demo's database: {0}")]
    Store(#[from] StoreError),
    /// An event was not accepted.
    #[error("an event of the demo was not accepted")]
    Publish(#[source] PublishError),
    /// The dispatcher did not start.
    #[error("the demo's dispatcher")]
    Dispatcher(#[from] StartError),
    /// A port could not be had.
    #[error("a port on the loopback address")]
    Port(#[from] std::io::Error),
    /// A part could not be set up.
    #[error("a part of the demo could not be set up")]
    Setup(#[source] BoxError),
    /// A part panicked.
    #[error("a part of the demo panicked")]
    Panicked,
}

/// How far the demo is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Orders to be placed in all.
    pub orders: usize,
    /// Deliveries that are owed still.
    pub unfinished: i64,
}

/// Runs the demo to its end, calling `progress` now and then. It waits for every delivery, however slow the machine.
///
/// # Errors
/// When a part could not be set up or the database failed; damage found is not an error but in the [`Report`].
pub async fn run(options: DemoOptions, progress: impl Fn(Progress)) -> Result<Report, DemoError> {
    let started = Instant::now();
    let (seed, orders, sabotage) = (options.seed, options.orders, options.sabotage);
    let random = Random::seeded(options.seed);
    let (store, schema) = open(&options, &random).await?;
    let tenant = Key::new("demo").map_err(|error| DemoError::Setup(error.into()))?;
    let secret = Secret::generate(&random);
    let deck = Arc::new(deck::deal(orders, &random));

    // The receiver, behind the network, behind which the dispatcher delivers.
    let router = invoices::router(&store, &tenant, &secret, sabotage)?;
    let receiver = Server::bind("127.0.0.1:0", ServerOptions::default()).await?;
    let hop = Hop::new(receiver.address(), Duration::from_secs(60));
    let network = Network::new(store.clone(), Arc::clone(&deck), secret.clone(), hop, TIMEOUT);
    let front = Front::open({
        let network = network.clone();
        move |message| network.clone().carry(message)
    })
    .await?;
    let stop = CancellationToken::new();
    let serving = tokio::spawn({
        let stop = stop.clone();
        receiver.serve(router, async move { stop.cancelled().await })
    });

    let dispatching = dispatcher_options(sabotage);
    let policy = dispatching.policy.clone();
    let manager = Manager::new(&store, AddressPolicy::AllowPrivate, &policy);
    let mut endpoint = NewEndpoint::new(tenant.clone(), format!("http://{}{}", front.address(), invoices::PATH));
    endpoint.event_types = vec![shop::EVENT_TYPE.to_owned()];
    endpoint.secret = Some(secret.into());
    // It fails on purpose, and the demo is not to wait for it.
    endpoint.policy = EndpointPolicy::without_breaker();
    manager.create_now(endpoint).await.map_err(|error| DemoError::Setup(error.into()))?;
    let dispatcher = Dispatcher::start(&store, dispatching).await?;
    let delivering = tokio::spawn({
        let stop = stop.clone();
        async move { dispatcher.run(stop.cancelled_owned()).await }
    });

    shop::open(&store, &Publisher::new(&store, &policy), &tenant, &deck).await?;
    loop {
        let unfinished = store::unfinished(&store).await?;
        progress(Progress { orders, unfinished });
        if unfinished == 0 && network.is_quiet() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.cancel();
    delivering.await.map_err(|_| DemoError::Panicked)?;
    serving.await.map_err(|_| DemoError::Panicked)?;
    let counts = store::count(&store).await?;
    let elapsed = started.elapsed();
    store.close().await;
    #[cfg(feature = "postgres")]
    if let (Some(schema), false) = (&schema, options.keep) {
        twiceproof_shared::store::drop_schema(&options.database, schema).await?;
    }
    Ok(Report { seed, sabotage, counts, elapsed, schema: schema.filter(|_| options.keep) })
}

/// The store and, on PostgreSQL, the name of the schema that was made for it.
async fn open(options: &DemoOptions, random: &Random) -> Result<(Store, Option<String>), DemoError> {
    #[cfg_attr(not(feature = "postgres"), expect(unused_mut, reason = "only PostgreSQL has schemas"))]
    let (mut database, mut schema) = (options.database.clone(), None);
    #[cfg(feature = "postgres")]
    if database.file().is_none() {
        // A name of its own, so that the demo can be run again and again beside whatever is there.
        let (inside, name) = twiceproof_shared::store::create_own_schema(&database, "twiceproof_demo").await?;
        (database, schema) = (inside, Some(name));
    }
    let mut store_options = StoreOptions::default();
    store_options.random = Some(random.clone());
    let store = Store::connect(&database, store_options).await?;
    store.migrate().await?;
    store::create(&store).await?;
    Ok((store, schema))
}

fn dispatcher_options(sabotage: Option<Sabotage>) -> DispatcherOptions {
    let schedule = match sabotage {
        Some(Sabotage::Retry) => Schedule::once(),
        _ => Schedule::exponential(Duration::from_millis(50), 2.0, Duration::from_millis(500)),
    };
    let sender = SenderOptions { addresses: AddressPolicy::AllowPrivate, ..SenderOptions::default() };
    let policy = Policy { schedule, timeout: TIMEOUT, ..Policy::default() };
    DispatcherOptions { policy, sender, ..DispatcherOptions::default() }
}
