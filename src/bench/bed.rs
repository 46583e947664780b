//! What a scenario stands on: a database of its own, a sink, endpoints that lead there, the plain client.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use twiceproof_dispatcher::{
    AddressPolicy, DispatcherOptions, EndpointPolicy, Manager, NewEndpoint, NewEvent, Policy, SenderOptions,
};
use twiceproof_shared::key::Key;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::store::{DatabaseUrl, Store, StoreOptions};

use super::client::Client;
#[cfg(feature = "postgres")]
use super::meter;
use super::meter::{Latencies, Processes, Sum, Turn};
use super::sink::{Sink, body};
use super::{BenchError, BenchOptions, MOST_CONNECTIONS, Scenario, store as tables};

/// The type of all events.
const EVENT_TYPE: &str = "bench.made";

/// Everything a scenario needs.
pub struct Bed {
    pub options: BenchOptions,
    pub scenario: Scenario,
    pub store: Store,
    pub sink: Sink,
    pub secret: Secret,
    pub client: Client,
    pub processes: Processes,
    /// The scenario's own database.
    pub database: DatabaseUrl,
    pub tenant: Key,
    /// Its name, where it is a schema.
    #[cfg(feature = "postgres")]
    schema: Option<String>,
    /// Goes on drop, and with it what is in it: the database where that is a file.
    folder: TempDir,
}

impl Bed {
    /// Opens it.
    ///
    /// # Errors
    /// As [`BenchError`] says.
    pub async fn open(options: &BenchOptions, scenario: Scenario) -> Result<Self, BenchError> {
        let own = database(options).await?;
        let (database, folder) = (own.url, own.folder);
        let store = Store::connect(&database, StoreOptions::default()).await?;
        store.migrate().await?;
        tables::create(&store).await?;
        let sink = Sink::open()?;
        let secret = Secret::generate(store.random());
        let tenant = Key::new("bench").map_err(|error| BenchError::Setup(error.into()))?;
        let client = Client::new(&store, &secret)?;
        #[cfg(feature = "postgres")]
        let server = tables::backend(&store).await?.and_then(meter::server_of);
        #[cfg(not(feature = "postgres"))]
        let server = None;
        let processes = Processes { sink: sink.thread(), server };
        let options = options.clone();
        Ok(Self {
            options,
            scenario,
            store,
            sink,
            secret,
            client,
            processes,
            database,
            tenant,
            #[cfg(feature = "postgres")]
            schema: own.schema,
            folder,
        })
    }

    /// Closes the database, and drops it.
    ///
    /// # Errors
    /// When the schema cannot be dropped.
    pub async fn close(self) -> Result<(), BenchError> {
        self.store.close().await;
        #[cfg(feature = "postgres")]
        if let Some(schema) = &self.schema {
            twiceproof_shared::store::drop_schema(&self.options.database, schema).await?;
        }
        Ok(())
    }

    /// A folder with nothing of anybody else's in it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// How many publish, or send, at a time; the plain client is at its best long before a worker's slots.
    pub fn connections(&self) -> usize {
        self.options.connections.clamp(1, MOST_CONNECTIONS)
    }

    /// How many events a round publishes.
    pub fn events(&self) -> usize {
        match self.scenario {
            Scenario::Pace => self.options.events_of_a_pace(),
            scenario if scenario.is_backlog() => self.options.events.max(1),
            other => self.options.events_of_a_round(other.fan_out()),
        }
    }

    /// The event of this number.
    pub fn event(&self, number: usize) -> NewEvent {
        self.event_of_type(EVENT_TYPE, number)
    }

    /// The event of this type and number.
    pub fn event_of_type(&self, event_type: &str, number: usize) -> NewEvent {
        NewEvent::json(self.tenant.clone(), event_type, body(number, self.options.payload))
    }

    /// The dispatcher's options: for each endpoint as many slots as the plain client has connections.
    pub fn dispatcher(&self) -> DispatcherOptions {
        let sender = SenderOptions { addresses: AddressPolicy::AllowPrivate, ..SenderOptions::default() };
        let slots = u32::try_from(self.connections()).unwrap_or(u32::MAX);
        let policy = Policy { slots_per_endpoint: slots, ..Policy::default() };
        DispatcherOptions { policy, sender, ..DispatcherOptions::default() }
    }

    /// Makes the endpoints, all of which lead to the sink.
    ///
    /// # Errors
    /// When one is not accepted.
    pub async fn add_endpoints(&self) -> Result<(), BenchError> {
        for number in 0..self.scenario.endpoints() {
            let url = format!("{}/{number}", self.sink.url());
            self.add_endpoint(url, EVENT_TYPE, &self.dispatcher().policy).await?;
        }
        Ok(())
    }

    /// Makes an endpoint that takes one type of events; its id.
    ///
    /// # Errors
    /// When it is not accepted.
    pub async fn add_endpoint(&self, url: String, event_type: &str, policy: &Policy) -> Result<String, BenchError> {
        self.add_endpoint_with(url, event_type, policy, EndpointPolicy::default()).await
    }

    /// The same with a policy of its own.
    ///
    /// # Errors
    /// When it is not accepted.
    pub async fn add_endpoint_with(
        &self,
        url: String,
        event_type: &str,
        policy: &Policy,
        own: EndpointPolicy,
    ) -> Result<String, BenchError> {
        let manager = Manager::new(&self.store, AddressPolicy::AllowPrivate, policy);
        let mut endpoint = NewEndpoint::new(self.tenant.clone(), url);
        endpoint.policy = own;
        endpoint.event_types = vec![event_type.to_owned()];
        endpoint.secret = Some(self.secret.clone().into());
        Ok(manager.create_now(endpoint).await?.endpoint.id)
    }

    /// A turn of the limit of everything that sends: the plain client posts `count` bodies to the sink.
    ///
    /// # Errors
    /// As [`BenchError`] says.
    pub async fn plain_client(&self, count: usize, sum: &mut Sum) -> Result<(), BenchError> {
        self.sink.begin(0);
        let url = self.sink.url();
        let work = self.client.post_all(&url, count, self.connections(), &self.options);
        self.turn(count, work, sum).await
    }

    /// Measures one turn, within its time.
    ///
    /// # Errors
    /// The work's own, or that it took too long.
    pub async fn turn(
        &self,
        count: usize,
        work: impl Future<Output = Result<Arc<Latencies>, BenchError>>,
        sum: &mut Sum,
    ) -> Result<(), BenchError> {
        let turn = Turn::begin(&self.processes);
        let latencies = self.within(work).await?;
        turn.end(&self.processes, count, &latencies, sum);
        Ok(())
    }

    /// Runs work within the time of a turn.
    ///
    /// # Errors
    /// The work's own, or that it took too long.
    pub async fn within<T>(&self, work: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
        let timed_out = |_| BenchError::TimedOut(self.scenario.name());
        tokio::time::timeout(self.options.limit, work).await.map_err(timed_out)?
    }
}

/// A short wait between two looks whether something is done.
pub async fn moment() {
    tokio::time::sleep(Duration::from_millis(2)).await;
}

/// A database of a scenario's own.
struct Own {
    url: DatabaseUrl,
    #[cfg(feature = "postgres")]
    schema: Option<String>,
    folder: TempDir,
}

async fn database(options: &BenchOptions) -> Result<Own, BenchError> {
    let mut folder = tempfile::Builder::new();
    folder.prefix("twiceproof-bench-");
    if let Some(file) = options.database.file() {
        let beside = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = folder.tempdir_in(beside)?;
        let url = DatabaseUrl::sqlite(folder.path().join("bench.db"))?;
        return Ok(Own {
            url,
            #[cfg(feature = "postgres")]
            schema: None,
            folder,
        });
    }
    let folder = folder.tempdir()?;
    #[cfg(feature = "postgres")]
    {
        let (url, name) = twiceproof_shared::store::create_own_schema(&options.database, "twiceproof_bench").await?;
        Ok(Own { url, schema: Some(name), folder })
    }
    #[cfg(not(feature = "postgres"))]
    Ok(Own { url: options.database.clone(), folder })
}
