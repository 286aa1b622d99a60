//! How many tokens a step may take, so that prefill does not stretch the time between tokens.
//!
//! The rule: the budget shapes time only. Whatever it is, the tokens that come out are the same.

/// Least prefill tokens of a step, unless the executor's limit is lower: below it a prompt never ends. A product of
/// so many rows runs at the processor's full rate already, and a slow model's decodes wait for no more than these.
pub const MIN_BUDGET_TOKENS: u32 = 64;
/// Most prefill tokens of a step.
pub const MAX_BUDGET_TOKENS: u32 = 8192;
/// How many inter-token targets a step may take while nobody waits for a next token and no first-token target is
/// set: those who arrive meanwhile, or come back after a restart, still wait for a step to end.
const NO_DECODES: u64 = 4;
/// Share of the first-token target that a step of prompts alone may take: the rest is for the prompt of whoever
/// arrives as it begins.
const TTFT_SHARE: u64 = 2;
/// Weight of the past in the running means, out of 8.
const MEMORY: f64 = 7.0 / 8.0;

/// Prefill tokens that fit between two tokens of the running sequences:
/// (target − decode time) × prefill rate, within bounds.
pub fn prefill_budget(
    itl_target_us: u64,
    decode_us: u64,
    prefill_tokens_per_s: f64,
    limit_tokens: u32,
) -> u32 {
    let left_s = itl_target_us.saturating_sub(decode_us) as f64 / 1e6;
    let tokens = left_s * prefill_tokens_per_s;
    let bounded = tokens.clamp(f64::from(MIN_BUDGET_TOKENS), f64::from(MAX_BUDGET_TOKENS));
    // NaN becomes 0 in the cast; the floor holds for it as well.
    (bounded as u32).max(MIN_BUDGET_TOKENS).min(limit_tokens)
}

/// How long a step may take, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTargets {
    /// With decodes in it; 0 is no target.
    decodes_us: u64,
    /// Without any.
    prompts_us: u64,
}

impl StepTargets {
    /// From the promised times between tokens and to the first; 0 is none.
    pub fn new(itl_us: u64, ttft_us: u64) -> Self {
        let prompts_us = if ttft_us > 0 { ttft_us / TTFT_SHARE } else { itl_us.saturating_mul(NO_DECODES) };
        // A step without decodes is never held shorter than one with them.
        Self { decodes_us: itl_us, prompts_us: prompts_us.max(itl_us) }
    }
}

/// What a step was and how long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSample {
    /// Sequences that decoded.
    pub decode_rows: u32,
    /// Tokens of prefill chunks.
    pub prefill_tokens: u32,
    /// Duration.
    pub step_us: u64,
}

/// Running means of how fast the executor is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepMeter {
    decode_us: Option<f64>,
    prefill_tokens_per_s: Option<f64>,
}

impl StepMeter {
    /// A meter that starts from a calibration.
    pub fn calibrated(decode_us: u64, prefill_tokens_per_s: f64) -> Self {
        Self { decode_us: Some(decode_us as f64), prefill_tokens_per_s: Some(prefill_tokens_per_s) }
    }

    /// Takes in a step. A step without prefill tells the decode time; what a mixed one takes beyond that is
    /// prefill.
    pub fn observe(&mut self, sample: StepSample) {
        let step_us = sample.step_us as f64;
        if sample.prefill_tokens == 0 {
            if sample.decode_rows > 0 {
                blend(&mut self.decode_us, step_us);
            }
            return;
        }
        let decode_us = if sample.decode_rows > 0 { self.decode_us.unwrap_or(0.0) } else { 0.0 };
        let prefill_us = step_us - decode_us;
        // Short chunks measure the fixed cost of a step, not the rate.
        if prefill_us > 0.0 && sample.prefill_tokens >= MIN_BUDGET_TOKENS {
            blend(&mut self.prefill_tokens_per_s, f64::from(sample.prefill_tokens) / prefill_us * 1e6);
        }
    }

    /// Prefill tokens for a step with these decodes. Without target or measurement it is the limit.
    pub fn prefill_budget(&self, targets: StepTargets, decode_rows: u32, limit_tokens: u32) -> u32 {
        match self.prefill_tokens_per_s {
            Some(rate) if targets.decodes_us > 0 && decode_rows > 0 => {
                let decode_us = self.decode_us.unwrap_or(0.0) as u64;
                prefill_budget(targets.decodes_us, decode_us, rate, limit_tokens)
            }
            Some(rate) if targets.decodes_us > 0 => prefill_budget(targets.prompts_us, 0, rate, limit_tokens),
            _ => limit_tokens,
        }
    }
}

fn blend(mean: &mut Option<f64>, value: f64) {
    *mean = Some(mean.map_or(value, |past| past * MEMORY + value * (1.0 - MEMORY)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(itl_us: u64) -> StepTargets {
        StepTargets::new(itl_us, 0)
    }

    #[test]
    fn the_budget_is_time_left_times_rate_within_its_bounds() {
        assert_eq!(prefill_budget(50_000, 10_000, 20_000.0, 8192), 800);
        assert_eq!(prefill_budget(50_000, 60_000, 20_000.0, 8192), MIN_BUDGET_TOKENS);
        assert_eq!(prefill_budget(1_000_000, 0, 1e9, 100_000), MAX_BUDGET_TOKENS);
        assert_eq!(
            prefill_budget(50_000, 60_000, 20_000.0, 32),
            32,
            "the executor's limit is below the floor"
        );
        assert_eq!(prefill_budget(50_000, 10_000, f64::NAN, 8192), MIN_BUDGET_TOKENS);
    }

    #[test]
    fn a_meter_separates_prefill_time_from_decode_time() {
        let mut meter = StepMeter::default();
        assert_eq!(meter.prefill_budget(targets(50_000), 4, 2048), 2048, "nothing is measured yet");
        meter.observe(StepSample { decode_rows: 4, prefill_tokens: 0, step_us: 10_000 });
        meter.observe(StepSample { decode_rows: 4, prefill_tokens: 400, step_us: 30_000 });
        assert_eq!(meter.prefill_budget(targets(50_000), 4, 2048), 800);
        assert_eq!(
            meter.prefill_budget(targets(5_000), 0, 2048),
            400,
            "nobody waits for a token, but others may come"
        );
        assert_eq!(meter.prefill_budget(targets(0), 4, 2048), 2048, "no target is set");
    }

    #[test]
    fn a_step_of_prompts_alone_takes_half_the_first_token_target() {
        let meter = StepMeter::calibrated(10_000, 1000.0);
        let targets = StepTargets::new(100_000, 800_000);
        assert_eq!(meter.prefill_budget(targets, 0, 2048), 400);
        assert_eq!(meter.prefill_budget(targets, 4, 2048), 90);
        let strict = StepTargets::new(500_000, 600_000);
        assert_eq!(meter.prefill_budget(strict, 0, 2048), 500, "as much as beside decodes that take no time");
    }
}
