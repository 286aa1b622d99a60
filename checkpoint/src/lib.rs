//! checkpoint
