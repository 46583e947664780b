//! The orders to stop: SIGTERM and ctrl-c.

use anyhow::Context as _;
use tokio::sync::watch;

/// Resolves once the order has been given.
pub(super) async fn given(mut signal: watch::Receiver<bool>) {
    // An error means that nobody is left to give the signal, which is one too.
    let _ = signal.wait_for(|given| *given).await;
}

/// Listens from now on: the first signal stops in an orderly way, the second at once.
pub(super) fn listen() -> anyhow::Result<watch::Receiver<bool>> {
    let (stop, stopped) = watch::channel(false);
    let mut signals = Signals::new().context("cannot listen for signals")?;
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!("stopping; a second signal ends at once");
        stop.send_replace(true);
        signals.next().await;
        tracing::warn!("ended by a second signal; what was under way is sent again when its leases end");
        std::process::exit(1);
    });
    Ok(stopped)
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
