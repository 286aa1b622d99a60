//! The public case suite, each case under its id. The rule: a case is told once, on every route and in both modes
//! that share its code, and is seen as bytes on a socket.

mod harness;
mod model;
mod process;
mod raw_http;
mod reading;
mod real;
mod scripted;
mod sse;

mod continuation;
mod disconnect;
mod error_shape;
mod growth;
mod http_surface;
mod input_parsing;
mod logprobs;
mod parameters;
mod prompts;
mod streaming_framing;
mod text;
mod tools;
mod usage;
mod waiting;
mod with_model;
