//! What commands print: results on standard output, failures on standard error.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Prints one line or block of a result. Written at once, also into a pipe.
pub(super) fn line(text: impl Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Prints a result for a script.
pub(super) fn json(value: &serde_json::Value) -> anyhow::Result<()> {
    line(format_args!("{value:#}"))
}

/// Prints an error with its causes. A reader who closed the pipe early has what they wanted.
pub(super) fn failure(error: &anyhow::Error) -> ExitCode {
    let is_closed_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(is_closed_pipe) {
        return ExitCode::SUCCESS;
    }
    let mut said = format!("error: {error}");
    message(&said);
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Many errors quote their cause already.
        if !said.contains(&cause) {
            message(&format!("  because: {cause}"));
            said = cause;
        }
    }
    ExitCode::FAILURE
}

/// Prints a message for the person who runs the command.
pub(super) fn message(text: &str) {
    // Nobody is left to be told when standard error is closed.
    let _ = writeln!(io::stderr().lock(), "{text}");
}
