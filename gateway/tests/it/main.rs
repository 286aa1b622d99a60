//! The server as its clients see it: started in process on a free port, with a scripted brain behind it.

// A test that can't set its stage has failed; the harness is part of the test.
#![allow(clippy::unwrap_used)]

mod admin;
mod auth;
mod brain;
mod cases;
mod commands;
mod connections;
mod errors;
mod harness;
mod streams;
mod surface;
