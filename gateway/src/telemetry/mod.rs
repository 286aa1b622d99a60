//! Logs and metrics. The rule: no prompt or output text in either, and no label value that a client chooses.

mod log;
mod metrics;
mod process;

pub use log::{LogError, start_log};
pub use metrics::{Metrics, RequestSample};
