//! One binary of integration tests: the brain as a process, and its parts through the public API.

mod brain;
mod client;
