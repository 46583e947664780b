//! The flags that every command takes, and what follows from them: the settings and the store.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use twiceproof::config::{Config, Flag, Sources};
use twiceproof::store::{Store, StoreOptions};

use super::logging;

/// Flags that every command takes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Settings")]
pub(super) struct Global {
    /// Where everything is stored: sqlite:FILE or postgres://USER@HOST/DATABASE
    ///
    /// Other users of the machine can see the arguments of a command: an address with a password is better put into a
    /// file that TWICEPROOF_DATABASE_FILE names.
    #[arg(long, global = true, value_name = "URL")]
    pub(super) database: Option<String>,

    /// The TOML file with settings [default: twiceproof.toml if present]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The tenant to act for
    #[arg(long, global = true, value_name = "ID")]
    tenant: Option<String>,

    /// Deliver to private and loopback addresses too, also over http and on any port: for trying things on one machine
    #[arg(long, global = true)]
    allow_private_addresses: bool,

    /// Sets any setting, as `config show` names it: --set retry.first=1s
    #[arg(long, global = true, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,

    /// A level, or directives such as info,twiceproof_dispatcher=debug
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(super) log_level: Option<String>,

    /// How a log line looks
    #[arg(long, global = true, value_parser = PossibleValuesParser::new(["human", "json"]).map(String::from))]
    log_format: Option<String>,
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err("write NAME=VALUE, such as retry.first=1s".to_owned()),
    }
}

impl Global {
    /// Reads the settings; `own` are the flags of one command that set settings too.
    pub(super) fn load(&self, own: &[(&'static str, &str, Option<String>)]) -> anyhow::Result<Config> {
        let mut flags: Vec<Flag> = self
            .set
            .iter()
            .map(|(setting, value)| Flag { setting: setting.clone(), flag: "--set", value: value.clone() })
            .collect();
        let private = self.allow_private_addresses.then(|| "true".to_owned());
        let shared = [
            ("--database", "database", self.database.clone()),
            ("--tenant", "tenant", self.tenant.clone()),
            ("--allow-private-addresses", "allow_private_addresses", private),
            ("--log-level", "log.level", self.log_level.clone()),
            ("--log-format", "log.format", self.log_format.clone()),
        ];
        for (flag, setting, value) in shared.iter().chain(own) {
            if let Some(value) = value.clone() {
                flags.push(Flag { setting: (*setting).to_owned(), flag, value });
            }
        }
        let environment = std::env::vars_os().collect();
        Ok(Config::load(&Sources { file: self.config.clone(), environment, flags, ..Sources::default() })?)
    }

    /// Reads the settings, starts logging, and refuses settings that contradict each other.
    pub(super) fn start(&self, own: &[(&'static str, &str, Option<String>)]) -> anyhow::Result<Config> {
        let config = self.load(own)?;
        logging::start(&config.log)?;
        for overridden in config.check()? {
            tracing::warn!("{overridden}");
        }
        Ok(config)
    }
}

/// Opens the database of the settings as it is. A new SQLite file is for its owner only, since it holds secrets.
pub(super) async fn open(config: &Config) -> anyhow::Result<Store> {
    let failed = || format!("cannot open the database {} ({})", config.database, config.origin("database"));
    if let Some(file) = config.database.file()
        && let Err(error) = create_private(file)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error).with_context(failed);
    }
    let mut options = StoreOptions::default();
    options.seal = config.seal.clone();
    Store::connect(&config.database, options).await.with_context(failed)
}

/// Makes a new file that only its owner can read. The files that SQLite makes beside its own get the same rights.
pub(super) fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Opens the database for a command that needs the tables: creates them in an empty database, but never upgrades one
/// that is in use.
pub(super) async fn open_ready(config: &Config) -> anyhow::Result<Store> {
    let store = open(config).await?;
    let missing = store.pending_migrations().await.context("cannot read which migrations were applied")?;
    match missing.first() {
        None => {}
        Some(1) => {
            store.migrate().await.context("cannot create the tables")?;
            tracing::info!(database = %config.database, "created the tables");
        }
        Some(_) => bail!(
            "the database {} lacks the migrations {missing:?}; run `twiceproof migrate`, or start `twiceproof serve`, \
             which runs them",
            config.database
        ),
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use twiceproof::config::{Config, Flag, Sources};

    use super::open_ready;

    #[tokio::test]
    async fn a_command_creates_the_tables_of_an_empty_database_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new.db");
        let value = format!("sqlite:{}", file.display());
        let flags = vec![Flag { setting: "database".to_owned(), flag: "--database", value }];
        let config = Config::load(&Sources { flags, ..Sources::default() }).unwrap();
        for _ in 0..2 {
            let store = open_ready(&config).await.unwrap();
            assert!(store.pending_migrations().await.unwrap().is_empty());
        }
        #[cfg(unix)]
        for file in [file.clone(), file.with_extension("db-wal")] {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
        }
    }
}
