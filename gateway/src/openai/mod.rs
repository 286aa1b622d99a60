//! Stand-in for the OpenAI surface.
#![allow(missing_docs)]
use crate::error::ApiError;
use bytes::BytesMut;
use pons_protocol::inference::SequenceOutput;
use pons_protocol::sampling::{Grammar, SamplingParams, StopParams};
use serde_json::Value;
use std::sync::Arc;

mod served;
pub use served::{RequestLimits, ServedModel};
#[derive(Debug)]
pub struct RequestContext {
    pub id: String,
    pub created: u64,
    pub entropy: u64,
}
pub mod json {
    use super::*;
    pub fn parse(body: &[u8]) -> Result<Value, ApiError> {
        Ok(serde_json::from_slice(body).unwrap_or(Value::Null))
    }
}
pub fn model_name(body: &Value) -> Result<&str, ApiError> {
    Ok(body["model"].as_str().unwrap_or_default())
}
pub fn prepare_chat(
    body: Value,
    model: &Arc<ServedModel>,
    ctx: RequestContext,
) -> Result<Prepared, ApiError> {
    prepare_completion(body, model, ctx)
}
pub fn prepare_completion(
    body: Value,
    _: &Arc<ServedModel>,
    _: RequestContext,
) -> Result<Prepared, ApiError> {
    Ok(Prepared {
        sequences: vec![],
        stream: body["stream"].as_bool().unwrap_or(false),
        reply: Reply,
        priority: 0,
    })
}
#[derive(Debug)]
pub struct Prepared {
    pub sequences: Vec<SequenceSpec>,
    pub stream: bool,
    pub reply: Reply,
    pub priority: i32,
}
#[derive(Debug)]
pub struct SequenceSpec {
    pub prompt: Vec<u32>,
    pub sampling: SamplingParams,
    pub stop: StopParams,
    pub grammar: Option<Grammar>,
}
#[derive(Debug)]
pub struct Reply;
impl Reply {
    pub fn open(&mut self, _out: &mut BytesMut) {}
    pub fn push(&mut self, _choice: usize, _output: &SequenceOutput, _out: &mut BytesMut) -> ChoiceState {
        ChoiceState::Done
    }
    pub fn is_complete(&self) -> bool {
        true
    }
    pub fn close(&mut self, out: &mut BytesMut) {
        out.extend_from_slice(b"{}");
    }
    pub fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        out.extend_from_slice(&error.body());
    }
    pub fn usage(&self) -> Usage {
        Usage { prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0, finish_reasons: vec![] }
    }
}
#[derive(Debug)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    pub finish_reasons: Vec<Option<&'static str>>,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceState {
    Open,
    Done,
    Stopped,
}
pub fn models_list(_: &[Arc<ServedModel>]) -> Value {
    Value::Null
}
pub fn model_object(_: &ServedModel) -> Value {
    Value::Null
}
pub fn tokenize(_: Value, _: &Arc<ServedModel>) -> Result<Value, ApiError> {
    Ok(Value::Null)
}
pub fn detokenize(_: Value, _: &Arc<ServedModel>) -> Result<Value, ApiError> {
    Ok(Value::Null)
}
pub fn tokenizer_info(_: &ServedModel) -> Value {
    Value::Null
}
