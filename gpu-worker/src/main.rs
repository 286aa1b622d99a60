//! gpu-worker
fn main() {}
