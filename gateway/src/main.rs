//! gateway
fn main() {}
