//! A forward proxy on the way out.
//!
//! Where one is set, every delivery goes through it: `https` in a tunnel (CONNECT), `http` as a request to the proxy. Place in
//! the path: asked before the request is sent. The proxy looks names up by itself, and connects to what it finds.
//! Invariants: the guard still judges first. An address in the URL is judged as ever; a name is looked up here too, and where any
//! of its addresses is refused nothing is sent, since it is not ours to choose among them. What a name means to the proxy a
//! moment later is the proxy's to judge: it should refuse private addresses itself. Its credentials are shown to nobody.

use std::fmt;

use url::{Host, Url};

use super::resolve::{GuardedResolver, ResolveError};
use crate::exchange::NotSent;

/// A forward proxy that all deliveries go through.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy(Url);

/// The text is no proxy. It is not repeated, since it may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a proxy is written http://HOST:PORT or https://HOST:PORT, with USER:PASSWORD@ before the host where it wants that"
)]
pub struct InvalidProxy;

impl Proxy {
    /// Reads `http://[USER:PASSWORD@]HOST[:PORT]`, or the same with `https`.
    ///
    /// # Errors
    /// [`InvalidProxy`] for anything else.
    pub fn parse(text: &str) -> Result<Self, InvalidProxy> {
        let url = Url::parse(text).map_err(|_| InvalidProxy)?;
        let is_bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        match url.scheme() {
            "http" | "https" if is_bare && url.host().is_some() => Ok(Self(url)),
            _ => Err(InvalidProxy),
        }
    }

    pub(super) fn for_client(&self) -> reqwest::Result<reqwest::Proxy> {
        // Credentials in the address are sent to the proxy alone.
        reqwest::Proxy::all(self.0.as_str())
    }
}

/// Without the credentials.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.0.port_or_known_default().unwrap_or_default();
        write!(f, "{}://{}:{port}", self.0.scheme(), self.0.host_str().unwrap_or_default())
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

/// Looks the name of a URL up, if it has one, and judges all of its addresses.
pub(super) async fn check_name(resolver: &GuardedResolver, url: &Url) -> Result<(), NotSent> {
    let Some(Host::Domain(name)) = url.host() else { return Ok(()) };
    match resolver.all_allowed(name).await {
        Ok(()) => Ok(()),
        Err(ResolveError::Refused(refused)) => Err(NotSent::Blocked(refused)),
        Err(error @ ResolveError::NoAddress) => Err(NotSent::Dns(error.to_string())),
        Err(ResolveError::Failed(error)) => Err(NotSent::Dns(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::Proxy;

    #[test]
    fn a_proxy_shows_itself_without_its_credentials() {
        let proxy = Proxy::parse("http://me:geheim@proxy.internal:3128").unwrap();
        assert_eq!(proxy.to_string(), "http://proxy.internal:3128");
        assert_eq!(format!("{proxy:?}"), "Proxy(http://proxy.internal:3128)");
        assert_eq!(Proxy::parse("https://proxy.internal/").unwrap().to_string(), "https://proxy.internal:443");
    }

    #[test]
    fn what_is_no_proxy_is_refused_and_not_repeated() {
        for text in ["", "proxy:3128", "socks5://proxy:1080", "http://proxy/path", "http://proxy/?a=geheim", "http://"]
        {
            let refused = Proxy::parse(text).unwrap_err();
            assert!(!refused.to_string().contains("geheim"), "{text}");
        }
    }
}
