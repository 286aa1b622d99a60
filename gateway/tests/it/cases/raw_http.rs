//! An HTTP/1.1 client of one page over a TCP socket. The rule: it shows the bytes that were on the wire, so that
//! no library's leniency hides a fault.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for anything; a server that needs it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// One open connection.
pub(crate) struct Connection {
    socket: TcpStream,
    held: Vec<u8>,
}

/// Status line and headers, names in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// A whole answer; `pieces` are the bodies of its chunks with the time of their arrival.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    pub(crate) pieces: Vec<(Instant, Vec<u8>)>,
    /// Whether the body's end was announced, by its length or by the last chunk.
    pub(crate) whole: bool,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.head.status
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("every body is UTF-8")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&self.body)))
    }
}

/// What to send; `raw` is the exact body.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) raw: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self { method: method.to_owned(), path: path.to_owned(), headers: Vec::new(), raw: Vec::new() }
    }

    pub(crate) fn post(path: &str, body: &Value) -> Self {
        Self::post_raw(path, body.to_string())
    }

    pub(crate) fn post_raw(path: &str, body: impl Into<Vec<u8>>) -> Self {
        let mut request = Self::new("POST", path).with("content-type", "application/json");
        request.raw = body.into();
        request
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The head as it is sent; the length is declared unless a header says how the body comes.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: localhost\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let framed = ["content-length", "transfer-encoding"];
        if !self.raw.is_empty() && !self.headers.iter().any(|(name, _)| framed.contains(&name.as_str())) {
            head.push_str(&format!("content-length: {}\r\n", self.raw.len()));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.head(), self.raw.clone()].concat()
    }
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.expect("the server listens");
        socket.set_nodelay(true).expect("it is a TCP socket");
        Self { socket, held: Vec::new() }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.expect("the server reads");
    }

    /// Writes what may be refused while it is on its way; says whether all of it was taken.
    pub(crate) async fn try_write(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).await.is_ok()
    }

    /// Sends a request and reads its whole answer.
    pub(crate) async fn send(&mut self, request: &Request) -> Answer {
        self.write(&request.bytes()).await;
        self.answer(request.method == "HEAD").await
    }

    /// Sends a request and reads the answer's head.
    pub(crate) async fn begin(&mut self, request: &Request) -> Head {
        self.write(&request.bytes()).await;
        self.head().await
    }

    async fn fill(&mut self) -> bool {
        let mut buffer = vec![0; 16 << 10];
        let read = tokio::time::timeout(PATIENCE, self.socket.read(&mut buffer)).await;
        let n = read.expect("the server sends something in time").unwrap_or(0);
        self.held.extend_from_slice(&buffer[..n]);
        n > 0
    }

    async fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.held.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.held.drain(..end + 2).take(end).collect();
                return String::from_utf8(line).expect("heads and chunk sizes are ASCII");
            }
            assert!(self.fill().await, "the connection closed in the middle of a line");
        }
    }

    /// Reads one head, an interim one (1xx) too.
    pub(crate) async fn head(&mut self) -> Head {
        let first = self.line().await;
        let status =
            first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|s| s.parse().ok());
        let status = status.unwrap_or_else(|| panic!("{first:?} is no status line"));
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            if line.is_empty() {
                return Head { status, headers };
            }
            let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("{line:?} is no header"));
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    pub(crate) async fn answer(&mut self, headless: bool) -> Answer {
        let head = self.head().await;
        self.rest(head, headless).await
    }

    /// Reads the body that belongs to a head.
    pub(crate) async fn rest(&mut self, head: Head, headless: bool) -> Answer {
        let mut answer = Answer { head, body: Vec::new(), pieces: Vec::new(), whole: true };
        if headless || answer.head.status == 204 {
            return answer;
        }
        if answer.head.header("transfer-encoding") == Some("chunked") {
            loop {
                match self.chunk().await {
                    Chunk::Data(piece) => {
                        answer.body.extend_from_slice(&piece);
                        answer.pieces.push((Instant::now(), piece));
                    }
                    Chunk::Last => return answer,
                    Chunk::Cut => {
                        answer.whole = false;
                        return answer;
                    }
                }
            }
        }
        let length: usize = answer.head.header("content-length").map_or(0, |n| n.parse().expect("a number"));
        while self.held.len() < length {
            if !self.fill().await {
                answer.whole = false;
                answer.body = std::mem::take(&mut self.held);
                return answer;
            }
        }
        answer.body = self.held.drain(..length).collect();
        answer
    }

    /// Whether the server closes the connection, with nothing more to say.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.held.is_empty() && !self.fill().await
    }

    /// One chunk of a chunked body.
    pub(crate) async fn chunk(&mut self) -> Chunk {
        while !self.held.windows(2).any(|pair| pair == b"\r\n") {
            if !self.fill().await {
                return Chunk::Cut;
            }
        }
        let line = self.line().await;
        let size =
            usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("{line:?} is no chunk size"));
        while self.held.len() < size + 2 {
            if !self.fill().await {
                return Chunk::Cut;
            }
        }
        let data: Vec<u8> = self.held.drain(..size).collect();
        let end: Vec<u8> = self.held.drain(..2).collect();
        assert_eq!(end, b"\r\n");
        if size == 0 { Chunk::Last } else { Chunk::Data(data) }
    }
}

/// A part of a chunked body.
#[derive(Debug)]
pub(crate) enum Chunk {
    Data(Vec<u8>),
    Last,
    /// The connection ended before the last chunk.
    Cut,
}

/// One request on a connection of its own.
pub(crate) async fn send(address: SocketAddr, request: &Request) -> Answer {
    Connection::open(address).await.send(request).await
}
