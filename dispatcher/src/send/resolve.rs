//! The guarded resolver: hands the client no address that the policy refuses.
//!
//! Place in the path: asked by the client for each new connection to a name; what it returns is what is connected to,
//! so that nothing can change between check and use.
//! Invariants: fails closed; refused addresses are left out, and if none is left the request is blocked.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::timings::Noted;
use crate::guard::{AddressPolicy, Refused};

/// Why a name gave no address.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    #[error("the name has no allowed address")]
    Refused(Refused),
    #[error("the name has no address")]
    NoAddress,
    #[error("the name could not be resolved")]
    Failed(#[source] io::Error),
}

type Lookup = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// Resolves names under an [`AddressPolicy`]. Cheap to clone.
#[derive(Clone)]
pub(super) struct GuardedResolver {
    addresses: AddressPolicy,
    lookup: Lookup,
}

impl GuardedResolver {
    /// Asks the operating system.
    pub(super) fn system(addresses: AddressPolicy) -> Self {
        Self::with_lookup(addresses, |name| {
            Box::pin(async move {
                let found = tokio::net::lookup_host((name, 0)).await?;
                Ok(found.map(|address| address.ip()).collect())
            })
        })
    }

    /// Asks `lookup`.
    pub(super) fn with_lookup<F>(addresses: AddressPolicy, lookup: F) -> Self
    where
        F: Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync + 'static,
    {
        Self { addresses, lookup: Arc::new(lookup) }
    }
}

impl GuardedResolver {
    /// Looks a name up for somebody else who will connect: all of its addresses must be allowed.
    pub(super) async fn all_allowed(&self, name: &str) -> Result<(), ResolveError> {
        let found = (self.lookup)(name.to_owned()).await.map_err(ResolveError::Failed)?;
        Noted::current().resolved();
        if found.is_empty() {
            return Err(ResolveError::NoAddress);
        }
        found.into_iter().try_for_each(|address| self.addresses.check_address(address)).map_err(ResolveError::Refused)
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (addresses, noted) = (self.addresses, Noted::current());
        let found = (self.lookup)(name.as_str().to_owned());
        Box::pin(async move {
            let found = found.await.map_err(ResolveError::Failed)?;
            noted.resolved();
            let allowed = allowed(addresses, found)?;
            // Port 0 stands for the port of the URL.
            let sockets = allowed.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(sockets) as Addrs)
        })
    }
}

impl std::fmt::Debug for GuardedResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuardedResolver").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

pub(super) fn allowed(policy: AddressPolicy, found: Vec<IpAddr>) -> Result<Vec<IpAddr>, ResolveError> {
    let mut refused = None;
    let mut allowed = Vec::with_capacity(found.len());
    for address in found {
        match policy.check_address(address) {
            Ok(()) => allowed.push(address),
            Err(reason) => refused = Some(reason),
        }
    }
    match refused {
        _ if !allowed.is_empty() => Ok(allowed),
        Some(reason) => Err(ResolveError::Refused(reason)),
        None => Err(ResolveError::NoAddress),
    }
}
