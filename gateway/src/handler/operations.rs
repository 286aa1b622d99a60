//! Health, readiness, metrics, version. The rule: they never wait for a brain, a disk or a lock that a request
//! holds, so they answer under any load.

use crate::app::App;
use crate::brain::BrainStatus;
use crate::reply_body::{self, Reply};
use http::StatusCode;
use serde_json::json;

/// A brain that was silent for longer is not ready.
const MAX_SILENCE_MS: u64 = 5000;

pub(super) fn health() -> Reply {
    reply_body::empty(StatusCode::OK)
}

pub(super) fn ready(app: &App) -> Reply {
    reply_body::empty(if is_ready(app) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE })
}

/// Whether every configured model has a brain that was heard a moment ago.
pub(crate) fn is_ready(app: &App) -> bool {
    let brains = app.pool().status();
    let all = app.config.models.iter().all(|model| brains.iter().any(|b| b.model == model.name && alive(b)));
    all && !app.draining.is_cancelled()
}

fn alive(brain: &BrainStatus) -> bool {
    brain.connected && brain.last_heard_age_ms < MAX_SILENCE_MS && brain.capacity.step_age_ms < MAX_SILENCE_MS
}

pub(super) fn ping() -> Reply {
    reply_body::json(&json!({"status": "ok"}))
}

pub(super) fn version() -> Reply {
    reply_body::json(&json!({"version": env!("CARGO_PKG_VERSION")}))
}

pub(super) fn metrics(app: &App) -> Reply {
    let text =
        app.metrics.scrape(&app.pool().status(), &app.brains.restarts(), &app.store.take_commit_seconds());
    reply_body::whole(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
}
