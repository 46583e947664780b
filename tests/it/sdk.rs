//! The official SDKs of the API, each against the real program.
//!
//! The SDKs come from their registries: `tests/sdk/install DIR` puts them, and the Rust tour, into a folder that
//! `TWICEPROOF_TEST_SDKS` names; where that is not set these tests are ignored.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::{Bed, Suite};
use crate::kill::binary;

pub fn register(suite: &mut Suite) {
    let installed = std::env::var_os("TWICEPROOF_TEST_SDKS").map(PathBuf::from);
    suite.both_given(&installed, "sdk::the_rust_sdk_makes_the_whole_tour", |bed, sdks| async move {
        other(bed, &[&sdks.join("rust/debug/tour")]).await;
    });
    suite.both_given(&installed, "sdk::the_python_sdk_makes_the_whole_tour", |bed, sdks| async move {
        other(bed, &[&sdks.join("python/bin/python"), Path::new("tour.py")]).await;
    });
    suite.both_given(&installed, "sdk::the_javascript_sdk_makes_the_whole_tour", |bed, sdks| async move {
        // Modules are looked for beside the script.
        let script = sdks.join("javascript/tour.mjs");
        std::fs::copy(tours().join("tour.mjs"), &script).unwrap();
        other(bed, &[Path::new("node"), &script]).await;
    });
}

fn tours() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk")
}

/// The program as it serves a database, with tokens of two organisations.
struct Serving {
    child: Child,
    url: String,
    tokens: [String; 2],
    _folder: tempfile::TempDir,
}

impl Serving {
    async fn start(bed: &Bed) -> Self {
        bed.db.store(None).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("jwt.secret");
        std::fs::write(&secret, "a secret of the tests that is long enough\n").unwrap();
        let program = || {
            let mut command = Command::new(binary());
            for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TWICEPROOF_")) {
                command.env_remove(name);
            }
            command.current_dir(folder.path()).arg("--set").arg(format!("api.jwt_secret_file={}", secret.display()));
            command
        };
        let token = |organisation: &[&str]| {
            let output = program().arg("token").args(organisation).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let tokens = [token(&[]), token(&["--organization", "org_23rb8YdGqMT0qIzpgGwdXfHirMu"])];
        let mut child = program()
            .args(["serve", "--listen", "127.0.0.1:0", "--allow-private-addresses", "--log-level", "warn"])
            .args(["--database", &bed.db.url().expose()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("it said {line:?}")).to_owned();
        Self { child, url, tokens, _folder: folder }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A tour: a program that ends well only if all was as it should be.
async fn other(bed: Bed, words: &[&Path]) {
    let serving = Serving::start(&bed).await;
    let mut command = Command::new(words[0]);
    command.current_dir(tours()).args(&words[1..]).arg(&serving.url).args(&serving.tokens).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.trim_end().ends_with("ok the end"), "{said}");
}
