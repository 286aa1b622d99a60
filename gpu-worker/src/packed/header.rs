//! The first bytes of a packed file. The rule: they are compared with what they must be, not interpreted; only the
//! checksums of the body are news.

use super::contents::Contents;

/// What a packed file begins with.
const MAGIC: [u8; 8] = *b"PONSPACK";
/// Raised when the file itself, not the layout of weights, changes.
const FORMAT: u32 = 1;
/// The body starts at a multiple of this, a page.
const PAGE_BYTES: usize = 4096;
/// Bytes that have one checksum: large enough that checksums are few, small enough to share the work evenly.
pub(super) const BLOCK_BYTES: usize = 4 << 20;

/// Bytes before the checksums.
const FIXED_BYTES: usize = 40;
/// Bytes of a checksum.
const SUM_BYTES: usize = 4;

/// The checksum of a stretch of bytes.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Blocks of the body.
pub(super) fn blocks(contents: &Contents) -> usize {
    contents.body_bytes().div_ceil(BLOCK_BYTES)
}

/// Bytes before the body.
pub(super) fn header_bytes(contents: &Contents) -> usize {
    (FIXED_BYTES + (blocks(contents) + 1) * SUM_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Bytes of the whole file.
pub(super) fn file_bytes(contents: &Contents) -> u64 {
    (header_bytes(contents) + contents.body_bytes()) as u64
}

/// The header of a body whose blocks have these checksums.
pub(super) fn encode(contents: &Contents, sums: &[u32]) -> Vec<u8> {
    let mut bytes = fixed(contents);
    bytes.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes.resize(header_bytes(contents), 0);
    bytes
}

/// The checksums of the body's blocks.
///
/// # Errors
/// Why these bytes are not the header of a packed file with these contents.
pub(super) fn decode(contents: &Contents, bytes: &[u8]) -> Result<Vec<u32>, &'static str> {
    let want = fixed(contents);
    let sums_end = FIXED_BYTES + blocks(contents) * SUM_BYTES;
    if bytes.len() != header_bytes(contents) {
        return Err("its header has another size");
    }
    if bytes[..MAGIC.len()] != want[..MAGIC.len()] {
        return Err("it is no packed file, or one that was not written to its end");
    }
    if bytes[..FIXED_BYTES] != want {
        return Err("it is of another model, layout or release");
    }
    if bytes[sums_end..sums_end + SUM_BYTES] != checksum(&bytes[..sums_end]).to_le_bytes() {
        return Err("its header is damaged");
    }
    let sums = bytes[FIXED_BYTES..sums_end].chunks_exact(SUM_BYTES);
    Ok(sums.map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]])).collect())
}

fn fixed(contents: &Contents) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(FORMAT.to_le_bytes());
    bytes.extend((blocks(contents) as u32).to_le_bytes());
    bytes.extend(contents.identity().to_le_bytes());
    bytes.extend((contents.body_bytes() as u64).to_le_bytes());
    bytes
}
