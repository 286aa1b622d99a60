//! One connection, from its first byte to its last. The rule: it ends when its peer says nothing, takes nothing
//! or has left, whatever the peer's protocol makes of that.
//!
//! A peer that closes its side has left, also if it would still read: nothing tells the two apart before the
//! answer is written, and work for nobody is worse. What can be answered at once still is.

use super::socket::{Peer, Socket};
use crate::app::App;
use crate::layer::arrival::LastAnswer;
use crate::layer::slow_reader::SlowReaderGuard;
use crate::reply_body::Patience;
use crate::stack;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Most streams of one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;

/// Serves one connection, HTTP/1.1 or HTTP/2, until it ends or the server drains.
pub(super) async fn serve(app: Arc<App>, stream: TcpStream, from: SocketAddr) {
    // A token is a small write that must not wait for the next one.
    let _ = stream.set_nodelay(true);
    let timeouts = &app.config.timeouts;
    let first_bytes = Duration::from_secs_f64(timeouts.headers_s);
    let pause = Duration::from_secs_f64(timeouts.slow_reader_s);
    let (mut socket, peer) = Socket::new(stream);
    let begun = tokio::select! {
        begun = tokio::time::timeout(first_bytes, socket.begins_as_http2()) => begun,
        () = app.draining.cancelled() => return,
    };
    let Ok(Ok(http2)) = begun else { return };

    let open = OpenRequests::default();
    let patience = Patience { pause, total: Duration::from_secs_f64(timeouts.total_s) + pause };
    let last_answer = LastAnswer::default();
    let service = service_fn(|mut request| {
        request.extensions_mut().insert(last_answer.clone());
        let (app, open) = (Arc::clone(&app), open.enter());
        async move {
            let reply = stack::answer(app, from, request).await;
            Ok::<_, Infallible>(reply.map(|body| body.watched(open, patience)))
        }
    });
    let builder = builder(&app);
    let io = TokioIo::new(SlowReaderGuard::new(socket, pause));
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let idle = async {
        // HTTP/1 has its timer for the next head; HTTP/2 has none.
        if http2 { open.idle_for(first_bytes).await } else { std::future::pending().await }
    };
    // The connection first: what it can answer without waiting is answered, also to a peer that has left.
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => Some(ended),
        () = left_waiting(&peer, &open) => return,
        () = app.draining.cancelled() => None,
        () = idle => None,
        // The streams of HTTP/2 end one by one; there the others go on.
        () = last_answer.said(), if !http2 => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                biased;
                ended = connection.as_mut() => ended,
                () = left_waiting(&peer, &open) => return,
                // Nothing runs, and what is written still had its time.
                () = open.idle_for(pause) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %from, %error, "connection ended early");
    }
}

/// Ready when the peer has left while a request of it is in the works.
async fn left_waiting(peer: &Peer, open: &OpenRequests) {
    peer.gone().await;
    open.busy().await;
}

/// How many requests of a connection are being answered; a stream counts until its last frame.
#[derive(Default)]
struct OpenRequests(Arc<watch::Sender<usize>>);

impl OpenRequests {
    fn enter(&self) -> OpenRequest {
        self.0.send_modify(|count| *count += 1);
        OpenRequest(Arc::clone(&self.0))
    }

    async fn busy(&self) {
        // The sender is here, so the wait can't fail.
        let _ = self.0.subscribe().wait_for(|count| *count > 0).await;
    }

    /// Ready once no request was open, and none came, for so long.
    async fn idle_for(&self, limit: Duration) {
        let mut seen = self.0.subscribe();
        loop {
            let _ = seen.wait_for(|count| *count == 0).await;
            if tokio::time::timeout(limit, seen.changed()).await.is_err() {
                return;
            }
        }
    }
}

struct OpenRequest(Arc<watch::Sender<usize>>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

fn builder(app: &App) -> auto::Builder<TokioExecutor> {
    let config = &app.config;
    let pause = Duration::from_secs_f64(config.timeouts.slow_reader_s);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        // A closed side is watched here and not there, where it would end what could still be answered.
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs_f64(config.timeouts.headers_s))
        .max_buf_size(config.limits.header_bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        // A peer whose machine is gone answers no ping.
        .keep_alive_interval(pause)
        .keep_alive_timeout(pause)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(u32::try_from(config.limits.header_bytes).unwrap_or(u32::MAX));
    builder
}
