//! A step's output on the link between brain and gateway. The rule: what was encoded comes back equal before it is
//! timed; the rival is serde_json with the same fields.

use std::hint::black_box;

use pons_benches::suite::{Case, Suite};
use pons_protocol::capacity::Capacity;
use pons_protocol::id::SequenceId;
use pons_protocol::inference::{FromBrain, SequenceOutput, StepOutput, TokenLogprobs};
use pons_protocol::wire::{Encoder, FrameReader, decode_from_brain, encode_from_brain};
use serde::{Deserialize, Serialize};

/// Bytes that arrive at once when a frame is cut out of a stream.
const READ_BYTES: usize = 4 << 10;

fn main() -> anyhow::Result<()> {
    let mut suite = Suite::start("wire")?;
    let sequences = if suite.is_small() { 4 } else { 32 };
    for (name, top) in [("plain", None), ("logprobs_5", Some(5))] {
        step(&mut suite, name, sequences, top);
    }
    suite.finish()
}

/// One token for each of so many sequences, with so many alternatives.
fn step(suite: &mut Suite, name: &str, sequences: usize, top: Option<u32>) {
    let step = output(sequences, top);
    let message = FromBrain::Step(step.clone());
    let mut encoder = Encoder::new();
    let frame = encode_from_brain(&message, &mut encoder);
    assert_eq!(decode_from_brain(&frame), Ok(message.clone()));
    let mirror = Mirror::of(&step);
    let json = serde_json::to_vec(&mirror).expect("numbers and lists can be written");
    assert_eq!(serde_json::from_slice::<Mirror>(&json).expect("what was written can be read"), mirror);

    let group = format!("step_{sequences}_{name}");
    let case = |name: &str| Case::new(&group, name).handles(sequences);
    suite.time(case("encode").beside("encode_serde_json"), |bencher| {
        bencher.iter(|| encode_from_brain(black_box(&message), &mut encoder));
    });
    suite.time(case("encode_serde_json"), |bencher| {
        bencher.iter(|| serde_json::to_vec(black_box(&mirror)));
    });
    suite.time(case("decode").beside("decode_serde_json"), |bencher| {
        bencher.iter(|| {
            let mut reader = FrameReader::new();
            let mut decoded = None;
            for piece in black_box(&frame).chunks(READ_BYTES) {
                reader.push(piece);
                while let Ok(Some(frame)) = reader.next_frame() {
                    decoded = decode_from_brain(frame).ok();
                }
            }
            decoded.expect("the frame is whole")
        });
    });
    suite.time(case("decode_serde_json"), |bencher| {
        bencher.iter(|| serde_json::from_slice::<Mirror>(black_box(&json)));
    });
}

fn output(sequences: usize, top: Option<u32>) -> StepOutput {
    let logprobs = |at: u32| TokenLogprobs {
        logprob: -0.25,
        top: (0..top.unwrap_or(0)).map(|rank| (at + rank, -0.25 - rank as f32)).collect(),
    };
    let outputs = (0..sequences as u32).map(|at| SequenceOutput {
        sequence: SequenceId(u64::from(at) << 32 | 77),
        position: 100 + at,
        tokens: vec![at * 1001 % 49_152],
        cached_tokens: 64,
        logprobs: top.map(|_| logprobs(at)).into_iter().collect(),
        prompt_logprobs: Vec::new(),
        finish: None,
    });
    StepOutput {
        step: 123_456,
        outputs: outputs.collect(),
        capacity: Capacity {
            running: sequences as u32,
            blocks_free: 10,
            blocks_held: 990,
            blocks_total: 1000,
            steps: 123_456,
            ..Capacity::default()
        },
    }
}

/// The same fields for serde, which the protocol's own types don't know.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Mirror {
    step: u64,
    outputs: Vec<MirrorOutput>,
    capacity: [u64; 16],
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct MirrorOutput {
    sequence: u64,
    position: u32,
    tokens: Vec<u32>,
    cached_tokens: u32,
    logprobs: Vec<MirrorLogprobs>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct MirrorLogprobs {
    logprob: f32,
    top: Vec<(u32, f32)>,
}

impl Mirror {
    fn of(step: &StepOutput) -> Self {
        let logprobs =
            |entry: &TokenLogprobs| MirrorLogprobs { logprob: entry.logprob, top: entry.top.clone() };
        let output = |output: &SequenceOutput| MirrorOutput {
            sequence: output.sequence.0,
            position: output.position,
            tokens: output.tokens.clone(),
            cached_tokens: output.cached_tokens,
            logprobs: output.logprobs.iter().map(logprobs).collect(),
        };
        let load = &step.capacity;
        let small = [
            load.running,
            load.waiting,
            load.blocks_free,
            load.blocks_cached,
            load.blocks_held,
            load.blocks_total,
            load.step_tokens,
        ];
        let large = [load.waiting_tokens, load.steps, load.step_age_ms, load.step_us];
        let totals = [
            load.prompt_tokens_total,
            load.cached_tokens_total,
            load.output_tokens_total,
            load.preemptions_total,
            load.schedule_us_total,
            load.forward_us_total,
            load.sample_us_total,
            load.send_us_total,
        ];
        let numbers = small.into_iter().map(u64::from).chain(large).chain(totals);
        let mut capacity = [0; 16];
        capacity.iter_mut().zip(numbers).for_each(|(place, number)| *place = number);
        Self { step: step.step, outputs: step.outputs.iter().map(output).collect(), capacity }
    }
}
