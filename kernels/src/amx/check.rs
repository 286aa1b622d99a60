//! Whether tiles compute what the manual says, and products over them what AVX-512 does. The rule: every form of
//! weights, both precisions, whole blocks and rests; and the first number that differs fails the check.

use std::time::Instant;

use super::emulated::Emulated;
use super::hardware::Hardware;
use super::quantised::{self, config};
use super::tiles::Tiles;
use super::{CheckError, present};
use crate::Isa;
use crate::layout::matrix::{Matrix, Store};
use crate::layout::quant::{Form, QuantRow, Scaling, Width};
use crate::layout::rows::Precision;
use crate::ops::{Activations, Product, ProductTile, Share};
use crate::pool::Pool;

/// Rows of the products that are checked: a rest alone, a block, several with a rest, more than are kept at once.
const ROWS: [usize; 4] = [3, 16, 37, 200];

/// Outputs and inputs that are checked: neither strips, nests nor groups are full.
const OUTPUTS: usize = 50;
const COLS: usize = 300;

/// Rows, outputs and inputs of the product that is timed.
const RACE: (usize, usize, usize) = (96, 256, 1024);

/// Times it is timed.
const RACES: usize = 5;

/// Numbers that look random (splitmix64).
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }

    /// Between -1 and 1.
    pub(super) fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (self.next() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0).collect()
    }
}

/// Every width with every way of scaling.
pub(super) fn forms() -> Vec<Form> {
    let widths = [(Width::Four, 8), (Width::Six, 32), (Width::Eight, 128)];
    let scalings = |zero| {
        [Scaling::Centred { zero }, Scaling::Affine, Scaling::NestedAffine, Scaling::NestedCentred { zero }]
    };
    widths
        .into_iter()
        .flat_map(|(width, zero)| scalings(zero).map(|scaling| Form { width, scaling }))
        .collect()
}

/// A product to be computed twice.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) form: Form,
    pub(super) precision: Precision,
    pub(super) outputs: usize,
    pub(super) cols: usize,
    /// The activations, row after row.
    pub(super) x: Vec<f32>,
    pub(super) bias: bool,
    pub(super) add: bool,
    pub(super) seed: u64,
}

impl Case {
    /// The weights: any numbers, scales of both signs.
    fn weights(&self) -> Matrix {
        let mut numbers = Numbers(self.seed);
        let limit = u64::from(self.form.width.limit());
        let signed = matches!(self.form.scaling, Scaling::NestedCentred { .. });
        let half = |numbers: &mut Numbers| half::f16::from_f32(numbers.units(1)[0] / 8.0).to_bits();
        let mut fill = |_: usize, row: QuantRow<'_>| {
            row.q.iter_mut().for_each(|q| *q = (numbers.next() % limit) as u8);
            row.d.iter_mut().for_each(|d| *d = half(&mut numbers));
            row.m.iter_mut().for_each(|m| *m = half(&mut numbers));
            let mut small = || (numbers.next() % if signed { 256 } else { 64 }) as u8;
            row.s.iter_mut().for_each(|s| *s = small());
            row.t.iter_mut().for_each(|t| *t = small());
        };
        Matrix::from_quantised(self.outputs, self.cols, self.form, &mut fill).with_precision(self.precision)
    }

    /// The least seconds of five products of all rows over tiles, and by AVX-512, which must be there.
    fn race<T: Tiles>(&self, own: &mut T) -> Result<[f64; 2], CheckError> {
        if !Isa::Avx512.runs_avx512() {
            return Err(CheckError::NoAvx512);
        }
        let (w, m) = (self.weights(), self.x.len() / self.cols);
        let Store::Quants(quants) = &w.store else { unreachable!("the weights were made of whole numbers") };
        let mut x = Activations::from(self.x.clone());
        x.quantise(&Pool::new(1), Isa::Avx512, self.cols, self.precision);
        let product = Product { x: x.values(), quantised: x.quantised(), w: &w, bias: None, add: false };
        let tile = ProductTile { rows: 0..m, strips: 0..w.strips() };
        let mut out = vec![0.0; m * self.outputs];
        let vnni = Isa::Avx512Vnni.runs_vnni();
        let mut least = [f64::INFINITY; 2];
        for _ in 0..RACES {
            let began = Instant::now();
            // SAFETY: AVX-512 was found above, and nobody else has these outputs.
            unsafe { quantised::quantised_tile(own, &product, quants, &tile, Share::new(&mut out)) };
            least[0] = least[0].min(began.elapsed().as_secs_f64());
            let began = Instant::now();
            crate::avx512::quantised_tile(&product, quants, &tile, Share::new(&mut out), vnni);
            least[1] = least[1].min(began.elapsed().as_secs_f64());
        }
        Ok(least)
    }

    /// Computes the product of rows `rows` over tiles and by AVX-512, which must be there.
    pub(super) fn compare<T: Tiles>(
        &self,
        tiles: &mut T,
        rows: std::ops::Range<usize>,
    ) -> Result<(), CheckError> {
        if !Isa::Avx512.runs_avx512() {
            return Err(CheckError::NoAvx512);
        }
        let (w, m) = (self.weights(), self.x.len() / self.cols);
        let Store::Quants(quants) = &w.store else { unreachable!("the weights were made of whole numbers") };
        let mut x = Activations::from(self.x.clone());
        x.quantise(&Pool::new(1), Isa::Avx512, self.cols, self.precision);
        let bias = Numbers(self.seed ^ 1).units(self.outputs);
        let bias = self.bias.then_some(bias.as_slice());
        let product = Product { x: x.values(), quantised: x.quantised(), w: &w, bias, add: self.add };
        let tile = ProductTile { rows, strips: 0..w.strips() };
        let mut found = Numbers(self.seed ^ 2).units(m * self.outputs);
        let mut wanted = found.clone();
        let vnni = Isa::Avx512Vnni.runs_vnni();
        crate::avx512::quantised_tile(&product, quants, &tile, Share::new(&mut wanted), vnni);
        // SAFETY: AVX-512 was found above, and nobody else has these outputs.
        unsafe { quantised::quantised_tile(tiles, &product, quants, &tile, Share::new(&mut found)) };
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        match found.iter().zip(&wanted).position(|pair| !same(pair)) {
            None => Ok(()),
            Some(at) => Err(CheckError::Product {
                form: self.form.name(),
                precision: self.precision,
                rows: m,
                row: at / self.outputs,
                output: at % self.outputs,
                found: found[at],
                wanted: wanted[at],
            }),
        }
    }
}

/// Tiles by themselves: every number of rows, and both lengths of a dot product.
pub(super) fn tiles<T: Tiles>(tiles: &mut T) -> Result<(), CheckError> {
    let mut numbers = Numbers(77);
    for (rows, inputs) in (16..32).flat_map(|rows| [(rows, 16), (rows, 32)]) {
        let config = config(rows, inputs);
        let (left, right) = (numbers.bytes::<1024>(), numbers.bytes::<1024>());
        let mut emulated = Emulated::new();
        let wanted = dots(&mut emulated, &config, &left, &right);
        let found = dots(tiles, &config, &left, &right);
        if let Some(at) = found.iter().zip(&wanted).position(|(a, b)| a != b) {
            return Err(CheckError::Tiles { rows, inputs, at, found: found[at], wanted: wanted[at] });
        }
    }
    Ok(())
}

/// Products that add to each other, of a block and of what may be left over.
fn dots<T: Tiles>(tiles: &mut T, config: &super::tiles::Config, left: &[u8], right: &[u8]) -> Vec<i32> {
    let mut sums = vec![-1; 3 * 272];
    tiles.configure(config);
    tiles.load::<2>(left, 40);
    tiles.load::<3>(right, 64);
    tiles.load::<4>(&right[5..], 64);
    tiles.zero::<0>();
    tiles.dot::<0, 2, 3>();
    tiles.dot::<0, 2, 4>();
    tiles.dot::<1, 2, 4>();
    tiles.store::<0>(&mut sums[..272], 17);
    tiles.store::<1>(&mut sums[272..544], 16);
    if config.shape(7).rows > 0 {
        tiles.load::<7>(&left[9..], 33);
        tiles.dot::<5, 7, 3>();
        tiles.dot::<6, 7, 4>();
        tiles.dot::<5, 7, 4>();
        tiles.store::<5>(&mut sums[544..], 17);
    }
    sums
}

/// Products over tiles, of every form.
pub(super) fn products<T: Tiles>(tiles: &mut T) -> Result<(), CheckError> {
    let precisions = [Precision::Eight, Precision::Fifteen];
    for form in forms() {
        for (index, (m, precision)) in
            ROWS.into_iter().flat_map(|m| precisions.map(|precision| (m, precision))).enumerate()
        {
            let seed = index as u64;
            let x = Numbers(seed).units(m * COLS);
            let (bias, add) = (index % 2 == 0, index % 3 == 0);
            let case = Case { form, precision, outputs: OUTPUTS, cols: COLS, x, bias, add, seed };
            case.compare(tiles, 0..m)?;
        }
    }
    Ok(())
}

/// Whether tiles are faster at a product as a prompt has it; they give the same numbers, so nothing else speaks for
/// them.
pub(super) fn faster<T: Tiles>(own: &mut T) -> Result<(), CheckError> {
    let (m, outputs, cols) = RACE;
    for precision in [Precision::Eight, Precision::Fifteen] {
        let form = Form { width: Width::Four, scaling: Scaling::Affine };
        let x = Numbers(5).units(m * cols);
        let case = Case { form, precision, outputs, cols, x, bias: false, add: false, seed: 5 };
        let [tiles_s, avx512_s] = case.race(own)?;
        if tiles_s >= avx512_s {
            return Err(CheckError::Slow { precision, tiles_us: tiles_s * 1e6, avx512_us: avx512_s * 1e6 });
        }
    }
    Ok(())
}

/// Checks the processor's tiles on this thread and on another one.
pub(super) fn hardware() -> Result<(), CheckError> {
    present()?;
    on_this_thread()?;
    let other = std::thread::Builder::new().spawn(on_this_thread).map_err(|_| CheckError::Thread)?;
    other.join().map_err(|_| CheckError::Thread)?
}

fn on_this_thread() -> Result<(), CheckError> {
    let mut own = Hardware::here().ok_or(CheckError::Thread)?;
    tiles(&mut own)?;
    products(&mut own)?;
    faster(&mut own)
}
