//! What a product asks of tiles. The rule: everything that a tile instruction demands of its operands is checked
//! here before it runs, so that a wrong shape is a clear panic on every machine and never a fault on one.
//!
//! There are eight tiles of up to [`MOST_ROWS`] rows of up to [`ROW_BYTES`] bytes. A [`Config`] gives each its shape;
//! the instructions do nothing beyond it. [`Tiles`] has two implementations: the processor's own and an emulation.

/// Tiles that exist.
pub(crate) const TILES: usize = 8;

/// Rows of a tile, at most.
pub(crate) const MOST_ROWS: usize = 16;

/// Bytes of a row, at most.
pub(crate) const ROW_BYTES: usize = 64;

/// The shape of one tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Shape {
    /// Rows; none for a tile that is not used.
    pub(crate) rows: usize,
    /// Bytes of each row.
    pub(crate) row_bytes: usize,
}

/// The shapes of all tiles, as `ldtilecfg` reads them: byte 0 names the palette, 16-bit lengths of rows start at byte
/// 16, numbers of rows at byte 48, and everything else is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Config {
    bytes: [u8; 64],
}

const LENGTHS_AT: usize = 16;
const ROWS_AT: usize = 48;

impl Config {
    /// The configuration that gives tile `i` shape `i`.
    ///
    /// # Panics
    /// When a shape is larger than a tile, or has rows of no bytes, or no rows of some.
    pub(crate) fn new(shapes: [Shape; TILES]) -> Config {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for (tile, shape) in shapes.into_iter().enumerate() {
            let Shape { rows, row_bytes } = shape;
            assert!(rows <= MOST_ROWS && row_bytes <= ROW_BYTES, "tile {tile} cannot hold {shape:?}");
            assert!((rows == 0) == (row_bytes == 0), "tile {tile} is neither used nor unused: {shape:?}");
            bytes[LENGTHS_AT + 2 * tile] = row_bytes as u8;
            bytes[ROWS_AT + tile] = rows as u8;
        }
        Config { bytes }
    }

    /// The shape of a tile.
    #[inline]
    pub(crate) fn shape(&self, tile: u8) -> Shape {
        let tile = usize::from(tile);
        Shape {
            rows: usize::from(self.bytes[ROWS_AT + tile]),
            row_bytes: usize::from(self.bytes[LENGTHS_AT + 2 * tile]),
        }
    }

    /// What `ldtilecfg` reads.
    pub(crate) fn bytes(&self) -> &[u8; 64] {
        &self.bytes
    }

    /// Panics unless a tile is used and its rows, `stride` apart, lie inside `len` bytes.
    #[inline]
    pub(crate) fn check_memory(&self, tile: u8, len: usize, stride: usize) {
        let Shape { rows, row_bytes } = self.shape(tile);
        assert!(rows > 0, "tile {tile} has no shape");
        let last = (rows - 1).saturating_mul(stride);
        assert!(
            last <= len && row_bytes <= len - last,
            "tile {tile} reaches beyond {len} bytes at a stride of {stride}"
        );
    }

    /// Panics unless `sums += left · right` is an operation on 32-bit sums of four bytes each.
    #[inline]
    pub(crate) fn check_dot(&self, sums: u8, left: u8, right: u8) {
        let (c, a, b) = (self.shape(sums), self.shape(left), self.shape(right));
        assert!(
            sums != left && sums != right && left != right,
            "tiles {sums}, {left} and {right} are not three"
        );
        assert!(c.rows > 0 && a.rows > 0 && b.rows > 0, "tile {sums}, {left} or {right} has no shape");
        assert!(
            c.rows == a.rows
                && c.row_bytes == b.row_bytes
                && a.row_bytes == 4 * b.rows
                && c.row_bytes.is_multiple_of(4),
            "{a:?} by {b:?} is not {c:?}"
        );
    }
}

/// Eight tiles of one thread. Which is named by a constant, since an instruction names its own.
pub(crate) trait Tiles {
    /// Gives all tiles their shapes, and zeros for contents.
    fn configure(&mut self, config: &Config);

    /// Makes a tile zero.
    fn zero<const TILE: u8>(&mut self);

    /// Fills a tile with rows that start `stride` bytes apart.
    ///
    /// # Panics
    /// When a row would reach beyond `from`, or the tile has no shape.
    fn load<const TILE: u8>(&mut self, from: &[u8], stride: usize);

    /// `SUMS += LEFT · RIGHT`: each 32-bit sum of row `m` and column `n` gains the products of the signed bytes of row
    /// `m` of `LEFT` and the unsigned bytes that `RIGHT` holds for column `n`, four inputs in each of its rows.
    ///
    /// # Panics
    /// When the three shapes do not fit each other.
    fn dot<const SUMS: u8, const LEFT: u8, const RIGHT: u8>(&mut self);

    /// Writes the sums of a tile to rows that start `stride` numbers apart.
    ///
    /// # Panics
    /// As [`Tiles::load`].
    fn store<const TILE: u8>(&mut self, to: &mut [i32], stride: usize);
}
