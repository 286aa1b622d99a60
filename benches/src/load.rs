//! The load generator. The rule: in an open loop latency counts from the moment a request was due, so that a
//! slow answer can't hide the requests that had to wait behind it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{Barrier, Mutex, mpsc};

use crate::plan::{Load, Pace, Shape};
use crate::reply::{Expected, Judge, check};

/// Untimed requests of each connection before the clock starts.
pub const WARM_UP: usize = 20;
/// Longest latency that is told apart from longer ones.
const LONGEST_NS: u64 = 60_000_000_000;
/// Most requests of one open loop.
const MOST_DUE: f64 = 4e6;
/// How long an open loop may run over before the requests that are still due count as unsent.
const OVERTIME: f64 = 0.5;

/// Somebody who answers.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where.
    pub address: SocketAddr,
    /// The value of `authorization`, if a key is needed.
    pub authorization: Option<String>,
}

/// What came of a load.
#[derive(Debug)]
pub struct Outcome {
    /// Right answers.
    pub right: u64,
    /// Wrong answers.
    pub wrong: u64,
    /// Requests that were due and for which no connection became free.
    pub unsent: u64,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// Nanoseconds to the end of the answer.
    pub whole: Histogram<u64>,
    /// Nanoseconds to the first byte of the body.
    pub first: Histogram<u64>,
}

impl Outcome {
    fn new() -> anyhow::Result<Self> {
        let histogram = || Histogram::new_with_bounds(100, LONGEST_NS, 3).context("no histogram");
        Ok(Self {
            right: 0,
            wrong: 0,
            unsent: 0,
            elapsed: Duration::ZERO,
            whole: histogram()?,
            first: histogram()?,
        })
    }

    /// Right answers a second.
    pub fn rate(&self) -> f64 {
        self.right as f64 / self.elapsed.as_secs_f64()
    }

    fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.right += other.right;
        self.wrong += other.wrong;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.whole.add(&other.whole)?;
        self.first.add(&other.first)?;
        Ok(())
    }
}

/// One connection, and what is asked on it.
struct Client {
    sender: SendRequest<Full<Bytes>>,
    requests: Vec<Request<Full<Bytes>>>,
    shape: Shape,
    asked: usize,
}

/// How one answer went.
struct Answer {
    status: u16,
    judge: Judge,
    first: Instant,
    last: Instant,
}

impl Client {
    async fn connect(target: &Target, shape: Shape) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(target.address).await.context("can't connect")?;
        stream.set_nodelay(true).context("can't set TCP_NODELAY")?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.context("no handshake")?;
        // It ends with the sender; an error shows itself at the request it broke.
        tokio::spawn(async move { connection.await.is_ok() });
        let requests = shape.bodies().into_iter().map(|body| request(target, body));
        Ok(Self { sender, requests: requests.collect::<anyhow::Result<_>>()?, shape, asked: 0 })
    }

    /// Asks once and follows the answer to its end; `keep` gets its bytes.
    async fn ask(&mut self, mut keep: impl FnMut(&Bytes)) -> anyhow::Result<Answer> {
        let request = self.requests[self.asked % self.requests.len()].clone();
        self.asked += 1;
        self.sender.ready().await.context("the connection is gone")?;
        let answer = self.sender.send_request(request).await.context("no answer")?;
        let status = answer.status().as_u16();
        let mut body = answer.into_body();
        let mut judge = Judge::new(self.shape);
        let mut first = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.context("the answer was cut")?;
            if let Some(piece) = frame.data_ref() {
                first.get_or_insert_with(Instant::now);
                judge.take(piece);
                keep(piece);
            }
        }
        let last = Instant::now();
        Ok(Answer { status, judge, first: first.unwrap_or(last), last })
    }
}

fn request(target: &Target, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
    let mut request = Request::post("/v1/chat/completions")
        .header(header::HOST, target.address.to_string())
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(authorization) = &target.authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    request.body(Full::new(body)).context("the request can't be made")
}

/// Asks once, checks the answer in full, and returns its bytes with what later ones are compared to.
///
/// # Errors
/// When there is no answer or it is wrong.
pub async fn verify(target: &Target, shape: Shape, tokens: u32) -> anyhow::Result<(Vec<u8>, Expected)> {
    let mut client = Client::connect(target, shape).await?;
    let mut body = Vec::new();
    let answer = client.ask(|piece| body.extend_from_slice(piece)).await?;
    ensure!(answer.status == 200, "status {}: {}", answer.status, String::from_utf8_lossy(&body));
    let expected = check(shape, &body, tokens)?;
    Ok((body, expected))
}

/// Puts a load on a target.
///
/// # Errors
/// When a connection breaks; wrong answers are counted.
pub async fn run(target: &Target, load: Load, expected: Expected) -> anyhow::Result<Outcome> {
    ensure!(load.connections > 0, "connections is 0; at least one is needed");
    let start = Arc::new(Barrier::new(load.connections + 1));
    let left = Arc::new(AtomicU64::new(load.most_requests));
    let (due, schedule) = schedule(load)?;
    let schedule = Arc::new(Mutex::new(schedule));
    let mut workers = Vec::new();
    for _ in 0..load.connections {
        let mut client = Client::connect(target, load.shape).await?;
        client.asked = workers.len();
        let worker = Worker { load, expected, start: Arc::clone(&start), left: Arc::clone(&left) };
        workers.push(tokio::spawn(worker.run(client, Arc::clone(&schedule))));
    }
    // The pacer begins when every connection is warm. It is a thread of its own, since the runtime's timers are
    // only good to a millisecond.
    start.wait().await;
    let pacer = match load.pace {
        Pace::Closed => None,
        Pace::Open { rate } => Some(std::thread::spawn(move || pace(rate, due))),
    };
    let mut outcome = Outcome::new()?;
    for worker in workers {
        outcome.add(&worker.await.context("a connection's task panicked")??)?;
    }
    drop(schedule);
    if let Some(pacer) = pacer {
        let Ok(sent) = pacer.join() else { bail!("the pacer panicked") };
        outcome.unsent = sent.saturating_sub(outcome.right + outcome.wrong);
    }
    Ok(outcome)
}

type Due = (mpsc::Sender<Instant>, u64);

/// The queue of due times, which holds all of them, so that the pacer never waits.
fn schedule(load: Load) -> anyhow::Result<(Due, mpsc::Receiver<Instant>)> {
    let count = match load.pace {
        Pace::Closed => 1.0,
        Pace::Open { rate } => {
            ensure!(rate.is_finite() && rate > 0.0, "rate is {rate}; it must be above 0");
            (rate * load.duration.as_secs_f64()).min(load.most_requests as f64).ceil().max(1.0)
        }
    };
    ensure!(count <= MOST_DUE, "rate and duration make {count} requests; at most {MOST_DUE} are possible");
    let (sender, receiver) = mpsc::channel(count as usize);
    Ok(((sender, count as u64), receiver))
}

/// Says when each request is due. Returns how many were.
fn pace(rate: f64, (sender, count): Due) -> u64 {
    let begun = Instant::now();
    for at in 0..count {
        let due = begun + Duration::from_secs_f64(at as f64 / rate);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if sender.try_send(due).is_err() {
            // The connections gave up after their overtime; the rest is as unsent as what lies in the queue.
            break;
        }
    }
    count
}

/// The task of one connection.
struct Worker {
    load: Load,
    expected: Expected,
    start: Arc<Barrier>,
    left: Arc<AtomicU64>,
}

impl Worker {
    async fn run(
        self,
        mut client: Client,
        schedule: Arc<Mutex<mpsc::Receiver<Instant>>>,
    ) -> anyhow::Result<Outcome> {
        let warm_up = WARM_UP.min(self.load.most_requests as usize);
        let warm = async {
            for _ in 0..warm_up {
                client.ask(|_| ()).await?;
            }
            anyhow::Ok(())
        };
        let warm = warm.await;
        // Also after a failure, or the others would wait for ever.
        self.start.wait().await;
        warm?;
        let mut outcome = Outcome::new()?;
        let begun = Instant::now();
        while let Some(since) = self.next(begun, &schedule).await {
            let answer = client.ask(|_| ()).await?;
            if answer.status == 200 && answer.judge.is_right(self.expected) {
                outcome.right += 1;
            } else {
                outcome.wrong += 1;
            }
            outcome.first.saturating_record(nanoseconds(answer.first - since));
            outcome.whole.saturating_record(nanoseconds(answer.last - since));
        }
        outcome.elapsed = begun.elapsed();
        Ok(outcome)
    }

    /// From when the next request counts; none at the end.
    async fn next(&self, begun: Instant, schedule: &Mutex<mpsc::Receiver<Instant>>) -> Option<Instant> {
        match self.load.pace {
            Pace::Closed => {
                let more = begun.elapsed() < self.load.duration && self.take_one();
                more.then(Instant::now)
            }
            Pace::Open { .. } => {
                let limit = self.load.duration.mul_f64(1.0 + OVERTIME);
                let due = schedule.lock().await.recv().await?;
                (begun.elapsed() < limit).then_some(due)
            }
        }
    }

    fn take_one(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
