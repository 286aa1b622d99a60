//! `pons-brain`: one process, one model, one device.
//!
//! The rule: it says what it will use before it uses it, listens only once it can serve, and ends by itself when
//! its device fails, its parent is gone, or it is told to.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use crossbeam::channel::Sender;
use pons_checkpoint::tokenizer::Tokenizer;
use pons_checkpoint::{Checkpoint, locate};
use pons_gpu_worker::calibrate;
use pons_gpu_worker::clock::Clock;
use pons_gpu_worker::config::{Arguments, LogFormat, Settings};
use pons_gpu_worker::engine::Engine;
use pons_gpu_worker::executor::ModelExecutor;
use pons_gpu_worker::executor::local::{LocalConfig, LocalExecutor, bytes_per_block};
use pons_gpu_worker::grammar::Grammars;
use pons_gpu_worker::kv::BLOCK_TOKENS;
use pons_gpu_worker::link::{LinkContext, Listener};
use pons_gpu_worker::metrics::Published;
use pons_gpu_worker::scheduler::SchedulerConfig;
use pons_gpu_worker::scheduler::budget::StepMeter;
use pons_gpu_worker::vocabulary::token_texts;
use pons_gpu_worker::worker::{Command, Inbox, Worker};
use pons_protocol::PROTOCOL_VERSION;
use pons_protocol::inference::BrainHello;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Step limit when none is given: more rows than this add nothing on a CPU but memory.
const DEFAULT_STEP_TOKENS: u32 = 2048;
/// Time that links get to write what is left after the engine has stopped.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);
/// How often the parent is looked for.
const PARENT_CHECK: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    // Asked first, so that a parent that dies while we start is noticed.
    let parent = rustix::process::getppid();
    let settings = match Settings::resolve(Arguments::parse()) {
        Ok(settings) => settings,
        Err(error) => return refuse(&error.to_string()),
    };
    if let Err(error) = start_log(&settings) {
        return refuse(&format!("--log is {}: {error}; give a level or a filter", settings.log));
    }
    match run(&settings, parent) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Says why the settings can't be used, where the log can't be yet.
fn refuse(message: &str) -> ExitCode {
    // Nowhere else to say it if this fails.
    let _ = writeln!(std::io::stderr(), "error: {message}");
    ExitCode::from(2)
}

fn start_log(settings: &Settings) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter = tracing_subscriber::EnvFilter::builder().parse(&settings.log)?;
    let colours = std::io::stderr().is_terminal();
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    match settings.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

fn run(settings: &Settings, parent: Option<rustix::process::Pid>) -> anyhow::Result<()> {
    if settings.exit_with_parent {
        watch_parent(parent)?;
    }
    let clock = Clock::start();
    let began = Instant::now();
    let path = locate::locate(&settings.model)?;
    let checkpoint = Checkpoint::open(&path)?;
    let tokenizer = Tokenizer::open(&checkpoint)?;
    let mut executor = load(settings, &checkpoint)?;
    let limits = executor.limits();
    let eos_token_ids = checkpoint.config().eos.clone();
    let grammars = Grammars::new(&token_texts(&tokenizer, limits.vocab_size), &eos_token_ids)
        .map_err(|reason| anyhow::anyhow!("the model's vocabulary can't be used: {reason}"))?;
    tracing::info!(
        model = %path.display(),
        fingerprint = executor.fingerprint(),
        weights_bytes = checkpoint.size_bytes(),
        threads = settings.threads,
        load_ms = began.elapsed().as_millis(),
        "the model is loaded"
    );

    let calibration = calibrate::measure(&mut executor)?;
    let fingerprint = executor.fingerprint().to_owned();
    let mut engine = Engine::new(
        executor,
        SchedulerConfig {
            eos_token_ids: eos_token_ids.clone(),
            step_tokens: limits.step_tokens,
            // A step size that was given is kept to, whatever a step takes.
            itl_target_us: match settings.step_tokens {
                Some(_) => 0,
                None => u64::from(settings.inter_token_target_ms) * 1000,
            },
            max_running: settings.max_sequences,
            max_waiting: settings.max_waiting,
            max_waiting_tokens: settings.max_waiting_tokens,
            ..SchedulerConfig::default()
        },
    );
    if let Some(calibration) = calibration {
        let meter = StepMeter::calibrated(calibration.decode_us, calibration.prefill_tokens_per_s);
        let target_us = u64::from(settings.inter_token_target_ms) * 1000;
        tracing::info!(
            decode_us = calibration.decode_us,
            decode_rows = calibration.decode_rows,
            prefill_tokens_per_s = calibration.prefill_tokens_per_s as u64,
            inter_token_target_ms = settings.inter_token_target_ms,
            prefill_budget_tokens = meter.prefill_budget(target_us, 1, limits.step_tokens),
            "measured the device"
        );
        engine.scheduler_mut().calibrate(meter);
    }

    let hello = BrainHello {
        protocol_version: PROTOCOL_VERSION,
        software: concat!("pons-brain ", env!("CARGO_PKG_VERSION")).to_owned(),
        model: settings.name.clone().unwrap_or_else(|| checkpoint.name()),
        fingerprint,
        vocab_size: limits.vocab_size,
        context_tokens: engine.scheduler().capacity_tokens(),
        eos_token_ids,
        max_sequences: settings.max_sequences,
        max_waiting: settings.max_waiting,
        max_waiting_tokens: settings.max_waiting_tokens,
        block_tokens: BLOCK_TOKENS,
        blocks_total: limits.blocks,
        step_tokens: limits.step_tokens,
    };
    serve(settings, engine, grammars, hello, clock)
}

/// Listens, works until told to stop, and lets the links write what is left.
fn serve<E: ModelExecutor>(
    settings: &Settings,
    engine: Engine<E>,
    grammars: Grammars,
    hello: BrainHello,
    clock: Clock,
) -> anyhow::Result<()> {
    let inbox = Inbox::default();
    watch_signals(inbox.sender(), Duration::from_secs(u64::from(settings.drain_seconds)))?;
    let published = Arc::new(Published::new(clock, engine.capacity(clock.now_us())));
    let context =
        LinkContext { commands: inbox.sender(), hello: Arc::new(hello), published: Arc::clone(&published) };
    let listener = Listener::bind(&settings.listen)?;
    tracing::info!(address = listener.address(), model = context.hello.model, "serving");
    let links = listener.serve(context).context("the system gives no thread to accept links")?;
    let worker = Worker::new(engine, inbox, move |grammar| grammars.compile(grammar), published, clock)
        .context("the system gives no thread to compile grammars")?;
    let result = worker.run();
    links.finish(FLUSH_LIMIT);
    result.context("the engine stopped")
}

fn load(settings: &Settings, checkpoint: &Checkpoint) -> anyhow::Result<LocalExecutor> {
    let model = checkpoint.config();
    let context_tokens = settings.context_for(u32::try_from(model.context)?)?;
    let block_bytes = bytes_per_block(model, settings.kv_format) as u64;
    let blocks = settings.blocks_for(block_bytes, BLOCK_TOKENS, context_tokens)?;
    tracing::info!(
        blocks,
        block_tokens = BLOCK_TOKENS,
        format = ?settings.kv_format,
        bytes = u64::from(blocks) * block_bytes,
        chosen_by = if settings.kv_bytes.is_some() { "--kv-memory" } else { "available memory and load" },
        context_tokens,
        max_sequences = settings.max_sequences,
        "KV cache"
    );
    let config = LocalConfig {
        threads: settings.threads,
        kv_format: settings.kv_format,
        blocks,
        // One more than sequences may run: the calibration's own.
        slots: settings.max_sequences + 1,
        step_tokens: settings.step_tokens.unwrap_or(DEFAULT_STEP_TOKENS).max(settings.max_sequences),
        context_tokens,
    };
    Ok(LocalExecutor::load(checkpoint, config)?)
}

/// The first signal drains, the second ends at once.
fn watch_signals(commands: Sender<Command>, limit: Duration) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("signals can't be received")?;
    let watch = move || {
        let mut received = signals.forever();
        if received.next().is_some() {
            // The engine is gone only when the process ends anyway.
            let _ = commands.send(Command::Stop { limit });
        }
        if received.next().is_some() {
            std::process::exit(1);
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watch)?;
    Ok(())
}

/// Ends the process when its parent is gone. A death signal would come when the parent's *thread* ends that
/// started us; asking for the parent's id has no such trap.
fn watch_parent(parent: Option<rustix::process::Pid>) -> anyhow::Result<()> {
    let watch = move || {
        while rustix::process::getppid() == parent {
            thread::sleep(PARENT_CHECK);
        }
        tracing::warn!("the parent process is gone; ending");
        std::process::exit(1);
    };
    thread::Builder::new().name("parent".to_owned()).spawn(watch)?;
    Ok(())
}
