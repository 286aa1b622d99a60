//! Stand-in for the brain pool.
#![allow(missing_docs)]
use crate::error::ApiError;
use crate::openai::{SequenceSpec, ServedModel};
use pons_protocol::capacity::Capacity;
use pons_protocol::id::TenantId;
use pons_protocol::inference::SequenceOutput;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct BrainPool;
impl BrainPool {
    pub fn models(&self) -> Vec<Arc<ServedModel>> {
        vec![]
    }
    pub fn find(&self, _name: &str) -> Option<Arc<ServedModel>> {
        None
    }
    pub async fn generate(&self, _: &ServedModel, _: GenerateRequest) -> Result<Generation, ApiError> {
        Ok(Generation)
    }
    pub fn status(&self) -> Vec<BrainStatus> {
        vec![]
    }
}
#[derive(Debug)]
pub struct Timeouts {
    pub first_token: Duration,
    pub inter_token: Duration,
    pub total: Duration,
}
#[derive(Debug)]
pub struct GenerateRequest {
    pub tenant: TenantId,
    pub cache_salt: [u8; 16],
    pub priority: i32,
    pub sequences: Vec<SequenceSpec>,
    pub timeouts: Timeouts,
}
#[derive(Debug)]
pub struct Generation;
impl Generation {
    pub async fn next(&mut self) -> Option<GenerationEvent> {
        None
    }
    pub fn stop(&mut self, _choice: usize) {}
}
#[derive(Debug)]
pub enum GenerationEvent {
    Output { choice: usize, output: SequenceOutput },
    Failed(ApiError),
}
#[derive(Debug)]
pub struct BrainStatus {
    pub model: String,
    pub connected: bool,
    pub capacity: Capacity,
    pub last_heard_age_ms: u64,
    pub restarts: u64,
}
