//! Loops of tile products and nothing else, for measuring their limit. The rule: as in [`crate::probe`], a loop says
//! how much work it did, or nothing where there are no tiles.

use super::hardware::Hardware;
use super::permission::has_bf16;
use super::tiles::{Config, MOST_ROWS, ROW_BYTES, Shape, TILES, Tiles};

/// Products of one round: four tiles of sums, each used once, so that none waits for another.
const PRODUCTS: u64 = 4;

/// Sums of a tile, and multiplications and additions of 8-bit numbers for each.
const SUMS: u64 = (MOST_ROWS * ROW_BYTES / 4) as u64;
const STEPS: u64 = 2 * ROW_BYTES as u64;

/// Keeps the unit busy for so many rounds; returns the operations that were done.
pub(crate) fn int8(rounds: u64) -> Option<u64> {
    let mut tiles = full()?;
    for _ in 0..rounds {
        tiles.dot::<0, 4, 6>();
        tiles.dot::<1, 4, 7>();
        tiles.dot::<2, 5, 6>();
        tiles.dot::<3, 5, 7>();
    }
    Some(rounds * PRODUCTS * SUMS * STEPS)
}

/// As [`int8`] for bfloat16, of which a row holds half as many.
pub(crate) fn bf16(rounds: u64) -> Option<u64> {
    let mut tiles = full().filter(|_| has_bf16())?;
    for _ in 0..rounds {
        tiles.dot_bf16::<0, 4, 6>();
        tiles.dot_bf16::<1, 4, 7>();
        tiles.dot_bf16::<2, 5, 6>();
        tiles.dot_bf16::<3, 5, 7>();
    }
    Some(rounds * PRODUCTS * SUMS * STEPS / 2)
}

/// Full tiles of zeros.
fn full() -> Option<Hardware> {
    let mut tiles = Hardware::here()?;
    tiles.configure(&Config::new([Shape { rows: MOST_ROWS, row_bytes: ROW_BYTES }; TILES]));
    Some(tiles)
}
