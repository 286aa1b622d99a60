//! The transformer against a forward pass written the obvious way in f64, for every family and storage format.
//! The rule: the reference shares nothing with the product but the weights' numbers.

use std::path::Path;

use pons_checkpoint::{Checkpoint, ModelConfig, Role, RopeLayout};
use pons_gpu_worker::executor::LocalConfig;
use pons_kernels::KvFormat;
use pons_protocol::inference::TokenLogprobs;

use crate::drive::{Chunk, Driver};
use crate::tiny::{Encode, bf16_bytes, f16_bytes, f32_bytes, write_model};

const TOKENS: [u32; 23] =
    [5, 1, 200, 17, 17, 33, 250, 0, 64, 99, 128, 7, 3, 3, 3, 181, 90, 42, 12, 255, 254, 1, 80];

/// Weights in f64, straight from the checkpoint's dequantisation.
struct Naive<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
}

fn product(x: &[f64], w: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let rows = w.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>());
    let bias = bias.map(<[f64]>::to_vec).unwrap_or_else(|| vec![0.0; w.len() / x.len()]);
    rows.zip(bias).map(|(y, b)| y + b).collect()
}

fn norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(v, w)| v / (mean + eps).sqrt() * w).collect()
}

impl Naive<'_> {
    fn get(&self, role: Role) -> Vec<f64> {
        let tensor = self.checkpoint.tensor(role).expect("the fixture has every tensor");
        tensor.to_f32().into_iter().map(f64::from).collect()
    }

    /// Projects, adds the bias, normalises and rotates the heads of one token.
    fn heads(
        &self,
        x: &[f64],
        w: Role,
        bias: Role,
        head_norm: Option<Role>,
        position: Option<usize>,
    ) -> Vec<f64> {
        let c = self.config;
        let bias = c.qkv_bias.then(|| self.get(bias));
        let mut y = product(x, &self.get(w), bias.as_deref());
        for head in y.chunks_exact_mut(c.head_dim) {
            if let Some(role) = head_norm.filter(|_| c.qk_norm) {
                head.copy_from_slice(&norm(head, &self.get(role), f64::from(c.rms_eps)));
            }
            if let Some(position) = position {
                self.rotate(head, position);
            }
        }
        y
    }

    fn rotate(&self, head: &mut [f64], position: usize) {
        let half = head.len() / 2;
        for pair in 0..half {
            let (i, j) = match self.config.rope_layout {
                RopeLayout::Half => (pair, pair + half),
                RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
            };
            let angle = position as f64 * self.config.rope_theta.powf(-(pair as f64) / half as f64);
            let (a, b) = (head[i], head[j]);
            head[i] = a * angle.cos() - b * angle.sin();
            head[j] = a * angle.sin() + b * angle.cos();
        }
    }

    /// Log probabilities after each token.
    fn run(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let c = self.config;
        let eps = f64::from(c.rms_eps);
        let embedding = self.get(Role::Embedding);
        let mut stream: Vec<Vec<f64>> =
            tokens.iter().map(|&t| embedding[t as usize * c.hidden..][..c.hidden].to_vec()).collect();
        for l in 0..c.layers {
            let weight = self.get(Role::AttnNorm(l));
            let normed: Vec<Vec<f64>> = stream.iter().map(|x| norm(x, &weight, eps)).collect();
            let each = |f: &dyn Fn(usize, &[f64]) -> Vec<f64>| -> Vec<Vec<f64>> {
                normed.iter().enumerate().map(|(p, x)| f(p, x)).collect()
            };
            let q = each(&|p, x| self.heads(x, Role::Q(l), Role::QBias(l), Some(Role::QNorm(l)), Some(p)));
            let k = each(&|p, x| self.heads(x, Role::K(l), Role::KBias(l), Some(Role::KNorm(l)), Some(p)));
            let v = each(&|_, x| self.heads(x, Role::V(l), Role::VBias(l), None, None));
            let o = self.get(Role::O(l));
            for (p, x) in stream.iter_mut().enumerate() {
                let mixed = self.attend(&q[p], &k[..=p], &v[..=p]);
                x.iter_mut().zip(product(&mixed, &o, None)).for_each(|(a, b)| *a += b);
            }
            self.feed_forward(l, &mut stream);
        }
        let (weight, head) = (self.get(Role::FinalNorm), self.get(Role::Head));
        let logits = stream.iter().map(|x| product(&norm(x, &weight, eps), &head, None));
        logits.map(|row| log_softmax(&row)).collect()
    }

    fn attend(&self, q: &[f64], k: &[Vec<f64>], v: &[Vec<f64>]) -> Vec<f64> {
        let c = self.config;
        let (dim, group) = (c.head_dim, c.heads / c.kv_heads);
        let mut out = Vec::new();
        for (h, q) in q.chunks_exact(dim).enumerate() {
            let at = h / group * dim;
            let scores: Vec<f64> = k
                .iter()
                .map(|k| k[at..at + dim].iter().zip(q).map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt())
                .collect();
            let weights: Vec<f64> = log_softmax(&scores).into_iter().map(f64::exp).collect();
            out.extend((at..at + dim).map(|d| v.iter().zip(&weights).map(|(v, w)| v[d] * w).sum::<f64>()));
        }
        out
    }

    fn feed_forward(&self, l: usize, stream: &mut [Vec<f64>]) {
        let weight = self.get(Role::FfnNorm(l));
        let (gate, up, down) = (self.get(Role::Gate(l)), self.get(Role::Up(l)), self.get(Role::Down(l)));
        for x in stream {
            let normed = norm(x, &weight, f64::from(self.config.rms_eps));
            let gated: Vec<f64> = product(&normed, &gate, None)
                .into_iter()
                .zip(product(&normed, &up, None))
                .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                .collect();
            x.iter_mut().zip(product(&gated, &down, None)).for_each(|(a, b)| *a += b);
        }
    }
}

fn log_softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|v| (v - max).exp()).sum();
    x.iter().map(|v| v - max - sum.ln()).collect()
}

/// Compares every log probability that the executor reports with the reference.
fn assert_agrees(what: &str, path: &Path) {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{what}: {error}"));
    let expected = Naive { checkpoint: &checkpoint, config: checkpoint.config() }.run(&TOKENS);
    let config = LocalConfig {
        threads: 2,
        kv_format: KvFormat::Bf16,
        blocks: 16,
        slots: 2,
        step_tokens: 64,
        context_tokens: 128,
    };
    let mut driver = Driver::new(&checkpoint, config);
    let mut sequence = driver.start(&TOKENS, &[], &[]);
    let mut got: Vec<TokenLogprobs> = Vec::new();
    // An odd border inside a block, and one row alone.
    for range in [0..9, 9..10, 10..TOKENS.len()] {
        let next = Some(TOKENS.get(range.end).copied().unwrap_or(0));
        let chunk =
            Chunk { sequence: &mut sequence, tokens: &TOKENS[range], sample: false, score: Some(next) };
        got.extend(driver.step(&mut [chunk]).remove(0).prompt_logprobs);
    }
    assert_eq!(got.len(), expected.len(), "{what}");
    let mut deltas = Vec::new();
    for (position, (ours, theirs)) in got.iter().zip(&expected).enumerate() {
        let next = TOKENS.get(position + 1).copied().unwrap_or(0);
        for (id, value) in ours.top.iter().copied().chain([(next, ours.logprob)]) {
            let delta = (f64::from(value) - theirs[id as usize]).abs();
            assert!(delta < MOST, "{what}: position {position}, token {id}: off by {delta}");
            deltas.push(delta);
        }
    }
    let mean = deltas.iter().sum::<f64>() / deltas.len() as f64;
    eprintln!("{what}: mean difference {mean}");
    assert!(mean < MEAN, "{what}: mean difference {mean}");
}

/// Keys and values are kept in bfloat16 (8 bits of mantissa), which is all that separates the two. A wrong layout,
/// a missing bias or norm shows as differences near one.
const MOST: f64 = 0.08;
const MEAN: f64 = 0.01;

#[test]
fn every_family_agrees_with_the_reference_in_every_float_format() {
    for family in ["llama", "qwen2", "qwen3"] {
        for (dtype, encode) in [("F32", f32_bytes as Encode), ("F16", f16_bytes), ("BF16", bf16_bytes)] {
            let dir = tempfile::tempdir().expect("a directory for the model");
            write_model(dir.path(), family, dtype, encode);
            assert_agrees(&format!("{family} in {dtype}"), dir.path());
        }
    }
}

#[test]
fn the_shared_tiny_llama_agrees_with_the_reference() {
    let dir = tempfile::tempdir().expect("a directory for the model");
    pons_checkpoint::fixture::write_tiny_llama(dir.path(), 3, &[]).expect("the directory is writable");
    assert_agrees("tiny llama", dir.path());
}

#[test]
fn a_packed_gguf_agrees_with_the_reference() {
    // A real model in f64 takes seconds; a few tokens are enough to see a wrong layout.
    let path = pons_checkpoint::locate::locate("smollm2-135m").unwrap_or_else(|error| {
        panic!("{error}\nthis test needs weights: run `cargo xtask model smollm2-135m` first")
    });
    let checkpoint = Checkpoint::open(&path).expect("the model opens");
    let tokens = &TOKENS[..4];
    let expected = Naive { checkpoint: &checkpoint, config: checkpoint.config() }.run(tokens);
    let config = LocalConfig {
        threads: 2,
        kv_format: KvFormat::Bf16,
        blocks: 4,
        slots: 1,
        step_tokens: 16,
        context_tokens: 64,
    };
    let mut driver = Driver::new(&checkpoint, config);
    let mut sequence = driver.start(tokens, &[], &[]);
    let chunk = Chunk { sequence: &mut sequence, tokens, sample: false, score: Some(Some(0)) };
    let got = driver.step(&mut [chunk]).remove(0).prompt_logprobs;
    for (position, (ours, theirs)) in got.iter().zip(&expected).enumerate() {
        for &(id, value) in &ours.top {
            let delta = (f64::from(value) - theirs[id as usize]).abs();
            assert!(delta < 0.1, "position {position}, token {id}: off by {delta}");
        }
    }
}
