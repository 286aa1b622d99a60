//! The CPU as a device. The rule: nothing is computed here; every operation is one call into the kernels.

mod load;

pub use load::CpuLoader;

use std::borrow::Cow;
use std::sync::Arc;

use pons_kernels::{AttentionSeq, BLOCK, Isa, KvArena, KvError, KvFormat, KvRow, Matrix, Pool, Rope, ops};

use crate::backend::Backend;
use crate::model::batch::StepBatch;
use crate::model::family::Shape;

/// Kernels, threads and KV memory of one process.
pub struct CpuBackend {
    pool: Arc<Pool>,
    isa: Isa,
    arena: KvArena,
    rope: Rope,
    heads: usize,
    attention_scale: f32,
    batch: StepBatch,
    kv_rows: Vec<KvRow>,
}

impl CpuBackend {
    /// Reserves `blocks` KV blocks, stored as `format`, for a model of this shape.
    ///
    /// # Errors
    /// Sizes the arena can't have.
    pub fn new(
        pool: Arc<Pool>,
        isa: Isa,
        shape: &Shape,
        rope: Rope,
        blocks: usize,
        format: KvFormat,
    ) -> Result<Self, KvError> {
        Ok(Self {
            pool,
            isa,
            arena: KvArena::new(shape.layers, shape.kv_heads, shape.head_dim, blocks, format)?,
            rope,
            heads: shape.heads,
            attention_scale: shape.attention_scale(),
            batch: StepBatch::default(),
            kv_rows: Vec::new(),
        })
    }
}

impl Backend for CpuBackend {
    type Loader = CpuLoader;
    type Buffer = Vec<f32>;

    fn buffer(&self) -> Vec<f32> {
        Vec::new()
    }

    fn begin(&mut self, batch: StepBatch) {
        self.kv_rows.clear();
        for run in &batch.runs {
            for position in run.start as usize..run.start as usize + run.rows {
                let block = run.table[position / BLOCK];
                self.kv_rows.push(KvRow { block, slot: (position % BLOCK) as u32 });
            }
        }
        self.batch = batch;
    }

    fn embed(&self, table: &Matrix, out: &mut Vec<f32>) {
        let width = table.cols();
        out.resize(self.batch.tokens.len() * width, 0.0);
        for (&token, row) in self.batch.tokens.iter().zip(out.chunks_exact_mut(width)) {
            table.row_to_f32(token as usize, row);
        }
    }

    fn norm(&self, x: &Vec<f32>, weight: &Vec<f32>, eps: f32, out: &mut Vec<f32>) {
        out.resize(x.len(), 0.0);
        ops::rms_norm(&self.pool, self.isa, x, weight, eps, x.len() / weight.len(), out);
    }

    fn project(&self, x: &Vec<f32>, weight: &Matrix, bias: Option<&Vec<f32>>, out: &mut Vec<f32>) {
        let rows = x.len() / weight.cols();
        out.resize(rows * weight.rows(), 0.0);
        ops::matmul_bias(&self.pool, self.isa, x, rows, weight, bias.map(Vec::as_slice), out);
    }

    fn rotate(&self, x: &mut Vec<f32>, heads: usize) {
        let rows = self.batch.positions.len();
        ops::rope(&self.pool, self.isa, x, rows, heads, &self.rope, &self.batch.positions);
    }

    fn store(&mut self, layer: usize, keys: &Vec<f32>, values: &Vec<f32>) {
        self.arena.write(&self.pool, self.isa, layer, &self.kv_rows, keys, values);
    }

    fn attend(&self, layer: usize, queries: &Vec<f32>, out: &mut Vec<f32>) {
        out.resize(queries.len(), 0.0);
        let seqs: Vec<AttentionSeq<'_>> = self
            .batch
            .runs
            .iter()
            .map(|run| AttentionSeq {
                first_row: run.first_row,
                rows: run.rows,
                start: run.start,
                table: &run.table,
            })
            .collect();
        let scale = self.attention_scale;
        ops::attention(&self.pool, self.isa, &self.arena, layer, queries, self.heads, &seqs, scale, out);
    }

    fn gate(&self, gate: &Vec<f32>, up: &Vec<f32>, out: &mut Vec<f32>) {
        out.resize(gate.len(), 0.0);
        ops::silu_mul(&self.pool, self.isa, gate, up, out);
    }

    fn add(&self, x: &mut Vec<f32>, y: &Vec<f32>) {
        ops::add_assign(&self.pool, self.isa, x, y);
    }

    fn gather(&self, x: &Vec<f32>, width: usize, rows: &[u32], out: &mut Vec<f32>) {
        out.clear();
        for &row in rows {
            out.extend_from_slice(&x[row as usize * width..][..width]);
        }
    }

    fn read<'a>(&self, x: &'a Vec<f32>) -> Cow<'a, [f32]> {
        Cow::Borrowed(x)
    }
}
