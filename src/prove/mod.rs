//! The proof kit: what it takes to send a webhook twice, late, changed or not at all, to kill whoever was busy with it, and
//! to see what came of it.
//!
//! Harm is done by [`Front`], a front door that may hang up on a request, and by [`Proxy`], which cuts, halves, delays and
//! swallows on any TCP connection; [`Hop`] sends exactly the bytes it is given. What happened is a [`history`], and
//! [`check`] judges one, whoever wrote it. [`crash`] puts all of it to work on the real program. Everything stays on the
//! addresses it is given and follows no redirect.

mod check;
pub mod crash;
mod front;
pub mod history;
mod hop;
mod listen;
mod proxy;

pub use check::{Finding, Kind, Verdict, check};
pub use front::{Front, HungUp};
pub use hop::{Answer, Hop, HopError, Message};
pub use proxy::{Fault, Proxy};
