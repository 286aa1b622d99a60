//! The server as its clients see it: started in process on a free port, with a scripted brain behind it.

mod admin;
mod auth;
mod brain;
mod cases;
mod commands;
mod errors;
mod harness;
mod streams;
mod surface;
