//! gpu-worker
