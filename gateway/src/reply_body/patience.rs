//! A stream whose reader may pause only so long. The rule: the limit holds also while nobody polls the stream,
//! as happens when an HTTP/2 client opens no window, so what feeds it is let go in any case.

use super::Frames;
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// What a reader who comes back too late finds, so that the cut stream doesn't look complete.
const TOO_LATE: &[u8] = b"data: {\"error\":{\"message\":\"the client took none of the bytes that wait for it; \
    send the request again and read faster\",\"type\":\"server_error\",\"param\":null,\"code\":\"timeout\"}}\n\n";

/// How long a stream may wait for its reader.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Between two frames that it could take.
    pub pause: Duration,
    /// From the beginning to the last time it waits at all.
    pub total: Duration,
}

/// See the module.
pub(super) struct Watched {
    shared: Arc<Shared>,
    watcher: AbortHandle,
}

#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    /// The stream, and what is held for as long as it lives. Gone when it ended or was let go.
    live: Option<(Frames, Box<dyn Send>)>,
    /// Since when it waits for its reader; `None` while the reader waits for it.
    waits_since: Option<Instant>,
    /// It was let go, and its reader doesn't know yet.
    cut: bool,
}

impl Watched {
    /// Watches a stream. Must be called inside the runtime.
    pub(super) fn new(frames: Frames, hold: Box<dyn Send>, patience: Patience) -> Self {
        let state = State { live: Some((frames, hold)), waits_since: Some(Instant::now()), cut: false };
        let shared = Arc::new(Shared(Mutex::new(state)));
        let watcher = tokio::spawn(watch(Arc::clone(&shared), patience)).abort_handle();
        Self { shared, watcher }
    }

    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((frames, _)) = state.live.as_mut() else {
            let late = std::mem::take(&mut state.cut);
            return Poll::Ready(late.then_some(Bytes::from_static(TOO_LATE)));
        };
        let polled = frames.as_mut().poll_next(cx);
        state.waits_since = polled.is_ready().then(Instant::now);
        let over = matches!(polled, Poll::Ready(None)).then(|| state.live.take());
        // What ends with the stream ends without the lock.
        drop(state);
        drop(over);
        polled
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watcher.abort();
        // Here and not when the watcher notices: dropping the body ends the work behind it.
        drop(self.shared.take());
    }
}

impl Shared {
    fn take(&self) -> Option<(Frames, Box<dyn Send>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).live.take()
    }

    /// Lets the stream go if its time is over; says otherwise when to look again.
    fn look(&self, now: Instant, pause: Duration, end: Instant) -> Option<Instant> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.live.as_ref()?;
        // A reader that waits costs nothing here; the generation has limits of its own.
        let Some(since) = state.waits_since else { return Some(now + pause) };
        let over = (since + pause).min(end);
        if now < over {
            return Some(over);
        }
        state.cut = true;
        let gone = state.live.take();
        drop(state);
        drop(gone);
        tracing::debug!("a stream was let go whose reader took nothing");
        None
    }
}

async fn watch(shared: Arc<Shared>, patience: Patience) {
    let end = Instant::now() + patience.total;
    while let Some(at) = shared.look(Instant::now(), patience.pause, end) {
        tokio::time::sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use std::future::poll_fn;
    use tokio::sync::oneshot;

    const PATIENCE: Patience = Patience { pause: Duration::from_secs(3), total: Duration::from_secs(100) };

    fn ticking() -> Frames {
        Box::pin(stream::repeat(Bytes::from_static(b"data: 1\n\n")))
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_nobody_polls_is_let_go_and_never_looks_complete() {
        let (hold, held) = oneshot::channel::<()>();
        let watched = Watched::new(ticking(), Box::new(hold), PATIENCE);
        let begun = Instant::now();
        assert!(held.await.is_err());
        assert_eq!(begun.elapsed().as_secs(), 3);
        let last = poll_fn(|cx| watched.poll_next(cx)).await.unwrap();
        assert!(last.starts_with(b"data: {\"error\""));
        assert!(poll_fn(|cx| watched.poll_next(cx)).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_comes_now_and_then_is_served_until_the_total_is_over() {
        let (hold, mut held) = oneshot::channel::<()>();
        let watched = Watched::new(ticking(), Box::new(hold), PATIENCE);
        for _ in 0..49 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let frame = poll_fn(|cx| watched.poll_next(cx)).await;
            assert_eq!(frame.as_deref(), Some(b"data: 1\n\n".as_slice()));
        }
        assert!(held.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        assert!(held.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_waits_for_the_stream_may_wait_longer_than_the_pause() {
        let (hold, mut held) = oneshot::channel::<()>();
        let watched = Watched::new(Box::pin(stream::pending()), Box::new(hold), PATIENCE);
        let waited = tokio::time::timeout(Duration::from_secs(60), poll_fn(|cx| watched.poll_next(cx))).await;
        assert!(waited.is_err());
        assert!(held.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop(watched);
        assert!(held.await.is_err());
    }
}
