//! What is asked and how. The rule: both sides of a comparison get the same requests, on as many connections,
//! at the same pace.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

/// Name under which the model is served.
pub const MODEL: &str = "bench";

/// Different prompts of one set; all have the same number of tokens.
const PROMPTS: usize = 64;

/// How the answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One JSON body.
    Plain,
    /// Server-sent events.
    Streamed,
}

impl Shape {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Streamed];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Streamed => "streamed",
        }
    }

    /// The request bodies, about half a kilobyte each.
    pub fn bodies(self) -> Vec<Bytes> {
        (0..PROMPTS).map(|number| self.body(number)).collect()
    }

    fn body(self, number: usize) -> Bytes {
        let question = format!(
            "Ticket {number:06}: the nightly import of the orders table stopped after the third batch, the log \
             says that the connection was reset by the peer, and the second attempt ran into the same error. \
             What should be looked at first, and which of the batches are safe to repeat?"
        );
        let mut body = json!({
            "model": MODEL,
            "messages": [
                {"role": "system", "content": "You are a terse assistant of an operations team."},
                {"role": "user", "content": question},
            ],
            "temperature": 0,
            "max_tokens": 512,
        });
        if self == Self::Streamed {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        body.to_string().into()
    }
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Each connection sends its next request when it has the last answer: the maximum rate.
    Closed,
    /// Requests are due at a fixed rate, whatever the answers do; latency counts from when one was due.
    Open {
        /// Requests a second.
        rate: f64,
    },
}

/// One load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// How the answer is wanted.
    pub shape: Shape,
    /// Open connections.
    pub connections: usize,
    /// When requests are sent.
    pub pace: Pace,
    /// How long it is kept up.
    pub duration: Duration,
    /// Most requests of all connections together, should the time not be over before.
    pub most_requests: u64,
}

impl Load {
    /// Its name in tables.
    pub fn name(&self) -> String {
        let pace = match self.pace {
            Pace::Closed => "closed".to_owned(),
            Pace::Open { rate } => format!("open {rate}/s"),
        };
        format!("{}, {pace}, {} conn.", self.shape.name(), self.connections)
    }
}
