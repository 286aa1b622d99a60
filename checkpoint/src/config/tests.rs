use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn llama() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "eos_token_id": 2, "bos_token_id": 1
    })
}

fn with(mut base: Value, field: &str, value: Value) -> Value {
    base[field] = value;
    base
}

fn read(config: &Value) -> Result<ModelConfig> {
    ModelConfig::from_json(&config.to_string(), None)
}

#[test]
fn a_llama_configuration_is_read_with_its_defaults() {
    let config = read(&llama()).unwrap();
    assert_eq!(config.architecture, Family::Llama);
    assert_eq!((config.head_dim, config.kv_heads, config.q_dim(), config.kv_dim()), (16, 2, 64, 32));
    assert_eq!((config.rope_theta, config.rope_layout), (10_000.0, RopeLayout::Half));
    assert_eq!(config.rope_scaling, RopeScaling::None);
    assert!(!config.qkv_bias && !config.qk_norm && !config.tied_embeddings);
    assert_eq!((config.bos, config.eos, config.pad), (Some(1), vec![2], None));
}

#[test]
fn families_differ_in_biases_and_norms() {
    let qwen2 = with(with(llama(), "model_type", json!("qwen2")), "use_sliding_window", json!(false));
    // Qwen2 files name a window they do not use.
    let qwen2 = read(&with(qwen2, "sliding_window", json!(1024))).unwrap();
    assert!(qwen2.qkv_bias && !qwen2.qk_norm);
    let qwen3 = with(with(llama(), "model_type", json!("qwen3")), "head_dim", json!(128));
    let qwen3 = read(&qwen3).unwrap();
    assert!(!qwen3.qkv_bias && qwen3.qk_norm);
    assert_eq!(qwen3.q_dim(), 512);
}

#[test]
fn ends_of_generation_come_from_both_files_without_repeats() {
    let config = with(llama(), "eos_token_id", json!([2, 7])).to_string();
    let config = ModelConfig::from_json(&config, Some(r#"{"eos_token_id":[7, 9]}"#)).unwrap();
    assert_eq!(config.eos, [2, 7, 9]);
    let none = with(llama(), "eos_token_id", Value::Null);
    assert_eq!(read(&none).unwrap().eos, Vec::<u32>::new());
}

#[test]
fn every_kind_of_rope_scaling_is_read_in_old_and_new_spelling() {
    let scaling = |field: &str, value: Value| read(&with(llama(), field, value)).unwrap().rope_scaling;
    let linear = scaling("rope_scaling", json!({"type": "linear", "factor": 2}));
    assert_eq!(linear, RopeScaling::Linear { factor: 2.0 });
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let want = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192,
    };
    assert_eq!(scaling("rope_scaling", llama3), want);
    let yarn = scaling("rope_parameters", json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}));
    let want = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 4096,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
    };
    assert_eq!(yarn, want);
    let nested = json!({"rope_type": "default", "rope_theta": 5e5});
    let config = read(&with(llama(), "rope_parameters", nested)).unwrap();
    assert_eq!((config.rope_theta, config.rope_scaling), (5e5, RopeScaling::None));
}

#[test]
fn every_bad_field_is_refused_by_name() {
    let cases = [
        ("model_type", json!("mamba"), "supported are llama, qwen2 and qwen3"),
        ("model_type", Value::Null, "missing"),
        ("vocab_size", json!(0), "from 1 to"),
        ("vocab_size", json!(1_u64 << 40), "from 1 to"),
        ("vocab_size", json!(-1), "whole number"),
        ("vocab_size", json!("many"), "\"many\""),
        ("vocab_size", Value::Null, "missing"),
        ("hidden_size", json!(1.5), "whole number"),
        ("num_hidden_layers", json!(2_000_000), "from 1 to 1024"),
        ("num_attention_heads", json!(0), "hidden_size"),
        ("num_attention_heads", json!(7), "hidden_size"),
        ("num_key_value_heads", json!(3), "divide num_attention_heads"),
        ("num_key_value_heads", json!(0), "from 1 to"),
        ("head_dim", json!(15), "even"),
        ("intermediate_size", json!(u64::MAX), "from 1 to"),
        ("max_position_embeddings", json!(0), "from 1 to"),
        ("rope_theta", json!(0), "above 0"),
        ("rope_theta", json!(-1.0), "above 0"),
        ("rms_norm_eps", json!(0), "above 0"),
        ("attention_bias", json!(true), "only false"),
        ("mlp_bias", json!(true), "only false"),
        ("sliding_window", json!(1024), "not supported"),
        ("hidden_act", json!("gelu"), "only silu"),
        ("quantization_config", json!({"bits": 4}), "gguf"),
        ("partial_rotary_factor", json!(0.5), "only 1.0"),
        ("eos_token_id", json!(1000), "below vocab_size"),
        ("eos_token_id", json!("x"), "token id"),
        ("bos_token_id", json!(-1), "token id"),
    ];
    for (field, value, hint) in cases {
        let error = read(&with(llama(), field, value.clone())).unwrap_err().to_string();
        assert!(error.contains(&format!("`{field}`")) && error.contains(hint), "{field} = {value}: {error}");
    }
}

#[test]
fn bad_rope_scaling_is_refused_by_its_field() {
    let cases = [
        (json!({"rope_type": "dynamic"}), "rope_type"),
        (json!({"rope_type": "linear"}), "rope_scaling.factor"),
        (json!({"rope_type": "linear", "factor": 0.5}), "rope_scaling.factor"),
        (json!({"rope_type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 2}), "beta_fast"),
        (
            json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}),
            "high_freq_factor",
        ),
        (json!({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0}), "original_max"),
        (json!({"rope_type": "yarn", "factor": 4, "mscale": 1.0}), "mscale"),
        (json!({"rope_type": "yarn", "factor": 4, "truncate": false}), "truncate"),
        (json!([1]), "rope_scaling"),
    ];
    for (value, field) in cases {
        let error = read(&with(llama(), "rope_scaling", value.clone())).unwrap_err().to_string();
        assert!(error.contains(field), "{value}: {error}");
    }
    let short = RopeScaling::Divisors(vec![1.0; 7]).validate(16).unwrap_err().to_string();
    assert!(short.contains("7 elements"), "{short}");
    assert!(RopeScaling::Divisors(vec![f32::NAN; 8]).validate(16).is_err());
}

#[test]
fn text_that_is_no_object_is_refused() {
    for text in ["", "[]", "{", "null", &"[".repeat(100_000)] {
        let error = ModelConfig::from_json(text, None).unwrap_err().to_string();
        assert!(error.contains("config.json"), "{error}");
    }
    let error = ModelConfig::from_json(&llama().to_string(), Some("7")).unwrap_err().to_string();
    assert!(error.contains("generation_config.json"), "{error}");
}

#[test]
fn a_huge_wrong_value_is_shown_shortened() {
    let error = read(&with(llama(), "vocab_size", json!("x".repeat(1 << 20)))).unwrap_err().to_string();
    assert!(error.len() < 300, "{} bytes", error.len());
}

proptest! {
    #[test]
    fn whatever_is_accepted_keeps_the_invariants(
        heads in 0_u64..20, kv in 0_u64..20, hidden in 0_u64..200, dim in prop::option::of(0_u64..40),
        eos in prop::collection::vec(0_u64..1200, 0..5),
    ) {
        let mut json = llama();
        for (field, value) in [("num_attention_heads", heads), ("num_key_value_heads", kv), ("hidden_size", hidden)] {
            json[field] = value.into();
        }
        json["head_dim"] = json!(dim);
        json["eos_token_id"] = json!(eos);
        if let Ok(config) = read(&json) {
            prop_assert!(config.heads > 0 && config.heads % config.kv_heads == 0);
            prop_assert!(config.head_dim > 0 && config.head_dim % 2 == 0);
            prop_assert!(config.eos.iter().all(|&id| (id as usize) < config.vocab_size));
        }
    }
}
