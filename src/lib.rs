//! twiceproof

pub use twiceproof_dispatcher as dispatcher;
pub use twiceproof_receiver as receiver;
pub use twiceproof_shared::{clock, id, key, ledger, random, secret, signature, store, worker};

pub mod config;
pub mod health;
pub mod prove;
pub mod server;
