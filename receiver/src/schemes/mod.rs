//! How senders sign: families of schemes, and the providers as data over them.
//!
//! Place in the path: made when a source is built; asked by `verify` about each request.
//! Invariants: one file for each family. `standard` follows the specification. `hmac` is everything that keys a hash with
//! a shared secret over body, time and id: the raw body in hexadecimal behind a prefix (GitHub) or in base64 (Shopify),
//! time in a header of its own (Slack) or as pairs in the signature's header (Stripe) are settings of it, not code.

mod hmac;
mod identify;
mod provider;
mod standard;

pub use hmac::{Algorithm, Encoding, HmacScheme, SchemeError, SecretEncoding, TimeUnit};
pub use provider::{KeySource, Provider};
pub use standard::StandardWebhooks;
