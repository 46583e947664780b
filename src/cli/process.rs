//! A process that stays: what `serve` and `worker` share, from the first signal handler to the last answer.
//!
//! A process has one or both of two parts: a worker that delivers and keeps house, and an HTTP side. The HTTP side goes last,
//! so that it can say meanwhile that this process is live but no longer ready.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::Router;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use twiceproof::api;
use twiceproof::config::Config;
use twiceproof::dispatcher::api::Api;
use twiceproof::dispatcher::manage::sealing;
use twiceproof::dispatcher::{Dispatcher, DispatcherOptions, Manager, Publisher, SenderOptions};
use twiceproof::health::Health;
use twiceproof::ledger;
use twiceproof::metrics::Metrics;
use twiceproof::server::{Server, ServerOptions};
use twiceproof::store::Store;

use super::output;
use super::signals;

/// Once the worker has stopped, answers under way may take this long.
const DRAIN: Duration = Duration::from_secs(5);

/// What a process does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    /// Deliver, and keep house: forget what is over, send again what was asked for.
    pub(super) worker: bool,
    /// What to answer on the configured address, if anything.
    pub(super) http: Option<Answers>,
}

/// What the HTTP side answers beside /live, /ready and /metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    /// The REST API, if there is a secret for its tokens.
    Api,
    /// Nothing.
    Health,
}

/// Brings the tables up to date, and runs until the first signal.
pub(super) async fn run(config: &Config, parts: Parts) -> anyhow::Result<ExitCode> {
    let stopped = signals::listen()?;
    let store = super::global::open(config).await?;
    let applied = store.migrate().await.context("cannot bring the tables up to date")?;
    tracing::info!(database = %config.database, ?applied, "the tables are up to date");
    match sealing::check(&store).await.context("cannot read how the secrets are sealed")?? {
        true if config.seal.current().is_some() => {
            tracing::warn!("some secrets of endpoints are not sealed yet; `twiceproof secrets reseal` seals them");
        }
        _ => {}
    }
    let outcome = start(&store, config, parts, stopped).await;
    store.close().await;
    outcome
}

async fn start(
    store: &Store,
    config: &Config,
    parts: Parts,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<ExitCode> {
    let server = match parts.http {
        Some(answers) => Some((bind(config).await?, answers)),
        None => None,
    };
    let dispatcher = match parts.worker {
        true => Some(Dispatcher::start(store, options(config)).await.context("cannot start the worker")?),
        false => None,
    };
    if config.allow_private_addresses {
        tracing::warn!("`allow_private_addresses` is on: whoever may add endpoints can reach this network");
    }
    match &server {
        Some((server, _)) => output::line(format_args!("listening on http://{}", server.address()))?,
        None => output::line(format_args!("delivering"))?,
    }
    // Old answers and keys of all receivers that share this database go with the worker: one of those runs anyway.
    let keeping = dispatcher.is_some().then(|| keep_ledger(store, config, stopped.clone()));
    let outcome = work(store, config, dispatcher, server, stopped).await;
    if let Some(keeping) = keeping {
        keeping.abort();
    }
    outcome
}

async fn bind(config: &Config) -> anyhow::Result<Server> {
    let options = ServerOptions { drain: DRAIN, ..ServerOptions::default() };
    Server::bind(&config.listen, options).await.with_context(|| {
        format!("cannot listen on {} ({}); choose another --listen", config.listen, config.origin("listen"))
    })
}

/// Runs the parts until the signal.
async fn work(
    store: &Store,
    config: &Config,
    dispatcher: Option<Dispatcher>,
    server: Option<(Server, Answers)>,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<ExitCode> {
    let health = Health::new(store.clone());
    let (close, closed) = watch::channel(false);
    let mut serving = match server {
        None => None,
        Some((server, answers)) => {
            let metrics = Metrics::install(store).context("cannot count what happens")?;
            let mut router = health.router().merge(metrics.router());
            if answers == Answers::Api {
                router = router.merge(rest(store, config));
            }
            Some(tokio::spawn(server.serve(router, signals::given(closed))))
        }
    };
    let mut working: JoinHandle<_> = tokio::spawn({
        let stopped = stopped.clone();
        async move {
            match dispatcher {
                Some(dispatcher) => Some(dispatcher.run(signals::given(stopped)).await),
                None => {
                    signals::given(stopped).await;
                    None
                }
            }
        }
    });
    let totals = tokio::select! {
        totals = &mut working => totals,
        () = ended(&mut serving) => return Err(anyhow!("the HTTP side ended by itself")),
        () = signals::given(stopped) => {
            health.drain();
            working.await
        }
    };
    let totals = totals.context("the worker ended by itself")?;
    // Fails where the HTTP side has gone already.
    let _ = close.send(true);
    let cut = match serving {
        Some(serving) => serving.await.context("the HTTP side broke")?.cut,
        None => 0,
    };
    let (claimed, unrecorded) = totals.map_or((0, 0), |totals| (totals.claimed, totals.unrecorded));
    tracing::info!(claimed, unrecorded, cut, "stopped");
    Ok(ExitCode::SUCCESS)
}

/// Resolves when the HTTP side has ended, never where there is none.
async fn ended<T>(serving: &mut Option<JoinHandle<T>>) {
    match serving {
        Some(serving) => drop(serving.await),
        None => std::future::pending().await,
    }
}

/// The REST API, if there is a secret to check its tokens with.
fn rest(store: &Store, config: &Config) -> Router {
    let Some(keys) = &config.api_keys else {
        tracing::info!("the REST API is off; --jwt-secret-file FILE turns it on");
        return Router::new();
    };
    let policy = config.policy();
    let publisher = Publisher::new(store, &policy);
    let manager = Manager::new(store, config.addresses(), &policy);
    let public_url = match config.api_public_url.as_str() {
        "" => format!("http://{}", config.listen),
        url => url.to_owned(),
    };
    let api = Api::new(store, publisher, manager, keys.clone())
        .with_public_url(public_url)
        .with_event_retention(config.retention.events);
    api::service(api, store)
}

fn keep_ledger(store: &Store, config: &Config, stopped: watch::Receiver<bool>) -> JoinHandle<()> {
    let (store, retention) = (store.clone(), config.ledger_retention());
    tokio::spawn(async move { ledger::keep(&store, retention, signals::given(stopped)).await })
}

fn options(config: &Config) -> DispatcherOptions {
    let sender =
        SenderOptions { addresses: config.addresses(), proxy: config.proxy.clone(), ..SenderOptions::default() };
    let retention = config.event_retention();
    DispatcherOptions { policy: config.policy(), sender, retention, ..DispatcherOptions::default() }
}
