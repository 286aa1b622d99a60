//! One step's rows as the device sees them. The rule: rows of a run are consecutive in the batch and in position.

/// Rows of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// First row in the batch.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row in its sequence.
    pub start: u32,
    /// KV blocks of the sequence from position 0 on.
    pub table: Vec<u32>,
}

/// All rows of one step, decodes and prefill chunks mixed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepBatch {
    /// Token of each row.
    pub tokens: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Runs in row order, covering all rows.
    pub runs: Vec<Run>,
}

impl StepBatch {
    /// Appends a run.
    pub fn push(&mut self, tokens: &[u32], start: u32, table: Vec<u32>) {
        let first_row = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((start..).take(tokens.len()));
        self.runs.push(Run { first_row, rows: tokens.len(), start, table });
    }
}
