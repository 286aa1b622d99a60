//! Writes a packed file. The rule: under its own name it appears whole and on the disk, or not at all.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::body::Packed;
use super::contents::Contents;
use super::header::{self, BLOCK_BYTES};
use super::place::Place;
use super::read;

/// Bytes after which the disk is waited for, so that memory never fills with what is still to be written and others'
/// writes wait behind little.
const SYNC_BYTES: usize = 64 << 20;

/// What became of a packed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It was written.
    Whole,
    /// Another process writes it, or has just written it.
    Elsewhere,
}

/// Writes the packed file of a model; `replace` says that one that is there is known to be bad.
///
/// # Errors
/// The folder can't be written to, or its disk is too full. Nothing is left of the attempt but an empty file.
pub(super) fn write(place: &Place, packed: &Packed, replace: bool) -> std::io::Result<Written> {
    std::fs::create_dir_all(place.dir())?;
    let unfinished = place.unfinished();
    let file = open_plain(File::options().write(true).create(true), &unfinished)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Written::Elsewhere),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // Whoever held the lock before may have given the file its final name; it is not ours to write to then.
    let named = std::fs::symlink_metadata(&unfinished).ok();
    if named.map(|named| (named.dev(), named.ino())) != Some(identity(&file)?) {
        return Ok(Written::Elsewhere);
    }
    if !replace && read::open(&place.path(), packed.contents()).is_ok() {
        std::fs::remove_file(&unfinished)?;
        return Ok(Written::Elsewhere);
    }
    let written = fill(&file, packed).and_then(|()| std::fs::rename(&unfinished, place.path()));
    if written.is_err() {
        // The lock is still ours, so nobody else writes to it; if it stays, the next writing starts with it.
        let _ = std::fs::remove_file(&unfinished);
    }
    written.map(|()| Written::Whole)
}

fn identity(file: &File) -> std::io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Opens a regular file and follows no link to it: in a folder that others may write to, a link could lead anywhere.
/// A pipe is refused too, after an opening that did not wait for its other end.
pub(super) fn open_plain(options: &mut OpenOptions, path: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Writes the body, then the header that makes it valid, and waits for the disk.
fn fill(file: &File, packed: &Packed) -> std::io::Result<()> {
    let contents = packed.contents();
    file.set_len(0)?;
    check_room(file, contents)?;
    let start = header::header_bytes(contents);
    let mut sums = Vec::with_capacity(header::blocks(contents));
    for (index, block) in packed.bytes().chunks(BLOCK_BYTES).enumerate() {
        sums.push(header::checksum(block));
        file.write_all_at(block, (start + index * BLOCK_BYTES) as u64)?;
        if (sums.len() * BLOCK_BYTES).is_multiple_of(SYNC_BYTES) {
            file.sync_data()?;
        }
    }
    file.sync_data()?;
    file.write_all_at(&header::encode(contents, &sums), 0)?;
    file.sync_all()
}

/// Refuses to fill the last of a disk: what is free must be twice what is written.
fn check_room(file: &File, contents: &Contents) -> std::io::Result<()> {
    let stat = rustix::fs::fstatvfs(file)?;
    let (free, wanted) = (stat.f_bavail.saturating_mul(stat.f_frsize), header::file_bytes(contents));
    if free / 2 < wanted {
        let what = format!(
            "{free} bytes are free, and only half of that would be used for {wanted}; free some space"
        );
        return Err(std::io::Error::new(std::io::ErrorKind::StorageFull, what));
    }
    Ok(())
}
