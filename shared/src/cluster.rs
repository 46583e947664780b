//! A PostgreSQL cluster of our own: `initdb` in a temporary folder, loopback only, ended with the process. It can be killed
//! and started again on the same data; fsync is on.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::store::{DatabaseUrl, StoreError};

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The server's programs are not installed.
    #[error("PostgreSQL is not installed (looked for `initdb` and `postgres` in PATH and /usr/lib/postgresql)")]
    NotInstalled,
    /// Something failed on the way up.
    #[error("the throw-away PostgreSQL did not start: {0}")]
    NotStarted(String),
}

/// How a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// `pg_ctl stop -m immediate`: all its processes at once, without a checkpoint.
    Immediate,
    /// SIGKILL to the first of its processes.
    Kill,
}

/// A running cluster. It is ended on drop.
#[derive(Debug)]
pub struct Cluster {
    server: Child,
    port: u16,
    bin: PathBuf,
    folder: tempfile::TempDir,
    schemas: AtomicU64,
}

impl Cluster {
    /// Makes a cluster and starts it. Call it from the main thread of the test program: the server ends with it.
    ///
    /// # Errors
    /// [`ClusterError::NotInstalled`], or [`ClusterError::NotStarted`] with what the server said.
    pub fn start() -> Result<Self, ClusterError> {
        let bin = find_binaries().ok_or(ClusterError::NotInstalled)?;
        let failed = |error: std::io::Error| ClusterError::NotStarted(error.to_string());
        let folder = tempfile::Builder::new().prefix("twiceproof-pg-").tempdir().map_err(failed)?;
        let data = folder.path().join("data");
        if is_root() {
            // The server refuses to run as root.
            run(Command::new("chown").arg("postgres").arg(folder.path()))?;
        }
        run(as_server_user(&bin.join("initdb"))
            .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data))?;
        let port = free_port().map_err(failed)?;
        let server = Self::launch(&bin, &data, folder.path(), port).map_err(failed)?;
        let cluster = Self { server, port, bin, folder, schemas: AtomicU64::new(0) };
        cluster.wait_ready()?;
        Ok(cluster)
    }

    /// The address of the cluster's own database.
    ///
    /// # Panics
    /// Never: the address is made of a number.
    #[must_use]
    pub fn url(&self) -> DatabaseUrl {
        DatabaseUrl::parse(&format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)).expect("a valid address")
    }

    /// The address of a fresh schema.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub async fn schema(&self) -> Result<DatabaseUrl, StoreError> {
        let name = format!("t{}_{}", std::process::id(), self.schemas.fetch_add(1, Ordering::Relaxed));
        crate::store::create_schema(&self.url(), &name).await
    }

    /// Ends the server as a crash would and starts it again on the same data.
    ///
    /// # Errors
    /// [`ClusterError::NotStarted`] when it does not come back.
    pub fn crash(&mut self, how: Crash) -> Result<(), ClusterError> {
        match how {
            Crash::Immediate => self.stop(),
            Crash::Kill => {
                let _ = self.server.kill();
            }
        }
        let _ = self.server.wait();
        self.restart()
    }

    /// The server's processes notice one after another that their parent was killed; until the last has gone, a new one
    /// refuses the data.
    fn restart(&mut self) -> Result<(), ClusterError> {
        let failed = |error: std::io::Error| ClusterError::NotStarted(error.to_string());
        let deadline = Instant::now() + Duration::from_secs(30);
        let data = self.folder.path().join("data");
        loop {
            self.server = Self::launch(&self.bin, &data, self.folder.path(), self.port).map_err(failed)?;
            while self.server.try_wait().map_err(failed)?.is_none() {
                if self.is_ready() {
                    return Ok(());
                }
                if Instant::now() >= deadline {
                    return self.wait_ready();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            if Instant::now() >= deadline {
                return self.wait_ready();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn stop(&self) {
        let _ = as_server_user(&self.bin.join("pg_ctl"))
            .args(["-w", "-m", "immediate", "stop", "-D"])
            .arg(self.folder.path().join("data"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }

    fn is_ready(&self) -> bool {
        let ready = Command::new(self.bin.join("pg_isready"))
            .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .status();
        ready.is_ok_and(|status| status.success())
    }

    fn launch(bin: &Path, data: &Path, sockets: &Path, port: u16) -> std::io::Result<Child> {
        as_server_user(&bin.join("postgres"))
            .arg("-D")
            .arg(data)
            .args(["-p", &port.to_string(), "-k"])
            .arg(sockets)
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=300"])
            .args(["-c", "shared_buffers=64MB"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(sockets.join("log"))?)
            .spawn()
    }

    fn wait_ready(&self) -> Result<(), ClusterError> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if self.is_ready() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(ClusterError::NotStarted(std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The folder of `initdb` and `postgres`: of PATH, or the newest of Debian's versions.
fn find_binaries() -> Option<PathBuf> {
    let whole = |folder: &PathBuf| {
        ["initdb", "postgres", "pg_ctl", "pg_isready"].iter().all(|program| folder.join(program).is_file())
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(folder) = std::env::split_paths(&path).find(whole) {
        return Some(folder);
    }
    let mut versions: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| {
            let folder = entry.ok()?;
            let version: u32 = folder.file_name().to_str()?.parse().ok()?;
            Some((version, folder.path().join("bin")))
        })
        .filter(|(_, folder)| whole(folder))
        .collect();
    versions.sort();
    versions.pop().map(|(_, folder)| folder)
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.starts_with(b"0\n"))
}

/// The program as a user the server accepts, told to end with this process where the system can do that.
fn as_server_user(program: &Path) -> Command {
    let has_setpriv = Command::new("setpriv").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let mut command = match has_setpriv {
        Ok(status) if status.success() => {
            let mut command = Command::new("setpriv");
            if is_root() {
                command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
            }
            command.args(["--pdeathsig=KILL", "--"]).arg(program);
            command
        }
        _ => Command::new(program),
    };
    command.current_dir("/");
    command
}

fn run(command: &mut Command) -> Result<(), ClusterError> {
    let output = command.output().map_err(|error| ClusterError::NotStarted(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(ClusterError::NotStarted(String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
