//! Which URLs and addresses deliveries may go to.
//!
//! Place in the path: manage checks a URL when an endpoint is created; [`send`](crate::send) checks it again before each
//! request, and its resolver checks every address that a name resolves to, just before the connection is made.
//! Invariants: pure; decides on parsed hosts and addresses, never on spellings; what is not known to be allowed is
//! refused. Cloud metadata services are refused under every policy.

mod ranges;

use std::net::IpAddr;

use url::{Host, Url};

/// Where deliveries may go. The one setting that opens private addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddressPolicy {
    /// Public addresses over `https` only.
    #[default]
    PublicOnly,
    /// Private, loopback and all other addresses too, also over `http` and on any port: for local use and tests.
    AllowPrivate,
}

/// Why a URL or address is refused. Names no more of the URL than its host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Not an absolute URL.
    #[error("blocked_url: not an absolute http or https URL")]
    NotAUrl,
    /// Longer than [`MAX_URL_BYTES`].
    #[error("blocked_url: longer than {MAX_URL_BYTES} bytes")]
    TooLong,
    /// A scheme that is not allowed.
    #[error("blocked_url: only https is allowed (http with private addresses)")]
    Scheme,
    /// A user name or password in the URL.
    #[error("blocked_url: a user name or password in the URL is not allowed")]
    UserInfo,
    /// A fragment, which no server would see.
    #[error("blocked_url: a fragment is not allowed")]
    Fragment,
    /// A port that is not allowed.
    #[error("blocked_port: port {0} is not allowed")]
    Port(u16),
    /// A name that is known to lead inside.
    #[error("blocked_host: {0} is not allowed")]
    Host(String),
    /// A private, special or otherwise refused address.
    #[error("blocked_ip: {0} is not a public address")]
    Address(IpAddr),
    /// A cloud metadata service.
    #[error("blocked_ip: {0} is a metadata service")]
    Metadata(IpAddr),
}

/// The longest URL that is accepted, in bytes.
pub const MAX_URL_BYTES: usize = 2_048;

/// The ports that are open under [`AddressPolicy::PublicOnly`].
pub const PUBLIC_PORTS: [u16; 4] = [443, 4443, 8443, 9443];

impl AddressPolicy {
    /// Parses and checks a URL.
    ///
    /// # Errors
    ///
    /// [`Refused`] says what is not allowed, without repeating the URL.
    pub fn parse_url(self, text: &str) -> Result<Url, Refused> {
        if text.len() > MAX_URL_BYTES {
            return Err(Refused::TooLong);
        }
        let url = Url::parse(text).map_err(|_| Refused::NotAUrl)?;
        self.check_url(&url)?;
        Ok(url)
    }

    /// Checks a parsed URL: scheme, user info, fragment, port, and the host if it is an address or a known name. A
    /// name that passes must still be resolved, and its addresses checked.
    ///
    /// # Errors
    ///
    /// [`Refused`] says what is not allowed.
    pub fn check_url(self, url: &Url) -> Result<(), Refused> {
        match url.scheme() {
            "https" => {}
            "http" if self == Self::AllowPrivate => {}
            _ => return Err(Refused::Scheme),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::UserInfo);
        }
        if url.fragment().is_some() {
            return Err(Refused::Fragment);
        }
        let port = url.port_or_known_default().ok_or(Refused::NotAUrl)?;
        if port == 0 || (self == Self::PublicOnly && !PUBLIC_PORTS.contains(&port)) {
            return Err(Refused::Port(port));
        }
        match url.host().ok_or(Refused::NotAUrl)? {
            Host::Domain(name) => self.check_name(name),
            Host::Ipv4(address) => self.check_address(address.into()),
            Host::Ipv6(address) => self.check_address(address.into()),
        }
    }

    /// Checks one address.
    ///
    /// # Errors
    ///
    /// [`Refused::Address`] or [`Refused::Metadata`].
    pub fn check_address(self, address: IpAddr) -> Result<(), Refused> {
        if ranges::is_metadata(address) {
            return Err(Refused::Metadata(address));
        }
        match self {
            Self::AllowPrivate => Ok(()),
            Self::PublicOnly if ranges::is_public(address) => Ok(()),
            Self::PublicOnly => Err(Refused::Address(address)),
        }
    }

    /// Whether connections to this address are allowed.
    pub fn allows(self, address: IpAddr) -> bool {
        self.check_address(address).is_ok()
    }

    fn check_name(self, name: &str) -> Result<(), Refused> {
        let name = name.strip_suffix('.').unwrap_or(name);
        // No name of the DNS; resolvers differ in what they make of it.
        if name.split('.').any(str::is_empty) {
            return Err(Refused::NotAUrl);
        }
        let inside = name == "localhost" || name.ends_with(".localhost");
        let refused = METADATA_NAMES.contains(&name) || (self == Self::PublicOnly && inside);
        if refused { Err(Refused::Host(name.to_owned())) } else { Ok(()) }
    }
}

/// Names of cloud metadata services. Their addresses are refused as well; the names make the refusal come early.
const METADATA_NAMES: [&str; 6] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "instance-data",
    "instance-data.ec2.internal",
];

#[cfg(test)]
mod tests;
