//! Renders a conversation into the text a model was trained on, with Hugging Face's Jinja conventions.
//!
//! One rule: contents are data. Whatever a message says, only the template itself writes control tokens.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use crate::tokenizer::Tokenizer;

mod error;
mod guard;
mod open;
mod python;
mod turns;

#[cfg(test)]
mod tests;

pub use error::TemplateError;

use guard::{Guard, Trust};
use turns::Knows;

/// The template of models that bring none: ChatML, without tools.
pub const CHATML: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// The most bytes a prompt may have.
const MAX_PROMPT_BYTES: usize = 64 << 20;

/// The engine's budget for one rendering: instructions, and one for each 64 bytes it creates.
const FUEL: u64 = 8_000_000;

/// The largest template we compile; the largest known one has 40 kB.
const MAX_TEMPLATE_BYTES: usize = 4 << 20;

/// Variables that only the server sets.
const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];

/// A model's chat template, compiled once.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    tools: bool,
}

/// A conversation to render.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChatInput<'a> {
    /// The messages as OpenAI's API has them: `role`, `content`, `tool_calls`, `tool_call_id`, `name`.
    pub messages: &'a [Json],
    /// The tools the model may call, as the API has them.
    pub tools: Option<&'a [Json]>,
    /// Whether the prompt ends where the assistant begins to speak.
    pub add_generation_prompt: bool,
    /// Further template variables such as `enable_thinking` or `documents`.
    pub extra: Option<&'a Map<String, Json>>,
}

/// A rendered conversation that still knows which of its characters are data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    guard: char,
}

impl RenderedPrompt {
    /// The prompt as the model will read it.
    pub fn text(&self) -> String {
        self.text.replace(self.guard, "")
    }

    /// The prompt with the guard in it, for [`Tokenizer::encode_prompt`].
    pub(crate) fn guarded_text(&self) -> &str {
        &self.text
    }

    /// The character that keeps data from reading as control text.
    pub(crate) fn guard(&self) -> char {
        self.guard
    }
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of those tokens, empty if the model has none.
    ///
    /// # Errors
    /// [`TemplateError::Broken`] with the place of the mistake.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TemplateError> {
        let broken = |reason: String| TemplateError::Broken { reason };
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(broken(format!("it has {} bytes, the limit is {MAX_TEMPLATE_BYTES}", source.len())));
        }
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|error| broken(error.to_string()))?);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_fuel(Some(FUEL));
        python::install(&mut env);
        env.add_template_owned("chat", without_generation_marks(source))
            .map_err(|error| broken(error.to_string()))?;
        let template = env.get_template("chat").map_err(|error| broken(error.to_string()))?;
        let tools = template.undeclared_variables(false).contains("tools");
        Ok(Self { source: source.to_owned(), bos: bos.to_owned(), eos: eos.to_owned(), tools, env })
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template shows tools to the model.
    pub fn supports_tools(&self) -> bool {
        self.tools
    }

    /// Whether the template knows of a model that thinks before it answers.
    pub fn supports_thinking(&self) -> bool {
        ["enable_thinking", "<think>", "reasoning_content"].iter().any(|word| self.source.contains(word))
    }

    /// Renders a conversation for a model's tokenizer.
    ///
    /// If the template refuses the turns as they are, or leaves an instruction out, they are rearranged:
    /// neighbours of one role merged, then all system turns merged at the front, then their text put at the head
    /// of the first user turn. Instructions are never lost.
    ///
    /// # Errors
    /// [`TemplateError::Refused`] with the template's own words if no arrangement pleases it; the other kinds
    /// for input beyond the bounds. Only [`TemplateError::Broken`] is not the caller's fault.
    pub fn render(
        &self,
        input: &ChatInput<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<RenderedPrompt, TemplateError> {
        if let Some(name) =
            input.extra.and_then(|extra| extra.keys().find(|key| RESERVED.contains(&key.as_str())))
        {
            return Err(TemplateError::Reserved { name: name.clone() });
        }
        // Depth is checked before anything walks or copies the values.
        let guard = Guard::choose(tokenizer.added_tokens(), &self.source, named_values(input))?;
        let knows = Knows {
            developer: self.source.contains("developer"),
            tool_calls: self.source.contains("tool_calls"),
        };
        let messages = turns::prepare(input.messages, knows);
        let refusal = match self.render_complete(&messages, &messages, input, &guard) {
            Err(TemplateError::Refused { reason, message }) => (reason, message),
            settled => return settled,
        };
        let mut tried: Vec<Vec<Json>> = Vec::new();
        for arrange in turns::ARRANGEMENTS {
            let arranged = arrange(&messages);
            if arranged == messages || tried.contains(&arranged) {
                continue;
            }
            match self.render_complete(&arranged, &messages, input, &guard) {
                Err(TemplateError::Refused { .. }) => tried.push(arranged),
                settled => return settled,
            }
        }
        Err(self.with_position(refusal, &messages, input, &guard))
    }

    /// Renders one arrangement and makes sure that each instruction of `messages` is in the prompt.
    fn render_complete(
        &self,
        arranged: &[Json],
        messages: &[Json],
        input: &ChatInput<'_>,
        guard: &Guard<'_>,
    ) -> Result<RenderedPrompt, TemplateError> {
        let prompt = RenderedPrompt { text: self.render_once(arranged, input, guard)?, guard: guard.mark() };
        let text = prompt.text();
        for (index, message) in messages.iter().enumerate().filter(|(_, message)| turns::instructs(message)) {
            for said in turns::texts(message) {
                let said = said.replace(guard.mark(), "");
                if !text.contains(said.trim()) && !text.contains(&python::json_escaped(said.trim())) {
                    let reason = format!("it leaves out the {} message", turns::role(message));
                    return Err(TemplateError::Refused { reason, message: Some(index) });
                }
            }
        }
        Ok(prompt)
    }

    fn render_once(
        &self,
        messages: &[Json],
        input: &ChatInput<'_>,
        guard: &Guard<'_>,
    ) -> Result<String, TemplateError> {
        let template = self.env.get_template("chat").map_err(|error| failure(&error))?;
        let mut context: Vec<(&str, Value)> = vec![
            ("messages", messages.iter().map(|message| guard.message(message)).collect()),
            ("add_generation_prompt", Value::from(input.add_generation_prompt)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
        ];
        // Hugging Face leaves the variable out when there are no tools; an empty list means the same.
        let tools = input.tools.filter(|tools| !tools.is_empty());
        let tools =
            tools.map(|tools| tools.iter().map(|tool| guard.value(tool, Trust::Data)).collect::<Value>());
        context.push(("tools", tools.unwrap_or_else(|| Value::from(()))));
        for (name, value) in input.extra.into_iter().flatten() {
            context.push((name, guard.value(value, Trust::Data)));
        }
        let mut out = Capped { bytes: Vec::new() };
        match template.render_captured_to(Value::from_pairs(context), &mut out) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WriteFailure => {
                return Err(TemplateError::TooLarge { limit_bytes: MAX_PROMPT_BYTES });
            }
            Err(error) => return Err(failure(&error)),
        }
        String::from_utf8(out.bytes)
            .map_err(|error| TemplateError::Broken { reason: format!("its output is no UTF-8: {error}") })
    }

    /// Names the first message of a refused conversation: the last one of its shortest refused beginning.
    fn with_position(
        &self,
        (reason, known): (String, Option<usize>),
        messages: &[Json],
        input: &ChatInput<'_>,
        guard: &Guard<'_>,
    ) -> TemplateError {
        let (mut pleases, mut refused) = (0, messages.len());
        while known.is_none() && pleases + 1 < refused {
            let middle = pleases.midpoint(refused);
            match self.render_once(&messages[..middle], input, guard) {
                Err(TemplateError::Refused { .. }) => refused = middle,
                _ => pleases = middle,
            }
        }
        TemplateError::Refused { reason, message: known.or(refused.checked_sub(1)) }
    }
}

/// All values of an input that come from the request, with their names.
fn named_values<'a>(input: &ChatInput<'a>) -> impl Iterator<Item = (&'a str, &'a Json)> {
    let messages = input.messages.iter().map(|message| ("messages", message));
    let tools = input.tools.unwrap_or_default().iter().map(|tool| ("tools", tool));
    let extra = input.extra.into_iter().flatten().map(|(name, value)| (name.as_str(), value));
    messages.chain(tools).chain(extra)
}

/// Sorts an engine's error by whose fault it is.
fn failure(error: &Error) -> TemplateError {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(raised) = inner.downcast_ref::<python::Raised>() {
            return TemplateError::Refused { reason: raised.0.clone(), message: None };
        }
        source = inner.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::TooMuchWork,
        ErrorKind::SyntaxError
        | ErrorKind::TemplateNotFound
        | ErrorKind::BadInclude
        | ErrorKind::UnknownFilter
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownMethod => TemplateError::Broken { reason: error.to_string() },
        // A field of an unexpected kind, such as a missing content.
        _ => TemplateError::Refused { reason: error.to_string(), message: None },
    }
}

/// Takes out `{% generation %}`, with which training code marks what the assistant said.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + length + 2];
        let inside = tag[2..length].trim_matches(['-', '+']).trim();
        out.push_str(&rest[..start]);
        match inside {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

/// A buffer that refuses to grow beyond the bound.
struct Capped {
    bytes: Vec<u8>,
}

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_PROMPT_BYTES {
            return Err(io::Error::other("the prompt is too large"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
