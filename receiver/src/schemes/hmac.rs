//! The configurable family: an HMAC with a shared secret over the body, and over time and id where the sender signs them.
//!
//! Place in the path: the verifier of GitHub, Stripe, Slack, Shopify, and of senders that a host describes itself.
//! Invariants: labels are compared exactly, encodings are strict, lengths exact, digests compared in constant time; the
//! algorithm comes from the description, never from a header; what is signed is the header text and the raw bytes; the
//! signature is checked before the time.

mod grammar;
mod mac;
mod template;

use std::time::Duration;

use http::header::{HeaderMap, HeaderName};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature::{self, VerifyError};

use self::grammar::Form;
use self::template::{Part, Template};
use super::identify::{Alternatives, Place};
use crate::verify::{Identity, Refusal, Verifier, single};

pub use grammar::TimeUnit;
pub use mac::{Algorithm, Encoding, SecretEncoding};

/// Describes how a sender signs. [`crate::Source::hmac`] makes a source of it and reports what does not fit together.
///
/// The default is HMAC-SHA256 over the raw body, in hexadecimal, alone in its header, with the secret's text as the key.
#[derive(Debug, Clone)]
#[must_use]
pub struct HmacScheme {
    headers: Vec<String>,
    form: Form,
    algorithm: Algorithm,
    encoding: Encoding,
    secret_encoding: SecretEncoding,
    signed: String,
    timestamp_header: Option<String>,
    unit: TimeUnit,
    id_header: Option<String>,
    ids: Alternatives,
    types: Alternatives,
    volatile: &'static [&'static str],
}

impl HmacScheme {
    /// The header with the signature. It must come exactly once.
    pub fn new(header: impl Into<String>) -> Self {
        Self {
            headers: vec![header.into()],
            form: Form::Values { prefix: String::new(), separator: None },
            algorithm: Algorithm::Sha256,
            encoding: Encoding::Hex,
            secret_encoding: SecretEncoding::Text,
            signed: "{body}".to_owned(),
            timestamp_header: None,
            unit: TimeUnit::Seconds,
            id_header: None,
            ids: Alternatives::default(),
            types: Alternatives::default(),
            volatile: &[],
        }
    }

    /// Another name for the signature's header. Where both are there, the one that was named first counts.
    pub fn or_header(mut self, header: impl Into<String>) -> Self {
        self.headers.push(header.into());
        self
    }

    /// The hash. Default: SHA-256. SHA-1 is for senders that have nothing better.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// How signatures are written. Default: hexadecimal, in either case.
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// How [`crate::SourceBuilder::secret_text`] is read. Default: the text itself is the key.
    pub fn secret_encoding(mut self, encoding: SecretEncoding) -> Self {
        self.secret_encoding = encoding;
        self
    }

    /// What stands before each signature, such as `sha256=`. It is compared exactly.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        let separator = match self.form {
            Form::Values { separator, .. } => separator,
            Form::Pairs { .. } => None,
        };
        self.form = Form::Values { prefix: prefix.into(), separator };
        self
    }

    /// The header may hold several signatures with this between them; any may match. Entries without the prefix are
    /// ignored.
    pub fn list(mut self, separator: char) -> Self {
        if let Form::Values { separator: of_values, .. } = &mut self.form {
            *of_values = Some(separator);
        }
        self
    }

    /// The header holds pairs, `t=1700000000,v1=…`, under these two keys; the signature may come several times, the time
    /// once. Pairs with other keys are ignored.
    pub fn pairs(mut self, timestamp: impl Into<String>, signature: impl Into<String>) -> Self {
        self.form = Form::Pairs { timestamp: timestamp.into(), signature: signature.into() };
        self
    }

    /// The header with the time of the attempt. It must be signed.
    pub fn timestamp_header(mut self, header: impl Into<String>) -> Self {
        self.timestamp_header = Some(header.into());
        self
    }

    /// What the timestamp counts. Default: seconds.
    pub fn time_unit(mut self, unit: TimeUnit) -> Self {
        self.unit = unit;
        self
    }

    /// What is signed: a text with `{body}`, and `{timestamp}` and `{id}` where the sender signs those too, such as
    /// `v0:{timestamp}:{body}`. Default: `{body}`.
    pub fn signed(mut self, template: impl Into<String>) -> Self {
        self.signed = template.into();
        self
    }

    /// The header with the sender's event id. A header is only protected where the signed content names `{id}`.
    pub fn id_header(mut self, header: impl Into<String>) -> Self {
        let header = header.into();
        self.ids.add([Place::Header(header.clone())]);
        self.id_header = Some(header);
        self
    }

    /// Where in the JSON body the sender's event id stands (RFC 6901), such as `/event/id`.
    pub fn id_pointer(mut self, pointer: impl Into<String>) -> Self {
        self.ids.add([Place::Pointer(pointer.into())]);
        self
    }

    /// The sender has no event id: two equal bodies are one event.
    pub fn id_of_body(mut self) -> Self {
        self.ids.add([Place::BodyDigest]);
        self
    }

    /// The header with the event type.
    pub fn type_header(mut self, header: impl Into<String>) -> Self {
        self.types.add([Place::Header(header.into())]);
        self
    }

    /// Where in the JSON body the event type stands (RFC 6901).
    pub fn type_pointer(mut self, pointer: impl Into<String>) -> Self {
        self.types.add([Place::Pointer(pointer.into())]);
        self
    }

    /// An id of several parts; used where all of them are there.
    pub(super) fn id_of<const N: usize>(mut self, places: [Place; N]) -> Self {
        self.ids.add(places);
        self
    }

    /// Fields at the top of the JSON body that may differ between deliveries of one event.
    pub(super) fn volatile(mut self, fields: &'static [&'static str]) -> Self {
        self.volatile = fields;
        self
    }

    pub(super) fn reads(&self, text: &str) -> Result<Secret, twiceproof_shared::secret::InvalidSecret> {
        self.secret_encoding.read(text)
    }

    pub(super) fn has_id(&self) -> bool {
        !self.ids.is_empty()
    }

    /// Checks that everything fits together.
    pub(super) fn verifier(self, secrets: Vec<Secret>, tolerance: Duration) -> Result<HmacVerifier, SchemeError> {
        let name = |text: &String| HeaderName::try_from(text.as_str()).map_err(|_| SchemeError::Header);
        let template = Template::parse(&self.signed)?;
        let carries_time = self.timestamp_header.is_some() || matches!(self.form, Form::Pairs { .. });
        if template.has(&Part::Timestamp) != carries_time {
            return Err(SchemeError::Timestamp);
        }
        if template.has(&Part::Id) && self.id_header.is_none() {
            return Err(SchemeError::Id);
        }
        Ok(HmacVerifier {
            headers: self.headers.iter().map(name).collect::<Result<_, _>>()?,
            timestamp_header: self.timestamp_header.as_ref().map(name).transpose()?,
            id_header: self.id_header.as_ref().map(name).transpose()?,
            ids: self.ids.checked()?,
            types: self.types.checked()?,
            template,
            form: self.form,
            algorithm: self.algorithm,
            encoding: self.encoding,
            unit: self.unit,
            volatile: self.volatile,
            secrets,
            tolerance,
        })
    }
}

/// Why a description of a scheme cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemeError {
    /// Not the name of a header.
    #[error("the scheme names something that is no header")]
    Header,
    /// Not a JSON pointer.
    #[error("the scheme names something that is no JSON pointer: it begins with `/`")]
    Pointer,
    /// The body is not signed, or a placeholder is unknown or comes twice.
    #[error("the signed content must name `{{body}}` once, and at most once `{{timestamp}}` and `{{id}}`")]
    Template,
    /// A time that is not signed could be anything; one that is signed must come from somewhere.
    #[error("the scheme must name where the timestamp stands and have `{{timestamp}}` in what is signed, or neither")]
    Timestamp,
    /// `{id}` is signed, but no header is named for it; or there is no rule for the id at all.
    #[error("the scheme does not say where the event id stands")]
    Id,
}

/// An [`HmacScheme`] with its secrets.
#[derive(Debug)]
pub(super) struct HmacVerifier {
    headers: Vec<HeaderName>,
    form: Form,
    algorithm: Algorithm,
    encoding: Encoding,
    template: Template,
    timestamp_header: Option<HeaderName>,
    unit: TimeUnit,
    id_header: Option<HeaderName>,
    ids: Alternatives,
    types: Alternatives,
    volatile: &'static [&'static str],
    secrets: Vec<Secret>,
    tolerance: Duration,
}

impl HmacVerifier {
    /// Whether one of the secrets signed this, and when it says so.
    fn authenticate(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<Option<Timestamp>, Refusal> {
        let name = self.headers.iter().find(|name| headers.contains_key(*name)).unwrap_or(&self.headers[0]);
        let signed =
            self.form.read(single(headers, name)?, |text| self.encoding.decode(text, self.algorithm.bytes()))?;
        let timestamp = match &self.timestamp_header {
            Some(name) => Some(single(headers, name)?),
            None => signed.timestamp,
        };
        let at = timestamp.map(|text| self.unit.read(text).ok_or(VerifyError::MalformedTimestamp)).transpose()?;
        let id = self.id_header.as_ref().filter(|_| self.template.has(&Part::Id));
        let id = id.map(|name| single(headers, name)).transpose()?.map(grammar::plain_id).transpose()?;
        let content = self.template.fill(timestamp.unwrap_or_default(), id.unwrap_or_default(), body);
        let matching = |secret| self.algorithm.verifies(secret, &content, &signed.candidates);
        let index = self.secrets.iter().position(matching).ok_or(VerifyError::NoMatch)?;
        tracing::debug!(secret = index, "a signature matched");
        if let Some(at) = at {
            signature::check_time(at, now, self.tolerance)?;
        }
        Ok(at)
    }
}

impl Verifier for HmacVerifier {
    fn verify(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<Identity, Refusal> {
        let sent_at = self.authenticate(headers, body, now)?;
        super::identify::identify(headers, body, &self.ids, &self.types, self.volatile)
            .map(|identity| Identity { sent_at, ..identity })
    }
}

#[cfg(test)]
mod tests;
