//! The public case suite, each case under its id. The rule: a case is told once, on every route and in both modes
//! that share its code, and is seen as bytes on a socket.

mod harness;
mod model;
mod raw_http;
mod reading;
mod scripted;
mod sse;

mod error_shape;
mod http_surface;
mod input_parsing;
mod streaming_framing;
