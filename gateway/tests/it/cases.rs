//! The public case suite, each case under its id. The rule: a case is told once, on every route and in both modes
//! that share its code.

mod streaming_framing;
