//! One worker for each SQLite file.
//!
//! Place in the path: taken when a dispatcher starts, held until it ends.
//! Invariants: the operating system frees the lock when the process ends, however it ends; whoever holds it knows that no
//! other worker lives, and may take all leases over.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// The lock beside a database file. Freed on drop.
#[derive(Debug)]
pub struct WorkerLock {
    _file: File,
}

/// The lock was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another worker runs on this file.
    #[error(
        "another worker already runs on this SQLite file ({} holds {}); stop it, leave the deliveries to it (`serve --only \
         api`), or use PostgreSQL for several workers", holder(*.process), .lock.display()
    )]
    Held {
        /// The lock file.
        lock: PathBuf,
        /// The id of the process that has it, where it can be read.
        process: Option<u32>,
    },
    /// The lock file cannot be used.
    #[error("the worker's lock file {} cannot be used", .0.display())]
    Unusable(PathBuf, #[source] io::Error),
}

fn holder(process: Option<u32>) -> String {
    process.map_or_else(|| "its process".to_owned(), |id| format!("process {id}"))
}

impl WorkerLock {
    /// Takes the lock `FILE.worker-lock` of a database file.
    ///
    /// # Errors
    /// [`LockError::Held`] where another worker has it, also one of this process.
    pub fn take(database: &Path) -> Result<Self, LockError> {
        let mut path = database.as_os_str().to_owned();
        path.push(".worker-lock");
        let path = PathBuf::from(path);
        let opened = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = opened.map_err(|error| LockError::Unusable(path.clone(), error))?;
        match file.try_lock() {
            Ok(()) => {
                sign(&mut file).map_err(|error| LockError::Unusable(path, error))?;
                Ok(Self { _file: file })
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // What is in it is a hint for people; the lock is what counts.
                let process = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                Err(LockError::Held { lock: path, process })
            }
            Err(TryLockError::Error(error)) => Err(LockError::Unusable(path, error)),
        }
    }
}

/// Says in the file who holds it.
fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_worker_on_one_file_is_refused_until_the_first_has_ended() {
        let folder = std::env::temp_dir().join(format!("twiceproof-lock-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("events.db");
        let first = WorkerLock::take(&file).unwrap();
        let refused = WorkerLock::take(&file).unwrap_err();
        let own = std::process::id();
        assert!(matches!(refused, LockError::Held { process: Some(id), .. } if id == own), "{refused}");
        assert!(refused.to_string().contains("events.db.worker-lock"), "{refused}");
        drop(first);
        assert!(WorkerLock::take(&file).is_ok());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
