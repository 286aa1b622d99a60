//! One TCP connection, as the HTTP library reads it and as the server watches it. The rule: that the peer has
//! closed its side is known also while nobody reads, since unread bytes may lie in front of the end.

use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// What an HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection's bytes.
#[derive(Debug)]
pub(super) struct Socket {
    /// Bytes that were read to tell the version.
    first: Bytes,
    reader: Arc<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

/// Watches the other side of a [`Socket`].
#[derive(Clone, Debug)]
pub(super) struct Peer(Arc<OwnedReadHalf>);

impl Socket {
    pub(super) fn new(stream: TcpStream) -> (Self, Peer) {
        let (reader, writer) = stream.into_split();
        let reader = Arc::new(reader);
        (Self { first: Bytes::new(), reader: Arc::clone(&reader), writer }, Peer(reader))
    }

    /// Waits for as many bytes as it takes to tell HTTP/2 from HTTP/1; true is HTTP/2. The bytes are read again.
    pub(super) async fn begins_as_http2(&mut self) -> io::Result<bool> {
        let mut seen = BytesMut::with_capacity(PREFACE.len());
        while seen.len() < PREFACE.len() && PREFACE.starts_with(&seen) {
            self.reader.readable().await?;
            let mut chunk = [0; PREFACE.len()];
            match self.reader.try_read(&mut chunk[seen.len()..]) {
                Ok(0) => break,
                Ok(count) => {
                    let from = seen.len();
                    seen.extend_from_slice(&chunk[from..from + count]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.first = seen.freeze();
        Ok(*self.first == *PREFACE)
    }
}

impl Peer {
    /// Ready once the peer has closed its side or the connection broke.
    pub(super) async fn gone(&self) {
        // The one interest that unread bytes don't satisfy, and that the end of the stream does.
        while let Ok(ready) = self.0.ready(Interest::PRIORITY).await {
            if ready.is_read_closed() {
                return;
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let count = self.first.len().min(buf.remaining());
            buf.put_slice(&self.first[..count]);
            self.first.advance(count);
            return Poll::Ready(Ok(()));
        }
        let stream: &TcpStream = (*self.reader).as_ref();
        loop {
            ready!(stream.poll_read_ready(cx))?;
            match stream.try_read_buf(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result.map(drop)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.writer.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}
