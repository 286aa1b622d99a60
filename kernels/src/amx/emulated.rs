//! Tiles in plain Rust. The rule: each operation is the processor manual's description of its instruction, line for
//! line, and not what a product happens to need of it (Intel SDM, volume 2, `LDTILECFG` to `TILEZERO`).

use super::tiles::{Config, MOST_ROWS, ROW_BYTES, TILES, Tiles};

/// Contents of one tile.
type Tile = [[u8; ROW_BYTES]; MOST_ROWS];

/// The tile registers and their configuration.
pub(crate) struct Emulated {
    /// None before the first configuration, where every other instruction is undefined.
    config: Option<Config>,
    tiles: [Tile; TILES],
}

impl Emulated {
    /// Tiles as a process finds them: not configured.
    pub(crate) fn new() -> Emulated {
        Emulated { config: None, tiles: [[[0; ROW_BYTES]; MOST_ROWS]; TILES] }
    }

    fn config(&self) -> Config {
        self.config.expect("tiles are used before they are configured")
    }
}

/// `write_row_and_zero`: the rest of the row becomes zero.
fn write_row(tile: &mut Tile, row: usize, data: &[u8]) {
    tile[row] = [0; ROW_BYTES];
    tile[row][..data.len()].copy_from_slice(data);
}

/// `zero_upper_rows`.
fn zero_rows_from(tile: &mut Tile, first: usize) {
    tile[first..].fill([0; ROW_BYTES]);
}

/// The 32-bit number at `index` of a row.
fn word(row: &[u8; ROW_BYTES], index: usize) -> [u8; 4] {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&row[4 * index..4 * index + 4]);
    bytes
}

/// `DPBD` of `TDPBSUD`: the bytes of the first source are signed, those of the second unsigned.
fn dot_of_four(sum: i32, left: [u8; 4], right: [u8; 4]) -> i32 {
    let mut sum = sum;
    for (left, right) in left.into_iter().zip(right) {
        sum = sum.wrapping_add(i32::from(left.cast_signed()) * i32::from(right));
    }
    sum
}

impl Tiles for Emulated {
    fn configure(&mut self, config: &Config) {
        let bytes = config.bytes();
        assert!(bytes[0] == 1, "palette {} is not emulated", bytes[0]);
        assert!(
            bytes[1..16].iter().all(|&byte| byte == 0),
            "a reserved byte of the configuration is not zero"
        );
        assert!(bytes[32..48].iter().all(|&byte| byte == 0), "a tile beyond the eighth has a length");
        assert!(bytes[56..].iter().all(|&byte| byte == 0), "a tile beyond the eighth has rows");
        self.config = Some(*config);
        self.tiles = [[[0; ROW_BYTES]; MOST_ROWS]; TILES];
    }

    fn zero<const TILE: u8>(&mut self) {
        assert!(self.config().shape(TILE).rows > 0, "tile {TILE} has no shape");
        self.tiles[usize::from(TILE)] = [[0; ROW_BYTES]; MOST_ROWS];
    }

    fn load<const TILE: u8>(&mut self, from: &[u8], stride: usize) {
        let config = self.config();
        config.check_memory(TILE, from.len(), stride);
        let shape = config.shape(TILE);
        let tile = &mut self.tiles[usize::from(TILE)];
        for row in 0..shape.rows {
            write_row(tile, row, &from[row * stride..][..shape.row_bytes]);
        }
        zero_rows_from(tile, shape.rows);
    }

    fn dot<const SUMS: u8, const LEFT: u8, const RIGHT: u8>(&mut self) {
        let config = self.config();
        config.check_dot(SUMS, LEFT, RIGHT);
        let (c, a) = (config.shape(SUMS), config.shape(LEFT));
        let (left, right) = (self.tiles[usize::from(LEFT)], self.tiles[usize::from(RIGHT)]);
        let sums = &mut self.tiles[usize::from(SUMS)];
        for m in 0..c.rows {
            let mut row = sums[m];
            for (k, right) in right.iter().enumerate().take(a.row_bytes / 4) {
                for n in 0..c.row_bytes / 4 {
                    let sum = i32::from_le_bytes(word(&row, n));
                    let sum = dot_of_four(sum, word(&left[m], k), word(right, n));
                    row[4 * n..4 * n + 4].copy_from_slice(&sum.to_le_bytes());
                }
            }
            write_row(sums, m, &row[..c.row_bytes]);
        }
        zero_rows_from(sums, c.rows);
    }

    fn store<const TILE: u8>(&mut self, to: &mut [i32], stride: usize) {
        let config = self.config();
        config.check_memory(TILE, size_of_val(to), stride.saturating_mul(4));
        let shape = config.shape(TILE);
        for row in 0..shape.rows {
            // A length that is no multiple of four would end inside a number; sums never have one.
            for index in 0..shape.row_bytes / 4 {
                to[row * stride + index] =
                    i32::from_le_bytes(word(&self.tiles[usize::from(TILE)][row], index));
            }
        }
    }
}

#[cfg(test)]
mod tests;
