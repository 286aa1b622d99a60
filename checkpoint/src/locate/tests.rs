use std::collections::HashMap;
use std::fs::File;

use super::*;

fn dir_for(vars: &[(&str, &str)]) -> Result<PathBuf> {
    let vars: HashMap<&str, &str> = vars.iter().copied().collect();
    models_dir_from(&|name| vars.get(name).map(PathBuf::from))
}

#[test]
fn the_model_directory_follows_the_environment() {
    let all = [("PONS_MODELS", "/m"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/h")];
    assert_eq!(dir_for(&all).unwrap(), Path::new("/m"));
    assert_eq!(dir_for(&all[1..]).unwrap(), Path::new("/c/pons/models"));
    assert_eq!(dir_for(&all[2..]).unwrap(), Path::new("/h/.cache/pons/models"));
    let relative = [("XDG_CACHE_HOME", "c"), ("HOME", "/h")];
    assert_eq!(dir_for(&relative).unwrap(), Path::new("/h/.cache/pons/models"));
    assert!(dir_for(&[]).unwrap_err().to_string().contains("PONS_MODELS"));
}

/// A sparse file: the known models are too large to write.
fn put(path: &Path, len: u64) {
    File::create(path).unwrap().set_len(len).unwrap();
}

#[test]
fn a_known_name_is_found_under_either_file_name_once_complete() {
    let dir = tempfile::tempdir().unwrap();
    let model = known("smollm2-135m").unwrap();
    let error = locate_in(model.name, dir.path()).unwrap_err().to_string();
    assert!(error.contains("pons model pull smollm2-135m"), "{error}");
    let published = dir.path().join(model.published_as);
    put(&published, model.size_bytes - 1);
    assert!(locate_in(model.name, dir.path()).is_err());
    put(&published, model.size_bytes);
    assert_eq!(locate_in(model.name, dir.path()).unwrap(), published);
    let ours = dir.path().join("smollm2-135m.gguf");
    put(&ours, model.size_bytes);
    assert_eq!(locate_in(model.name, dir.path()).unwrap(), ours);
}

#[test]
fn paths_of_gguf_files_and_model_directories_are_taken_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("own.GGUF");
    put(&file, 1);
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    assert_eq!(locate(&path(&file)).unwrap(), file);
    assert!(locate(&path(dir.path())).is_err());
    put(&dir.path().join("config.json"), 1);
    assert_eq!(locate(&path(dir.path())).unwrap(), dir.path());
    let other = dir.path().join("own.bin");
    put(&other, 1);
    assert!(locate(&path(&other)).is_err());
}

#[test]
fn an_unknown_name_is_told_what_would_work() {
    let error = locate("gpt-99\n").unwrap_err().to_string();
    for word in
        ["gpt-99\\n", "smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", ".gguf", "config.json"]
    {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn packages_are_named_in_the_order_of_their_parts() {
    assert_eq!(Packages::Whole("one").names(), ["one"]);
    let names = Packages::Parts { prefix: "p-part", count: 11 }.names();
    assert_eq!((names.len(), names[0].as_str(), names[10].as_str()), (11, "p-part1", "p-part11"));
}
