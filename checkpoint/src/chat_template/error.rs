//! Why a chat could not be rendered, and whose fault that is.

/// A chat that has no prompt, and why.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The model's template can't be used at all.
    #[error("the model's chat template is broken: {reason}; give the model another chat template")]
    Broken {
        /// The template engine's words.
        reason: String,
    },
    /// The template refuses these messages; the reason is the template's own text.
    #[error("messages{}: the model's chat template refuses this conversation: {reason}", position(*message))]
    Refused {
        /// The template's own words.
        reason: String,
        /// The first message that it refuses, counted from 0, where one can be named.
        message: Option<usize>,
    },
    /// The prompt would be larger than any context.
    #[error("messages: the rendered prompt exceeds {limit_bytes} bytes; shorten the conversation")]
    TooLarge {
        /// The most bytes a prompt may have.
        limit_bytes: usize,
    },
    /// The template did too much work on these messages.
    #[error("messages: rendering this conversation takes too many steps; shorten it")]
    TooMuchWork,
    /// Values are nested too deep.
    #[error("{field}: nested deeper than {limit} levels; flatten it")]
    TooDeep {
        /// Where.
        field: String,
        /// The most levels.
        limit: usize,
    },
    /// A template variable that only the server sets.
    #[error("chat_template_kwargs: {name:?} can't be set there; use the request's own field")]
    Reserved {
        /// The variable.
        name: String,
    },
    /// No character is left to keep contents apart from control text.
    #[error("messages: the text holds every noncharacter from U+FDD0 to U+FDEF; remove at least one of them")]
    NoGuardLeft,
}

impl TemplateError {
    /// Whether another request could succeed, so that the answer is a 400 and not a 500.
    pub fn is_client_fault(&self) -> bool {
        !matches!(self, Self::Broken { .. })
    }
}

fn position(message: Option<usize>) -> String {
    message.map(|index| format!("[{index}]")).unwrap_or_default()
}
