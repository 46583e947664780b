//! The proof kit: what it takes to send a webhook twice, late, changed or not at all, and to see what came of it.
//!
//! It begins with two ends of a misbehaving network: [`Front`], a front door that may hang up without an answer, and
//! [`Hop`], a client that sends exactly the bytes it is given. Both stay on the addresses they are given and follow no
//! redirect.

mod front;
mod hop;

pub use front::{Front, HungUp};
pub use hop::{Answer, Hop, HopError, Message};
