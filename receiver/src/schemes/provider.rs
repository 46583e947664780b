//! The providers, as data over the families of schemes.
//!
//! Place in the path: a source takes its defaults from here.
//! Invariants: what a provider is known to do is written here once, with where it is said.

use std::sync::Arc;
use std::time::Duration;

use twiceproof_shared::secret::{InvalidSecret, Secret};
use twiceproof_shared::signature::{PublicKey, VerifyingKey};
use zeroize::Zeroizing;

use super::hmac::{Encoding, HmacScheme};
use super::identify::Place;
use super::{SchemeError, StandardWebhooks};
use crate::source::SourceError;
use crate::verify::Verifier;

/// How one provider signs, names and repeats its events.
#[derive(Debug, Clone)]
pub struct Provider {
    name: &'static str,
    family: Family,
    horizon: Duration,
    resends: Duration,
    body_limit: usize,
}

#[derive(Debug, Clone)]
enum Family {
    Standard { svix_headers: bool },
    Hmac(Box<HmacScheme>),
}

/// A secret or key, as it was given.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum KeySource {
    /// A text, to be read as the provider writes its secrets.
    Text(Zeroizing<String>),
    /// The key of an HMAC.
    Secret(Secret),
    /// A public key: only Standard Webhooks has those.
    Public(PublicKey),
}

impl Provider {
    /// The names that [`Provider::named`] knows.
    pub const NAMES: &'static [&'static str] =
        &["standard-webhooks", "svix", "openai", "github", "stripe", "slack", "shopify"];

    /// The provider of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "standard-webhooks" => Self::standard("standard-webhooks", false),
            "svix" => Self::standard("svix", true),
            "openai" => Self::standard("openai", false),
            "github" => Self::github(),
            "stripe" => Self::stripe(),
            "slack" => Self::slack(),
            "shopify" => Self::shopify(),
            _ => return None,
        })
    }

    /// Standard Webhooks 1.0.0. The example schedule of the specification ends after 75 h 35 min; the id is signed and
    /// names the event, whichever endpoint it goes to.
    pub(crate) fn standard(name: &'static str, svix_headers: bool) -> Self {
        Self { name, family: Family::Standard { svix_headers }, ..Self::of_hmac("", HmacScheme::new("x")) }
    }

    /// GitHub (docs.github.com, "Validating webhook deliveries", "Redelivering webhooks"). HMAC-SHA256 over the raw body;
    /// the SHA-1 header beside it is never looked at. No time is signed. The delivery's GUID is the same on redelivery
    /// and shared by all hooks that got the event, so the key is hook and GUID; neither is signed, so who can replay a
    /// request can also rename it. GitHub does not retry by itself; redelivery is possible for three days. Bodies have up
    /// to 25 MB.
    pub(crate) fn github() -> Self {
        let (hook, guid) = (header("x-github-hook-id"), header("x-github-delivery"));
        let scheme = HmacScheme::new("x-hub-signature-256")
            .prefix("sha256=")
            .id_of([hook, guid.clone()])
            .id_of([guid])
            .type_header("x-github-event");
        Self { horizon: Duration::ZERO, resends: 3 * DAY, body_limit: 25 * MIB, ..Self::of_hmac("github", scheme) }
    }

    /// Stripe (docs.stripe.com/webhooks, and the tests of its libraries). HMAC-SHA256 over `t.body`, the whole `whsec_…`
    /// text being the key; `v1` may come several times while a secret is rolled, `v0` never counts; 5 minutes both ways.
    /// The id in the body is the same over retries, resends and endpoints. `pending_webhooks` counts the deliveries that
    /// are still to come. Retries for three days; resends by command line for 30.
    pub(crate) fn stripe() -> Self {
        let scheme = HmacScheme::new("stripe-signature")
            .pairs("t", "v1")
            .signed("{timestamp}.{body}")
            .id_pointer("/id")
            .type_pointer("/type")
            .volatile(&["pending_webhooks"]);
        Self { horizon: 3 * DAY, resends: 30 * DAY, ..Self::of_hmac("stripe", scheme) }
    }

    /// Slack (api.slack.com, "Verifying requests from Slack", "Events API"). HMAC-SHA256 over `v0:timestamp:body`, 5 minutes
    /// both ways. Events have an id that is the same over retries and workspaces; commands and actions have none and are
    /// not repeated with other bytes, so their body is the key. Retries at once, after 1 and after 5 minutes.
    pub(crate) fn slack() -> Self {
        let scheme = HmacScheme::new("x-slack-signature")
            .prefix("v0=")
            .signed("v0:{timestamp}:{body}")
            .timestamp_header("x-slack-request-timestamp")
            .id_pointer("/event_id")
            .id_of_body()
            .type_pointer("/event/type")
            .type_pointer("/type");
        Self { horizon: HOUR, ..Self::of_hmac("slack", scheme) }
    }

    /// Shopify (shopify.dev, "Verify webhook deliveries", "Ignore duplicate webhooks"). HMAC-SHA256 over the raw body in
    /// base64, under the new header names or the old. No time is signed. The event's id is shared by all subscriptions, so
    /// the key is topic and id; neither is signed. Two subscriptions to one topic need a source each. Eight retries over
    /// four hours.
    pub(crate) fn shopify() -> Self {
        let scheme = HmacScheme::new("shopify-hmac-sha256")
            .or_header("x-shopify-hmac-sha256")
            .encoding(Encoding::Base64)
            .id_of([header("shopify-topic"), header("shopify-event-id")])
            .id_of([header("x-shopify-topic"), header("x-shopify-event-id")])
            .id_of([header("x-shopify-webhook-id")])
            .type_header("shopify-topic")
            .type_header("x-shopify-topic");
        Self { horizon: 4 * HOUR, ..Self::of_hmac("shopify", scheme) }
    }

    /// A sender that the host describes; how long it repeats itself is not known, so 72 h are assumed.
    pub(crate) fn of_hmac(name: &'static str, scheme: HmacScheme) -> Self {
        let family = Family::Hmac(Box::new(scheme));
        Self { name, family, horizon: 72 * HOUR, resends: Duration::ZERO, body_limit: MIB }
    }

    /// Its name in [`Provider::NAMES`]; empty for a sender that the host described.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How long it repeats a delivery by itself.
    #[must_use]
    pub fn horizon(&self) -> Duration {
        self.horizon
    }

    /// How long after that somebody can still have an event delivered again.
    #[must_use]
    pub fn resends(&self) -> Duration {
        self.resends
    }

    /// The most bytes of its bodies.
    #[must_use]
    pub fn body_limit(&self) -> usize {
        self.body_limit
    }

    pub(crate) fn use_svix_headers(&mut self) {
        if let Family::Standard { svix_headers } = &mut self.family {
            *svix_headers = true;
        }
    }

    /// False where nothing says how to recognise an event again.
    pub(crate) fn has_id(&self) -> bool {
        match &self.family {
            Family::Standard { .. } => true,
            Family::Hmac(scheme) => scheme.has_id(),
        }
    }

    /// What judges its requests.
    ///
    /// # Errors
    /// [`SourceError`] where a secret is missing or cannot be used, or the scheme's description does not fit together.
    pub fn verifier(&self, keys: Vec<KeySource>, tolerance: Duration) -> Result<Arc<dyn Verifier>, SourceError> {
        match keys.len() {
            0 => return Err(SourceError::NoSecret),
            count if count > StandardWebhooks::MAX_SECRETS => return Err(SourceError::TooManySecrets { count }),
            _ => {}
        }
        match &self.family {
            Family::Standard { svix_headers } => {
                let keys = keys.into_iter().map(standard_key).collect::<Result<_, _>>()?;
                let verifier = StandardWebhooks::new(keys, tolerance);
                Ok(Arc::new(if *svix_headers { verifier.with_svix_headers() } else { verifier }))
            }
            Family::Hmac(scheme) => {
                let secret = |key| match key {
                    KeySource::Text(text) => scheme.reads(&text),
                    KeySource::Secret(secret) => Ok(secret),
                    KeySource::Public(_) => Err(InvalidSecret::Asymmetric),
                };
                let secrets = keys.into_iter().map(secret).collect::<Result<_, _>>()?;
                Ok(Arc::new(scheme.as_ref().clone().verifier(secrets, tolerance)?))
            }
        }
    }
}

impl From<HmacScheme> for Provider {
    fn from(scheme: HmacScheme) -> Self {
        Self::of_hmac("", scheme)
    }
}

impl From<SchemeError> for SourceError {
    fn from(error: SchemeError) -> Self {
        Self::Scheme(error)
    }
}

fn standard_key(key: KeySource) -> Result<VerifyingKey, InvalidSecret> {
    match key {
        KeySource::Text(text) => VerifyingKey::parse(&text),
        KeySource::Secret(secret) => Ok(secret.into()),
        KeySource::Public(key) => Ok(key.into()),
    }
}

fn header(name: &str) -> Place {
    Place::Header(name.to_owned())
}

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const MIB: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_provider_with_a_way_to_recognise_events() {
        for name in Provider::NAMES {
            let provider = Provider::named(name).unwrap();
            assert_eq!(provider.name(), *name);
            assert!(provider.has_id());
            let text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned();
            let key = KeySource::Text(Zeroizing::new(text));
            assert!(provider.verifier(vec![key], Duration::from_secs(300)).is_ok(), "{name}");
        }
        assert!(Provider::named("GitHub").is_none());
    }

    #[test]
    fn only_standard_webhooks_has_public_keys() {
        let key = PublicKey::parse("whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=").unwrap();
        for name in Provider::NAMES {
            let of = |key| Provider::named(name).unwrap().verifier(vec![key], Duration::from_secs(300)).map(|_| ());
            let standard = ["standard-webhooks", "svix", "openai"].contains(name);
            assert_eq!(of(KeySource::Public(key.clone())).is_ok(), standard, "{name}");
            assert_eq!(of(KeySource::Text(Zeroizing::new(key.to_text()))).is_ok(), standard, "{name}");
        }
    }
}
