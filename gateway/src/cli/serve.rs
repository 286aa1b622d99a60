//! `pons serve`. The rule: the first signal drains, the second ends at once, and the exit status says which.

use super::Place;
use crate::config::{Overrides, ResolvedConfig};
use crate::server;
use crate::shutdown::StopSignals;
use crate::telemetry::start_log;
use anyhow::Context;
use clap::Args;

/// Exit status after a second signal, as shells report a death by SIGTERM.
const EXIT_AT_ONCE: i32 = 143;

#[derive(Debug, Args)]
pub(super) struct ServeArguments {
    #[command(flatten)]
    place: Place,

    /// Address to listen on [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// Model to serve: a known name, a .gguf file or a model directory; may be repeated [default: smollm2-135m]
    #[arg(long, value_name = "NAME|PATH")]
    model: Vec<String>,

    /// What is logged to standard error: error, warn, info, debug, trace, or target=level pairs
    #[arg(long, value_name = "FILTER", env = "PONS_LOG")]
    log: Option<String>,
}

pub(super) fn run(arguments: &ServeArguments) -> anyhow::Result<()> {
    let config = arguments.place.resolve(Overrides {
        listen: arguments.listen.clone(),
        state_dir: None,
        models: arguments.model.clone(),
        log: arguments.log.clone(),
    })?;
    start_log(&config.log, config.log_format)?;
    for model in &config.models {
        super::model::ensure(&model.path)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.io_threads)
        .thread_name("pons-io")
        .enable_all()
        .build()
        .context("can't start the network threads")?;
    runtime.block_on(serve(config))
}

async fn serve(config: ResolvedConfig) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen().context("can't listen for signals")?;
    let server = server::start(config).await?;
    tokio::select! {
        told = announce(&server) => {
            told?;
            signals.next().await;
        }
        () = signals.next() => {}
    }
    tracing::info!("draining; a second signal ends at once");
    tokio::select! {
        () = server.shutdown() => {
            tracing::info!("stopped");
            Ok(())
        }
        // Brains notice their parent's death, and the store loses nothing it has acknowledged.
        () = signals.next() => std::process::exit(EXIT_AT_ONCE),
    }
}

/// Says on standard output, for people and for scripts, that and where requests are answered.
async fn announce(server: &server::RunningServer) -> anyhow::Result<()> {
    server.ready().await;
    super::answer(&format!("ready: http://{}", server.address()))
}
