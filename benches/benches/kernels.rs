//! Products, attention and row operations on the shapes of real models, beside what the machine's memory and
//! arithmetic units allow. The rule: each answer is compared with a naive sum before it is timed.

use std::hint::black_box;

use pons_benches::numbers::Numbers;
use pons_benches::suite::{Case, Suite};
use pons_kernels::{
    AttentionSeq, BLOCK, Form, Isa, KvArena, KvFormat, KvRow, Matrix, Pool, Rope, RopeLayout, RopeScaling,
    Scaling, Width, amx, ops, scalar,
};

/// Arithmetic units that a product may use.
const UNITS: [&str; 5] = ["f32_fma", "bf16_dot", "int8_dot", "amx_int8", "amx_bf16"];
/// Outputs of each product that are compared.
const CHECKED: usize = 64;

/// Inputs and outputs of a weight matrix, and the most rows that a model gives it.
struct Shape {
    model: &'static str,
    inputs: usize,
    outputs: usize,
    most_rows: usize,
}

const SMOLLM2: &str = "smollm2-135m";
const QWEN: &str = "qwen2-5-1-5b";

const SHAPES: [Shape; 9] = [
    Shape { model: SMOLLM2, inputs: 576, outputs: 576, most_rows: 512 },
    Shape { model: SMOLLM2, inputs: 576, outputs: 192, most_rows: 512 },
    Shape { model: SMOLLM2, inputs: 576, outputs: 1536, most_rows: 512 },
    Shape { model: SMOLLM2, inputs: 1536, outputs: 576, most_rows: 512 },
    // The head is asked only for the last row of each sequence.
    Shape { model: SMOLLM2, inputs: 576, outputs: 49152, most_rows: 32 },
    Shape { model: QWEN, inputs: 1536, outputs: 1536, most_rows: 512 },
    Shape { model: QWEN, inputs: 1536, outputs: 256, most_rows: 512 },
    Shape { model: QWEN, inputs: 1536, outputs: 8960, most_rows: 512 },
    Shape { model: QWEN, inputs: 8960, outputs: 1536, most_rows: 512 },
];

/// How the weights are stored.
#[derive(Clone, Copy)]
enum Format {
    F32,
    Quantised(Form),
}

const EIGHT: Form = Form { width: Width::Eight, scaling: Scaling::Centred { zero: 128 } };
const SIX: Form = Form { width: Width::Six, scaling: Scaling::NestedCentred { zero: 32 } };
const FOUR: Form = Form { width: Width::Four, scaling: Scaling::Affine };
const NESTED: Form = Form { width: Width::Four, scaling: Scaling::NestedAffine };

impl Format {
    const ALL: [Self; 5] = [
        Self::F32,
        Self::Quantised(EIGHT),
        Self::Quantised(SIX),
        Self::Quantised(FOUR),
        Self::Quantised(NESTED),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Quantised(form) => form.name(),
        }
    }

    /// Error allowed of a product, as a share of the root of the sum of squares of its terms. One wrong term of a
    /// few thousand is an error of some hundredths.
    fn tolerance(self) -> f64 {
        match self {
            Self::F32 => 1e-4,
            // Activations are rounded to eight bits.
            Self::Quantised(_) => 2e-2,
        }
    }

    fn units(self) -> &'static [&'static str] {
        match self {
            Self::F32 => &UNITS[..1],
            Self::Quantised(_) => &UNITS,
        }
    }

    fn matrix(self, shape: &Shape, numbers: &mut Numbers) -> Matrix {
        let (rows, cols) = (shape.outputs, shape.inputs);
        match self {
            Self::F32 => Matrix::from_f32(rows, cols, &numbers.units(rows * cols)),
            Self::Quantised(form) => {
                let (most, inner) = match form.width {
                    Width::Four => (16, 8.0),
                    Width::Six => (64, 8.0),
                    Width::Eight => (256, 1.0),
                };
                let nested = !matches!(form.scaling, Scaling::Affine | Scaling::Centred { .. });
                let inner = if nested { inner } else { 1.0 };
                let half = |x: f32| half::f16::from_f32(x).to_bits();
                Matrix::from_quantised(rows, cols, form, &mut |_, row| {
                    row.q.iter_mut().for_each(|q| *q = numbers.below(most) as u8);
                    row.d.iter_mut().for_each(|d| *d = half(2.0 / most as f32 / inner));
                    let sign = if nested { 1.0 } else { -1.0 };
                    row.m.iter_mut().for_each(|m| *m = half((sign + numbers.unit() / 8.0) / inner));
                    row.s.fill(inner as u8);
                    row.t.fill(inner as u8);
                })
            }
        }
    }
}

/// What every case computes with.
struct Bench {
    suite: Suite,
    pool: Pool,
    isa: Isa,
}

fn main() -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let suite = Suite::start("kernels")?.with_limits(threads);
    if let Err(reason) = amx::check_and_trust() {
        eprintln!("tiles are not used: {reason}");
    }
    let mut bench = Bench { suite, pool: Pool::new(threads), isa: Isa::detect() };
    let small = [Shape { model: SMOLLM2, inputs: 96, outputs: 40, most_rows: 8 }];
    let shapes = if bench.suite.is_small() { &small[..] } else { &SHAPES[..] };
    for shape in shapes {
        for format in Format::ALL {
            bench.products(shape, format);
        }
    }
    bench.attentions();
    bench.row_operations();
    bench.suite.finish()
}

impl Bench {
    fn products(&mut self, shape: &Shape, format: Format) {
        let mut numbers = Numbers::new(7);
        let w = format.matrix(shape, &mut numbers);
        let group = format!(
            "matmul_{}_{}x{}_{}",
            shape.model,
            shape.inputs,
            shape.outputs,
            format.name().replace(' ', "_")
        );
        for rows in [1, 4, 8, 32, 512].into_iter().filter(|rows| *rows <= shape.most_rows) {
            let x = numbers.units(rows * shape.inputs);
            let mut activations = ops::Activations::from(x.clone());
            let mut out = vec![0.0; rows * shape.outputs];
            let (pool, isa) = (&self.pool, self.isa);
            ops::matmul(pool, isa, &x, rows, &w, &mut out);
            check_product(format, &x, &w, &out, &mut numbers);
            let operations = 2 * (rows * shape.inputs * shape.outputs) as u64;
            // Activations are read too, but by every part from the nearest cache.
            let case = Case::new(&group, &format!("rows_{rows}"))
                .reads(w.bytes())
                .computes(operations, format.units())
                .handles(rows);
            self.suite.time(case, |bencher| {
                bencher.iter(|| {
                    // Counts as new rows, which have to be rounded anew.
                    black_box(activations.values_mut());
                    let out = &mut out[..];
                    let projection = ops::Projection { weight: &w, bias: None, add: false, out };
                    ops::project(pool, isa, &mut activations, rows, [projection]);
                });
            });
        }
    }

    fn attentions(&mut self) {
        let (long, batch, chunk) = if self.suite.is_small() { (40, 2, 20) } else { (1024, 8, 512) };
        for (model, group, kv_heads, dim) in [(SMOLLM2, 3, 3, 64), (QWEN, 6, 2, 128)] {
            let scene = Scene { heads: group * kv_heads, kv_heads, dim };
            self.attention(&scene, model, "decode_1", &[(long, 1)]);
            self.attention(&scene, model, &format!("decode_{batch}"), &vec![(long, 1); batch]);
            self.attention(&scene, model, &format!("prefill_{chunk}"), &[(0, chunk)]);
            self.attention(&scene, model, &format!("prefill_{chunk}_after_{long}"), &[(long, chunk)]);
        }
    }

    /// Sequences given by the tokens there are and the rows that are asked.
    fn attention(&mut self, scene: &Scene, model: &str, name: &str, sequences: &[(usize, usize)]) {
        let mut numbers = Numbers::new(11);
        let (arena, tables) = scene.arena(sequences, &mut numbers);
        let mut rows = 0;
        let seqs: Vec<AttentionSeq<'_>> = sequences
            .iter()
            .zip(&tables)
            .map(|(&(start, count), table)| {
                rows += count;
                AttentionSeq { first_row: rows - count, rows: count, start: start as u32, table }
            })
            .collect();
        // Queries that bfloat16 holds exactly: the oracle does not round them.
        let exact = |q: f32| half::bf16::from_f32(q).to_f32();
        let q: Vec<f32> = numbers.units(rows * scene.heads * scene.dim).into_iter().map(exact).collect();
        let scale = 1.0 / (scene.dim as f32).sqrt();
        let mut out = vec![0.0; q.len()];
        let (pool, isa, heads) = (&self.pool, self.isa, scene.heads);
        ops::attention(pool, isa, &arena, 0, &q, heads, &seqs, scale, &mut out);
        let mut expected = vec![0.0; q.len()];
        scalar::attention(&arena, 0, &q, heads, &seqs, scale, &mut expected);
        for (at, (got, want)) in out.iter().zip(&expected).enumerate() {
            assert!((got - want).abs() <= attention_error(isa), "{name}: {got} for {want} at {at}");
        }
        let keys: usize = sequences.iter().map(|(start, rows)| start + rows).sum();
        // A query sees what came before it and itself; each key it sees costs a product and a weighted sum.
        let seen: usize = sequences.iter().map(|(start, rows)| rows * start + rows * (rows + 1) / 2).sum();
        let operations = 4 * (seen * heads * scene.dim) as u64;
        let case = Case::new(&format!("attention_{model}"), name)
            .reads(keys * scene.kv_heads * scene.dim * 4)
            .computes(operations, &UNITS[..2])
            .handles(rows);
        self.suite.time(case, |bencher| {
            bencher
                .iter(|| ops::attention(pool, isa, &arena, 0, black_box(&q), heads, &seqs, scale, &mut out));
        });
    }

    fn row_operations(&mut self) {
        let (pool, isa, small) = (&self.pool, self.isa, self.suite.is_small());
        let mut numbers = Numbers::new(13);
        for rows in if small { vec![2] } else { vec![1, 32, 512] } {
            let name = format!("rows_{rows}");
            let (x, weight) = (numbers.units(rows * 576), numbers.units(576));
            let mut out = vec![0.0; x.len()];
            let mut expected = out.clone();
            let case = |group: &str, numbers: usize| Case::new(group, &name).reads(numbers * 4).handles(rows);

            ops::rms_norm(pool, isa, &x, &weight, 1e-5, rows, &mut out);
            scalar::rms_norm(&x, &weight, 1e-5, rows, &mut expected);
            check_numbers("rms_norm", &out, &expected);
            self.suite.time(case("rms_norm_576", x.len()), |bencher| {
                bencher.iter(|| ops::rms_norm(pool, isa, black_box(&x), &weight, 1e-5, rows, &mut out));
            });

            let rope = Rope::new(64, 64, 1024, 10_000.0, RopeScaling::None, RopeLayout::Half);
            let positions: Vec<u32> = (0..rows as u32).collect();
            (out, expected) = (x.clone(), x.clone());
            ops::rope(pool, isa, &mut out, rows, 9, &rope, &positions);
            scalar::rope(&mut expected, rows, 9, &rope, &positions);
            check_numbers("rope", &out, &expected);
            self.suite.time(case("rope_9x64", x.len()), |bencher| {
                bencher.iter(|| ops::rope(pool, isa, &mut out, rows, 9, &rope, black_box(&positions)));
            });
        }
    }
}

/// Some outputs of a product against plain sums.
fn check_product(format: Format, x: &[f32], w: &Matrix, out: &[f32], numbers: &mut Numbers) {
    let (outputs, inputs) = (w.rows(), w.cols());
    let mut weights = vec![0.0; inputs];
    let last = out.len() - 1;
    let some = (0..CHECKED).map(|_| numbers.below(out.len()));
    for at in [0, last].into_iter().chain(some) {
        w.row_to_f32(at % outputs, &mut weights);
        let row = &x[at / outputs * inputs..][..inputs];
        let (mut sum, mut squares) = (0.0, 0.0);
        for (x, w) in row.iter().zip(&weights) {
            let term = f64::from(*x) * f64::from(*w);
            sum += term;
            squares += term * term;
        }
        let error = (f64::from(out[at]) - sum).abs();
        let allowed = format.tolerance() * squares.sqrt();
        assert!(error <= allowed, "{w:?}: {} for {sum} at {at}; an error of {allowed} is allowed", out[at]);
    }
}

fn check_numbers(name: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    for (at, (got, want)) in got.iter().zip(expected).enumerate() {
        assert!((got - want).abs() <= 1e-4 * want.abs().max(1.0), "{name}: {got} for {want} at {at}");
    }
}

/// Most error of attention over values below one. With AVX-512 weights are rounded to bfloat16, by at most 1/512 of
/// themselves, and so is their sum.
fn attention_error(isa: Isa) -> f32 {
    if matches!(isa, Isa::Portable | Isa::Avx2) { 1e-3 } else { 1.0 / 256.0 }
}

/// Heads of a model.
struct Scene {
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

impl Scene {
    /// Keys and values of all sequences, in blocks that are not in order.
    fn arena(&self, sequences: &[(usize, usize)], numbers: &mut Numbers) -> (KvArena, Vec<Vec<u32>>) {
        let lengths = sequences.iter().map(|(start, rows)| start + rows);
        let blocks: usize = lengths.clone().map(|length| length.div_ceil(BLOCK)).sum();
        let mut arena = KvArena::new(1, self.kv_heads, self.dim, blocks, KvFormat::Bf16)
            .expect("the sizes are in bounds");
        let mut free = (0..blocks as u32).rev();
        let tables = lengths.map(|length| {
            let table: Vec<u32> = free.by_ref().take(length.div_ceil(BLOCK)).collect();
            let place = |at: usize| KvRow { block: table[at / BLOCK], slot: (at % BLOCK) as u32 };
            let places: Vec<KvRow> = (0..length).map(place).collect();
            let width = length * self.kv_heads * self.dim;
            arena.write(
                &Pool::new(1),
                Isa::detect(),
                0,
                &places,
                &numbers.units(width),
                &numbers.units(width),
            );
            table
        });
        let tables = tables.collect();
        (arena, tables)
    }
}
