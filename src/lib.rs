//! twiceproof
