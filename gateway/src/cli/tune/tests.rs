//! Whole tunings with scripts in the places of the server and the harness.

use super::*;
use crate::config;
use clap::Parser;
use std::os::unix::fs::PermissionsExt;

/// Announces its own configuration file as its address, and waits for its signal.
const SERVER: &str = r#"#!/bin/sh
trap 'touch "$(dirname "$3")/stopped"; exit 0' TERM
echo "ready: $3"
while :; do sleep 0.05; done
"#;

/// More sequences give more tokens and longer gaps; 64 of them are too slow.
const HARNESS_SCRIPT: &str = r#"#!/bin/sh
rows=$(sed -n 's/^max_sequences = //p' "$4")
rows=${rows:-24}
cat > "$6/run.json" <<END
{"summary": {"ttft_ms": {"p99": 500}, "itl_ms": {"p99": $((rows + 40))}, "output_tokens_per_s": $((rows * 10)),
 "ok": 100, "refused": 0, "failed": 0}}
END
"#;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    tune: TuneArguments,
}

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(harness: &str) -> Self {
        let bench = Self { dir: tempfile::tempdir().expect("temporary directory") };
        for (name, text) in [("server", SERVER), ("harness", harness)] {
            std::fs::write(bench.path(name), text).expect("written");
            std::fs::set_permissions(bench.path(name), PermissionsExt::from_mode(0o755)).expect("set");
        }
        std::fs::write(bench.path("scenario.toml"), "streams = 4\n").expect("written");
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn tune(&self, further: &[&str]) -> Result<(), String> {
        let path = |name: &str| self.path(name).display().to_string();
        let mut line: Vec<String> = vec!["tune".to_owned()];
        for (option, value) in [
            ("--model", "some/model.gguf".to_owned()),
            ("--scenario", path("scenario.toml")),
            ("--state-dir", path("state")),
            ("--out", path("tuned.toml")),
            ("--evidence", path("evidence.json")),
        ] {
            line.extend([option.to_owned(), value]);
        }
        line.extend(further.iter().map(|&argument| argument.to_owned()));
        let arguments = Line::try_parse_from(line).expect("parses").tune;
        let programs = Programs {
            server: self.path("server"),
            harness: self.path("harness"),
            trials_dir: self.path("trials"),
        };
        tune(&arguments, &programs).map_err(|error| format!("{error:#}"))
    }

    fn evidence(&self) -> serde_json::Value {
        let text = std::fs::read_to_string(self.path("evidence.json")).expect("evidence is written");
        serde_json::from_str(&text).expect("it is JSON")
    }
}

#[test]
fn the_fastest_candidate_within_the_limits_is_written_and_loads() {
    let bench = Bench::new(HARNESS_SCRIPT);
    bench.tune(&["--max-trials", "6"]).expect("some candidates meet the limits");
    let tuned = config::load(Some(&bench.path("tuned.toml")), Overrides::default()).expect("it loads");
    let model = &tuned.models[0];
    assert_eq!((model.name.as_str(), model.max_sequences, model.p99_itl_ms), ("model", Some(32), 100));
    let evidence = bench.evidence();
    let trials = evidence["trials"].as_array().expect("trials");
    assert_eq!(trials.len(), 6);
    let chosen = &trials[evidence["chosen"].as_u64().expect("one is chosen") as usize];
    assert_eq!(chosen["candidate"]["max_sequences"], 32);
    assert!(evidence["reason"].as_str().expect("words").contains("320.0 output tokens/s"));
    assert_eq!(evidence["scenario"], "streams = 4\n");
    for index in 0..6 {
        let stopped = bench.path("trials").join(format!("trial-{index}/stopped"));
        assert!(stopped.exists(), "the server of trial {index} wasn't asked to stop");
    }
}

#[test]
fn if_none_meets_the_limits_the_nearest_is_named_and_no_configuration_written() {
    let bench = Bench::new(HARNESS_SCRIPT);
    let error = bench.tune(&["--p99-itl-ms", "40", "--max-trials", "6"]).expect_err("48 ms are the least");
    assert!(error.contains("max_sequences=8 came nearest"), "{error}");
    assert!(!bench.path("tuned.toml").exists());
    assert!(bench.evidence()["chosen"].is_null());
}

#[test]
fn a_harness_that_fails_at_once_ends_the_tuning_with_its_words() {
    let bench = Bench::new("#!/bin/sh\necho 'scenario field x is unknown' >&2\nexit 3\n");
    let error = bench.tune(&[]).expect_err("nothing was measured");
    assert!(error.contains("scenario field x is unknown"), "{error}");
    assert_eq!(bench.evidence()["trials"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_harness_that_hangs_is_stopped_when_the_time_is_used_up() {
    let bench = Bench::new("#!/bin/sh\nexec sleep 600\n");
    let began = Instant::now();
    let error = bench.tune(&["--budget-minutes", "0.02"]).expect_err("nothing was measured");
    assert!(error.contains("raise --budget-minutes"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn costs_count_and_need_a_price() {
    let bench = Bench::new(HARNESS_SCRIPT);
    let error = bench.tune(&["--max-cost", "1"]).expect_err("no price is known");
    assert!(error.contains("--machine-price-per-hour"), "{error}");
    // 3.6 an hour and 320 tokens/s are 0.003125 for a thousand; nothing in the limits is cheaper.
    let most = ["--max-cost", "0.003", "--machine-price-per-hour", "3.6", "--max-trials", "4"];
    assert!(bench.tune(&most).expect_err("too dear").contains("none of 4 candidates"));
    let most = ["--max-cost", "0.0032", "--machine-price-per-hour", "3.6", "--max-trials", "4"];
    bench.tune(&most).expect("32 sequences are cheap enough");
}

#[test]
fn bad_arguments_name_the_field_the_value_and_the_remedy() {
    let bench = Bench::new(HARNESS_SCRIPT);
    for (argument, words) in [
        ("--budget-minutes=0", "--budget-minutes is 0; give 0.01 to 1440"),
        ("--p99-itl-ms=0", "--p99-itl-ms is 0; give 1 to 60000"),
        ("--max-cost=-1", "--max-cost is -1; give a number above 0"),
    ] {
        let error = bench.tune(&[argument]).expect_err("refused");
        assert!(error.contains(words), "{error}");
    }
    std::fs::remove_file(bench.path("scenario.toml")).expect("removed");
    let error = bench.tune(&[]).expect_err("no scenario");
    assert!(error.contains("scenario.toml is there; give --scenario FILE"), "{error}");
}
