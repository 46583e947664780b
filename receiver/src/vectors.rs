//! Signed requests with what should come of them, for judging verifiers.
//!
//! Place in the path: none; `twiceproof verify --vectors` and the tests read files of them.
//! Invariants: a vector goes through the very verifier of a source; what nothing here can judge is *unsupported*, and
//! never counted as right.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::signature::TOLERANCE;
use zeroize::Zeroizing;

use crate::schemes::{Algorithm, Encoding, HmacScheme, KeySource, Provider};
use crate::verify::Refusal;

/// A file of vectors.
#[derive(Debug, Deserialize)]
pub struct VectorFile {
    /// All of them.
    pub vectors: Vec<Vector>,
}

/// One request.
#[derive(Debug, Deserialize)]
pub struct Vector {
    /// Its name.
    pub id: String,
    /// Whose scheme it follows; none for the scheme alone.
    #[serde(default)]
    pub provider: String,
    #[serde(default)]
    scheme: String,
    #[serde(default)]
    secret: Option<serde_json::Value>,
    #[serde(default)]
    secrets: Vec<String>,
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    header_prefix: Option<String>,
    #[serde(default)]
    sig_header: Option<String>,
    #[serde(default)]
    params: serde_json::Value,
    #[serde(default)]
    now_unix: Option<i64>,
    #[serde(default)]
    tolerance_s: Option<u64>,
    /// What should come of it.
    pub expect: Expected,
    #[serde(default)]
    body: Option<serde_json::Value>,
    #[serde(default)]
    body_base64: Option<String>,
    /// Why.
    #[serde(default)]
    pub why: String,
}

/// What should come of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// The sender is known.
    Valid,
    /// The request is refused.
    Invalid,
    /// The verifier cannot be built.
    ConfigError,
}

impl Expected {
    /// As it is written in a file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Invalid => "invalid",
            Self::ConfigError => "config_error",
        }
    }
}

/// What came of a vector.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The sender is known.
    Valid,
    /// The request is refused, and why.
    Invalid(String),
    /// The verifier cannot be built, and why.
    ConfigError(String),
    /// Nothing here knows the scheme.
    Unsupported,
}

impl Outcome {
    /// Whether this is as expected. A secret that is refused when the verifier is built refuses every request, so it
    /// satisfies *invalid* too; the other way round it does not.
    #[must_use]
    pub fn satisfies(&self, expected: Expected) -> bool {
        match self {
            Self::Valid => expected == Expected::Valid,
            Self::Invalid(_) => expected == Expected::Invalid,
            Self::ConfigError(_) => expected != Expected::Valid,
            Self::Unsupported => false,
        }
    }
}

impl Vector {
    /// Judges the request as a source of its provider would.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let (Some(provider), Some(body), Some(headers)) = (self.judge(), self.body_bytes(), self.header_map()) else {
            return Outcome::Unsupported;
        };
        let tolerance = self.tolerance_s.map_or(TOLERANCE, Duration::from_secs);
        let verifier = match provider.verifier(self.keys(), tolerance) {
            Ok(verifier) => verifier,
            Err(error) => return Outcome::ConfigError(error.to_string()),
        };
        let now = Timestamp::from_secs(self.now_unix.unwrap_or_default());
        match verifier.verify(&headers, &body, now) {
            // The vectors are about signatures; most of them leave the id out.
            Ok(_) | Err(Refusal::NoEventId) => Outcome::Valid,
            Err(refusal) => Outcome::Invalid(refusal.to_string()),
        }
    }

    fn judge(&self) -> Option<Provider> {
        match (self.provider.as_str(), self.scheme.as_str()) {
            ("" | "standard-webhooks", "standard") => match self.header_prefix.as_deref() {
                None | Some("webhook-") => Provider::named("standard-webhooks"),
                Some("svix-") => Provider::named("svix"),
                Some(_) => None,
            },
            // The vector describes the scheme itself.
            (name, "hmac_body") if Provider::named(name).is_none() => self.described().map(Provider::from),
            (name, _) => Provider::named(name),
        }
    }

    fn described(&self) -> Option<HmacScheme> {
        let text = |name: &str| self.params.get(name)?.as_str();
        let algorithm = match text("alg")? {
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            "sha1" => Algorithm::Sha1,
            _ => return None,
        };
        let encoding = match text("enc")? {
            "hex" => Encoding::Hex,
            "base64" => Encoding::Base64,
            _ => return None,
        };
        let scheme = HmacScheme::new(self.sig_header.as_ref()?).algorithm(algorithm).encoding(encoding);
        let scheme = scheme.prefix(text("prefix").unwrap_or_default());
        Some(match text("sep").and_then(|separator| separator.chars().next()) {
            Some(separator) => scheme.list(separator),
            None => scheme,
        })
    }

    fn keys(&self) -> Vec<KeySource> {
        let one = match &self.secret {
            Some(serde_json::Value::String(text)) => vec![text.clone()],
            Some(serde_json::Value::Array(texts)) => {
                texts.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
            }
            _ => Vec::new(),
        };
        one.into_iter().chain(self.secrets.iter().cloned()).map(|text| KeySource::Text(Zeroizing::new(text))).collect()
    }

    fn body_bytes(&self) -> Option<Vec<u8>> {
        match (&self.body_base64, &self.body) {
            (Some(text), _) => STANDARD.decode(text).ok(),
            (None, Some(serde_json::Value::String(text))) => Some(text.clone().into_bytes()),
            (None, Some(_)) => None,
            (None, None) => Some(Vec::new()),
        }
    }

    /// Values as bytes: some of them are not ASCII, and refusing those is the verifier's business.
    fn header_map(&self) -> Option<HeaderMap> {
        let pair = |(name, value): &(String, String)| {
            Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value.as_bytes()).ok()?))
        };
        let mut headers = HeaderMap::new();
        for header in &self.headers {
            let (name, value) = pair(header)?;
            headers.append(name, value);
        }
        Some(headers)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    /// Judges all vectors of a file; the counts of those that agree, by provider.
    #[track_caller]
    fn judge(file: &VectorFile) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
        let (mut agreed, mut unsupported, mut deviations) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        for vector in &file.vectors {
            match vector.outcome() {
                Outcome::Unsupported => *unsupported.entry(vector.provider.clone()).or_default() += 1,
                outcome if outcome.satisfies(vector.expect) => *agreed.entry(vector.provider.clone()).or_default() += 1,
                outcome => deviations
                    .push(format!("{}: {outcome:?}, expected {:?} ({})", vector.id, vector.expect, vector.why)),
            }
        }
        assert!(deviations.is_empty(), "{}", deviations.join("\n"));
        (agreed, unsupported)
    }

    fn own(text: &str) -> VectorFile {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn every_provider_agrees_with_an_independent_implementation() {
        let file = own(include_str!("../../tests/vectors/providers.json"));
        let (_, unsupported) = judge(&file);
        assert!(unsupported.is_empty(), "{unsupported:?}");
        for name in ["github", "stripe", "slack", "shopify", "generic"] {
            let count = |expected| {
                let of = |vector: &&Vector| vector.provider == name && vector.expect == expected;
                file.vectors.iter().filter(of).count()
            };
            assert!(count(Expected::Valid) >= 1, "{name}");
            assert!(count(Expected::Invalid) >= 3, "{name}");
            assert!(count(Expected::ConfigError) >= 1, "{name}");
        }
    }

    #[test]
    fn the_vectors_of_the_specification_hold_through_a_source_too() {
        for text in [
            include_str!("../../tests/vectors/standard_webhooks.json"),
            include_str!("../../tests/vectors/asymmetric.json"),
        ] {
            // A header that HTTP itself refuses never reaches a verifier.
            let (agreed, unsupported) = judge(&own(text));
            assert!(agreed[""] >= 20, "{agreed:?}");
            assert!(unsupported.values().sum::<usize>() < 5, "{unsupported:?}");
        }
    }

    #[test]
    fn vectors_in_the_named_folder_agree() {
        let Some(folder) = std::env::var_os("TWICEPROOF_TEST_VECTORS") else {
            println!("TWICEPROOF_TEST_VECTORS is not set: nothing to compare");
            return;
        };
        for name in ["official.json", "derived.json"] {
            let path = Path::new(&folder).join(name);
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let (agreed, unsupported) = judge(&own(&text));
            println!("{name}: agreed {agreed:?}, unsupported {unsupported:?}");
            for provider in ["standard-webhooks", "github", "stripe", "slack", "shopify"] {
                assert!(agreed.contains_key(provider), "no vector of {provider} was found in {name}");
                assert!(!unsupported.contains_key(provider), "a vector of {provider} could not be judged");
            }
        }
    }
}
