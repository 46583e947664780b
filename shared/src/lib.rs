//! What both halves of twiceproof need, and nothing else: ids, clock, randomness, secrets, signatures, the worker
//! loop, the storage seam and the ledger. This crate knows no HTTP framework and opens no network connection but the
//! database's.

#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
compile_error!("twiceproof needs a database: switch on the feature `sqlite`, `postgres` or both");

pub mod causes;
pub mod clock;
#[cfg(all(feature = "cluster", feature = "postgres"))]
pub mod cluster;
pub mod desk;
pub mod id;
pub mod key;
pub mod kill;
pub mod ledger;
pub mod metrics;
pub mod random;
pub mod retention;
pub mod seal;
pub mod secret;
pub mod signature;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod worker;
