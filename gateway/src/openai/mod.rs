//! The OpenAI surface as pure code: bodies in, sequences out; tokens in, frames out.
//!
//! The rule: nothing here does I/O, waits, reads a clock or draws a random number; all of that is given by the
//! caller, so every reply can be replayed.

mod chat;
mod completion;
pub(crate) mod fields;
mod frame;
pub mod json;
mod logprobs;
mod models;
mod origin;
mod prepared;
mod sampling;
mod schema;
mod served;
mod structured;
#[cfg(test)]
mod testing;
mod token_text;
mod tokenize;
mod usage;

pub use chat::prepare_chat;
pub use completion::prepare_completion;
pub use models::{model_name, model_object, models_list};
pub use origin::Origin;
pub use prepared::{ChoiceState, Prepared, Reply, SequenceSpec, Serving, Usage};
pub use served::{RequestContext, RequestLimits, ServedModel};
pub use tokenize::{detokenize, tokenize, tokenizer_info};
