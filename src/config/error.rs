//! What can be wrong with the settings. Every text names the setting, the place where it stands and what to do.

use std::path::PathBuf;

use super::Origin;

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key or variable that no setting has: correct the name or remove it.
    #[error("{origin}: unknown setting `{name}`; {hint}")]
    Unknown {
        /// The name as it was written.
        name: String,
        /// Where it stands.
        origin: Origin,
        /// The name that was probably meant, or all that are known.
        hint: String,
    },

    /// A value that cannot be read: write it as the text says.
    #[error("{origin}: `{name}` {reason}")]
    Invalid {
        /// The setting.
        name: String,
        /// Where the value stands.
        origin: Origin,
        /// What is wrong with it and how to write it; never quotes a secret.
        reason: String,
    },

    /// A setting and its `…_file` twin in the same layer: keep one.
    #[error("{origin}: `{name}` and `{name}_file` are both set; keep one of them")]
    Twice {
        /// The setting.
        name: &'static str,
        /// Where one of them stands.
        origin: Origin,
    },

    /// Two settings contradict each other: change one, or name the override.
    #[error("{0}")]
    Contradiction(String),

    /// The file is not TOML.
    #[error("{}:{line}: not valid TOML: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },

    /// A file that was named cannot be read.
    #[error("cannot read {} ({named_by})", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Where it was named.
        named_by: Origin,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}
