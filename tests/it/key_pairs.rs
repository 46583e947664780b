//! Private keys by the program alone: made, given to endpoints, used by `serve`, and judged by `verify` with what
//! `endpoint add` showed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use twiceproof::prove::Message;
use twiceproof_shared::signature;

use crate::dispatch::{answer, header, sink};
use crate::harness::{Bed, Suite};
use crate::program::{program, run};

pub fn register(suite: &mut Suite) {
    suite.both("program::what_is_signed_with_a_key_pair_is_verified_by_its_public_key_alone", key_pairs);
}

async fn key_pairs(bed: Bed) {
    let folder = tempfile::tempdir().unwrap();
    let database = bed.db.url().expose();
    let run_here = async |args: &[&str]| {
        let mut command = program(folder.path());
        command.env("TWICEPROOF_DATABASE", &database).env("TWICEPROOF_ALLOW_PRIVATE_ADDRESSES", "true").args(args);
        let (success, out, errors) = tokio::task::spawn_blocking(move || run(&mut command)).await.unwrap();
        assert!(success, "{args:?}: {errors}");
        out
    };
    run_here(&["migrate"]).await;
    let made = run_here(&["keygen", "--key-pair"]).await;
    assert!(made.starts_with("whsk_"));
    std::fs::write(folder.path().join("made"), made).unwrap();

    // One endpoint with a key from `keygen`, one with a key of its own.
    let (front, seen) = sink(|_, _| answer(204)).await;
    for (path, more) in [("made", &[][..]), ("generated", &["--generate", "--key-pair"])] {
        let url = format!("http://{}/{path}", front.address());
        let out = run_here(&[&["endpoint", "add", &url, "--secret-file", path, "--json"], more].concat()).await;
        let shown: serde_json::Value = serde_json::from_str(&out).unwrap();
        let public = shown["public_key"].as_str().unwrap();
        assert!(public.starts_with("whpk_") && !out.contains("whsk_"), "{out}");
        std::fs::write(folder.path().join(format!("{path}.public")), public).unwrap();
    }
    run_here(&["event", "publish", "--type", "order.placed", "--data", r#"{"order":1}"#]).await;

    let mut serving = program(folder.path())
        .env("TWICEPROOF_DATABASE", &database)
        .args(["serve", "--listen", "127.0.0.1:0", "--allow-private-addresses", "--log-level", "error"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    for _ in 0..3_000 {
        if seen.lock().unwrap().len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let _ = Command::new("kill").args(["-TERM", &serving.id().to_string()]).status();
    assert!(crate::fixture::ended(&mut serving).await.success());

    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    for message in seen.iter() {
        assert!(header(message, signature::SIGNATURE).starts_with("v1a,"));
        let own = message.path.trim_start_matches('/');
        let other = if own == "made" { "generated" } else { "made" };
        let (success, out) = verified(folder.path(), message, own, &message.body);
        assert!(success && out.starts_with("verified"), "{own}: {out}");
        for (key, body) in [(other, message.body.as_ref()), (own, br#"{"order":2}"#)] {
            let (success, out) = verified(folder.path(), message, key, body);
            assert!(!success && out.starts_with("refused: "), "{out}");
        }
    }
}

/// What `verify` says to the message with this body, by the public key of this name.
fn verified(folder: &Path, message: &Message, key: &str, body: &[u8]) -> (bool, String) {
    std::fs::write(folder.join("body"), body).unwrap();
    let mut command = program(folder);
    command.args(["verify", "--provider", "standard-webhooks", "--body-file", "body", "--secret-file"]);
    command.arg(format!("{key}.public"));
    for name in [signature::ID, signature::TIMESTAMP, signature::SIGNATURE] {
        command.arg("--header").arg(format!("{name}: {}", header(message, name)));
    }
    let (success, out, _) = run(&mut command);
    (success, out)
}
