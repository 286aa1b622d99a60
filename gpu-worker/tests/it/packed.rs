//! Packed weights that are kept between starts: the same numbers, whatever state the file is in.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pons_checkpoint::Checkpoint;
use pons_gpu_worker::executor::{
    LocalConfig, LocalExecutor, ModelExecutor, NewSequence, PlanItem, PromptLogprobs, StepPlan,
};
use pons_gpu_worker::packed::{self, Folder};
use pons_kernels::KvFormat;
use pons_protocol::sampling::{SamplingParams, StopParams};

use crate::client::{Brain, submit};
use crate::tiny::{Encode, bf16_bytes, f16_bytes, f32_bytes, write_model};

/// Longest wait for a file; only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

const CONFIG: LocalConfig = LocalConfig {
    threads: 2,
    kv_format: KvFormat::Bf16,
    blocks: 8,
    slots: 1,
    step_tokens: 32,
    context_tokens: 64,
};

/// Loads a model as a start does, and says whether it was packed anew and what it computes.
fn start(dir: &Path) -> (bool, String) {
    let checkpoint = Checkpoint::open(dir).expect("the fixture opens");
    let (packed, unkept) = packed::load(&Folder::Beside(None), &checkpoint, 2).expect("the fixture packs");
    let mut executor =
        LocalExecutor::load_packed(&checkpoint, packed, CONFIG, &[]).expect("the fixture loads");
    let anew = unkept.is_some();
    if let Some(unkept) = unkept {
        unkept.write();
    }
    let sampling = SamplingParams { temperature: 0.0, logprobs: Some(20), ..SamplingParams::default() };
    let prompt = [9, 8, 7, 6, 5, 200, 31];
    let sequence = NewSequence {
        slot: 0,
        sampling: sampling.into(),
        stop: StopParams::default().into(),
        end_tokens: [0].into(),
        prompt: prompt.into(),
        generated: Vec::new(),
        grammar: None,
    };
    let item = PlanItem {
        slot: 0,
        tokens: prompt.to_vec(),
        start: 0,
        blocks: vec![0],
        sample: Some(0),
        prompt_logprobs: Some(PromptLogprobs { top: 20, next: None }),
    };
    let plan = StepPlan { step: 1, released: Vec::new(), admitted: vec![sequence], items: vec![item] };
    let ticket = executor.submit(plan).expect("the plan is valid");
    let rows = executor.collect(ticket).expect("the step is computed").rows;
    assert!(rows[0].logprobs.is_some() && rows[0].prompt_logprobs.len() > 2, "{rows:?}");
    // Numbers are written so that other bits read otherwise.
    (anew, format!("{rows:?}"))
}

#[test]
fn every_family_computes_the_same_bits_from_kept_weights() {
    let dtypes: [(&str, Encode); 3] = [("F32", f32_bytes), ("F16", f16_bytes), ("BF16", bf16_bytes)];
    for family in ["llama", "qwen2", "qwen3"] {
        for (dtype, encode) in dtypes {
            let dir = tempfile::tempdir().expect("a directory for the model");
            write_model(dir.path(), family, dtype, encode);
            let (anew, first) = start(dir.path());
            assert!(anew, "{family} {dtype}");
            assert_eq!(start(dir.path()), (false, first), "{family} {dtype}");
        }
    }
}

/// The packed file beside a model, once it is there.
fn packed_file(dir: &Path) -> PathBuf {
    let began = Instant::now();
    loop {
        let files = std::fs::read_dir(dir).expect("the folder is there");
        let mut paths = files.map(|file| file.expect("a file").path());
        if let Some(path) = paths.find(|path| path.extension().is_some_and(|end| end == "packed")) {
            return path;
        }
        assert!(began.elapsed() < PATIENCE, "nothing was kept in {}", dir.display());
        std::thread::yield_now();
    }
}

#[test]
fn a_brain_keeps_its_weights_and_starts_from_them_sound_or_not() {
    let mut brain = Brain::start(&[]);
    let text = |brain: &Brain| {
        let mut gateway = brain.connect();
        gateway.submit(vec![submit(1, &[1, 2, 3], 16)]);
        gateway.finish(1).0
    };
    let tokens = text(&brain);
    let path = packed_file(&brain.model_dir());
    let good = std::fs::read(&path).expect("the file is there");
    brain.restart();
    assert_eq!(text(&brain), tokens);

    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    std::fs::write(&path, &bad).expect("written");
    brain.restart();
    assert_eq!(text(&brain), tokens);
    let began = Instant::now();
    while std::fs::read(&path).expect("the file is there") != good {
        assert!(began.elapsed() < PATIENCE, "the file was not mended");
        std::thread::yield_now();
    }
}

#[test]
fn a_brain_that_is_told_to_keep_nothing_leaves_no_file() {
    let mut brain = Brain::start(&["--no-packed-cache"]);
    let dir = brain.model_dir();
    brain.connect();
    brain.signal("TERM");
    assert!(brain.end().success());
    let left: Vec<_> = std::fs::read_dir(dir).expect("the folder is there").flatten().collect();
    assert!(left.iter().all(|file| !file.file_name().to_string_lossy().contains("packed")), "{left:?}");
}
