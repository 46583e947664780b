//! One file for each family of signature schemes.

mod standard;

pub use standard::StandardWebhooks;
