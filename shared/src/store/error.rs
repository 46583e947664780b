//! What can go wrong between us and the database, named by what the caller can do about it.

use std::borrow::Cow;

/// An error of the storage seam.
///
/// Causes are kept in `source`; none of the texts holds a value from a row, a parameter or a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another transaction is in the way (lock, serialization failure, full pool). Run the whole transaction again.
    #[error("the database is busy, or gives no connection in time; run the whole transaction again")]
    Busy(#[source] sqlx::Error),

    /// The database cannot be reached or cannot write now (down, read-only, disk full). Try again later.
    #[error("the database is not available for this work now")]
    Unavailable(#[source] sqlx::Error),

    /// A COMMIT was sent and no answer came: it may have happened. Look the work's own key up before anything else.
    #[error("the outcome of a commit is unknown; look the key up before running the work again")]
    Unknown(#[source] sqlx::Error),

    /// An earlier statement of this transaction failed, so that its COMMIT would be a rollback.
    #[error("the transaction has already failed; roll it back")]
    TransactionFailed(#[source] sqlx::Error),

    /// A unit of work ended the transaction it ran in (its own COMMIT or ROLLBACK, or `OR ROLLBACK`).
    #[error("a unit of work ended the transaction it ran in; it must leave COMMIT and ROLLBACK to the store")]
    EndedByUnit,

    /// Another holder took the claim over; what this one wrote must be rolled back.
    #[error("another holder took the claim over; roll back")]
    LeaseLost,

    /// A unit of work panicked; what it wrote was rolled back.
    #[error("a unit of work panicked; what it wrote was rolled back")]
    Panicked,

    /// A unit of work called back into its own store, which would wait for itself.
    #[error("the store was called from inside a unit of work; use the `Conn` the unit was given")]
    Reentrant,

    /// The store was closed while the work waited.
    #[error("the store is closed")]
    Closed,

    /// The database, its settings or its schema cannot be used safely. Change what the text says.
    #[error("{0}")]
    Refused(Cow<'static, str>),

    /// The statement itself was refused (constraint, type, missing table): a mistake in the statement or the schema.
    #[error("the database refused a statement")]
    Statement(#[source] sqlx::Error),
}

impl StoreError {
    /// True where the same work may succeed when it is run again, without any change.
    ///
    /// After [`StoreError::Unknown`] only work with a key of its own (a uid, a ledger key) may be run again: without one it
    /// could happen twice.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Unavailable(_) | Self::Unknown(_))
    }

    pub(crate) fn refused(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused(text.into())
    }

    /// The error of a COMMIT. Only an answer from the database itself proves that nothing was committed.
    pub(crate) fn of_commit(error: sqlx::Error) -> Self {
        match Self::from(error) {
            Self::Unavailable(cause) => Self::Unknown(cause),
            other => other,
        }
    }

    /// This error, where it kept us from looking up what became of an earlier COMMIT.
    #[must_use]
    pub fn while_unknown(self) -> Self {
        match self {
            Self::Busy(cause) | Self::Unavailable(cause) => Self::Unknown(cause),
            other => other,
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(cause) => match classify(cause.code().as_deref().unwrap_or("")) {
                Class::Busy => Self::Busy(error),
                Class::Unavailable => Self::Unavailable(error),
                Class::Failed => Self::TransactionFailed(error),
                Class::Ended => Self::EndedByUnit,
                Class::Statement => Self::Statement(error),
            },
            sqlx::Error::PoolTimedOut => Self::Busy(error),
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolClosed
            | sqlx::Error::BeginFailed
            | sqlx::Error::WorkerCrashed => Self::Unavailable(error),
            _ => Self::Statement(error),
        }
    }
}

enum Class {
    Busy,
    Unavailable,
    Failed,
    Ended,
    Statement,
}

/// Reads a SQLSTATE (five characters) or an SQLite extended result code (a number).
fn classify(code: &str) -> Class {
    match code {
        "40001" | "40P01" | "55P03" => Class::Busy,
        "25P02" => Class::Failed,
        // A savepoint is to be ended and there is no transaction.
        "25P01" => Class::Ended,
        // 25P03, 25P04: the server ended a transaction that idled or took too long.
        "25006" | "25P03" | "25P04" | "57014" => Class::Unavailable,
        _ if code.len() == 5 => match &code[..2] {
            "08" | "53" | "57" | "58" => Class::Unavailable,
            _ => Class::Statement,
        },
        // The low byte is the primary code: 5 BUSY, 6 LOCKED, 8 READONLY, 10 IOERR, 13 FULL, 14 CANTOPEN.
        _ => match code.parse::<u32>().unwrap_or(0) & 0xff {
            5 | 6 => Class::Busy,
            8 | 10 | 13 | 14 => Class::Unavailable,
            _ => Class::Statement,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, classify};

    #[test]
    fn codes_of_both_databases_are_told_apart() {
        assert!(matches!(classify("40001"), Class::Busy));
        assert!(matches!(classify("517"), Class::Busy));
        assert!(matches!(classify("25006"), Class::Unavailable));
        assert!(matches!(classify("57P01"), Class::Unavailable));
        assert!(matches!(classify("13"), Class::Unavailable));
        assert!(matches!(classify("25P02"), Class::Failed));
        assert!(matches!(classify("25P01"), Class::Ended));
        assert!(matches!(classify("25P03"), Class::Unavailable));
        assert!(matches!(classify("23505"), Class::Statement));
        assert!(matches!(classify("2067"), Class::Statement));
        assert!(matches!(classify(""), Class::Statement));
    }
}
