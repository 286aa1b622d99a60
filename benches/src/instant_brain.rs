//! A brain that computes nothing: every sequence is accepted at once and its tokens come as fast as the link
//! takes them. The rule: on the link it behaves as a real one, one output for each token, so that what is timed
//! is the gateway.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use pons_checkpoint::fixture::write_tiny_llama;
use pons_protocol::PROTOCOL_VERSION;
use pons_protocol::capacity::Capacity;
use pons_protocol::id::TokenId;
use pons_protocol::inference::{
    BrainHello, Finish, FinishReason, FromBrain, SequenceOutput, StepOutput, Submit, ToBrain,
};
use pons_protocol::wire::{Encoder, FrameReader, decode_to_brain};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// A brain beats at least every second.
const BEAT: Duration = Duration::from_millis(500);
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// With this much unsent nothing more is read, so that a gateway that does not read is held back.
const OUTBOX_BYTES: usize = 16 << 20;

/// What the brain says.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Tokens of each answer, the end token included; at least 1.
    pub tokens: u32,
    /// The model's end token.
    pub eos: TokenId,
    /// Size of the vocabulary. Ids 0 to 255 are bytes.
    pub vocab_size: u32,
}

impl Script {
    /// Writes a tiny model into `folder`, for the gateway's tokenizer, and makes a script that fits it.
    ///
    /// # Errors
    /// When the model can't be written or has no end token.
    pub fn with_model(folder: &Path, tokens: u32) -> anyhow::Result<Self> {
        let config = write_tiny_llama(folder, 1, &[])?.config;
        let eos = *config.eos.first().context("the tiny model has no end token")?;
        Ok(Self { tokens, eos, vocab_size: u32::try_from(config.vocab_size)? })
    }
}

/// A socket on which an instant brain answers.
#[derive(Debug)]
pub struct InstantBrain {
    listener: UnixListener,
    script: Script,
}

impl InstantBrain {
    /// Binds the socket; whoever connects from now on is answered once [`serve`](Self::serve) runs.
    ///
    /// # Errors
    /// When the socket can't be bound or the script has no tokens.
    pub fn bind(socket: &Path, script: Script) -> anyhow::Result<Self> {
        if script.tokens == 0 {
            bail!("tokens is 0; an answer has at least its end token");
        }
        let listener =
            UnixListener::bind(socket).with_context(|| format!("can't listen on {}", socket.display()))?;
        Ok(Self { listener, script })
    }

    /// Serves links until it is dropped or the listener fails.
    ///
    /// # Errors
    /// When no more links can be accepted.
    pub async fn serve(self) -> anyhow::Result<()> {
        loop {
            let (socket, _) = self.listener.accept().await.context("the brain can't accept a link")?;
            let script = self.script;
            tokio::spawn(async move {
                // A gateway that ends closes its link; what it left is of no interest.
                let _ = Link::new(script).serve(socket).await;
            });
        }
    }
}

/// One link to a gateway.
struct Link {
    script: Script,
    encoder: Encoder,
    outbox: Vec<u8>,
    steps: u64,
}

impl Link {
    fn new(script: Script) -> Self {
        Self { script, encoder: Encoder::new(), outbox: Vec::new(), steps: 0 }
    }

    async fn serve(mut self, socket: UnixStream) -> anyhow::Result<()> {
        let (mut input, mut output) = socket.into_split();
        let mut reader = FrameReader::new();
        let mut buffer = vec![0; READ_BYTES];
        let mut beat = tokio::time::interval(BEAT);
        let mut said_hello = false;
        loop {
            tokio::select! {
                read = input.read(&mut buffer), if self.outbox.len() < OUTBOX_BYTES => {
                    let count = read?;
                    if count == 0 {
                        return Ok(());
                    }
                    reader.push(&buffer[..count]);
                    while let Some(frame) = reader.next_frame()? {
                        let message = decode_to_brain(frame)?;
                        said_hello |= matches!(message, ToBrain::Hello(_));
                        self.answer(message);
                    }
                }
                written = output.write(&self.outbox), if !self.outbox.is_empty() => {
                    let count = written?;
                    self.outbox.drain(..count);
                }
                _ = beat.tick(), if said_hello => {
                    let capacity = self.capacity();
                    self.say(&FromBrain::Heartbeat(capacity));
                }
            }
        }
    }

    fn say(&mut self, message: &FromBrain) {
        self.outbox.extend_from_slice(self.encoder.from_brain(message));
    }

    fn answer(&mut self, message: ToBrain) {
        match message {
            ToBrain::Hello(_) => {
                let hello = self.hello();
                self.say(&FromBrain::Hello(hello));
            }
            ToBrain::Submit(submits) => self.generate(&submits),
            // Whatever could be aborted was sent before the request to abort it was read.
            ToBrain::Abort(_) | ToBrain::Drain => {}
        }
    }

    /// Sequences that came together go through the same steps, as in a real engine.
    fn generate(&mut self, submits: &[Submit]) {
        self.say(&FromBrain::Accepted(submits.iter().map(|submit| submit.sequence).collect()));
        for at in 0..self.script.tokens {
            let outputs: Vec<_> = submits.iter().filter_map(|submit| self.output(submit, at)).collect();
            if outputs.is_empty() {
                return;
            }
            self.steps += 1;
            let step = StepOutput { step: self.steps, outputs, capacity: self.capacity() };
            self.say(&FromBrain::Step(step));
        }
    }

    /// The `at`th output of this run; none once the sequence has ended.
    fn output(&self, submit: &Submit, at: u32) -> Option<SequenceOutput> {
        let before = u32::try_from(submit.generated.len()).unwrap_or(u32::MAX);
        let position = before.saturating_add(at);
        let last = self.script.tokens.min(submit.stop.max_tokens).max(before + 1) - 1;
        if position > last {
            return None;
        }
        let ends = position + 1 >= self.script.tokens;
        let token = if ends { self.script.eos } else { u32::from(b'a') + position % 26 };
        let finish = (position == last).then(|| Finish {
            reason: if ends { FinishReason::Eos } else { FinishReason::Length },
            prompt_tokens: u32::try_from(submit.prompt.len()).unwrap_or(u32::MAX),
            cached_tokens: 0,
            output_tokens: position + 1,
            queue_us: 0,
            prefill_us: 0,
            decode_us: 0,
            preemptions: 0,
        });
        Some(SequenceOutput {
            sequence: submit.sequence,
            position,
            cached_tokens: 0,
            tokens: vec![token],
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            finish,
        })
    }

    fn hello(&self) -> BrainHello {
        BrainHello {
            protocol_version: PROTOCOL_VERSION,
            software: concat!("instant-brain/", env!("CARGO_PKG_VERSION")).to_owned(),
            model: crate::plan::MODEL.to_owned(),
            fingerprint: "instant".to_owned(),
            vocab_size: self.script.vocab_size,
            context_tokens: 4096,
            eos_token_ids: vec![self.script.eos],
            max_sequences: 1024,
            max_waiting: 1024,
            max_waiting_tokens: 1 << 22,
            block_tokens: 16,
            blocks_total: 1 << 16,
            step_tokens: 1 << 14,
            calibration: None,
        }
    }

    fn capacity(&self) -> Capacity {
        Capacity { blocks_free: 1 << 16, blocks_total: 1 << 16, steps: self.steps, ..Capacity::default() }
    }
}
