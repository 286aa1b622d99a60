//! Follows one script for one sequence. The rule: limits, end tokens and positions are those of a real engine,
//! whatever the script says.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pons_protocol::id::TokenId;
use pons_protocol::inference::{
    Finish, FinishReason, FromBrain, Rejection, SequenceOutput, StepOutput, Submit, TokenLogprobs,
};
use tokio::sync::mpsc;

use super::script::Reception;
use super::{Act, Script, Shared, capacity, note};

struct Sequence {
    shared: Arc<Shared>,
    submit: Submit,
    send: mpsc::Sender<FromBrain>,
    cached_tokens: u32,
    /// Output position.
    position: usize,
    /// Tokens of the script that an earlier run has sent already.
    skip: usize,
    reported_prompt: bool,
    ended: bool,
}

/// Counts a sequence as running while it lives, aborted or not.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) async fn run(
    shared: Arc<Shared>,
    submit: Submit,
    script: Script,
    send: mpsc::Sender<FromBrain>,
    die: mpsc::Sender<()>,
) {
    shared.running.fetch_add(1, Ordering::Relaxed);
    let _running = Running(Arc::clone(&shared));
    let id = submit.sequence;
    match script.reception {
        Reception::Accept => {}
        Reception::AcceptAfter(gate) => drop(gate.acquire().await),
        Reception::Never => std::future::pending().await,
        Reception::Reject(reason, message) => {
            note(&shared, |log| log.finished.push(id));
            let _ = send.send(FromBrain::Rejected(Rejection { sequence: id, reason, message })).await;
            return;
        }
    }
    let _ = send.send(FromBrain::Accepted(vec![id])).await;
    let (position, skip) = (submit.generated.len(), submit.generated.len());
    let first_life = shared.log.borrow().links <= 1;
    let mut sequence = Sequence {
        shared,
        submit,
        send,
        cached_tokens: script.cached_tokens,
        position,
        skip,
        reported_prompt: false,
        ended: false,
    };
    for act in script.acts {
        if sequence.ended {
            return;
        }
        sequence.act(act, first_life, &die).await;
    }
}

impl Sequence {
    async fn act(&mut self, act: Act, first_life: bool, die: &mpsc::Sender<()>) {
        match act {
            Act::Wait(pause) => tokio::time::sleep(pause).await,
            Act::Gate(gate) => gate.acquire().await.expect("gates stay open").forget(),
            Act::Tokens(tokens) => {
                let skipped = self.skip.min(tokens.len());
                self.skip -= skipped;
                self.output(&tokens[skipped..]).await;
            }
            Act::Endless { token, pause } => {
                while !self.ended {
                    self.output(&[token]).await;
                    tokio::time::sleep(pause).await;
                }
            }
            Act::Seeded => {
                while !self.ended {
                    let token = self.drawn();
                    self.output(&[token]).await;
                }
            }
            Act::Fail => self.emit(&[], Some(FinishReason::Failed)).await,
            Act::Die => {
                if first_life {
                    let _ = die.send(()).await;
                    std::future::pending::<()>().await;
                }
            }
            Act::OutOfOrder => {
                self.position += 7;
                self.output(&[u32::from(b'x')]).await;
            }
            Act::Silence => std::future::pending().await,
            Act::Eos => {
                let eos = self.shared.hello.eos_token_ids[0];
                self.output(&[eos]).await;
            }
        }
    }

    /// A letter that depends on nothing but seed, choice and position.
    fn drawn(&self) -> TokenId {
        let sampling = &self.submit.sampling;
        let mut x = sampling.seed
            ^ (u64::from(sampling.choice) << 40)
            ^ (self.position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::from(b'a') + ((x >> 33) % 26) as u32
    }

    /// Sends tokens, up to the end that they meet.
    async fn output(&mut self, tokens: &[TokenId]) {
        let stop = &self.submit.stop;
        let mut finish = None;
        let mut count = 0;
        for &token in tokens {
            if self.position + count >= stop.max_tokens as usize {
                finish = Some(FinishReason::Length);
                break;
            }
            count += 1;
            if stop.stop_token_ids.contains(&token) {
                finish = Some(FinishReason::StopToken(token));
            } else if !stop.ignore_eos && self.shared.hello.eos_token_ids.contains(&token) {
                finish = Some(FinishReason::Eos);
            } else if self.position + count >= stop.max_tokens as usize {
                finish = Some(FinishReason::Length);
            }
            if finish.is_some() {
                break;
            }
        }
        if count > 0 || finish.is_some() {
            self.emit(&tokens[..count], finish).await;
        }
    }

    async fn emit(&mut self, tokens: &[TokenId], reason: Option<FinishReason>) {
        let id = self.submit.sequence;
        let prompt_logprobs = self.prompt_logprobs();
        let output = SequenceOutput {
            sequence: id,
            position: self.position as u32,
            tokens: tokens.to_vec(),
            logprobs: match self.submit.sampling.logprobs {
                Some(k) => tokens.iter().map(|&token| logprobs(token, k)).collect(),
                None => Vec::new(),
            },
            prompt_logprobs,
            finish: reason.map(|reason| Finish {
                reason,
                prompt_tokens: self.submit.prompt.len() as u32,
                cached_tokens: self.cached_tokens.min(self.submit.prompt.len() as u32),
                output_tokens: (self.position + tokens.len()) as u32,
                queue_us: 10,
                prefill_us: 20,
                decode_us: 30,
                preemptions: 0,
            }),
        };
        self.position += tokens.len();
        self.ended = reason.is_some();
        let step = self.shared.steps.fetch_add(1, Ordering::Relaxed);
        let message = StepOutput { step, outputs: vec![output], capacity: capacity(&self.shared) };
        note(&self.shared, |log| {
            log.tokens_sent += tokens.len() as u64;
            if reason.is_some() {
                log.finished.push(id);
            }
        });
        let _ = self.send.send(FromBrain::Step(message)).await;
    }

    fn prompt_logprobs(&mut self) -> Vec<TokenLogprobs> {
        let Some(k) = self.submit.sampling.prompt_logprobs.filter(|_| !self.reported_prompt) else {
            return Vec::new();
        };
        self.reported_prompt = true;
        let mut all: Vec<_> = self.submit.prompt.iter().map(|&token| logprobs(token, k)).collect();
        if let Some(first) = all.first_mut() {
            *first = TokenLogprobs { logprob: f32::NAN, top: Vec::new() };
        }
        all
    }
}

/// Made-up values: the token itself is the best of `k` and the rest is impossible.
fn logprobs(token: TokenId, k: u32) -> TokenLogprobs {
    let logprob = -0.25 - token as f32 / 1024.0;
    let others = (0..).filter(|&other| other != token).map(|other| (other, f32::NEG_INFINITY));
    TokenLogprobs { logprob, top: std::iter::once((token, logprob)).chain(others).take(k as usize).collect() }
}
