//! The gateway from outside: a server in this process, a scripted or a real brain behind it, bytes on a socket
//! before it. The rule: a test speaks HTTP, and sees what a client sees.

#![allow(clippy::unwrap_used)]

mod cases;
mod harness;
mod model;
mod raw_http;
mod reading;
mod scripted;
mod sse;
