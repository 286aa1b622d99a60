//! The brains of this gateway, by model. The rule: a model exists once its brain has said hello, and what is
//! known of it (vocabulary size, context, end tokens) comes from that hello, not from a second reading.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use pons_protocol::id::SequenceId;
use pons_protocol::inference::BrainHello;

use super::generation::Generation;
use super::link::Link;
use super::{BrainAddress, BrainError, BrainStatus, GenerateRequest};
use crate::error::ApiError;
use crate::openai::ServedModel;

/// A configured brain: where it listens, and how its hello becomes a served model (the gateway holds tokenizer
/// and template, which a brain never sees).
pub struct BrainSource {
    /// Name that clients use.
    pub model: String,
    /// Where the brain listens.
    pub address: BrainAddress,
    /// Completes a served model with what the brain reports.
    pub serve: Box<dyn Fn(&BrainHello) -> ServedModel + Send + Sync>,
}

/// All brains. A clone is the same pool.
#[derive(Clone)]
pub struct BrainPool {
    inner: Arc<Inner>,
}

struct Inner {
    brains: Vec<Arc<Brain>>,
    next_sequence: AtomicU64,
    recovery: Duration,
}

pub(super) struct Brain {
    pub(super) model: String,
    pub(super) link: Arc<Link>,
    source: BrainSource,
    served: RwLock<Option<Served>>,
}

struct Served {
    hello: Arc<BrainHello>,
    model: Arc<ServedModel>,
}

impl Brain {
    /// The served model, made anew only when the brain's hello differs from the last one.
    fn served(&self) -> Option<Arc<ServedModel>> {
        let known =
            |served: &Option<Served>| served.as_ref().map(|s| (Arc::clone(&s.hello), Arc::clone(&s.model)));
        let current = known(&self.served.read().unwrap_or_else(std::sync::PoisonError::into_inner));
        let Some(hello) = self.link.hello() else { return current.map(|(_, model)| model) };
        if let Some((old, model)) = current
            && (Arc::ptr_eq(&old, &hello) || *old == *hello)
        {
            return Some(model);
        }
        let model = Arc::new((self.source.serve)(&hello));
        *self.served.write().unwrap_or_else(std::sync::PoisonError::into_inner) =
            Some(Served { hello, model: Arc::clone(&model) });
        Some(model)
    }
}

impl BrainPool {
    /// Opens a link to each brain. `recovery` is how long a generation waits for a lost brain to come back.
    pub fn start(sources: Vec<BrainSource>, recovery: Duration) -> BrainPool {
        let brains = sources
            .into_iter()
            .map(|source| {
                Arc::new(Brain {
                    model: source.model.clone(),
                    link: Link::start(source.address.clone()),
                    source,
                    served: RwLock::new(None),
                })
            })
            .collect();
        BrainPool { inner: Arc::new(Inner { brains, next_sequence: AtomicU64::new(1), recovery }) }
    }

    /// Models whose brain has been seen, in configured order, each once.
    pub fn models(&self) -> Vec<Arc<ServedModel>> {
        let mut models: Vec<Arc<ServedModel>> = Vec::new();
        for brain in &self.inner.brains {
            if models.iter().all(|m| m.name != brain.model)
                && let Some(model) = brain.served()
            {
                models.push(model);
            }
        }
        models
    }

    /// The served model of that name.
    pub fn find(&self, name: &str) -> Option<Arc<ServedModel>> {
        self.inner.brains.iter().filter(|b| b.model == name).find_map(|b| b.served())
    }

    /// Starts a generation; returns when the brain has accepted all its sequences.
    ///
    /// # Errors
    /// The first refusal, no brain within the recovery time, or a passed limit, as the client should see it.
    pub async fn generate(
        &self,
        model: &ServedModel,
        request: GenerateRequest,
    ) -> Result<Generation, ApiError> {
        let mut generation = Generation::new(self.clone(), model, request);
        generation.begin().await.map_err(ApiError::from)?;
        Ok(generation)
    }

    /// State of every brain, in configured order.
    pub fn status(&self) -> Vec<BrainStatus> {
        let now = Instant::now();
        let status = |brain: &Arc<Brain>| {
            let (capacity, heard) = brain.link.capacity();
            let hello = brain.link.hello();
            BrainStatus {
                model: brain.model.clone(),
                connected: hello.is_some(),
                hello,
                capacity,
                last_heard_age_ms: heard.map_or(u64::MAX, |at| (now - at).as_millis() as u64),
            }
        };
        self.inner.brains.iter().map(status).collect()
    }

    pub(super) fn recovery(&self) -> Duration {
        self.inner.recovery
    }

    pub(super) fn new_sequence(&self) -> SequenceId {
        SequenceId(self.inner.next_sequence.fetch_add(1, Ordering::Relaxed))
    }

    /// The least loaded connected brain of a model whose numeric path is `fingerprint`; waits for one to appear.
    pub(super) async fn pick(
        &self,
        model: &str,
        fingerprint: &str,
        until: tokio::time::Instant,
    ) -> Result<Arc<Link>, BrainError> {
        let candidates: Vec<_> = self.inner.brains.iter().filter(|b| b.model == model).collect();
        let unavailable = || BrainError::Unavailable { model: model.to_owned() };
        loop {
            // Watched before the look, so that a brain that connects in between is not missed.
            let mut watches: Vec<_> = candidates.iter().map(|b| b.link.watch()).collect();
            watches.iter_mut().for_each(|w| drop(w.borrow_and_update()));
            let fits = |b: &&&Arc<Brain>| b.link.hello().is_some_and(|h| h.fingerprint == fingerprint);
            let load = |b: &&&Arc<Brain>| {
                let (capacity, _) = b.link.capacity();
                (capacity.waiting, capacity.running)
            };
            if let Some(brain) = candidates.iter().filter(fits).min_by_key(load) {
                return Ok(Arc::clone(&brain.link));
            }
            if watches.is_empty() {
                return Err(unavailable());
            }
            let changes = watches.iter_mut().map(|w| Box::pin(w.changed()));
            let change = futures_util::future::select_all(changes);
            if tokio::time::timeout_at(until, change).await.is_err() {
                return Err(unavailable());
            }
        }
    }
}
