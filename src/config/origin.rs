//! Where a value stands, so that a message can send its reader there.

use std::fmt;
use std::path::PathBuf;

/// Where a setting got its value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A line of the TOML file.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment {
        /// Name of the variable.
        variable: String,
    },
    /// A flag of the command line.
    Flag {
        /// The flag with its dashes.
        flag: &'static str,
    },
    /// The content of a file that another layer named.
    SecretFile {
        /// The file that holds the value.
        path: PathBuf,
        /// Where that file was named.
        named_by: Box<Origin>,
    },
}

impl Origin {
    /// One word for scripts: `default`, `file`, `environment`, `flag` or `secret_file`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::File { .. } => "file",
            Origin::Environment { .. } => "environment",
            Origin::Flag { .. } => "flag",
            Origin::SecretFile { .. } => "secret_file",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => out.write_str("default"),
            Origin::File { path, line } => write!(out, "{}:{line}", path.display()),
            Origin::Environment { variable } => out.write_str(variable),
            Origin::Flag { flag } => out.write_str(flag),
            Origin::SecretFile { path, named_by } => write!(out, "{} (named by {named_by})", path.display()),
        }
    }
}
