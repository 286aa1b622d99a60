//! Where packed files lie and what they are called. The rule: a file's name says which model it is of, so that stale
//! ones of the same model can be found, and only those.

use std::path::{Path, PathBuf};

use pons_checkpoint::Checkpoint;

use super::contents::Contents;

/// What names of packed files end with.
const SUFFIX: &str = ".packed";
/// Digits of the identity in a name.
const DIGITS: usize = 16;
/// Most packed files of one model in one folder: the one in use, and one of another release or an older writing.
const MOST_FILES: usize = 2;

/// A folder that a packed file of one model may lie in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    dir: PathBuf,
    model: String,
    file: String,
}

impl Place {
    /// The place in `dir` of a model's packed file.
    pub(super) fn new(dir: &Path, checkpoint: &Checkpoint, contents: &Contents) -> Self {
        let model = checkpoint.path().file_name();
        let model = model.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
        let digits = format!("{:032x}", contents.identity());
        let file = format!("{model}.{}{SUFFIX}", &digits[..DIGITS]);
        Self { dir: dir.to_path_buf(), model, file }
    }

    /// The folder.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The packed file.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(&self.file)
    }

    /// What the file is called while it is written; one a model, so that two writers meet.
    pub(super) fn unfinished(&self) -> PathBuf {
        self.dir.join(format!("{}{SUFFIX}.tmp", self.model))
    }

    /// Removes packed files of this model but this one and the youngest others. Says which are gone.
    pub(super) fn remove_stale(&self) -> Vec<PathBuf> {
        let Ok(files) = std::fs::read_dir(&self.dir) else { return Vec::new() };
        let mut others: Vec<_> = files
            .flatten()
            .filter(|file| file.file_name().to_str().is_some_and(|name| self.is_other(name)))
            .filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file.path())))
            .collect();
        others.sort();
        others.truncate((others.len() + 1).saturating_sub(MOST_FILES));
        // One that can't be removed is found again at the next writing.
        others.into_iter().map(|(_, path)| path).filter(|path| std::fs::remove_file(path).is_ok()).collect()
    }

    /// Whether a name is that of a packed file of this model with another identity.
    fn is_other(&self, name: &str) -> bool {
        let digits =
            name.strip_prefix(&self.model).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(SUFFIX));
        let digits =
            digits.filter(|digits| digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit()));
        digits.is_some() && name != self.file
    }
}
