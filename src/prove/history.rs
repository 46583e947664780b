//! What happened, one fact a line: what a client was told, what arrived, what stands in the database at the end.
//!
//! A history is JSON lines, so that any program in any language can write one and have it judged by [`check`](super::check).
//! Invariants: an operation ends as accepted, failed or *unknown*, and a fact is written before anybody can learn of it.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Milliseconds since the history began.
    pub at_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub fact: Fact,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fact {
    /// A client begins to publish, under its own id of the event.
    Offered {
        /// The client's own id.
        uid: String,
        /// The client writes a row of its own in the same transaction.
        #[serde(default)]
        with_row: bool,
    },
    /// The client was told that its event is accepted.
    Accepted {
        /// The client's own id.
        uid: String,
        /// The id under which it is delivered.
        event: String,
        /// False: it had been accepted before.
        fresh: bool,
    },
    /// The client was told that its event is not accepted, and that nothing happened.
    Failed {
        /// The client's own id.
        uid: String,
        /// What it was told.
        error: String,
    },
    /// The client was told nothing, or that nobody knows.
    Unknown {
        /// The client's own id.
        uid: String,
        /// What it was told, if anything.
        error: String,
    },
    /// The client rolled its own transaction back after it had published.
    RolledBack {
        /// The client's own id.
        uid: String,
    },
    /// A request came to the receiver.
    Arrived {
        /// The event's id.
        event: String,
        /// The request's body.
        body: String,
    },
    /// The receiver is about to answer.
    Answered {
        /// The event's id.
        event: String,
        /// HTTP status.
        status: u16,
        /// The answer says that it was stored before.
        replayed: bool,
        /// The answer's body.
        body: String,
    },
    /// Something was done to a process or a connection.
    Struck {
        /// To what, and what.
        fault: String,
    },
    /// At the end: an event is stored.
    Stored {
        /// The client's own id; empty where it gave none.
        uid: String,
        /// The event's id.
        event: String,
    },
    /// At the end: the row that a client wrote in the transaction of its event is stored.
    Row {
        /// The client's own id.
        uid: String,
    },
    /// At the end: an effect is stored.
    Effect {
        /// The event's id.
        event: String,
        /// What the receiver answers for this effect, where its answer tells effects apart.
        answer: Option<String>,
    },
    /// At the end: what the receiver's ledger knows of an event.
    Processed {
        /// The event's id.
        event: String,
        /// Whether it is done; else it is claimed.
        done: bool,
        /// The stored answer's body.
        answer: Option<String>,
    },
    /// At the end: a delivery.
    Delivery {
        /// The event's id.
        event: String,
        /// Its state.
        state: String,
    },
    /// At the end: an attempt, in the order in which they were recorded.
    Attempt {
        /// The event's id.
        event: String,
        /// Counted from 1 for each delivery.
        number: i64,
        /// The fencing token under which it was made.
        token: i64,
        /// Whether it was recorded as delivered.
        delivered: bool,
        /// Whether it came after its lease was lost, and changed nothing.
        late: bool,
    },
}

/// Writes a history.
///
/// # Errors
/// What writing says.
pub fn write(history: &[Entry], mut to: impl Write) -> io::Result<()> {
    for entry in history {
        serde_json::to_writer(&mut to, entry)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// Reads a history. Empty lines are passed over.
///
/// # Errors
/// What reading says; for a line that is no fact, its number.
pub fn read(from: impl BufRead) -> io::Result<Vec<Entry>> {
    let mut history = Vec::new();
    for (number, line) in from.lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let entry = serde_json::from_str(&line)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {error}", number + 1)))?;
        history.push(entry);
    }
    Ok(history)
}

#[cfg(test)]
mod tests {
    use super::{Entry, Fact, read, write};

    #[test]
    fn a_history_that_was_written_is_read_again() {
        let history = vec![
            Entry { at_ms: 1, fact: Fact::Offered { uid: "a".into(), with_row: false } },
            Entry { at_ms: 2, fact: Fact::Accepted { uid: "a".into(), event: "msg_1".into(), fresh: true } },
            Entry { at_ms: 9, fact: Fact::Effect { event: "msg_1".into(), answer: None } },
        ];
        let mut bytes = Vec::new();
        write(&history, &mut bytes).unwrap();
        assert_eq!(read(&bytes[..]).unwrap(), history);
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.lines().next().unwrap(), r#"{"at_ms":1,"what":"offered","uid":"a","with_row":false}"#);
    }

    #[test]
    fn a_line_that_is_no_fact_is_named() {
        let error = read(&b"\n{\"at_ms\":1,\"what\":\"guessed\"}\n"[..]).unwrap_err();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
    }
}
