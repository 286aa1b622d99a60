//! What every request shares. The rule: it is built once, and what changes in it is behind a lock held for a
//! few instructions or is an atomic.

use crate::brain::BrainPool;
use crate::brains::Brains;
use crate::config::{ModelConfig, ResolvedConfig};
use crate::error::ApiError;
use crate::openai::ServedModel;
use crate::store::{KeyRing, Store, hash_key};
use crate::telemetry::Metrics;
use rand::Rng;
use rand::distr::Alphanumeric;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Most rejected requests whose unread body is taken off the wire at one time.
const MAX_UNREAD_BODIES: usize = 64;

/// The gateway's shared state.
pub struct App {
    /// The configuration.
    pub config: ResolvedConfig,
    /// Durable state.
    pub store: Store,
    /// The brains.
    pub brains: Brains,
    /// Metrics.
    pub metrics: Metrics,
    /// One permit for each generating request.
    pub in_flight: Arc<Semaphore>,
    /// One permit for each thread that may parse and tokenize large bodies.
    pub compute: Arc<Semaphore>,
    /// One permit for each KiB of the bodies held.
    pub bodies: Arc<Semaphore>,
    /// One permit for each rejected request whose body is still being read.
    pub unread: Arc<Semaphore>,
    /// Cancelled when the server begins to drain: nothing new is accepted.
    pub draining: CancellationToken,
    /// Cancelled when the drain is over: what still runs ends with an error.
    pub abort: CancellationToken,
    admin_token: [u8; 32],
}

impl App {
    /// Puts the parts together. `admin_token` opens the admin routes.
    pub fn new(config: ResolvedConfig, store: Store, brains: Brains, admin_token: &str) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            metrics: Metrics::new(config.models.iter().map(|model| model.name.clone())),
            in_flight: Arc::new(Semaphore::new(config.limits.in_flight)),
            compute: Arc::new(Semaphore::new(threads)),
            bodies: Arc::new(Semaphore::new(config.limits.bodies_bytes.div_ceil(1024))),
            unread: Arc::new(Semaphore::new(MAX_UNREAD_BODIES)),
            draining: CancellationToken::new(),
            abort: CancellationToken::new(),
            admin_token: hash_key(admin_token),
            config,
            store,
            brains,
        }
    }

    /// The links to the brains.
    pub fn pool(&self) -> &BrainPool {
        self.brains.pool()
    }

    /// The valid keys as of now.
    pub fn keys(&self) -> Arc<KeyRing> {
        self.store.keys()
    }

    /// Whether this is the admin token. Hashes are compared, in constant time.
    pub fn is_admin_token(&self, token: &str) -> bool {
        use subtle::ConstantTimeEq;
        hash_key(token).ct_eq(&self.admin_token).into()
    }

    /// The configuration of a model.
    pub fn model_config(&self, name: &str) -> Option<&ModelConfig> {
        self.config.models.iter().find(|model| model.name == name)
    }

    /// The model, or the error that says whether it is unknown or not up yet.
    pub fn model(&self, name: &str) -> Result<Arc<ServedModel>, ApiError> {
        if let Some(model) = self.pool().find(name) {
            return Ok(model);
        }
        if self.model_config(name).is_some() {
            return Err(ApiError::overloaded(
                format!("the model '{name}' is still loading; try again soon"),
                2,
            ));
        }
        Err(ApiError::model_not_found(name))
    }
}

/// Random letters and digits.
pub(crate) fn random_id(length: usize) -> String {
    rand::rng().sample_iter(Alphanumeric).take(length).map(char::from).collect()
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("listen", &self.config.listen).finish_non_exhaustive()
    }
}
