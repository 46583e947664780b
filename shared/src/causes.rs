//! An error with its causes in one line, for logs.
//!
//! Errors of ours say what the caller can do and keep the reason in `source`, where a plain `%error` would lose it.

use std::error::Error;
use std::fmt;

/// Shows an error and what caused it: `the database refused a statement: no such table: orders`.
#[must_use]
pub fn chain<'a>(error: &'a (dyn Error + 'a)) -> Chain<'a> {
    Chain(error)
}

/// What [`chain`] returns.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(&'a (dyn Error + 'a));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            // Some errors, sqlx's among them, repeat their cause in their own words.
            if !said.ends_with(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            next = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::chain;
    use crate::store::StoreError;

    #[test]
    fn every_cause_is_said_once() {
        let disk = io::Error::other("the disk is on fire");
        let error = StoreError::Unavailable(sqlx::Error::Io(disk));
        let said =
            "the database is not available for this work now: error communicating with database: the disk is on fire";
        assert_eq!(chain(&error).to_string(), said);
    }
}
