//! The program's settings: defaults, then one TOML file, then the environment, then flags; the later layer wins.
//!
//! An unknown key or variable is an error that says where it stands and what was probably meant. Every value knows its
//! [`Origin`]. Values are parsed once, here; the rest of the program sees typed fields. [`Config::check`] holds the
//! settings against each other: redeliveries must never be later than the memory of what was processed.

mod checks;
mod environment;
mod error;
mod file;
mod layers;
mod nearest;
mod origin;
mod parts;
mod settings;
mod units;

use std::path::PathBuf;
use std::time::Duration;

use twiceproof_dispatcher::api::token::Keys;
use twiceproof_dispatcher::send::Proxy;
use twiceproof_shared::key::Key;
use twiceproof_shared::seal::Seal;
use twiceproof_shared::store::DatabaseUrl;

pub use twiceproof_shared::retention::shortest_retention;

pub use self::error::ConfigError;
pub use self::layers::{Flag, Sources};
pub use self::origin::Origin;
pub use self::settings::{SETTINGS, Setting};
pub use self::units::parse_duration;

use self::layers::Values;

/// All settings, typed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The TOML file that was read, and where that was named.
    pub file: Option<(PathBuf, Origin)>,
    /// Where everything is stored.
    pub database: DatabaseUrl,
    /// The tenant that commands act for.
    pub tenant: Key,
    /// Address on which `serve` answers, `HOST:PORT`.
    pub listen: String,
    /// Signs and checks the tokens of the REST API; without them the API is off.
    pub api_keys: Option<Keys>,
    /// Where clients reach `serve`, without a slash at the end; empty where nobody says it.
    pub api_public_url: String,
    /// The master keys that endpoint secrets are sealed under.
    pub seal: Seal,
    /// Whether deliveries may go to loopback, private and link-local addresses.
    pub allow_private_addresses: bool,
    /// A forward proxy for all deliveries.
    pub proxy: Option<Proxy>,
    /// When a delivery is tried again.
    pub retry: Retry,
    /// How deliveries are sent.
    pub delivery: Delivery,
    /// What the receiver takes.
    pub receiver: Receiver,
    /// How long things are kept.
    pub retention: Retention,
    /// What is logged.
    pub log: Log,
    shown: Vec<Shown>,
}

/// The retry schedule: exponential, with a cap, until a horizon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Wait before the first retry.
    pub first: Duration,
    /// Each wait is the one before times this; at least 1.
    pub factor: f32,
    /// No wait is longer.
    pub cap: Duration,
    /// After this time since the event was accepted, nothing is retried.
    pub horizon: Duration,
}

/// Limits of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// One deadline over name lookup, connection, TLS, headers and body.
    pub timeout: Duration,
    /// A lease lasts `timeout` plus this, so that no second worker starts while the first may still be sending.
    pub lease_margin: Duration,
    /// Deliveries that one worker has under way to one endpoint.
    pub slots_per_endpoint: u32,
    /// Deliveries that one worker has under way.
    pub slots_per_worker: u32,
}

/// Limits of receiving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receiver {
    /// How far a signed timestamp may be from now, to both sides.
    pub tolerance: Duration,
    /// Longest request body, in bytes.
    pub body_limit: usize,
    /// How long a second copy waits for the first before it is told to retry.
    pub in_flight_wait: Duration,
}

/// How long things are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// A published event.
    pub events: Duration,
    /// A processed key with its stored answer.
    pub ledger: Duration,
    /// An emptied ledger row, which still recognises a late duplicate.
    pub expired_rows: Duration,
    /// A request with a known key and another payload, since it was last seen.
    pub conflicts: Duration,
    /// How long after its last retry a sender still resends by hand.
    pub resend_window: Duration,
    /// The named override: start although a retention is too short.
    pub allow_short: bool,
}

/// What is logged, on standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// How a line looks.
    pub format: LogFormat,
    /// A level, or directives such as `info,twiceproof_dispatcher=debug`.
    pub level: String,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// One setting as `config show` prints it; secrets are left out of `value`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shown {
    /// The setting.
    pub setting: &'static Setting,
    /// Its value, as it was written, without secrets.
    pub value: String,
    /// Where the value stands.
    pub origin: Origin,
}

impl Config {
    /// Reads all layers and parses every setting.
    ///
    /// # Errors
    /// [`ConfigError`] for an unknown key or variable, a value that cannot be read, and a file that cannot be opened.
    /// Settings that contradict each other are found by [`Config::check`], so that they can be shown first.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let (mut values, file) = layers::merge(sources)?;
        Ok(Self {
            file,
            database: database(&mut values)?,
            tenant: values.take("tenant", |text| Key::new(text).map_err(|error| error.to_string()))?,
            listen: values.take("listen", listen)?,
            api_keys: api_keys(&mut values)?,
            api_public_url: values.take("api.public_url", public_url)?,
            seal: seal(&mut values)?,
            allow_private_addresses: values.take("allow_private_addresses", switch)?,
            proxy: proxy(&mut values)?,
            retry: Retry {
                first: values.take("retry.first", positive)?,
                factor: values.take("retry.factor", factor)?,
                cap: values.take("retry.cap", positive)?,
                horizon: values.take("retry.horizon", positive)?,
            },
            delivery: Delivery {
                timeout: values.take("delivery.timeout", positive)?,
                lease_margin: values.take("delivery.lease_margin", positive)?,
                slots_per_endpoint: values.take("delivery.slots_per_endpoint", count)?,
                slots_per_worker: values.take("delivery.slots_per_worker", count)?,
            },
            receiver: Receiver {
                tolerance: values.take("receiver.tolerance", positive)?,
                body_limit: values.take("receiver.body_limit", size)?,
                in_flight_wait: values.take("receiver.in_flight_wait", units::parse_duration)?,
            },
            retention: Retention {
                events: values.take("retention.events", positive)?,
                ledger: values.take("retention.ledger", positive)?,
                expired_rows: values.take("retention.expired_rows", positive)?,
                conflicts: values.take("retention.conflicts", positive)?,
                resend_window: values.take("retention.resend_window", units::parse_duration)?,
                allow_short: values.take("retention.allow_short", switch)?,
            },
            log: Log { format: values.take("log.format", log_format)?, level: values.take("log.level", log_level)? },
            shown: values.into_shown(),
        })
    }

    /// Holds the settings against each other. What an override let pass is returned, one sentence each, to be reported.
    ///
    /// # Errors
    /// [`ConfigError::Contradiction`], naming both settings, where they stand and what to write instead.
    pub fn check(&self) -> Result<Vec<String>, ConfigError> {
        checks::check(self)
    }

    /// Every setting with its value and where that stands, in the order of [`SETTINGS`].
    #[must_use]
    pub fn shown(&self) -> &[Shown] {
        &self.shown
    }

    /// Where a setting's value stands; a default for a name that is none.
    #[must_use]
    pub fn origin(&self, name: &str) -> Origin {
        self.shown.iter().find(|shown| shown.setting.name == name).map_or(Origin::Default, |shown| shown.origin.clone())
    }
}

impl Delivery {
    /// How long a lease lasts: always longer than an attempt may take.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.timeout + self.lease_margin
    }
}

/// The database is shown as its type prints it: without user and password.
fn database(values: &mut Values) -> Result<DatabaseUrl, ConfigError> {
    let url = values.take("database", |text| DatabaseUrl::parse(text).map_err(|error| error.to_string()))?;
    values.show("database", url.to_string());
    Ok(url)
}

/// The secret is shown as nothing but that it is there.
fn api_keys(values: &mut Values) -> Result<Option<Keys>, ConfigError> {
    let keys = values.take("api.jwt_secret", |text| match text {
        "" => Ok(None),
        text => Keys::new(text.as_bytes()).map(Some).map_err(|short| short.to_string()),
    })?;
    if keys.is_some() {
        values.show("api.jwt_secret", "(set)".to_owned());
    }
    Ok(keys)
}

/// The keys are shown as the ids that the database has of them.
fn seal(values: &mut Values) -> Result<Seal, ConfigError> {
    let seal = values.take("secrets.master_key", |text| Seal::parse(text).map_err(|error| error.to_string()))?;
    values.show("secrets.master_key", seal.current().unwrap_or_default().to_owned());
    Ok(seal)
}

/// The proxy is shown without its credentials.
fn proxy(values: &mut Values) -> Result<Option<Proxy>, ConfigError> {
    let proxy = values.take("egress.proxy", |text| match text {
        "" => Ok(None),
        text => Proxy::parse(text).map(Some).map_err(|invalid| invalid.to_string()),
    })?;
    if let Some(proxy) = &proxy {
        values.show("egress.proxy", proxy.to_string());
    }
    Ok(proxy)
}

fn public_url(text: &str) -> Result<String, String> {
    let is_address =
        ["https://", "http://"].iter().any(|scheme| text.strip_prefix(scheme).is_some_and(|host| !host.is_empty()));
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
    match text.is_empty() || (is_address && is_plain) {
        true => Ok(text.trim_end_matches('/').to_owned()),
        false => Err("write where clients reach it: `https://hooks.example`".to_owned()),
    }
}

fn positive(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text)? {
        Duration::ZERO => Err("must be longer than zero".to_owned()),
        duration => Ok(duration),
    }
}

fn size(text: &str) -> Result<usize, String> {
    match units::parse_size(text)? {
        0 => Err("must be more than nothing".to_owned()),
        size => Ok(size),
    }
}

fn count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("must be a whole number above zero".to_owned()),
    }
}

fn factor(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if (1.0..=1000.0).contains(&number) => Ok(number),
        _ => Err("must be a number from 1 to 1000".to_owned()),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "must be true or false".to_owned())
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "human" => Ok(LogFormat::Human),
        "json" => Ok(LogFormat::Json),
        _ => Err("must be human or json".to_owned()),
    }
}

/// A lone word that is no level would be taken as the name of a module, and everything else would fall silent.
fn log_level(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for word in text.split(',').filter(|directive| !directive.contains(['=', '['])) {
        if !LEVELS.contains(&word) {
            let near = nearest::nearest(word, LEVELS).map(|near| format!("; did you mean `{near}`?"));
            return Err(format!("levels are {}{}", LEVELS.join(", "), near.unwrap_or_default()));
        }
    }
    match tracing_subscriber::EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("must be a level, or directives such as `info,twiceproof_dispatcher=debug`".to_owned()),
    }
}

/// A host or address and a port. Names are looked up when the server binds.
fn listen(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err("must be an address and a port, such as 127.0.0.1:7071 or [::]:7071".to_owned()),
    }
}

#[cfg(test)]
mod tests;
