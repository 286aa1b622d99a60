//! Shared test bits.
