//! One generation on its way to one client. The rule: what it used is settled exactly once, before the last
//! byte of an answer or an error, or from `Drop` when the client left.

use crate::app::App;
use crate::brain::{Generation, GenerationEvent};
use crate::config::Prices;
use crate::error::ApiError;
use crate::layer::arrival::Arrival;
use crate::openai::{ChoiceState, Reply};
use crate::store::{Caller, LedgerRecord, LedgerSlot, Outcome, StoreError};
use crate::telemetry::RequestSample;
use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt, Stream, StreamExt};
use pons_protocol::inference::SequenceOutput;
use serde_json::json;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

/// Most outputs that are put into one frame of a stream when several are ready.
const MAX_OUTPUTS_A_FRAME: usize = 64;

/// Capacity of a frame's buffer; most frames are one token.
const FRAME_BYTES: usize = 512;

/// The comment that keeps a silent stream open.
const HEARTBEAT: &[u8] = b": ping\n\n";

/// Status under which a client's departure before the answer is recorded.
const CLIENT_LEFT: u16 = 499;

/// What a generation needs besides the brain's side of it.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) app: Arc<App>,
    pub(crate) arrival: Arrival,
    pub(crate) caller: Arc<Caller>,
    pub(crate) model: String,
    pub(crate) stream: bool,
    pub(crate) in_flight: OwnedSemaphorePermit,
    pub(crate) ledger: LedgerSlot,
}

/// See the module.
pub(crate) struct Exchange {
    account: Account,
    generation: Generation,
}

enum Progress {
    Open,
    /// Every choice has ended; what the last one wrote, its finish frame among it, begins at `ending_at`.
    Complete {
        ending_at: usize,
    },
    Failed(ApiError),
}

impl Exchange {
    /// Begins once the brain has accepted every sequence.
    pub(crate) fn begin(ticket: Ticket, generation: Generation, reply: Reply) -> Self {
        ticket.app.metrics.generation_began();
        Self { account: Account::open(ticket, reply), generation }
    }

    /// Waits for one event, then takes whatever else is ready. Dropping the future loses nothing.
    async fn advance(&mut self, out: &mut BytesMut) -> Progress {
        let mut next = self.generation.next().await;
        for _ in 0..MAX_OUTPUTS_A_FRAME {
            let progress = self.accept(next, out);
            if !matches!(progress, Progress::Open) {
                return progress;
            }
            match self.generation.next().now_or_never() {
                Some(event) => next = event,
                None => return Progress::Open,
            }
        }
        self.accept(next, out)
    }

    fn accept(&mut self, event: Option<GenerationEvent>, out: &mut BytesMut) -> Progress {
        let ending_at = out.len();
        match event {
            Some(GenerationEvent::Output { choice, output }) => {
                self.account.observe(&output);
                if self.account.reply.push(choice, &output, out) == ChoiceState::Stopped {
                    self.generation.stop(choice);
                }
                // The brain could not compute a choice, so no ending may look complete.
                if let Some(error) = self.account.reply.failure() {
                    return Progress::Failed(error.clone());
                }
                if self.account.reply.is_complete() {
                    Progress::Complete { ending_at }
                } else {
                    Progress::Open
                }
            }
            Some(GenerationEvent::Failed(error)) => Progress::Failed(error),
            None if self.account.reply.is_complete() => Progress::Complete { ending_at },
            None => Progress::Failed(ApiError::internal("the generation ended before its end was reported")),
        }
    }

    /// Runs to the end and returns the whole body.
    pub(crate) async fn collect(mut self) -> Result<Bytes, ApiError> {
        let abort = self.account.app.abort.clone();
        let mut out = BytesMut::new();
        loop {
            let progress = tokio::select! {
                biased;
                () = abort.cancelled() => Progress::Failed(shutting_down()),
                progress = self.advance(&mut out) => progress,
            };
            match progress {
                Progress::Open => {}
                Progress::Complete { .. } => break,
                Progress::Failed(error) => {
                    drop(self.generation);
                    self.account.fail(error.status.as_u16()).await;
                    return Err(error);
                }
            }
        }
        // Abort what the parsers ended early, before the disk is waited for.
        drop(self.generation);
        self.account.complete().await.map_err(|error| ledger_failed(&error))?;
        out.clear();
        self.account.reply.close(&mut out);
        Ok(out.freeze())
    }

    /// Frames as they come. The stream ends after the terminator or after one error frame, never otherwise.
    pub(crate) fn frames(self, heartbeat: Duration) -> impl Stream<Item = Bytes> + Send + 'static {
        let silent_until = tokio::time::Instant::now() + heartbeat;
        let stream = futures_util::stream::unfold(
            Frames { exchange: self, heartbeat, silent_until, phase: Phase::Open, ending: BytesMut::new() },
            |mut frames| async move { frames.next().await.map(|bytes| (bytes, frames)) },
        );
        AssertUnwindSafe(stream).catch_unwind().map(|frame| {
            frame.unwrap_or_else(|_| {
                let error = ApiError::internal("an internal error occurred");
                Bytes::from([b"data: ".as_slice(), &error.body(), b"\n\n"].concat())
            })
        })
    }
}

fn shutting_down() -> ApiError {
    ApiError::overloaded("the server is shutting down; send the request again", 1)
}

fn ledger_failed(error: &StoreError) -> ApiError {
    tracing::error!(%error, "the ledger could not be written");
    ApiError::internal("the request could not be recorded; send it again")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Run,
    Close,
    End,
}

struct Frames {
    exchange: Exchange,
    heartbeat: Duration,
    /// When a comment is due, unless other bytes go out before. Tokens alone don't move it: they may all be
    /// held back, by a stop string that could still match for one.
    silent_until: tokio::time::Instant,
    phase: Phase,
    /// The frames that make the answer look complete. They wait for the record, so that a client that leaves
    /// at the finish reason was billed for a whole answer, and no error frame follows one.
    ending: BytesMut,
}

impl Frames {
    async fn next(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::with_capacity(FRAME_BYTES);
        while out.is_empty() {
            match self.phase {
                Phase::Open => {
                    self.exchange.account.reply.open(&mut out);
                    self.phase = Phase::Run;
                }
                Phase::Run => self.run(&mut out).await,
                Phase::Close => self.close(&mut out).await,
                Phase::End => return None,
            }
        }
        self.silent_until = tokio::time::Instant::now() + self.heartbeat;
        Some(out.freeze())
    }

    async fn run(&mut self, out: &mut BytesMut) {
        let abort = self.exchange.account.app.abort.clone();
        let progress = tokio::select! {
            biased;
            () = abort.cancelled() => Progress::Failed(shutting_down()),
            progress = self.exchange.advance(out) => progress,
            () = tokio::time::sleep_until(self.silent_until) => Progress::Open,
        };
        match progress {
            // Only whole events were written so far, so a comment can't fall into the middle of one.
            Progress::Open if out.is_empty() && self.silent_until <= tokio::time::Instant::now() => {
                out.extend_from_slice(HEARTBEAT);
            }
            Progress::Open => {}
            Progress::Complete { ending_at } => {
                self.ending = out.split_off(ending_at);
                self.phase = Phase::Close;
            }
            Progress::Failed(error) => {
                // As with whole answers, the work ends before the disk is waited for.
                self.exchange.generation.stop_all();
                self.exchange.account.fail(200).await;
                self.exchange.account.arrival.end_connection();
                self.exchange.account.reply.fail(&error, out);
                self.phase = Phase::End;
            }
        }
    }

    async fn close(&mut self, out: &mut BytesMut) {
        self.phase = Phase::End;
        match self.exchange.account.complete().await {
            Ok(()) => {
                out.unsplit(std::mem::take(&mut self.ending));
                self.exchange.account.reply.close(out);
            }
            Err(error) => {
                self.exchange.account.arrival.end_connection();
                self.exchange.account.reply.fail(&ledger_failed(&error), out);
            }
        }
    }
}

/// What a request used so far, and the duty to settle it.
struct Account {
    app: Arc<App>,
    arrival: Arrival,
    reply: Reply,
    ledger: Option<LedgerSlot>,
    record: LedgerRecord,
    prices: Prices,
    last_output: Option<Instant>,
    _in_flight: OwnedSemaphorePermit,
}

impl Account {
    fn open(ticket: Ticket, reply: Reply) -> Self {
        let Ticket { app, arrival, caller, model, stream, in_flight, ledger } = ticket;
        let prices = app.model_config(&model).map(|config| config.prices).unwrap_or_default();
        let record = LedgerRecord {
            request_id: arrival.request_id().to_owned(),
            time_ms: arrival.time_ms(),
            tenant: caller.tenant.clone(),
            key_id: caller.key_id.clone(),
            model,
            route: arrival.route().to_owned(),
            stream,
            prompt_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            price_micro: 0,
            queue_ms: 0,
            prefill_ms: 0,
            decode_ms: 0,
            total_ms: 0,
            finish_reasons: Vec::new(),
            status: if stream { 200 } else { CLIENT_LEFT },
            outcome: Outcome::Aborted,
        };
        Self {
            app,
            arrival,
            reply,
            ledger: Some(ledger),
            record,
            prices,
            last_output: None,
            _in_flight: in_flight,
        }
    }

    /// Times of one output.
    fn observe(&mut self, output: &SequenceOutput) {
        let now = Instant::now();
        let metrics = &self.app.metrics;
        match self.last_output.replace(now) {
            None => metrics.first_token(&self.record.model, now - self.arrival.at()),
            Some(last) => metrics.inter_token(&self.record.model, now - last),
        }
        if let Some(finish) = &output.finish {
            // With several choices the slowest one counts.
            self.record.queue_ms = self.record.queue_ms.max(finish.queue_us / 1000);
            self.record.prefill_ms = self.record.prefill_ms.max(finish.prefill_us / 1000);
            self.record.decode_ms = self.record.decode_ms.max(finish.decode_us / 1000);
        }
    }

    /// Settles a whole answer; the future is ready when that is on the disk.
    async fn complete(&mut self) -> Result<(), StoreError> {
        self.record.outcome = Outcome::Completed;
        self.record.status = 200;
        match self.seal() {
            Some((slot, record)) => slot.commit(record).await,
            None => Ok(()),
        }
    }

    /// Settles what failed on our side; the future is ready when that is on the disk, or can't be.
    async fn fail(&mut self, status: u16) {
        self.record.outcome = Outcome::Failed;
        self.record.status = status;
        if let Some((slot, record)) = self.seal()
            && let Err(error) = slot.commit(record).await
        {
            // The client is told of the first failure, which is why there was nothing else to record.
            tracing::error!(%error, record = %json!(self.record), "a failed request could not be recorded");
        }
    }

    /// Closes the record, logs it and counts it. The second time there is nothing left to close.
    fn seal(&mut self) -> Option<(LedgerSlot, LedgerRecord)> {
        let slot = self.ledger.take()?;
        let elapsed = self.arrival.at().elapsed();
        let usage = self.reply.usage();
        let record = &mut self.record;
        record.total_ms = elapsed.as_millis() as u64;
        // Tokens as the client sees them, also when it left in the middle.
        record.prompt_tokens = usage.prompt_tokens;
        record.cached_tokens = usage.cached_tokens;
        record.output_tokens = usage.completion_tokens;
        record.finish_reasons =
            usage.finish_reasons.iter().flatten().map(|reason| (*reason).to_owned()).collect();
        record.price_micro = self.prices.of(record.prompt_tokens, record.cached_tokens, record.output_tokens);
        let metrics = &self.app.metrics;
        metrics.generation_ended(
            &record.model,
            record.prompt_tokens,
            record.cached_tokens,
            record.output_tokens,
        );
        metrics.request_ended(RequestSample {
            route: self.arrival.route(),
            model: &record.model,
            status: record.status,
            seconds: elapsed.as_secs_f64(),
        });
        tracing::info!(
            request_id = record.request_id,
            trace_id = self.arrival.trace_id(),
            parent_span_id = self.arrival.parent_span_id(),
            tenant = record.tenant,
            model = record.model,
            route = self.arrival.route(),
            status = record.status,
            outcome = ?record.outcome,
            prompt_tokens = record.prompt_tokens,
            cached_tokens = record.cached_tokens,
            output_tokens = record.output_tokens,
            ms = record.total_ms,
            "generated"
        );
        Some((slot, record.clone()))
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // Still open means that the connection dropped the answer: the client left, unless we broke down.
        if self.ledger.is_some() && std::thread::panicking() {
            self.record.outcome = Outcome::Failed;
            self.record.status = if self.record.stream { 200 } else { 500 };
        }
        if let Some((slot, record)) = self.seal() {
            slot.record(record);
        }
    }
}
