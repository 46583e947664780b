//! twiceproof

pub mod config;
pub mod server;
