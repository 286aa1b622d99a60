//! Prometheus metrics. The rule: every label value comes from the configuration or from this file, so the
//! number of series is fixed however many requests come.

use super::process;
use crate::brain::BrainStatus;
use pons_protocol::inference::BrainHello;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Largest age that is reported.
const MAX_AGE_MS: u64 = 365 * 24 * 3600 * 1000;

/// The label of a model that is not configured.
const OTHER: &str = "other";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    model: String,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    model: String,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    model: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartLabels {
    model: String,
    part: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RowsLabels {
    model: String,
    rows: &'static str,
}

/// What one request adds to the metrics.
#[derive(Clone, Copy, Debug)]
pub struct RequestSample<'a> {
    /// Name of the route.
    pub route: &'static str,
    /// Model the client asked for.
    pub model: &'a str,
    /// HTTP status.
    pub status: u16,
    /// From arrival to the end.
    pub seconds: f64,
}

type Histograms = Family<ModelLabels, Histogram, fn() -> Histogram>;

/// All metrics of the gateway.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    models: HashSet<String>,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Histograms,
    first_token_seconds: Histograms,
    inter_token_seconds: Histograms,
    tokens: Family<KindLabels, Counter>,
    in_flight: Gauge,
    running: Family<ModelLabels, Gauge>,
    waiting: Family<ModelLabels, Gauge>,
    blocks: Family<StateLabels, Gauge>,
    step_age: Family<ModelLabels, Gauge<f64, AtomicU64>>,
    restarts: Family<ModelLabels, Gauge>,
    preemptions: Family<ModelLabels, Gauge>,
    step_time: Family<PartLabels, Gauge<f64, AtomicU64>>,
    calibrated_prefill: Family<ModelLabels, Gauge>,
    calibrated_decode: Family<RowsLabels, Gauge<f64, AtomicU64>>,
    step_tokens_limit: Family<ModelLabels, Gauge>,
    sequences_limit: Family<ModelLabels, Gauge>,
    blocks_total: Family<ModelLabels, Gauge>,
    connected: Family<ModelLabels, Gauge>,
    commit_seconds: Histogram,
    resident_bytes: Gauge,
    open_files: Gauge,
}

fn long_buckets() -> Histogram {
    Histogram::new([
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.8, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
    ])
}

fn short_buckets() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 4.0])
}

impl Metrics {
    /// Metrics for these model names.
    pub fn new(models: impl IntoIterator<Item = String>) -> Self {
        let long: fn() -> Histogram = long_buckets;
        let short: fn() -> Histogram = short_buckets;
        let mut metrics = Self {
            registry: Registry::default(),
            models: models.into_iter().collect(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(long),
            first_token_seconds: Family::new_with_constructor(long),
            inter_token_seconds: Family::new_with_constructor(short),
            tokens: Family::default(),
            in_flight: Gauge::default(),
            running: Family::default(),
            waiting: Family::default(),
            blocks: Family::default(),
            step_age: Family::default(),
            restarts: Family::default(),
            preemptions: Family::default(),
            step_time: Family::default(),
            calibrated_prefill: Family::default(),
            calibrated_decode: Family::default(),
            step_tokens_limit: Family::default(),
            sequences_limit: Family::default(),
            blocks_total: Family::default(),
            connected: Family::default(),
            commit_seconds: short_buckets(),
            resident_bytes: Gauge::default(),
            open_files: Gauge::default(),
        };
        metrics.register_requests();
        metrics.register_brains();
        metrics.register_limits();
        metrics.register_process();
        metrics
    }

    fn register_requests(&mut self) {
        let registry = &mut self.registry;
        registry.register("pons_requests", "Requests by route, model and status", self.requests.clone());
        registry.register(
            "pons_request_seconds",
            "Time from arrival to the end of the answer",
            self.request_seconds.clone(),
        );
        registry.register(
            "pons_time_to_first_token_seconds",
            "Time from arrival to the first token",
            self.first_token_seconds.clone(),
        );
        registry.register(
            "pons_inter_token_seconds",
            "Time between two outputs of one request",
            self.inter_token_seconds.clone(),
        );
        registry.register("pons_tokens", "Tokens by kind", self.tokens.clone());
        registry.register("pons_requests_in_flight", "Generating requests", self.in_flight.clone());
        registry.register(
            "pons_ledger_commit_seconds",
            "Time of one ledger commit",
            self.commit_seconds.clone(),
        );
    }

    fn register_brains(&mut self) {
        let registry = &mut self.registry;
        registry.register("pons_brain_sequences_running", "Sequences that have blocks", self.running.clone());
        registry.register("pons_brain_sequences_waiting", "Sequences that wait", self.waiting.clone());
        registry.register("pons_brain_blocks", "KV blocks by state", self.blocks.clone());
        registry.register(
            "pons_brain_step_age_seconds",
            "Time since the brain's last sign of life",
            self.step_age.clone(),
        );
        // A gauge, since the count lives in the supervisor; the name follows the counters.
        registry.register("pons_brain_restarts_total", "Restarts of the brain", self.restarts.clone());
        registry.register("pons_brain_connected", "1 if the brain is connected", self.connected.clone());
    }

    fn register_limits(&mut self) {
        let registry = &mut self.registry;
        // A gauge as well: the count lives in the brain and begins anew with it.
        registry.register(
            "pons_brain_preemptions_total",
            "Sequences that gave up their blocks to others since the brain started",
            self.preemptions.clone(),
        );
        registry.register(
            "pons_brain_step_seconds_total",
            "Time of all steps by part: schedule, forward, sample, send",
            self.step_time.clone(),
        );
        registry.register(
            "pons_brain_calibrated_prefill_tokens_per_second",
            "Prompt tokens a second, as measured at the brain's start",
            self.calibrated_prefill.clone(),
        );
        registry.register(
            "pons_brain_calibrated_decode_step_seconds",
            "Time of a decode step by rows, as measured at the brain's start",
            self.calibrated_decode.clone(),
        );
        registry.register(
            "pons_brain_step_tokens_limit",
            "Most tokens of one step",
            self.step_tokens_limit.clone(),
        );
        registry.register(
            "pons_brain_sequences_limit",
            "Most sequences that run at one time",
            self.sequences_limit.clone(),
        );
        registry.register("pons_brain_blocks_total", "KV blocks in all", self.blocks_total.clone());
    }

    fn register_process(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "pons_process_resident_bytes",
            "Resident memory of the gateway",
            self.resident_bytes.clone(),
        );
        registry.register(
            "pons_process_open_files",
            "Open file descriptors of the gateway",
            self.open_files.clone(),
        );
    }

    /// The label for a model name: the name if it is configured.
    fn model_label(&self, model: &str) -> String {
        if self.models.contains(model) { model.to_owned() } else { OTHER.to_owned() }
    }

    /// Counts a request that has ended.
    pub fn request_ended(&self, sample: RequestSample<'_>) {
        let status = match sample.status {
            200..=299 => "2xx",
            300..=399 => "3xx",
            400..=499 => "4xx",
            _ => "5xx",
        };
        let model = self.model_label(sample.model);
        self.request_seconds.get_or_create(&ModelLabels { model: model.clone() }).observe(sample.seconds);
        self.requests.get_or_create(&RequestLabels { route: sample.route, model, status }).inc();
    }

    /// A generating request begins.
    pub fn generation_began(&self) {
        self.in_flight.inc();
    }

    /// A generating request ended, with these tokens.
    pub fn generation_ended(&self, model: &str, prompt: u64, cached: u64, output: u64) {
        self.in_flight.dec();
        let model = self.model_label(model);
        for (kind, tokens) in [("prompt", prompt), ("cached", cached), ("output", output)] {
            self.tokens.get_or_create(&KindLabels { model: model.clone(), kind }).inc_by(tokens);
        }
    }

    /// The first output of a request.
    pub fn first_token(&self, model: &str, age: Duration) {
        let labels = ModelLabels { model: self.model_label(model) };
        self.first_token_seconds.get_or_create(&labels).observe(age.as_secs_f64());
    }

    /// A later output.
    pub fn inter_token(&self, model: &str, gap: Duration) {
        let labels = ModelLabels { model: self.model_label(model) };
        self.inter_token_seconds.get_or_create(&labels).observe(gap.as_secs_f64());
    }

    /// The text of a scrape. The brains' state and the commits are those since the last one.
    pub fn scrape(
        &self,
        brains: &[BrainStatus],
        restarts: &[(String, u64)],
        commit_seconds: &[f64],
    ) -> String {
        for brain in brains {
            self.record_brain(brain);
        }
        for (model, count) in restarts {
            let labels = ModelLabels { model: self.model_label(model) };
            self.restarts.get_or_create(&labels).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
        for seconds in commit_seconds {
            self.commit_seconds.observe(*seconds);
        }
        if let Some(bytes) = process::resident_bytes() {
            self.resident_bytes.set(bytes as i64);
        }
        if let Some(files) = process::open_files() {
            self.open_files.set(files as i64);
        }
        let mut out = String::new();
        // Writing to a string fails only if a metric can't be formatted, and ours are numbers.
        if text::encode(&mut out, &self.registry).is_err() {
            tracing::error!("metrics could not be written");
        }
        out
    }

    fn record_brain(&self, brain: &BrainStatus) {
        let model = self.model_label(&brain.model);
        let labels = ModelLabels { model: model.clone() };
        let capacity = &brain.capacity;
        self.running.get_or_create(&labels).set(i64::from(capacity.running));
        self.waiting.get_or_create(&labels).set(i64::from(capacity.waiting));
        self.connected.get_or_create(&labels).set(i64::from(brain.connected));
        // Before the first sign of life the age is the largest number; a year says as much.
        let age_ms = brain.last_heard_age_ms.max(capacity.step_age_ms).min(MAX_AGE_MS);
        self.step_age.get_or_create(&labels).set(age_ms as f64 / 1000.0);
        for (state, blocks) in [
            ("free", capacity.blocks_free),
            ("cached", capacity.blocks_cached),
            ("held", capacity.blocks_held),
        ] {
            self.blocks.get_or_create(&StateLabels { model: model.clone(), state }).set(i64::from(blocks));
        }
        self.preemptions
            .get_or_create(&labels)
            .set(i64::try_from(capacity.preemptions_total).unwrap_or(i64::MAX));
        for (part, sum_us) in [
            ("schedule", capacity.schedule_us_total),
            ("forward", capacity.forward_us_total),
            ("sample", capacity.sample_us_total),
            ("send", capacity.send_us_total),
        ] {
            let labels = PartLabels { model: model.clone(), part };
            self.step_time.get_or_create(&labels).set(sum_us as f64 / 1e6);
        }
        if let Some(hello) = &brain.hello {
            self.record_limits(&labels, hello);
        }
    }

    fn record_limits(&self, labels: &ModelLabels, hello: &BrainHello) {
        self.step_tokens_limit.get_or_create(labels).set(i64::from(hello.step_tokens));
        self.sequences_limit.get_or_create(labels).set(i64::from(hello.max_sequences));
        self.blocks_total.get_or_create(labels).set(i64::from(hello.blocks_total));
        let Some(measured) = hello.calibration else { return };
        self.calibrated_prefill.get_or_create(labels).set(i64::from(measured.prefill_tokens_per_s));
        for (rows, decode_us) in
            [("1", measured.decode_us_1), ("8", measured.decode_us_8), ("32", measured.decode_us_32)]
        {
            let labels = RowsLabels { model: labels.model.clone(), rows };
            self.calibrated_decode.get_or_create(&labels).set(decode_us as f64 / 1e6);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pons_protocol::capacity::Capacity;
    use pons_protocol::inference::Calibration;
    use std::sync::Arc;

    #[test]
    fn a_brain_s_measurement_and_limits_are_scraped() {
        let metrics = Metrics::new(["m".to_owned()]);
        let calibration = Calibration {
            prefill_tokens_per_s: 1500,
            decode_us_1: 4_000,
            decode_us_8: 9_500,
            decode_us_32: 30_000,
        };
        let hello = BrainHello {
            protocol_version: 1,
            software: String::new(),
            model: "m".to_owned(),
            fingerprint: String::new(),
            vocab_size: 1,
            context_tokens: 1,
            eos_token_ids: Vec::new(),
            max_sequences: 44,
            max_waiting: 1,
            max_waiting_tokens: 1,
            block_tokens: 16,
            blocks_total: 777,
            step_tokens: 600,
            calibration: Some(calibration),
        };
        let mut brain = BrainStatus {
            model: "m".to_owned(),
            connected: true,
            capacity: Capacity { preemptions_total: 5, forward_us_total: 1_500_000, ..Capacity::default() },
            last_heard_age_ms: 0,
            hello: None,
        };
        let before = metrics.scrape(std::slice::from_ref(&brain), &[], &[]);
        assert!(!before.contains("pons_brain_sequences_limit{"), "nothing is known before the first link");
        brain.hello = Some(Arc::new(hello));
        let text = metrics.scrape(&[brain], &[], &[]);
        for line in [
            "pons_brain_preemptions_total{model=\"m\"} 5",
            "pons_brain_step_seconds_total{model=\"m\",part=\"forward\"} 1.5",
            "pons_brain_calibrated_prefill_tokens_per_second{model=\"m\"} 1500",
            "pons_brain_calibrated_decode_step_seconds{model=\"m\",rows=\"8\"} 0.0095",
            "pons_brain_step_tokens_limit{model=\"m\"} 600",
            "pons_brain_sequences_limit{model=\"m\"} 44",
            "pons_brain_blocks_total{model=\"m\"} 777",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
