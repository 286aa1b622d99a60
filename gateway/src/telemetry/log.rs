//! Log lines through `tracing`. The rule: they go to standard error, so that standard output stays the
//! commands' own.

use crate::config::LogFormat;
use tracing_subscriber::EnvFilter;

/// The filter can't be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log filter {filter:?} can't be read: {reason}; write a level such as info, or target=level pairs")]
pub struct LogError {
    filter: String,
    reason: String,
}

/// Starts the log of this process. A second call changes nothing.
pub fn start_log(filter: &str, format: LogFormat) -> Result<(), LogError> {
    let parsed = EnvFilter::try_new(filter)
        .map_err(|error| LogError { filter: filter.to_owned(), reason: error.to_string() })?;
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    // Tests start several servers in one process; the first log stays.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}
