use std::path::{Path, PathBuf};

use super::*;

/// Sources without a file, with these variables.
fn environment(variables: &[(&str, &str)]) -> Sources {
    Sources {
        default_file: PathBuf::from("/nonexistent/twiceproof.toml"),
        environment: variables.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        ..Sources::default()
    }
}

/// Sources with this text as the file.
fn file(folder: &Path, text: &str) -> Sources {
    let path = folder.join("twiceproof.toml");
    std::fs::write(&path, text).unwrap();
    Sources { default_file: path, ..environment(&[]) }
}

fn message(sources: &Sources) -> String {
    Config::load(sources).unwrap_err().to_string()
}

fn origin(config: &Config, name: &str) -> String {
    config.origin(name).to_string()
}

#[test]
fn without_any_layer_the_table_of_defaults_holds() {
    let config = Config::load(&environment(&[])).unwrap();
    assert_eq!(config.database.to_string(), "sqlite:twiceproof.db");
    assert_eq!(config.retry.first, Duration::from_secs(5));
    assert_eq!(config.retry.horizon, Duration::from_secs(72 * 3600));
    assert_eq!(config.delivery.lease(), Duration::from_secs(30));
    assert_eq!(config.receiver.body_limit, 1 << 20);
    assert_eq!(config.retention.expired_rows, Duration::from_secs(400 * 24 * 3600));
    assert!(!config.allow_private_addresses);
    assert_eq!(config.check().unwrap(), Vec::<String>::new());
    assert!(config.shown().iter().all(|shown| shown.origin == Origin::Default));
    assert_eq!(config.shown().len(), SETTINGS.len());
    assert_eq!(config.file, None);
}

#[test]
fn a_later_layer_wins_and_every_value_knows_where_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let mut sources = file(folder.path(), "tenant = \"acme\"\n\n[retry]\nfirst = \"1s\"\nfactor = 2\ncap = \"1h\"\n");
    sources.environment =
        vec![("TWICEPROOF_RETRY_FIRST".into(), "2s".into()), ("TWICEPROOF_RETRY_CAP".into(), "2h".into())];
    sources.flags = vec![Flag { setting: "retry.cap".to_owned(), flag: "--cap", value: "3h".to_owned() }];
    let config = Config::load(&sources).unwrap();

    assert_eq!(config.file, Some((sources.default_file.clone(), Origin::Default)));
    assert_eq!(config.tenant.as_str(), "acme");
    assert_eq!(config.retry.factor, 2.0);
    assert_eq!(config.retry.first, Duration::from_secs(2));
    assert_eq!(config.retry.cap, Duration::from_secs(3 * 3600));
    let path = sources.default_file.display();
    assert_eq!(origin(&config, "tenant"), format!("{path}:1"));
    assert_eq!(origin(&config, "retry.factor"), format!("{path}:5"));
    assert_eq!(origin(&config, "retry.first"), "TWICEPROOF_RETRY_FIRST");
    assert_eq!(origin(&config, "retry.cap"), "--cap");
}

#[test]
fn an_unknown_key_is_an_error_that_says_where_and_what_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    let sources = file(folder.path(), "# comment\n[retry]\nfrist = \"1s\"\n");
    let path = sources.default_file.display();
    assert_eq!(message(&sources), format!("{path}:3: unknown setting `retry.frist`; did you mean `retry.first`?"));

    let sources = file(folder.path(), "colour = \"red\"\n");
    let text = message(&sources);
    assert!(text.contains("unknown setting `colour`; known are database, database_file, tenant"), "{text}");

    for text in ["retry = 3", "tenant.name = \"x\"", "tenant_file = \"x\""] {
        assert!(message(&file(folder.path(), text)).contains("unknown setting"), "{text} was taken");
    }
}

#[test]
fn an_unknown_variable_is_an_error_and_the_tests_prefix_is_ignored() {
    let text = message(&environment(&[("TWICEPROOF_TENNANT", "x")]));
    assert_eq!(text, "TWICEPROOF_TENNANT: unknown setting `TWICEPROOF_TENNANT`; did you mean `TWICEPROOF_TENANT`?");
    assert!(Config::load(&environment(&[("TWICEPROOF_TEST_POSTGRES", "require"), ("HOME", "/")])).is_ok());
}

#[test]
fn a_value_that_cannot_be_read_is_an_error_that_says_how_to_write_it() {
    for (variable, value, expected) in [
        ("TWICEPROOF_RETRY_FIRST", "15", "`retry.first` is \"15\": write a whole number and a unit"),
        ("TWICEPROOF_RETRY_FIRST", "0s", "must be longer than zero"),
        ("TWICEPROOF_RETRY_FACTOR", "0.5", "must be a number from 1 to 1000"),
        ("TWICEPROOF_RETRY_FACTOR", "NaN", "must be a number from 1 to 1000"),
        ("TWICEPROOF_DELIVERY_SLOTS_PER_WORKER", "0", "must be a whole number above zero"),
        ("TWICEPROOF_ALLOW_PRIVATE_ADDRESSES", "yes", "must be true or false"),
        ("TWICEPROOF_LOG_FORMAT", "xml", "must be human or json"),
        ("TWICEPROOF_LISTEN", "7071", "must be an address and a port"),
        ("TWICEPROOF_LOG_LEVEL", "inof", "did you mean `info`?"),
        ("TWICEPROOF_LOG_LEVEL", "info,hyper=loud", "a level, or directives"),
        ("TWICEPROOF_TENANT", "", "`tenant` is \"\""),
    ] {
        let text = message(&environment(&[(variable, value)]));
        assert!(text.starts_with(&format!("{variable}: ")) && text.contains(expected), "{text}");
    }
    let folder = tempfile::tempdir().unwrap();
    for text in ["tenant = [\"a\"]", "tenant = 2020-01-01", "[delivery]\nslots_per_worker = 0x20"] {
        let text = message(&file(folder.path(), text));
        assert!(text.contains("must be a string, a number, true or false"), "{text}");
    }
}

#[test]
fn a_file_that_was_named_must_exist_and_one_that_is_not_toml_is_located() {
    let sources = Sources { file: Some(PathBuf::from("/nonexistent/a.toml")), ..environment(&[]) };
    assert_eq!(message(&sources), "cannot read /nonexistent/a.toml (--config)");
    let sources = environment(&[("TWICEPROOF_CONFIG", "/nonexistent/b.toml")]);
    assert_eq!(message(&sources), "cannot read /nonexistent/b.toml (TWICEPROOF_CONFIG)");

    let folder = tempfile::tempdir().unwrap();
    let sources = file(folder.path(), "tenant = \"a\"\ndatabase = \"postgres://me:hunter2@db/app\n");
    let text = message(&sources);
    assert!(text.contains("twiceproof.toml:2: not valid TOML"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_secret_can_come_from_a_file_and_is_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("database");
    std::fs::write(&secret, "postgres://me:hunter2@db.example/app\n").unwrap();
    let mut sources = file(folder.path(), &format!("database_file = {:?}\n", secret.display().to_string()));
    let config = Config::load(&sources).unwrap();

    assert!(config.database.expose().contains("hunter2"));
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(origin(&config, "database").starts_with(&format!("{} (named by ", secret.display())));

    sources.environment = vec![("TWICEPROOF_DATABASE".into(), "sqlite:other.db".into())];
    assert_eq!(Config::load(&sources).unwrap().database.to_string(), "sqlite:other.db");

    let both = [("TWICEPROOF_DATABASE", "sqlite:a.db"), ("TWICEPROOF_DATABASE_FILE", "b")];
    assert!(message(&environment(&both)).contains("`database` and `database_file` are both set"));

    let text = message(&environment(&[("TWICEPROOF_DATABASE", "mysql://me:hunter2@db")]));
    assert!(!text.contains("hunter2"), "{text}");

    std::fs::write(&secret, "\n").unwrap();
    sources.environment.clear();
    assert!(message(&sources).contains("`database` is empty in this file"));
}

#[test]
fn the_public_address_is_one_that_links_can_begin_with() {
    let url = |text: &str| Config::load(&environment(&[("TWICEPROOF_API_PUBLIC_URL", text)])).map(|c| c.api_public_url);
    assert_eq!(url("").unwrap(), "");
    assert_eq!(url("https://hooks.example/").unwrap(), "https://hooks.example");
    assert_eq!(url("http://10.0.0.1:7071/twiceproof").unwrap(), "http://10.0.0.1:7071/twiceproof");
    for wrong in ["hooks.example", "https://", "ftp://a", "https://a b", "https://a/?b", "https://a/#b"] {
        assert!(url(wrong).unwrap_err().to_string().contains("https://hooks.example"), "{wrong}");
    }
}

#[test]
fn a_retention_shorter_than_redeliveries_can_be_late_is_refused_unless_the_override_is_named() {
    let check = |variables: &[(&str, &str)]| Config::load(&environment(variables)).unwrap().check();

    let text = check(&[("TWICEPROOF_RETENTION_LEDGER", "3d")]).unwrap_err().to_string();
    assert!(text.contains("`retention.ledger` is 3d (TWICEPROOF_RETENTION_LEDGER)"), "{text}");
    assert!(text.contains("set `retention.ledger` to 87h or more, or `retention.allow_short` to true"), "{text}");

    let reported =
        check(&[("TWICEPROOF_RETENTION_LEDGER", "3d"), ("TWICEPROOF_RETENTION_ALLOW_SHORT", "true")]).unwrap();
    assert_eq!(reported.len(), 1);
    assert!(reported[0].ends_with("allowed by `retention.allow_short` (TWICEPROOF_RETENTION_ALLOW_SHORT)"));

    assert!(check(&[("TWICEPROOF_RETRY_HORIZON", "25d")]).is_ok());
    assert!(check(&[("TWICEPROOF_RETRY_HORIZON", "26d")]).is_err());
    assert!(check(&[("TWICEPROOF_RETENTION_RESEND_WINDOW", "27d")]).is_err());
    assert!(check(&[("TWICEPROOF_RETRY_FIRST", "13h")]).is_err());
    assert_eq!(shortest_retention(Duration::from_secs(10), Duration::from_secs(1)), Duration::from_secs(13));
}
