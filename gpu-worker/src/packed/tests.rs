use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::{Duration, SystemTime};

use pons_checkpoint::Role;
use pons_checkpoint::fixture::write_tiny_llama;
use pons_kernels::Matrix;

use super::*;

/// A tiny model in a folder of its own.
struct Model {
    dir: tempfile::TempDir,
}

impl Model {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        write_tiny_llama(&dir.path().join("tiny"), 1, &[]).expect("the model is written");
        Self { dir }
    }

    fn open(&self) -> Checkpoint {
        Checkpoint::open(&self.dir.path().join("tiny")).expect("the model opens")
    }

    fn kept(&self) -> Folder {
        Folder::Given(self.dir.path().join("kept"))
    }

    /// What a start does. Whether it had to pack, and all packed weights.
    fn start(&self) -> (bool, Vec<u8>) {
        let (packed, unkept) = load(&self.kept(), &self.open(), 2).expect("the model loads");
        let packed_anew = unkept.is_some();
        if let Some(unkept) = unkept {
            unkept.write();
        }
        (packed_anew, packed.bytes().to_vec())
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.dir.path().join("kept")).expect("the folder is there");
        let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
        files.sort();
        files
    }

    fn file(&self) -> PathBuf {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }
}

fn matrices(checkpoint: &Checkpoint, packed: &Packed) -> Vec<(Role, Matrix)> {
    let roles = packed.contents().entries().iter().map(|entry| entry.role);
    roles
        .map(|role| {
            let tensor = checkpoint.tensor(role).expect("the tensor is there");
            (role, packed.matrix(&tensor).expect("the matrix is there"))
        })
        .collect()
}

#[test]
fn weights_are_packed_once_and_read_the_same_ever_after() {
    let model = Model::new();
    let (anew, first) = model.start();
    assert!(anew);
    for _ in 0..2 {
        assert_eq!(model.start(), (false, first.clone()));
    }
    let file = model.file();
    assert!(file.to_str().is_some_and(|path| path.contains("/kept/tiny.")), "{file:?}");
}

#[test]
fn packed_weights_are_those_of_the_model() {
    let model = Model::new();
    let checkpoint = model.open();
    let packed = Packed::pack(&checkpoint, 3).expect("the model packs");
    let matrices = matrices(&checkpoint, &packed);
    assert!(matrices.len() > 7);
    for (role, matrix) in matrices {
        let tensor = checkpoint.tensor(role).expect("the tensor is there");
        let wanted = tensor.to_f32();
        let mut row = vec![0.0; tensor.cols];
        for (index, wanted) in wanted.chunks_exact(tensor.cols).enumerate() {
            matrix.row_to_f32(index, &mut row);
            assert_eq!(row, wanted, "{role:?}, row {index}");
        }
    }
}

#[test]
fn any_damage_is_found_and_mended() {
    let model = Model::new();
    let (_, weights) = model.start();
    let path = model.file();
    let good = std::fs::read(&path).expect("the file is there");
    let last = good.len() - 1;
    for at in [0, 8, 12, 17, 33, 40, 44, 4096, 5000, last] {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&path, bad).expect("written");
        assert_eq!(model.start(), (true, weights.clone()), "byte {at}");
        assert_eq!(model.start(), (false, weights.clone()), "byte {at}");
        assert_eq!(std::fs::read(model.file()).expect("the file is there"), good, "byte {at}");
    }
    for len in [0, 1, 39, 4095, 4096, good.len() / 2, last] {
        std::fs::write(&path, &good[..len]).expect("written");
        assert_eq!(model.start(), (true, weights.clone()), "{len} bytes");
        assert_eq!(model.start(), (false, weights.clone()), "{len} bytes");
    }
    let mut longer = good.clone();
    longer.push(0);
    std::fs::write(&path, longer).expect("written");
    assert_eq!(model.start(), (true, weights.clone()));
    std::fs::remove_file(&path).expect("removed");
    std::fs::create_dir(&path).expect("made");
    assert_eq!(model.start(), (true, weights), "a folder in its place can't be replaced, and does no harm");
}

#[test]
fn a_model_that_was_written_again_is_packed_again_and_old_files_go() {
    let model = Model::new();
    let mut seen = Vec::new();
    for age_s in 1..=4 {
        let weights = model.dir.path().join("tiny").join("model.safetensors");
        let file = File::options().write(true).open(weights).expect("the model is there");
        file.set_modified(SystemTime::now() - Duration::from_secs(age_s)).expect("set");
        assert!(model.start().0, "the files look the same but for the time");
        assert!(!model.start().0);
        let new: Vec<PathBuf> = model.files().into_iter().filter(|file| !seen.contains(file)).collect();
        assert_eq!(new.len(), 1);
        // Older files look older also to a clock of whole seconds.
        let written = SystemTime::now() - Duration::from_secs(100 - age_s);
        File::options().write(true).open(&new[0]).and_then(|file| file.set_modified(written)).expect("set");
        seen.extend(new);
        let wanted: Vec<&PathBuf> = seen.iter().rev().take(2).collect();
        let files = model.files();
        assert!(files.len() == wanted.len() && files.iter().all(|file| wanted.contains(&file)), "{files:?}");
    }
}

#[test]
fn files_of_other_models_and_other_names_are_left_alone() {
    let model = Model::new();
    let kept = model.dir.path().join("kept");
    std::fs::create_dir(&kept).expect("made");
    let others =
        ["tiny.0123456789abcdef.packed.txt", "tiny.short.packed", "tiny2.0123456789abcdef.packed", "a"];
    let stale = ["tiny.0123456789abcdef.packed", "tiny.fedcba9876543210.packed"];
    for name in others.iter().chain(&stale) {
        std::fs::write(kept.join(name), "x").expect("written");
    }
    model.start();
    let left = model.files();
    assert!(others.iter().all(|name| left.contains(&kept.join(name))), "{left:?}");
    assert_eq!(left.len(), others.len() + 2, "{left:?}");
}

#[test]
fn starts_at_the_same_time_end_with_one_good_file() {
    let model = Model::new();
    let expected = Packed::pack(&model.open(), 1).expect("the model packs").bytes().to_vec();
    let gate = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    gate.wait();
                    model.start().1
                })
            })
            .collect();
        for start in starts {
            assert_eq!(start.join().expect("no start fails"), expected);
        }
    });
    model.file();
    assert_eq!(model.start(), (false, expected));
}

#[test]
fn what_a_dead_writer_left_is_used_up() {
    let model = Model::new();
    let kept = model.dir.path().join("kept");
    std::fs::create_dir(&kept).expect("made");
    std::fs::write(kept.join("tiny.packed.tmp"), vec![7; 1 << 20]).expect("written");
    assert!(model.start().0);
    model.file();
    assert!(!model.start().0);
}

#[test]
fn a_living_writer_is_not_disturbed() {
    let model = Model::new();
    let kept = model.dir.path().join("kept");
    std::fs::create_dir(&kept).expect("made");
    let other = File::create(kept.join("tiny.packed.tmp")).expect("made");
    other.lock().expect("locked");
    other.write_all_at(b"half", 0).expect("written");
    assert!(model.start().0);
    assert_eq!(std::fs::read(model.file()).expect("the file is there"), b"half");
}

#[test]
fn a_link_in_the_way_is_not_followed() {
    let model = Model::new();
    let kept = model.dir.path().join("kept");
    std::fs::create_dir(&kept).expect("made");
    let precious = model.dir.path().join("precious");
    std::fs::write(&precious, "text").expect("written");
    std::os::unix::fs::symlink(&precious, kept.join("tiny.packed.tmp")).expect("linked");
    assert!(model.start().0);
    assert_eq!(std::fs::read(&precious).expect("it is there"), b"text");
}

#[test]
fn a_folder_that_takes_nothing_changes_nothing_but_the_next_start() {
    let model = Model::new();
    // No folder can be made below a file, whoever asks.
    let file = model.dir.path().join("file");
    std::fs::write(&file, "").expect("written");
    let folder = Folder::Given(file.join("kept"));
    for _ in 0..2 {
        let (packed, unkept) = load(&folder, &model.open(), 1).expect("the model loads");
        assert!(!packed.bytes().is_empty());
        unkept.expect("it was packed anew").write();
    }
}

#[test]
fn the_other_folder_is_taken_where_the_model_has_no_place() {
    let model = Model::new();
    let checkpoint = model.open();
    let tiny = model.dir.path().join("tiny");
    // Takes the name that is written to, whoever asks; a read-only folder stops no superuser.
    std::fs::create_dir(tiny.join("tiny.packed.tmp")).expect("made");
    let folder = Folder::Beside(Some(model.dir.path().join("kept")));
    let (packed, unkept) = load(&folder, &checkpoint, 1).expect("the model loads");
    unkept.expect("it was packed anew").write();
    assert!(model.file().exists());
    let (read, unkept) = load(&folder, &checkpoint, 1).expect("the model loads");
    assert!(unkept.is_none());
    assert_eq!(read.bytes(), packed.bytes());
}

#[test]
fn a_model_may_keep_its_packed_weights_beside_it_or_nowhere() {
    let model = Model::new();
    let checkpoint = model.open();
    let (_, unkept) = load(&Folder::None, &checkpoint, 1).expect("the model loads");
    assert!(unkept.is_none());
    let (_, unkept) = load(&Folder::Beside(None), &checkpoint, 1).expect("the model loads");
    unkept.expect("it was packed anew").write();
    let (_, unkept) = load(&Folder::Beside(None), &checkpoint, 1).expect("the model loads");
    assert!(unkept.is_none());
    let (_, unkept) = load(&Folder::None, &checkpoint, 1).expect("the model loads");
    assert!(unkept.is_none(), "nothing is kept, whether or not there is a file");
    assert!(
        model.open().fingerprint() == checkpoint.fingerprint(),
        "the file beside it is no part of the model"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_packed_anew() {
    let model = Model::new();
    let (_, weights) = model.start();
    let path = model.file();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o0)).expect("set");
    // The superuser may read it all the same.
    assert_eq!(model.start().1, weights);
    assert_eq!(model.start(), (false, weights));
}
