//! The CPU as a device. The rule: nothing is computed here; every operation is one call into the kernels.

mod load;

pub use load::CpuLoader;

use std::borrow::Cow;
use std::sync::Arc;

use pons_kernels::ops::{self, Activations, AttentionPlan, Projection, Rotated};
use pons_kernels::{AttentionSeq, BLOCK, Isa, KvArena, KvError, KvFormat, KvRow, Matrix, Pool, Rope};

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
    plan: AttentionPlan,
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
            plan: AttentionPlan::default(),
        })
    }
}

impl Backend for CpuBackend {
    type Loader = CpuLoader;
    type Buffer = Activations;

    fn buffer(&self) -> Activations {
        Activations::default()
    }

    fn begin(&mut self, batch: StepBatch) {
        self.kv_rows.clear();
        for run in &batch.runs {
            for position in run.start as usize..run.start as usize + run.rows {
                let block = run.table[position / BLOCK];
                self.kv_rows.push(KvRow { block, slot: (position % BLOCK) as u32 });
            }
        }
        let seqs: Vec<AttentionSeq<'_>> = batch
            .runs
            .iter()
            .map(|run| AttentionSeq {
                first_row: run.first_row,
                rows: run.rows,
                start: run.start,
                table: &run.table,
            })
            .collect();
        self.plan.renew(&self.pool, &self.arena, self.heads, &seqs);
        self.batch = batch;
    }

    fn embed(&self, table: &Matrix, out: &mut Activations) {
        let width = table.cols();
        let out = out.resize(self.batch.tokens.len() * width);
        for (&token, row) in self.batch.tokens.iter().zip(out.chunks_exact_mut(width)) {
            table.row_to_f32(token as usize, row);
        }
    }

    fn norm(&self, x: &Activations, weight: &Vec<f32>, eps: f32, out: &mut Activations) {
        let x = x.values();
        let rows = x.len() / weight.len();
        ops::rms_norm(&self.pool, self.isa, x, weight, eps, rows, out.resize(x.len()));
    }

    fn project<const N: usize>(
        &self,
        x: &mut Activations,
        weights: [(&Matrix, Option<&Vec<f32>>); N],
        out: [&mut Activations; N],
    ) {
        let rows = x.values().len() / weights[0].0.cols();
        let mut out = out.into_iter();
        let projections = weights.map(|(weight, bias)| {
            let out = out.next().expect("as many outputs as weights").resize(rows * weight.rows());
            Projection { weight, bias: bias.map(Vec::as_slice), add: false, out }
        });
        ops::project(&self.pool, self.isa, x, rows, projections);
    }

    fn project_onto(&self, x: &mut Activations, weight: &Matrix, out: &mut Activations) {
        let rows = x.values().len() / weight.cols();
        let projection = Projection { weight, bias: None, add: true, out: out.values_mut() };
        ops::project(&self.pool, self.isa, x, rows, [projection]);
    }

    fn project_gated(
        &self,
        x: &mut Activations,
        gate: &Matrix,
        up: &Matrix,
        room: &mut Activations,
        out: &mut Activations,
    ) {
        let rows = x.values().len() / gate.cols();
        let (room, out) = (room.resize(rows * gate.rows()), out.resize(rows * up.rows()));
        ops::project_gated(&self.pool, self.isa, x, rows, gate, up, room, out);
    }

    fn rotate_and_store(
        &mut self,
        layer: usize,
        queries: &mut Activations,
        keys: &Activations,
        values: &Activations,
    ) {
        let rows = Rotated {
            rope: &self.rope,
            positions: &self.batch.positions,
            q: queries.values_mut(),
            heads: self.heads,
            k: keys.values(),
            v: values.values(),
        };
        ops::rotate_and_store(&self.pool, self.isa, &mut self.arena, layer, &self.kv_rows, rows);
    }

    fn attend(&mut self, layer: usize, queries: &Activations, out: &mut Activations) {
        let queries = queries.values();
        let out = out.resize(queries.len());
        let scale = self.attention_scale;
        ops::attend(&self.pool, self.isa, &self.arena, layer, queries, &mut self.plan, scale, out);
    }

    fn gather(&self, x: &Activations, width: usize, rows: &[u32], out: &mut Activations) {
        let x = x.values();
        let out = out.resize(rows.len() * width);
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(&x[row as usize * width..][..width]);
        }
    }

    fn read<'a>(&self, x: &'a Activations) -> Cow<'a, [f32]> {
        Cow::Borrowed(x.values())
    }
}
