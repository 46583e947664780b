//! `twiceproof endpoint add`: registers a URL for event types.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use clap::ArgGroup;
use serde_json::json;
use twiceproof::dispatcher::guard::Refused;
use twiceproof::dispatcher::manage::{Created, tenants};
use twiceproof::dispatcher::signing::{Beside, Names, Signing};
use twiceproof::dispatcher::{ManageError, Manager, NewEndpoint};
use twiceproof::random::Random;
use twiceproof::secret::Secret;
use twiceproof::signature::{PrivateKey, SigningKey};
use twiceproof::store::{Store, StoreError};

use super::global::{self, Global};
use super::{endpoint_show, output, signature_style};

/// Register a URL for event types
///
/// The endpoint gets the events that are published from now on. What it is sent is signed with its secret: a new one
/// (--generate), or one you have (--secret-file). With a private key (whsk_…, or --key-pair) the receiver needs
/// only the public key that is shown.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("secret").args(["generate", "secret_file"]).required(true).multiple(true)))]
pub(super) struct Args {
    /// Where events are sent
    url: String,

    /// An event type to deliver, such as order.paid; repeat it for several [default: all]
    #[arg(long = "event-type", value_name = "TYPE")]
    event_types: Vec<String>,

    /// Make a new secret and write it to --secret-file, or to ENDPOINT_ID.secret in this folder; the file must not exist
    #[arg(long)]
    generate: bool,

    /// With --generate: make a private key (whsk_…, signs as v1a) instead of a shared secret
    #[arg(long, requires = "generate")]
    key_pair: bool,

    /// The file with the secret (whsec_…) or the private key (whsk_…) to sign with
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// The secret is a text whose characters are the key, as GitHub, Stripe and Shopify use theirs; at least 16
    #[arg(long, requires = "secret_file", conflicts_with = "generate")]
    secret_is_text: bool,

    /// What it is for
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,

    /// The names of the signature headers
    #[arg(long, value_name = "NAMES", value_enum, default_value_t = HeaderNames::Webhook)]
    header_names: HeaderNames,

    /// Sign in the style of another sender too (github, stripe or shopify), in its header or HEADER, with the secret's bytes
    /// or its text (whsec_…) as the key, such as stripe=Acme-Signature:bytes; repeat it for several
    #[arg(long = "also-sign-like", value_name = "SENDER[=HEADER][:bytes|:text]", value_parser = signature_style::parse)]
    beside: Vec<Beside>,

    /// Register the URL though the tenant has an endpoint with it: both are sent every event that they match
    #[arg(long)]
    again: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The names of the signature headers.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum HeaderNames {
    /// webhook-id, webhook-timestamp, webhook-signature
    Webhook,
    /// svix-id, svix-timestamp, svix-signature
    Svix,
    /// Both
    Both,
}

fn signing(names: HeaderNames, beside: Vec<Beside>) -> Signing {
    let names = match names {
        HeaderNames::Webhook => Names::Webhook,
        HeaderNames::Svix => Names::Svix,
        HeaderNames::Both => Names::Both,
    };
    Signing { names, beside }
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.start(&[])?;
    let mut new = NewEndpoint::new(config.tenant.clone(), &args.url);
    new.event_types = args.event_types;
    new.description = args.description;
    new.signing = signing(args.header_names, args.beside);
    if !args.generate
        && let Some(path) = &args.secret_file
    {
        new.secret = Some(read_secret(path, args.secret_is_text)?);
    }
    if args.key_pair {
        new.secret = Some(PrivateKey::generate(&Random::from_system()).into());
    }
    let store = global::open_ready(&config).await?;
    let manager = Manager::new(&store, config.addresses(), &config.policy());
    let secret = SecretFile { generate: args.generate, path: args.secret_file };
    let (created, secret_file) = create(&store, &manager, new, secret, args.again).await?;
    store.close().await;

    let endpoint = &created.endpoint;
    let public_key = created.secret.public().map(|key| key.to_text());
    if args.json {
        output::json(&json!({
            "id": endpoint.id,
            "tenant": endpoint.tenant,
            "event_types": endpoint.event_types,
            "signing": endpoint.signing,
            "secret_file": secret_file,
            "public_key": public_key,
        }))?;
    } else {
        let events = endpoint_show::events(endpoint);
        output::line(format_args!("{}", endpoint.id))?;
        output::line(format_args!("  gets    {events}"))?;
        output::line(format_args!("  secret  in {}", secret_file.display()))?;
        output::line(format_args!("  signed  {}", signature_style::said(&endpoint.signing)))?;
        if let Some(key) = public_key {
            output::line(format_args!("  public  {key}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the secret is, or is to be.
struct SecretFile {
    generate: bool,
    path: Option<PathBuf>,
}

/// Creates the endpoint, and its tenant where nobody has used it yet. A generated secret is in its file before the commit,
/// so that no endpoint has a lost one.
async fn create(
    store: &Store,
    manager: &Manager,
    new: NewEndpoint,
    secret: SecretFile,
    again: bool,
) -> anyhow::Result<(Created, PathBuf)> {
    let SecretFile { generate, path } = secret;
    let mut tx = store.begin().await?;
    tenants::adopt(&mut tx.conn(), &new.tenant, store.now()).await?;
    let twin = manager.with_url(&mut tx.conn(), &new.tenant, &new.url).await.map_err(explain)?;
    if let Some(twin) = twin.filter(|_| !again) {
        bail!(
            "the endpoint was not created: {} of the tenant {} has this URL; `endpoint show {}` tells more, --again registers it twice",
            twin.id,
            twin.tenant,
            twin.id
        );
    }
    let created = manager.create(&mut tx.conn(), new).await.map_err(explain)?;
    let path = path.unwrap_or_else(|| PathBuf::from(format!("{}.secret", created.endpoint.id)));
    if generate {
        write_secret(&path, &created.secret)?;
    }
    match tx.commit().await {
        Ok(()) => Ok((created, path)),
        Err(error) => {
            // After an unknown commit the endpoint may be there, and then somebody needs its secret.
            if generate && !matches!(error, StoreError::Unknown(_)) {
                let _ = std::fs::remove_file(&path);
            }
            Err(anyhow!(error).context("the endpoint was not created"))
        }
    }
}

fn read_secret(path: &Path, is_text: bool) -> anyhow::Result<SigningKey> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the secret in {}", path.display()))?;
    let text = text.trim_end_matches(['\r', '\n']);
    let key = match is_text {
        // The first refuses what was copied along, the second what is too short.
        true => {
            Secret::from_text(text).and_then(|text| Secret::from_bytes(text.expose().to_vec())).map(SigningKey::from)
        }
        false => SigningKey::parse(text),
    };
    key.with_context(|| match is_text {
        true => format!("cannot use the secret in {}", path.display()),
        false => format!("cannot use the secret in {} (--secret-is-text takes other texts)", path.display()),
    })
}

/// Writes a new file that only its owner can read.
fn write_secret(path: &Path, secret: &SigningKey) -> anyhow::Result<()> {
    let written = global::create_private(path).and_then(|mut file| {
        file.write_all(secret.to_text().as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    });
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            anyhow!("{} exists; name another file, or leave out --generate to use its secret", path.display())
        }
        _ => anyhow!(error).context(format!("cannot write the secret to {}", path.display())),
    })
}

/// Adds what to do to refusals that have a remedy.
fn explain(error: ManageError) -> anyhow::Error {
    let remedy = match &error {
        ManageError::Url(Refused::Scheme | Refused::Port(_) | Refused::Host(_) | Refused::Address(_)) => {
            "; --allow-private-addresses (setting `allow_private_addresses`) allows it, here and for `serve`"
        }
        _ => "",
    };
    anyhow!("the endpoint was not created: {error}{remedy}")
}

#[cfg(test)]
mod tests {
    use twiceproof::dispatcher::{AddressPolicy, Policy};
    use twiceproof::key::Key;
    use twiceproof::store::{DatabaseUrl, StoreOptions};

    use super::*;

    struct Bed {
        folder: tempfile::TempDir,
        store: Store,
        manager: Manager,
        tenant: Key,
    }

    async fn bed() -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let url = DatabaseUrl::sqlite(folder.path().join("a.db")).unwrap();
        let store = Store::connect(&url, StoreOptions::default()).await.unwrap();
        store.migrate().await.unwrap();
        let manager = Manager::new(&store, AddressPolicy::PublicOnly, &Policy::default());
        Bed { folder, store, manager, tenant: Key::new("default").unwrap() }
    }

    impl Bed {
        async fn add(&self, path: &Path) -> anyhow::Result<(Created, PathBuf)> {
            let new = NewEndpoint::new(self.tenant.clone(), "https://example.com/hooks");
            let secret = SecretFile { generate: true, path: Some(path.to_owned()) };
            create(&self.store, &self.manager, new, secret, false).await
        }

        async fn endpoints(&self) -> usize {
            let mut reader = self.store.read().await.unwrap();
            self.manager.list(&mut reader.conn(), &self.tenant, "", 10).await.unwrap().len()
        }
    }

    #[tokio::test]
    async fn a_generated_secret_is_in_a_file_that_only_its_owner_can_read() {
        let bed = bed().await;
        let path = bed.folder.path().join("secret");
        let (created, _) = bed.add(&path).await.unwrap();
        assert_eq!(read_secret(&path, false).unwrap().expose(), created.secret.expose());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_secret_that_is_a_text_signs_with_its_characters() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let read = |text: &str, is_text: bool| {
            std::fs::write(&path, text).unwrap();
            read_secret(&path, is_text)
        };
        assert_eq!(*read("an old secret, 16+\n", true).unwrap().expose(), b"an old secret, 16+");
        for text in ["too short\n", " an old secret, 16+\n", "an old secret,\nof two lines", ""] {
            assert!(read(text, true).is_err(), "{text:?}");
        }
        let refused = format!("{:#}", read("an old secret, 16+", false).unwrap_err());
        assert!(refused.contains("--secret-is-text") && !refused.contains("an old"), "{refused}");
    }

    #[tokio::test]
    async fn a_file_that_exists_is_not_overwritten_and_no_endpoint_is_created() {
        let bed = bed().await;
        let path = bed.folder.path().join("secret");
        std::fs::write(&path, "mine").unwrap();
        let error = bed.add(&path).await.unwrap_err().to_string();
        assert!(error.contains("exists; name another file"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(bed.endpoints().await, 0);
    }

    #[tokio::test]
    async fn a_url_that_is_registered_is_refused_until_it_is_wanted_again() {
        let bed = bed().await;
        let (first, _) = bed.add(&bed.folder.path().join("one")).await.unwrap();
        let error = bed.add(&bed.folder.path().join("two")).await.unwrap_err().to_string();
        assert!(error.contains(&first.endpoint.id) && error.contains("--again"), "{error}");
        assert!(!error.contains("example.com"), "the URL is not repeated: {error}");
        assert!(!bed.folder.path().join("two").exists());
        assert_eq!(bed.endpoints().await, 1);
        let new = NewEndpoint::new(bed.tenant.clone(), "https://EXAMPLE.com/hooks");
        let secret = SecretFile { generate: true, path: Some(bed.folder.path().join("three")) };
        create(&bed.store, &bed.manager, new, secret, true).await.unwrap();
        assert_eq!(bed.endpoints().await, 2);
    }

    #[tokio::test]
    async fn a_refused_url_says_which_setting_allows_it() {
        let bed = bed().await;
        let new = NewEndpoint::new(bed.tenant.clone(), "http://127.0.0.1:9000/hooks?token=canary");
        let secret = SecretFile { generate: true, path: None };
        let error = create(&bed.store, &bed.manager, new, secret, false).await.unwrap_err().to_string();
        assert!(error.contains("`allow_private_addresses`") && !error.contains("canary"), "{error}");
    }
}
