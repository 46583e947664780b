//! An accepted event is delivered to every subscribed endpoint: at least once, under one stable event id, signed, with
//! exponential backoff, until the endpoint answers 2xx or the retry horizon ends.

pub mod decide;
pub mod destination;
pub mod exchange;
pub mod guard;
pub mod request;
pub mod retry_after;
pub mod schedule;
pub mod send;
