//! Webhooks may come twice; their effects don't.
//!
//! twiceproof is a webhook toolkit with two halves. The [`dispatcher`] sends events: at least once, under one stable
//! event id, signed, with exponential backoff, until the endpoint answers 2xx or the retry horizon ends. The [`receiver`]
//! takes events in: it verifies the signature on the raw bytes, records the processed id in the same database transaction
//! as the effect, and answers replays with the stored bytes.
//!
//! > Accepted means durable. Delivered at least once, under one stable event id. Effects happen once where the effect is
//! > in the same database transaction as the event record; elsewhere once only if the downstream call carries our key or
//! > can be asked first.
//!
//! This crate is the facade over both halves and what they share, and holds what only the program needs: its settings
//! ([`config`]), its REST API behind the layer for `Idempotency-Key` ([`api`]), an HTTP server with limits ([`server`]), `/live` and `/ready` ([`health`]), and the [`demo`] with the
//! proof kit behind it ([`prove`]), and the measuring kit ([`mod@bench`]). A service that needs one half only can depend on that half's crate.
//!
//! | to | begin with |
//! |---|---|
//! | publish in your own transaction | [`dispatcher::Publisher`] |
//! | deliver what was published | [`dispatcher::Dispatcher`] |
//! | manage endpoints | [`dispatcher::Manager`] |
//! | receive a sender's webhooks | [`receiver::Receiver`], [`receiver::Source`], [`receiver::Handler`] |
//! | answer repeats of your own API's requests | [`receiver::idempotency::IdempotencyLayer`] |
//! | open a database, or lend your own connection | [`store::Store`] |
//!
//! Cargo features: `sqlite` and `postgres`, both on by default. At least one must be on.

pub use twiceproof_dispatcher as dispatcher;
pub use twiceproof_receiver as receiver;
pub use twiceproof_shared::{clock, id, key, kill, ledger, random, seal, secret, signature, store, worker};

pub mod api;
pub mod bench;
pub mod config;
pub mod demo;
pub mod guide;
pub mod health;
pub mod metrics;
pub mod prove;
pub mod server;

/// The examples of the README are compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
