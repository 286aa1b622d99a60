//! The public case suite, each case under its id. The rule: a case is told once, on every route and in both modes
//! that share its code, and is seen as bytes on a socket.
//!
//! What these tests leave out:
//!
//! - Needs remote brains, which this build does not have: `c-tool-call-streaming-02` (a provider that leaves the index
//!   out), `c-tool-call-streaming-06` (a provider's Responses events become chat deltas), and of
//!   `c-usage-accounting-04` the shape in which a provider sends its usage. Where the fault of an upstream case exists
//!   on our own link to a brain (frames cut anywhere, several in one read, half a frame, silence), it is tested there.
//! - Needs `/v1/responses`: `c-resource-growth-02`, and that route's part of `c-input-parsing-01` and
//!   `c-prompt-and-context-04`.
//! - Needs rate limits: the 429 of `c-error-shape-02`; a full server answers 503.
//! - Read by the official SDKs, where a case asks for it: `tests/sdk`, which drives a whole server.

mod harness;
mod model;
mod process;
mod raw_http;
mod reading;
mod real;
mod refusals;
mod scripted;
mod settling;
mod sse;

mod continuation;
mod disconnect;
mod durability;
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
