//! Opening whole models.

use std::path::Path;

use pons_checkpoint::fixture::write_tiny_llama;
use pons_checkpoint::{Checkpoint, CheckpointError, Dtype, Role, RopeLayout};

fn tiny(seed: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_tiny_llama(dir.path(), seed, &["piece one", "{\"a\":"]).unwrap();
    dir
}

fn replace_in(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from} is in {}", path.display());
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn the_tiny_model_opens_and_has_every_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let written = write_tiny_llama(dir.path(), 1, &["piece one", "the", "{\"a\":"]).unwrap();
    let model = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(*model.config(), written.config);
    assert_eq!(model.config().vocab_size, 256 + 8 + 3 + 7);
    assert_eq!(written.piece_ids, [264, 265, 266]);
    assert_eq!(model.config().eos, [269, 267]);
    assert_eq!(model.config().rope_layout, RopeLayout::Half);
    assert!(model.gguf_metadata().is_none());
    assert_eq!(model.dir(), dir.path());
    let roles: Vec<Role> = Role::all(model.config()).collect();
    assert_eq!(roles.len(), 3 + 2 * 9);
    for role in roles {
        let tensor = model.tensor(role).unwrap();
        assert_eq!((tensor.rows, tensor.cols), role.shape(model.config()));
        assert_eq!(tensor.dtype, Dtype::F32);
        assert!(tensor.to_f32().iter().all(|w| w.is_finite() && w.abs() < 2.0));
    }
}

#[test]
fn the_written_weights_are_read_alike_by_the_safetensors_crate() {
    let dir = tiny(7);
    let bytes = std::fs::read(dir.path().join("model.safetensors")).unwrap();
    let rival = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let model = Checkpoint::open(dir.path()).unwrap();
    for role in Role::all(model.config()) {
        let ours = model.tensor(role).unwrap();
        assert_eq!(ours.data, rival.tensor(ours.name).unwrap().data(), "{}", ours.name);
    }
    assert_eq!(model.size_bytes(), bytes.len() as u64);
}

#[test]
fn equal_seeds_give_equal_fingerprints_and_other_seeds_other_ones() {
    let print = |seed| {
        let dir = tiny(seed);
        Checkpoint::open(dir.path()).unwrap().fingerprint().to_owned()
    };
    assert_eq!(print(3), print(3));
    assert_ne!(print(3), print(4));
    assert_eq!(print(3).len(), 16);
}

#[test]
fn a_configuration_that_contradicts_the_weights_is_refused_by_tensor_name() {
    let dir = tiny(1);
    replace_in(&dir.path().join("config.json"), "\"intermediate_size\":128", "\"intermediate_size\":192");
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::BadTensor { name, .. } if name.contains("gate_proj")),
        "{error}"
    );
    assert!(error.to_string().contains("192"), "{error}");
}

#[test]
fn a_model_with_more_layers_than_its_file_names_the_missing_tensor() {
    let dir = tiny(1);
    replace_in(&dir.path().join("config.json"), "\"num_hidden_layers\":2", "\"num_hidden_layers\":3");
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("model.layers.2."), "{error}");
}

#[test]
fn a_tied_model_takes_its_head_from_the_embedding() {
    let dir = tiny(1);
    replace_in(
        &dir.path().join("config.json"),
        "\"tie_word_embeddings\":false",
        "\"tie_word_embeddings\":true",
    );
    let model = Checkpoint::open(dir.path()).unwrap();
    let (head, embedding) = (model.tensor(Role::Head).unwrap(), model.tensor(Role::Embedding).unwrap());
    assert_eq!(head.name, embedding.name);
}

#[test]
fn a_sharded_model_equals_the_single_file() {
    let dir = tiny(5);
    let whole = Checkpoint::open(dir.path()).unwrap();
    let single = dir.path().join("model.safetensors");
    std::fs::copy(&single, dir.path().join("model-00001-of-00002.safetensors")).unwrap();
    std::fs::copy(&single, dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    let map: serde_json::Map<String, serde_json::Value> = Role::all(whole.config())
        .enumerate()
        .map(|(n, role)| {
            (role.safetensors_name(), format!("model-0000{}-of-00002.safetensors", 1 + n % 2).into())
        })
        .collect();
    let index = dir.path().join("model.safetensors.index.json");
    std::fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    std::fs::remove_file(&single).unwrap();
    let sharded = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(sharded.fingerprint(), whole.fingerprint());
    replace_in(&index, "model-00002-of-00002.safetensors", "../model-00002-of-00002.safetensors");
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("plain file name"), "{error}");
}

#[test]
fn an_index_that_names_a_missing_tensor_or_file_is_refused() {
    let dir = tiny(5);
    let index = dir.path().join("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map":{"nowhere":"model.safetensors"}}"#).unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap_err().to_string().contains("`nowhere`"));
    std::fs::write(&index, r#"{"weight_map":{"nowhere":"other.safetensors"}}"#).unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap_err().to_string().contains("other.safetensors"));
    std::fs::write(&index, r#"{"weight_map":[]}"#).unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap_err().to_string().contains("index.json"));
}

#[test]
fn what_is_no_model_is_refused_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_path_buf(), dir.path().join("absent.gguf")] {
        let error = Checkpoint::open(&path).unwrap_err().to_string();
        assert!(error.contains(&dir.path().display().to_string()), "{error}");
    }
    std::fs::create_dir(dir.path().join("config.json")).unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap_err().to_string().contains("not a regular file"));
    let empty = dir.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    assert!(Checkpoint::open(&empty).unwrap_err().to_string().contains("magic number"));
}
