//! The worker against real sockets and a real database, on a clock that the tests move.

#![cfg(feature = "sqlite")]

mod endpoints;
mod leases;
mod outcomes;
mod running;
