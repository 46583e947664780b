//! An endpoint's URL as it may be shown: URLs are credentials, so logs get scheme, host and a short hash.

use std::fmt;

use sha2::{Digest, Sha256};
use url::Url;

/// What logs may show of a URL: `https://example.com#1a2b3c4d`. The hash tells two URLs of one host apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    origin: String,
    hash: String,
}

impl Destination {
    /// The destination that a URL leads to.
    pub fn of(url: &Url) -> Self {
        let digest = Sha256::digest(url.as_str());
        Self {
            origin: format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default()),
            hash: digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.origin, self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        Destination::of(&Url::parse(url).unwrap()).to_string()
    }

    #[test]
    fn a_destination_shows_scheme_host_and_hash_and_nothing_else() {
        let shown = shown("https://user:geheim@example.com:8443/services/geheim?token=geheim");
        assert!(shown.starts_with("https://example.com#"), "{shown}");
        assert_eq!(shown.len(), "https://example.com#".len() + 8);
        assert!(!shown.contains("geheim"));
    }

    #[test]
    fn two_urls_of_one_host_are_told_apart() {
        assert_eq!(shown("https://h.example/a"), shown("https://h.example/a"));
        assert_ne!(shown("https://h.example/a"), shown("https://h.example/b"));
    }
}
