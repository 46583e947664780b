//! The program as its users run it: every command, the demo with and without its protections, the examples, and the
//! commands that the README shows.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::harness::{Bed, Suite};
use crate::kill::binary;

pub fn register(suite: &mut Suite) {
    suite.both("program::the_demo_loses_nothing_and_doubles_nothing", |bed| demo(bed, None));
    suite.both("program::the_demo_without_the_ledger_doubles", |bed| demo(bed, Some("ledger")));
    suite.both("program::the_demo_without_the_common_transaction_doubles", |bed| demo(bed, Some("transaction")));
    suite.both("program::the_demo_without_retries_loses", |bed| demo(bed, Some("retry")));
    suite.both("program::endpoint_event_serve_and_back", tour);
    suite.both("program::endpoints_are_listed_shown_and_removed", endpoints);
    suite.plain("program::a_setting_that_nobody_knows_is_an_error", unknown_settings);
    suite.plain("program::a_generated_key_can_be_used_and_a_password_is_never_shown", secrets);
    suite.plain("program::verify_judges_a_request_and_says_why_not", verify_one);
    suite.plain("program::verify_lists_the_vectors_that_deviate", verify_vectors);
    suite.plain("program::the_examples_say_what_they_prove", examples);
    suite.plain("program::the_commands_of_the_readme_are_understood", readme);
}

/// The program in a folder of its own, with nothing of this process's settings.
pub fn program(folder: &Path) -> Command {
    let mut command = Command::new(binary());
    command.current_dir(folder).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TWICEPROOF_")) {
        command.env_remove(name);
    }
    command
}

pub fn run(command: &mut Command) -> (bool, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.success(), text(stdout), text(stderr))
}

async fn demo(bed: Bed, sabotage: Option<&'static str>) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program(folder.path());
    command.args(["demo", "--seed", "4711"]);
    if bed.db.url().file().is_none() {
        command.args(["--database", &bed.db.url().expose()]);
    }
    if let Some(sabotage) = sabotage {
        command.args(["--sabotage", sabotage]);
    }
    let (success, report, errors) = tokio::task::spawn_blocking(move || run(&mut command)).await.unwrap();
    println!("{report}{errors}");
    let verdict = report.lines().find(|line| line.trim().starts_with("lost ")).unwrap();
    let count = |word: &str| -> u32 {
        let after = verdict.split(word).nth(1).unwrap();
        after.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (lost, double, gaps) = (count("lost "), count("double "), count("gaps "));
    match sabotage {
        None => {
            assert_eq!((lost, double, gaps), (0, 0, 0));
            let faults = report.lines().skip_while(|line| !line.contains("on purpose")).skip(1);
            let faults: Vec<&str> = faults.take_while(|line| !line.trim().is_empty()).collect();
            assert_eq!(faults.len(), 11, "{faults:?}");
            for fault in faults {
                let bit: u32 = fault.split_whitespace().last().unwrap().parse().unwrap();
                assert!(bit >= 20, "too few: {fault}");
            }
        }
        Some("retry") => assert!(lost > 0),
        Some(_) => assert!(double > 0),
    }
    assert_eq!(success, sabotage.is_none(), "the exit code tells it");
}

/// What `/metrics` answers.
fn metrics(address: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// Adds an endpoint, publishes twice under one uid, serves until it is delivered, stops on a signal.
async fn tour(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (store, receiving) = crate::kit::receiving(store).await;
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, format!("{}\n", crate::kit::secret().to_text().as_str())).unwrap();
    let database = bed.db.url().expose();
    let run_here = async |args: &[&str]| {
        let mut command = program(folder.path());
        command.env("TWICEPROOF_DATABASE", &database).args(args);
        tokio::task::spawn_blocking(move || run(&mut command)).await.unwrap()
    };
    let url = format!("http://{}/shop", receiving.address);
    let secret = secret.to_str().unwrap();
    let (refused, _, errors) = run_here(&["endpoint", "add", &url, "--secret-file", secret]).await;
    assert!(!refused, "a private address is refused by default");
    assert!(errors.contains("private"), "{errors}");
    let (added, out, errors) =
        run_here(&["endpoint", "add", &url, "--secret-file", secret, "--allow-private-addresses"]).await;
    assert!(added, "{errors}");
    assert!(out.contains("ep_"), "{out}");
    let publish = ["event", "publish", "--type", "order.placed", "--uid", "order-1", "--data"];
    let (first, id, errors) = run_here(&[&publish[..], &[r#"{"order":1}"#]].concat()).await;
    assert!(first, "{errors}");
    assert!(id.contains("msg_"), "{id}");
    let (again, out, _) = run_here(&[&publish[..], &[r#"{"order":1}"#]].concat()).await;
    assert!(again && out.contains("already"), "{out}");
    let (conflict, _, errors) = run_here(&[&publish[..], &[r#"{"order":2}"#]].concat()).await;
    assert!(!conflict && errors.contains("payload"), "{errors}");

    let mut serving = program(folder.path())
        .env("TWICEPROOF_DATABASE", &database)
        .args(["serve", "--listen", "127.0.0.1:0", "--allow-private-addresses", "--log-level", "error"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(serving.stdout.take().unwrap()).read_line(&mut line).unwrap();
    for _ in 0..3_000 {
        if !crate::kit::effects(&store).await.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(crate::kit::effects(&store).await.len(), 1, "delivered once, with the right signature");
    looked_back(&run_here, id.trim()).await;
    let address = line.trim().strip_prefix("listening on http://").unwrap().to_owned();
    let metrics = tokio::task::spawn_blocking(move || metrics(&address)).await.unwrap();
    for line in [
        "twiceproof_attempts_total{outcome=\"delivered\"} 1",
        "twiceproof_deliveries_recorded_total{result=\"delivered\"} 1",
        "twiceproof_open_deliveries{state=\"pending\"} 0",
        "twiceproof_overdue_deliveries{state=\"leased\"} 0",
        "twiceproof_first_attempt_lag_seconds_count 1",
        "twiceproof_attempt_connected_seconds_count 1",
        "twiceproof_attempt_answered_seconds_count 1",
    ] {
        assert!(metrics.lines().any(|said| said == line), "{line} is not in {metrics}");
    }
    for secret in ["msg_", "ep_", "127.0.0.1", "/shop", "whsec_"] {
        assert!(!metrics.contains(secret), "{secret} is in {metrics}");
    }
    let killed = Command::new("kill").args(["-TERM", &serving.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let status = crate::fixture::ended(&mut serving).await;
    assert!(status.success(), "a graceful stop ends with 0, not with {status}");
}

/// Adds endpoints, reads about them without and with their URLs, and removes one.
async fn endpoints(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let database = bed.db.url().expose();
    let run_here = async |args: &[&str]| {
        let mut command = program(folder.path());
        command.env("TWICEPROOF_DATABASE", &database).args(args);
        tokio::task::spawn_blocking(move || run(&mut command)).await.unwrap()
    };
    let (success, out, errors) = run_here(&["endpoint", "list"]).await;
    assert!(success && out.is_empty() && errors.contains("no endpoints"), "{out}{errors}");
    let url = "https://example.com/canary?k=canary";
    let add = ["endpoint", "add", url, "--generate", "--event-type", "order.paid", "--json"];
    let (success, out, errors) = run_here(&add).await;
    assert!(success, "{errors}");
    let added: serde_json::Value = serde_json::from_str(&out).unwrap();
    let id = added["id"].as_str().unwrap();
    let (success, out, errors) = run_here(&add).await;
    assert!(!success && errors.contains(id) && errors.contains("--again"), "{out}{errors}");
    assert!(!errors.contains("canary"), "{errors}");
    assert!(run_here(&[&add[..], &["--again"]].concat()).await.0);

    let (success, out, errors) = run_here(&["endpoint", "list"]).await;
    assert!(success && out.lines().count() == 2 && out.contains(id), "{out}{errors}");
    assert!(out.contains("https://example.com#") && !out.contains("canary"), "{out}");
    let (_, out, _) = run_here(&["endpoint", "list", "--json"]).await;
    let listed: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["id"]), (2, &added["id"]));
    assert!(!out.contains("canary"), "{out}");
    for json in [&[][..], &["--json"]] {
        let show = [&["endpoint", "show", id], json].concat();
        let (success, out, errors) = run_here(&show).await;
        assert!(success && out.contains("order.paid") && !out.contains("canary"), "{out}{errors}");
        let (_, out, _) = run_here(&[&show[..], &["--url"]].concat()).await;
        assert!(out.contains(url), "{out}");
    }
    // The API sees the tenant that the command line used.
    let organisation = twiceproof::dispatcher::manage::tenants::default_organisation();
    let mut reader = store.read().await.unwrap();
    let tenant = twiceproof::dispatcher::manage::tenants::find(&mut reader.conn(), &organisation, "default").await;
    assert_eq!(tenant.unwrap().unwrap().details.name, "default");
    drop(reader);

    for json in [&[][..], &["--json"]] {
        let remove = [&["endpoint", "remove", id, "--tenant", "stranger"], json].concat();
        assert!(!run_here(&remove).await.0, "another tenant has no such endpoint");
    }
    let (success, out, errors) = run_here(&["endpoint", "remove", id]).await;
    assert!(success && out.contains(id), "{out}{errors}");
    for command in ["show", "remove"] {
        let (success, _, errors) = run_here(&["endpoint", command, id]).await;
        assert!(!success && errors.contains("has no endpoint"), "{errors}");
    }
    assert_eq!(run_here(&["endpoint", "list"]).await.1.lines().count(), 1);
}

/// What the commands tell of the one event of the tour, while and after it is delivered.
async fn looked_back(run_here: &impl AsyncFn(&[&str]) -> (bool, String, String), id: &str) {
    let json = async |args: &[&str]| {
        let (ran, out, errors) = run_here(args).await;
        assert!(ran, "{errors}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()
    };
    let list = json(&["event", "list", "--json"]).await;
    assert_eq!((&list[0]["id"], &list[0]["uid"]), (&id.into(), &"order-1".into()));
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!(json(&["event", "list", "--type", "order.paid", "--json"]).await.as_array().unwrap().len(), 0);
    assert_eq!(json(&["event", "list", "--before", id, "--json"]).await.as_array().unwrap().len(), 0);
    // The effect is there before its attempt is recorded.
    let mut shown = json(&["event", "show", "order-1", "--json"]).await;
    for _ in 0..600 {
        if shown["deliveries"][0]["state"] == "delivered" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        shown = json(&["event", "show", "order-1", "--json"]).await;
    }
    assert_eq!((&shown["id"], &shown["payload"]), (&id.into(), &r#"{"order":1}"#.into()));
    let (delivery, attempt) = (&shown["deliveries"][0], &shown["attempts"][0]);
    assert_eq!((&delivery["state"], &attempt["status"]), (&"delivered".into(), &200.into()));
    assert_eq!(attempt["endpoint"], delivery["endpoint"]);
    let (_, listed, _) = run_here(&["event", "list"]).await;
    assert!(listed.starts_with(id) && listed.contains("order.placed"), "{listed}");
    let (_, told, _) = run_here(&["event", "show", id]).await;
    assert!(told.contains("delivered 200") && told.contains("order-1"), "{told}");
    assert!(told.contains("(connected after ") && told.contains(", answered after "), "{told}");
    let (found, _, errors) = run_here(&["event", "show", "none"]).await;
    assert!(!found && errors.contains("no event none"), "{errors}");
}

fn unknown_settings() {
    let folder = tempfile::tempdir().unwrap();
    let (success, _, errors) = run(program(folder.path()).env("TWICEPROOF_LISTENN", "x").args(["config", "show"]));
    assert!(!success && errors.contains("LISTENN") && errors.contains("TWICEPROOF_LISTEN`"), "{errors}");
    let (success, _, errors) =
        run(program(folder.path()).env("TWICEPROOF_TEST_ANYTHING", "x").args(["config", "show"]));
    assert!(success, "variables of the tests are ignored: {errors}");
    std::fs::write(folder.path().join("twiceproof.toml"), "[retry]\nfirts = \"1s\"\n").unwrap();
    let (success, _, errors) = run(program(folder.path()).args(["config", "show"]));
    assert!(!success && errors.contains("firts") && errors.contains("twiceproof.toml"), "{errors}");
}

fn secrets() {
    let folder = tempfile::tempdir().unwrap();
    let (success, key, _) = run(program(folder.path()).arg("keygen"));
    assert!(success);
    twiceproof_shared::secret::Secret::parse(key.trim()).unwrap();
    let url = "postgres://me:hunter2-canary@127.0.0.1:1/nowhere";
    for args in [&["config", "show"][..], &["config", "show", "--json"], &["migrate"], &["serve"]] {
        let (_, out, errors) = run(program(folder.path()).env("TWICEPROOF_DATABASE", url).args(args));
        assert!(!out.contains("canary") && !errors.contains("canary"), "{args:?}: {out}{errors}");
    }
}

/// The vector of GitHub's documentation.
fn verify_one() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("secret", "It's a Secret to Everybody\n");
    write("stray", "It's a Secret to Everybody \n");
    write("right", "Hello, World!");
    write("longer", "Hello, World!\n");
    write("other", "Hello, World?");
    let signature = "X-Hub-Signature-256: sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let verify = |secret: &str, body: &str, more: &[&str]| {
        let mut command = program(folder.path());
        command.args(["verify", "--provider", "github", "--secret-file", secret, "--body-file", body]);
        run(command.args(["--header", signature]).args(more))
    };
    let delivery = ["--header", "X-GitHub-Delivery: 72d3162e"];
    let (success, out, errors) = verify("secret", "right", &delivery);
    assert!(success && out.starts_with("verified") && out.contains("72d3162e"), "{out}{errors}");
    for (body, more, hint) in [
        ("longer", &delivery[..], "without the line break"),
        ("other", &delivery, "no webhook signature matches"),
        ("right", &[], "the signature is right"),
        ("right", &["--header", signature], "more than once"),
    ] {
        let (success, out, errors) = verify("secret", body, more);
        assert!(!success && out.starts_with("refused: ") && out.contains(hint), "{body}: {out}{errors}");
    }
    let (success, _, errors) = verify("stray", "right", &delivery);
    assert!(!success && errors.contains("space or a line break"), "{errors}");
}

fn verify_vectors() {
    let folder = tempfile::tempdir().unwrap();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/providers.json");
    let verify =
        |path: &Path, more: &[&str]| run(program(folder.path()).args(["verify", "--vectors"]).arg(path).args(more));
    let (success, out, errors) = verify(&own, &[]);
    assert!(success && out.contains(" agree, 0 deviate, 0 unsupported"), "{out}{errors}");

    let mut file: serde_json::Value = serde_json::from_slice(&std::fs::read(&own).unwrap()).unwrap();
    let vectors = file["vectors"].as_array_mut().unwrap();
    let mut unknown = vectors[0].clone();
    unknown["provider"] = "nobody".into();
    vectors.push(unknown);
    vectors[0]["expect"] = "invalid".into();
    let changed = folder.path().join("changed.json");
    std::fs::write(&changed, file.to_string()).unwrap();
    let (success, out, _) = verify(&changed, &[]);
    assert!(!success && out.contains("deviates: github-plain: valid, expected invalid"), "{out}");
    assert!(out.contains("unsupported: 1 of nobody") && out.contains("1 deviate, 1 unsupported"), "{out}");
    let (success, out, _) = verify(&changed, &["--provider", "stripe"]);
    assert!(success && out.contains("0 deviate, 0 unsupported"), "{out}");
    let (success, out, _) = verify(&changed, &["--provider", "nobody"]);
    assert!(!success && out.contains("0 agree"), "nothing judged is not a success: {out}");
}

fn examples() {
    let results = [
        ("publish_in_transaction", "1 order, 1 event, 1 delivery owed"),
        ("effect_in_transaction", "3 deliveries, 1 invoice"),
        ("one_invoice_per_order", "2 events, 1 order, 1 invoice"),
        ("receive_github", "4 requests, 1 refused, 1 build"),
        ("receive_stripe", "3 deliveries, 2 repeats, 1 payment"),
        ("idempotent_api", "4 requests, 1 refused, 1 invoice"),
        ("custom_verifier", "2 accepted, 2 refused"),
    ];
    for (name, result) in results {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["run", "--quiet", "--example", name]);
        let (success, out, errors) = run(&mut command);
        assert!(success, "{name}: {errors}");
        assert_eq!(out.lines().last(), Some(result), "{name}");
    }
    let mut named: Vec<String> = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    named.sort();
    let mut tested = results.map(|(name, _)| name);
    tested.sort_unstable();
    assert_eq!(named, tested, "every example is run here");
}

/// Every command line of the README that starts the program must at least be understood.
fn readme() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let mut checked = 0;
    let mut in_code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            in_code = !in_code;
        }
        let line = line.trim().trim_start_matches("$ ");
        let arguments = match line.strip_prefix("cargo run --release -- ").or_else(|| line.strip_prefix("twiceproof "))
        {
            Some(arguments) if in_code => arguments.split(" #").next().unwrap_or_default(),
            _ => continue,
        };
        // `--help` behind the words makes the parser judge them without running anything.
        let words: Vec<&str> =
            arguments.split_whitespace().take_while(|word| !["|", ">", "&", "\\"].contains(word)).collect();
        let commands: Vec<&str> = words.iter().take_while(|word| !word.starts_with('-')).copied().collect();
        let folder = tempfile::tempdir().unwrap();
        let (success, help, errors) = run(program(folder.path()).args(&commands).arg("--help"));
        assert!(success, "{line}: {errors}");
        for flag in words.iter().filter(|word| word.starts_with("--")) {
            let flag = flag.split('=').next().unwrap_or_default();
            assert!(help.contains(flag), "the README shows {flag} in `{line}`, which that command does not know");
        }
        checked += 1;
    }
    assert!(checked >= 4, "the README shows only {checked} commands");
}
