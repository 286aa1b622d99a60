//! `pons-brain`: one process, one model, one device.
//!
//! The rule: it says what it will use before it uses it, listens only once it can serve, and ends by itself when
//! its device fails, its parent is gone, or it is told to.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use crossbeam::channel::Sender;
use pons_checkpoint::{Checkpoint, locate};
use pons_gpu_worker::calibrate::{self, Calibration, store};
use pons_gpu_worker::clock::Clock;
use pons_gpu_worker::config::{Arguments, LogFormat, Settings};
use pons_gpu_worker::engine::Engine;
use pons_gpu_worker::executor::ModelExecutor;
use pons_gpu_worker::executor::local::{LocalConfig, LocalExecutor, bytes_per_block};
use pons_gpu_worker::kv::BLOCK_TOKENS;
use pons_gpu_worker::link::{LinkContext, Listener};
use pons_gpu_worker::metrics::Published;
use pons_gpu_worker::packed::{self, Unkept};
use pons_gpu_worker::placement;
use pons_gpu_worker::scheduler::SchedulerConfig;
use pons_gpu_worker::scheduler::budget::StepMeter;
use pons_gpu_worker::sizing::{self, MOST_STEP_TOKENS, Sizes};
use pons_gpu_worker::tiles;
use pons_gpu_worker::vocabulary::LateGrammars;
use pons_gpu_worker::worker::{Command, Inbox, Worker};
use pons_kernels::Isa;
use pons_protocol::PROTOCOL_VERSION;
use pons_protocol::inference::BrainHello;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Rows of the decode step that the running mean begins with: a few streams side by side.
const METER_ROWS: u32 = 8;
/// Time that links get to write what is left after the engine has stopped.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);
/// How often the parent is looked for.
const PARENT_CHECK: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    // Asked first, so that a parent that dies while we start is noticed.
    let parent = rustix::process::getppid();
    if std::env::args_os().nth(1).is_some_and(|argument| argument == tiles::CHECK_ARGUMENT) {
        return tiles::check();
    }
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
    tiles::settle();
    let clock = Clock::start();
    let began = Instant::now();
    let path = locate::locate(&settings.model)?;
    let checkpoint = Arc::new(Checkpoint::open(&path)?);
    let open_ms = began.elapsed().as_millis();
    let grammars = LateGrammars::start(Arc::clone(&checkpoint))
        .context("the system gives no thread to index the vocabulary")?;
    let (mut executor, unkept) = load(settings, &checkpoint)?;
    let limits = executor.limits();
    let eos_token_ids = checkpoint.config().eos.clone();
    tracing::info!(
        model = %path.display(),
        fingerprint = executor.fingerprint(),
        weights_bytes = checkpoint.size_bytes(),
        threads = settings.threads,
        open_ms,
        load_ms = began.elapsed().as_millis(),
        "the model is loaded"
    );

    let calibration = calibration(settings, &path, &checkpoint, &mut executor, &grammars)?;
    let sizes = sizing::derive(calibration.as_ref(), settings.targets(), settings.given(), &limits);
    announce(settings, calibration.as_ref(), &sizes);
    let fingerprint = executor.fingerprint().to_owned();
    let mut engine = Engine::new(executor, scheduler_config(settings, &sizes, eos_token_ids.clone()));
    if let Some(calibration) = &calibration {
        let rows = sizes.max_sequences.min(METER_ROWS);
        let meter = StepMeter::calibrated(calibration.decode_us(rows), calibration.prefill_tokens_per_s);
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
        max_sequences: sizes.max_sequences,
        max_waiting: settings.max_waiting,
        max_waiting_tokens: sizes.max_waiting_tokens,
        block_tokens: BLOCK_TOKENS,
        blocks_total: sizes.kv_blocks,
        step_tokens: sizes.step_tokens,
        calibration: calibration.as_ref().map(Calibration::to_wire),
    };
    serve(settings, engine, grammars, hello, clock, unkept)
}

/// The kept measurement of this model on this machine, or a new one.
fn calibration(
    settings: &Settings,
    path: &Path,
    checkpoint: &Checkpoint,
    executor: &mut LocalExecutor,
    grammars: &LateGrammars,
) -> anyhow::Result<Option<Calibration>> {
    let began = Instant::now();
    // What is measured depends on the instructions too where they give the same bits.
    let fingerprint = format!("{}-{}", executor.fingerprint(), Isa::detect().name());
    let key = store::Key::new(path, &fingerprint, checkpoint.size_bytes(), settings.threads);
    let dir = settings.calibration_dir.as_deref();
    if let Some(kept) = dir.and_then(|dir| store::load(dir, &key)) {
        tracing::info!("the device was measured before; that measurement is used");
        return Ok(Some(kept));
    }
    // What else this process does would be measured too.
    grammars.wait();
    // Steps that take longer than the target are of no use to any limit.
    let Some(measured) = calibrate::measure(executor, settings.targets().itl_us)? else { return Ok(None) };
    tracing::info!(took_ms = began.elapsed().as_millis(), calm = measured.calm, "measured the device");
    if let Some(dir) = dir.filter(|_| measured.calm)
        && let Err(error) = store::save(dir, &key, &measured.calibration)
    {
        tracing::warn!(dir = %dir.display(), %error, "the measurement can't be kept; the next start measures again");
    }
    Ok(Some(measured.calibration))
}

/// Says which limits hold and why.
fn announce(settings: &Settings, calibration: Option<&Calibration>, sizes: &Sizes) {
    if let Some(calibration) = calibration {
        tracing::info!(
            prefill_tokens_per_s = calibration.prefill_tokens_per_s as u64,
            decode_us_1 = calibration.decode_us(1),
            decode_us_8 = calibration.decode_us(8),
            decode_us_32 = calibration.decode_us(32),
            p99_ttft_ms = settings.p99_ttft_ms,
            p99_itl_ms = settings.p99_itl_ms,
            "the device's speed"
        );
    }
    tracing::info!(max_sequences = sizes.max_sequences, because = sizes.sequences_reason, "sequences limit");
    tracing::info!(step_tokens = sizes.step_tokens, because = sizes.step_reason, "step limit");
    tracing::info!(kv_blocks = sizes.kv_blocks, because = sizes.kv_reason, "KV cache limit");
    tracing::info!(
        tokens = sizes.max_waiting_tokens,
        because = sizes.waiting_reason,
        "waiting prompts limit"
    );
}

fn scheduler_config(settings: &Settings, sizes: &Sizes, eos_token_ids: Vec<u32>) -> SchedulerConfig {
    let targets = settings.targets();
    SchedulerConfig {
        eos_token_ids,
        step_tokens: sizes.step_tokens,
        // A step size that was given is kept to, whatever a step takes.
        itl_target_us: if settings.step_tokens.is_some() { 0 } else { targets.itl_us },
        ttft_target_us: targets.ttft_us,
        max_blocks: sizes.kv_blocks,
        max_running: sizes.max_sequences,
        max_waiting: settings.max_waiting,
        max_waiting_tokens: sizes.max_waiting_tokens,
        ..SchedulerConfig::default()
    }
}

/// Listens, works until told to stop, and lets the links write what is left.
fn serve<E: ModelExecutor>(
    settings: &Settings,
    engine: Engine<E>,
    grammars: LateGrammars,
    hello: BrainHello,
    clock: Clock,
    unkept: Option<Unkept>,
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
    // Only now, so that neither the start nor a measurement of the device waits for a disk.
    if let Some(unkept) = unkept {
        unkept.write_later();
    }
    let result = worker.run();
    links.finish(FLUSH_LIMIT);
    result.context("the engine stopped")
}

/// A model that can compute, and its weights where they are still to be kept for the next start.
fn load(settings: &Settings, checkpoint: &Checkpoint) -> anyhow::Result<(LocalExecutor, Option<Unkept>)> {
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
        "KV cache's room"
    );
    let config = LocalConfig {
        threads: settings.threads,
        kv_format: settings.kv_format,
        blocks,
        // One more than sequences may run: the calibration's own.
        slots: settings.most_sequences() + 1,
        step_tokens: settings.step_tokens.unwrap_or(MOST_STEP_TOKENS).max(settings.most_sequences()),
        context_tokens,
    };
    let cores = placement::pinned_cores(settings.pin_threads, settings.threads, &placement::allowed_cores());
    let nodes = placement::memory_nodes().unwrap_or_default();
    tracing::info!(threads = settings.threads, pinned_to = ?cores, memory_nodes = nodes, "compute threads");
    if nodes.contains(['-', ',']) {
        tracing::warn!(
            memory_nodes = nodes,
            "weights lie on the node of the thread that loads them; for full bandwidth start one brain a node \
             under numactl --cpunodebind and --membind, or one under numactl --interleave=all"
        );
    }
    let began = Instant::now();
    let (packed, unkept) = packed::load(&settings.packed, checkpoint, settings.threads)?;
    let executor = LocalExecutor::load_packed(checkpoint, packed, config, &cores)?;
    tracing::debug!(took_ms = began.elapsed().as_millis(), new = unkept.is_some(), "the weights are packed");
    Ok((executor, unkept))
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
