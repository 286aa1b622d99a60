//! Writes a packed file. The rule: under its own name it appears whole and on the disk, or not at all.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::contents::Contents;
use super::header::{self, BLOCK_BYTES};
use super::place::Place;
use super::read;
use crate::backend::cpu::CpuLoader;
use crate::model::weights::Weights;

/// Bytes after which the disk is waited for, so that memory never fills with what is still to be written and others'
/// writes wait behind little.
const SYNC_BYTES: usize = 64 << 20;

/// What became of a packed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was written.
    Whole,
    /// Another process writes it, or has just written it.
    Elsewhere,
}

/// Writes the packed file of a model; `replace` says that one that is there is known to be bad.
///
/// # Errors
/// The folder can't be written to, or its disk is too full. Nothing is left of the attempt but an empty file.
pub fn write(
    place: &Place,
    contents: &Contents,
    weights: &Weights<CpuLoader>,
    replace: bool,
) -> std::io::Result<Written> {
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
    if !replace && read::open(&place.path(), contents).is_ok() {
        std::fs::remove_file(&unfinished)?;
        return Ok(Written::Elsewhere);
    }
    let written = fill(&file, contents, weights).and_then(|()| std::fs::rename(&unfinished, place.path()));
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
fn fill(file: &File, contents: &Contents, weights: &Weights<CpuLoader>) -> std::io::Result<()> {
    file.set_len(0)?;
    check_room(file, contents)?;
    let mut body =
        Body { file, at: header::header_bytes(contents) as u64, block: Vec::new(), sums: Vec::new() };
    let mut end = 0;
    for entry in contents.entries() {
        let matrix = weights.matrix(entry.role).filter(|matrix| matrix.kind() == entry.kind);
        let sections = matrix.map(pons_kernels::Matrix::sections).unwrap_or_default();
        let lens = sections.iter().map(|section| section.len());
        if !lens.eq(entry.sections.iter().map(std::ops::Range::len)) {
            let what = format!("the weights of {:?} are not packed as they are kept", entry.role);
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
        }
        for (section, range) in sections.into_iter().zip(&entry.sections) {
            body.put_zeros(range.start - end)?;
            body.put(section)?;
            end = range.end;
        }
    }
    let sums = body.finish()?;
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

/// Writes blocks and collects their checksums.
struct Body<'a> {
    file: &'a File,
    at: u64,
    block: Vec<u8>,
    sums: Vec<u32>,
}

impl Body<'_> {
    fn put(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.block.len()));
            self.block.write_all(now)?;
            bytes = later;
            if self.block.len() == BLOCK_BYTES {
                self.end_block()?;
            }
        }
        Ok(())
    }

    fn put_zeros(&mut self, count: usize) -> std::io::Result<()> {
        // Only ever up to the next cache line.
        self.put(&vec![0; count])
    }

    fn end_block(&mut self) -> std::io::Result<()> {
        self.sums.push(header::checksum(&self.block));
        self.file.write_all_at(&self.block, self.at)?;
        self.at += self.block.len() as u64;
        self.block.clear();
        if (self.sums.len() * BLOCK_BYTES).is_multiple_of(SYNC_BYTES) {
            self.file.sync_data()?;
        }
        Ok(())
    }

    fn finish(mut self) -> std::io::Result<Vec<u32>> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        Ok(self.sums)
    }
}
