//! The brain's settings: raw from the command line, resolved once.
//!
//! The rule: after [`Settings::resolve`] nothing is optional that the rest of the process would have to guess,
//! and an error names the field, the value and the remedy.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use pons_kernels::KvFormat;

use crate::packed::Folder;
use crate::placement::{self, PinThreads};
use crate::sizing::{Given, MOST_SEQUENCES, Targets};

/// Most threads that make sense on one machine.
const MAX_THREADS: usize = 1024;
/// Most sequences that run at the same time.
const MAX_SEQUENCES: u32 = 4096;
/// Most tokens of one step.
const MAX_STEP_TOKENS: u32 = 65_536;
/// Fewest tokens of one step; below it a prompt makes no progress beside its neighbours.
const MIN_STEP_TOKENS: u32 = 16;
/// Most sequences that may wait.
const MAX_WAITING: u32 = 1 << 20;

/// Serves one model on one device to the gateways that connect to it.
///
/// It reads token ids and writes token ids; text, tenants' keys and HTTP stay in the gateway. It stops on
/// SIGTERM or SIGINT after the sequences it holds have finished.
#[derive(Debug, Parser)]
#[command(name = "pons-brain", version)]
pub struct Arguments {
    /// Name of a known model, a .gguf file, or a directory with config.json and safetensors
    #[arg(long, value_name = "NAME|PATH")]
    pub model: String,

    /// Where gateways connect: unix:PATH or tcp:HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub listen: String,

    /// Name under which the model is served [default: the model's own]
    #[arg(long)]
    pub name: Option<String>,

    /// Threads that compute [default: all cores the process may use, from eight on but one of each sixteen]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Whether those threads are kept on cores of their own: auto, if they fill the machine but for a share left to
    /// the gateway (one core of each sixteen begun, from eight cores on), or off
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = PinThreads::Auto)]
    pub pin_threads: PinThreads,

    /// Memory of the KV cache, such as 2GiB or 512MiB [default: from the available memory and the load]
    #[arg(long, value_name = "SIZE")]
    pub kv_memory: Option<String>,

    /// How the KV cache is stored: bf16, or int8 for half the memory and less exact attention
    #[arg(long, value_name = "FORMAT", default_value = "bf16", value_parser = parse_kv_format)]
    pub kv_format: KvFormat,

    /// Most sequences that run at the same time [default: measured at start for the P99 targets]
    #[arg(long, value_name = "N")]
    pub max_sequences: Option<u32>,

    /// Most tokens of prompt and output together [default: the model's own]
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u32>,

    /// Most tokens of one step [default: measured at start for the P99 targets]
    #[arg(long, value_name = "TOKENS")]
    pub step_tokens: Option<u32>,

    /// Declared P99 of the time to the first token; it bounds steps of prompts alone and the prompts that wait
    #[arg(long, value_name = "MS", default_value_t = 800)]
    pub p99_ttft_ms: u32,

    /// Declared P99 of the time between two tokens; it bounds the sequences that run and the prompts beside them
    #[arg(long, value_name = "MS", default_value_t = 100, alias = "inter-token-target-ms")]
    pub p99_itl_ms: u32,

    /// Where measurements of the device are kept between starts [default: pons/calibration in the platform's
    /// cache directory]
    #[arg(long, value_name = "DIR")]
    pub calibration_dir: Option<PathBuf>,

    /// Where packed weights are kept between starts, about as large as the model [default: beside the model, or
    /// pons/packed in the platform's cache directory if that folder can't be written to]
    #[arg(long, value_name = "DIR", env = "PONS_PACKED_DIR")]
    pub packed_dir: Option<PathBuf>,

    /// Keep no packed weights and use none that were kept; every start packs them from the model
    #[arg(long)]
    pub no_packed_cache: bool,

    /// Most sequences that may wait; further ones are refused at once
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub max_waiting: u32,

    /// Most prompt tokens that may wait; further ones are refused at once [default: measured at start for the
    /// P99 targets]
    #[arg(long, value_name = "TOKENS")]
    pub max_waiting_tokens: Option<u64>,

    /// Seconds that sequences get to finish after SIGTERM
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub drain_seconds: u32,

    /// End when the parent process is gone, so that no brain outlives the gateway that started it
    #[arg(long)]
    pub exit_with_parent: bool,

    /// What is logged to standard error: error, warn, info, debug, trace, or a filter such as info,pons_gpu_worker=debug
    #[arg(long, value_name = "FILTER", env = "PONS_LOG", default_value = "info")]
    pub log: String,

    /// How log lines look
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A setting that can't be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{field} is {value}: {remedy}")]
pub struct ConfigError {
    /// The option, without its dashes.
    pub field: &'static str,
    /// What it was set to.
    pub value: String,
    /// What to do.
    pub remedy: String,
}

/// Where gateways connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A unix socket; only this user may connect.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

/// Settings that were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Model name or path, not yet located.
    pub model: String,
    /// Where to listen.
    pub listen: ListenAddress,
    /// Name to serve under, if not the model's own.
    pub name: Option<String>,
    /// Threads that compute.
    pub threads: usize,
    /// Whether threads are kept on cores.
    pub pin_threads: PinThreads,
    /// KV memory, if it is not to be computed.
    pub kv_bytes: Option<u64>,
    /// How the KV cache is stored.
    pub kv_format: KvFormat,
    /// Most sequences that run, if it is not to be measured.
    pub max_sequences: Option<u32>,
    /// Context, if not the model's own.
    pub context_tokens: Option<u32>,
    /// Step budget, if it is not to be measured.
    pub step_tokens: Option<u32>,
    /// Declared P99 of the time to the first token.
    pub p99_ttft_ms: u32,
    /// Declared P99 of the time between two tokens.
    pub p99_itl_ms: u32,
    /// Where calibrations are kept; none where the platform has no such place.
    pub calibration_dir: Option<PathBuf>,
    /// Where packed weights are kept.
    pub packed: Folder,
    /// Most sequences that wait.
    pub max_waiting: u32,
    /// Most prompt tokens that wait, if it is not to be measured.
    pub max_waiting_tokens: Option<u64>,
    /// Seconds that a drain may take.
    pub drain_seconds: u32,
    /// End with the parent process.
    pub exit_with_parent: bool,
    /// Log filter.
    pub log: String,
    /// Log format.
    pub log_format: LogFormat,
}

impl Settings {
    /// Checks the arguments and fills in what does not depend on the model.
    pub fn resolve(raw: Arguments) -> Result<Self, ConfigError> {
        let threads = match raw.threads {
            Some(threads) => within("threads", threads, 1, MAX_THREADS)?,
            None => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                placement::default_threads(cores).min(MAX_THREADS)
            }
        };
        if let Some(name) = &raw.name {
            let usable = !name.is_empty() && name.len() <= 256 && !name.chars().any(char::is_control);
            if !usable {
                return Err(error("name", name, "give 1 to 256 bytes without control characters"));
            }
        }
        if raw.model.is_empty() {
            return Err(error("model", "empty", "give a model name, a .gguf file or a model directory"));
        }
        if let (Some(tokens), Some(sequences)) = (raw.step_tokens, raw.max_sequences)
            && tokens < sequences
        {
            let remedy = format!("give at least {sequences}, one for each of --max-sequences");
            return Err(error("step-tokens", tokens, remedy));
        }
        let optional = |field, value: Option<u32>, least, most| {
            value.map(|value| within(field, value, least, most)).transpose()
        };
        Ok(Self {
            listen: parse_listen(&raw.listen)?,
            threads,
            pin_threads: raw.pin_threads,
            kv_bytes: raw.kv_memory.as_deref().map(parse_bytes).transpose()?,
            kv_format: raw.kv_format,
            max_sequences: optional("max-sequences", raw.max_sequences, 1, MAX_SEQUENCES)?,
            context_tokens: optional("context", raw.context, 32, u32::MAX / 2)?,
            step_tokens: optional("step-tokens", raw.step_tokens, MIN_STEP_TOKENS, MAX_STEP_TOKENS)?,
            p99_ttft_ms: within("p99-ttft-ms", raw.p99_ttft_ms, 1, 600_000)?,
            p99_itl_ms: within("p99-itl-ms", raw.p99_itl_ms, 1, 60_000)?,
            calibration_dir: raw
                .calibration_dir
                .or_else(|| Some(dirs::cache_dir()?.join("pons").join("calibration"))),
            packed: match (raw.no_packed_cache, raw.packed_dir) {
                (true, _) => Folder::None,
                (false, Some(dir)) => Folder::Given(dir),
                (false, None) => Folder::Beside(dirs::cache_dir().map(|dir| dir.join("pons").join("packed"))),
            },
            max_waiting: within("max-waiting", raw.max_waiting, 1, MAX_WAITING)?,
            max_waiting_tokens: raw
                .max_waiting_tokens
                .map(|tokens| within("max-waiting-tokens", tokens, 1, 1 << 40))
                .transpose()?,
            drain_seconds: within("drain-seconds", raw.drain_seconds, 0, 86_400)?,
            exit_with_parent: raw.exit_with_parent,
            model: raw.model,
            name: raw.name,
            log: raw.log,
            log_format: raw.log_format,
        })
    }

    /// The P99s that are promised.
    pub fn targets(&self) -> Targets {
        Targets { ttft_us: u64::from(self.p99_ttft_ms) * 1000, itl_us: u64::from(self.p99_itl_ms) * 1000 }
    }

    /// The limits that were given rather than left to the measurement.
    pub fn given(&self) -> Given {
        Given {
            max_sequences: self.max_sequences,
            step_tokens: self.step_tokens,
            kv_memory: self.kv_bytes.is_some(),
            max_waiting_tokens: self.max_waiting_tokens,
        }
    }

    /// Sequences that there must be room for before anything is measured.
    pub fn most_sequences(&self) -> u32 {
        self.max_sequences.unwrap_or(MOST_SEQUENCES)
    }

    /// The context to serve, given the model's own.
    pub fn context_for(&self, model_context: u32) -> Result<u32, ConfigError> {
        match self.context_tokens {
            Some(tokens) if tokens > model_context => Err(error(
                "context",
                tokens,
                format!("the model was trained for {model_context} tokens; give at most that"),
            )),
            Some(tokens) => Ok(tokens),
            None => Ok(model_context),
        }
    }

    /// Number of KV blocks, given the size of one and the context.
    pub fn blocks_for(&self, block_bytes: u64, block_tokens: u32, context: u32) -> Result<u32, ConfigError> {
        let per_sequence = u64::from(context.div_ceil(block_tokens));
        let blocks = match self.kv_bytes {
            None => crate::memory::default_blocks(
                crate::memory::available_bytes(),
                block_bytes,
                per_sequence,
                u64::from(self.most_sequences()),
            ),
            Some(bytes) => bytes / block_bytes.max(1),
        };
        if blocks < 2 {
            let least = block_bytes.saturating_mul(2);
            let value = format!("{} bytes", self.kv_bytes.unwrap_or(0));
            return Err(error(
                "kv-memory",
                value,
                format!("give at least {least} bytes, enough for two blocks"),
            ));
        }
        u32::try_from(blocks).map_err(|_| {
            error("kv-memory", format!("{blocks} blocks"), "give less memory; at most 4294967295 blocks fit")
        })
    }
}

fn error(field: &'static str, value: impl ToString, remedy: impl Into<String>) -> ConfigError {
    ConfigError { field, value: value.to_string(), remedy: remedy.into() }
}

fn within<T: PartialOrd + ToString + Copy>(
    field: &'static str,
    value: T,
    least: T,
    most: T,
) -> Result<T, ConfigError> {
    if value < least || value > most {
        let remedy = format!("give a number from {} to {}", least.to_string(), most.to_string());
        return Err(error(field, value, remedy));
    }
    Ok(value)
}

/// The format that a setting names.
///
/// # Errors
/// A name that is none, with those there are.
pub fn parse_kv_format(text: &str) -> Result<KvFormat, String> {
    match text {
        "bf16" => Ok(KvFormat::Bf16),
        "int8" => Ok(KvFormat::Int8),
        _ => Err(String::from("give bf16 or int8")),
    }
}

fn parse_listen(text: &str) -> Result<ListenAddress, ConfigError> {
    const REMEDY: &str = "give unix:PATH or tcp:HOST:PORT";
    match text.split_once(':') {
        Some(("unix", path)) if !path.is_empty() => {
            // The address of a unix socket holds 108 bytes with its closing zero.
            if path.len() > 107 {
                return Err(error(
                    "listen",
                    text,
                    "a unix socket path has at most 107 bytes; give a shorter one",
                ));
            }
            Ok(ListenAddress::Unix(PathBuf::from(path)))
        }
        Some(("tcp", address)) => {
            let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            match port.map(|(_, port)| port.parse::<u16>()) {
                Some(Ok(_)) => Ok(ListenAddress::Tcp(address.to_owned())),
                _ => Err(error("listen", text, REMEDY)),
            }
        }
        _ => Err(error("listen", text, REMEDY)),
    }
}

fn parse_bytes(text: &str) -> Result<u64, ConfigError> {
    const UNITS: [(&str, u64); 9] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("TB", 1_000_000_000_000),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1_000),
        ("B", 1),
    ];
    let refused = || error("kv-memory", text, "give a size with a unit, such as 2GiB or 512MiB");
    let trimmed = text.trim();
    let (digits, unit) = UNITS
        .iter()
        .find_map(|&(name, unit)| Some((trimmed.strip_suffix(name)?, unit)))
        .ok_or_else(refused)?;
    let number: f64 = digits.trim().parse().map_err(|_| refused())?;
    let bytes = number * unit as f64;
    if !(bytes.is_finite() && (1.0..=(1u64 << 50) as f64).contains(&bytes)) {
        return Err(refused());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests;
