//! The guide: pages about whole tasks.

#[doc = include_str!("guide/sql.md")]
pub mod sql {}
