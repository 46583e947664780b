//! `twiceproof serve`: one worker and the HTTP side, until it is told to stop.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::Router;
use tokio::sync::watch;
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

use super::global::{self, Global};
use super::output;

/// Once the worker has stopped, answers under way may take this long.
const DRAIN: Duration = Duration::from_secs(5);

/// Deliver events, and answer the REST API, /live, /ready and /metrics
///
/// The API speaks to whoever has a token (`twiceproof token`) that was signed with the secret; without a secret it is off.
/// Brings the tables up to date first. On SIGTERM or ctrl-c it claims nothing more, lets requests under way end, records
/// them and ends with exit code 0; a second signal ends it at once. On one SQLite file only one `serve` runs at a time; on
/// PostgreSQL as many as you like.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The address to answer on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// The file with the secret that the API's tokens are signed with: 32 bytes or more
    #[arg(long, value_name = "FILE")]
    jwt_secret_file: Option<String>,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let own = [("--listen", "listen", args.listen), ("--jwt-secret-file", "api.jwt_secret_file", args.jwt_secret_file)];
    let config = global.start(&own)?;
    let (stop, stopped) = watch::channel(false);
    listen_for_signals(stop)?;
    let store = global::open(&config).await?;
    let applied = store.migrate().await.context("cannot bring the tables up to date")?;
    tracing::info!(database = %config.database, ?applied, "the tables are up to date");

    match sealing::check(&store).await.context("cannot read how the secrets are sealed")?? {
        true if config.seal.current().is_some() => {
            tracing::warn!("some secrets of endpoints are not sealed yet; `twiceproof secrets reseal` seals them");
        }
        _ => {}
    }

    let server =
        Server::bind(&config.listen, ServerOptions { drain: DRAIN, ..ServerOptions::default() }).await.with_context(
            || format!("cannot listen on {} ({}); choose another --listen", config.listen, config.origin("listen")),
        )?;
    let dispatcher = Dispatcher::start(&store, options(&config)).await.context("cannot start the worker")?;
    if config.allow_private_addresses {
        tracing::warn!("`allow_private_addresses` is on: whoever may add endpoints can reach this network");
    }
    output::line(format_args!("listening on http://{}", server.address()))?;
    let keeping = keep_ledger(&store, &config, stopped.clone());
    let outcome = work(&store, &config, dispatcher, server, stopped).await;
    keeping.abort();
    store.close().await;
    outcome
}

/// Runs both sides until the signal. The HTTP side goes last, so that it can say meanwhile that this process is live but
/// no longer ready.
async fn work(
    store: &Store,
    config: &Config,
    dispatcher: Dispatcher,
    server: Server,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<ExitCode> {
    let health = Health::new(store.clone());
    let (close, closed) = watch::channel(false);
    let metrics = Metrics::install(store).context("cannot count what happens")?;
    let router = health.router().merge(metrics.router()).merge(rest(store, config));
    let mut serving = tokio::spawn(server.serve(router, signalled(closed)));
    let mut working = tokio::spawn(dispatcher.run(signalled(stopped.clone())));
    let totals = tokio::select! {
        totals = &mut working => totals,
        _ = &mut serving => return Err(anyhow!("the HTTP side ended by itself")),
        () = signalled(stopped) => {
            health.drain();
            working.await
        }
    };
    let totals = totals.context("the worker ended by itself")?;
    // Fails where the HTTP side has gone already.
    let _ = close.send(true);
    let drained = serving.await.context("the HTTP side broke")?;
    tracing::info!(claimed = totals.claimed, unrecorded = totals.unrecorded, cut = drained.cut, "stopped");
    Ok(ExitCode::SUCCESS)
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
    let api = Api::new(store, publisher, manager, keys.clone()).with_public_url(public_url);
    api::service(api, store)
}

/// Forgets old answers and keys, of whichever receivers share this database.
fn keep_ledger(store: &Store, config: &Config, stopped: watch::Receiver<bool>) -> tokio::task::JoinHandle<()> {
    let (store, retention) = (store.clone(), config.ledger_retention());
    tokio::spawn(async move { ledger::keep(&store, retention, signalled(stopped)).await })
}

fn options(config: &Config) -> DispatcherOptions {
    let sender = SenderOptions { addresses: config.addresses(), ..SenderOptions::default() };
    let retention = config.event_retention();
    DispatcherOptions { policy: config.policy(), sender, retention, ..DispatcherOptions::default() }
}

async fn signalled(mut signal: watch::Receiver<bool>) {
    // An error means that nobody is left to give the signal, which is one too.
    let _ = signal.wait_for(|given| *given).await;
}

/// Listens from now on: the first signal stops in an orderly way, the second at once.
fn listen_for_signals(stop: watch::Sender<bool>) -> anyhow::Result<()> {
    let mut signals = Signals::new().context("cannot listen for signals")?;
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!("stopping; a second signal ends at once");
        stop.send_replace(true);
        signals.next().await;
        tracing::warn!("ended by a second signal; what was under way is sent again when its leases end");
        std::process::exit(1);
    });
    Ok(())
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
