//! Reading a request's body. The rule: no more than the limit is ever held, compressed or not, of one body and of
//! all bodies together, and what can be refused from the head is refused from the head.

use crate::app::App;
use crate::error::ApiError;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Compressed bodies above this size are unpacked off the network's threads.
const INLINE_INFLATE_BYTES: usize = 1 << 10;

/// How much is unpacked before the room for more is asked for.
const INFLATE_STEP_BYTES: usize = 64 << 10;

/// Refuses a body whose declared length is over the limit.
pub fn check_declared(headers: &HeaderMap, limit: usize) -> Result<(), ApiError> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match declared.map(str::parse::<u64>) {
        Some(Ok(length)) if length > limit as u64 => Err(ApiError::too_large(limit as u64)),
        _ => Ok(()),
    }
}

/// Refuses what is not JSON. A missing type counts as JSON.
pub fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = value.to_str().unwrap_or("unreadable");
    let essence = text.split(';').next().unwrap_or_default().trim();
    if essence.is_empty() || essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(ApiError::unsupported_media_type(text))
}

enum Coding {
    Identity,
    Gzip,
}

fn coding(headers: &HeaderMap) -> Result<Coding, ApiError> {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    let Some(value) = codings.next() else { return Ok(Coding::Identity) };
    let text = value.to_str().unwrap_or("unreadable").trim();
    if codings.next().is_some() {
        return Err(ApiError::unsupported_media_type("several content codings"));
    }
    match text.to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(Coding::Identity),
        "gzip" | "x-gzip" => Ok(Coding::Gzip),
        _ => Err(ApiError::unsupported_media_type(&format!("content coding {text}"))),
    }
}

/// What the bodies of all requests may take together, and one body's part of it.
struct Held {
    room: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl Held {
    fn new(room: &Arc<Semaphore>) -> Self {
        Self { room: Arc::clone(room), taken: None }
    }

    /// Makes this body's part large enough for so many bytes, or refuses.
    fn grow_to(&mut self, bytes: usize) -> Result<(), ApiError> {
        let has = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = bytes.div_ceil(1024).saturating_sub(has);
        if more == 0 {
            return Ok(());
        }
        let more = u32::try_from(more)
            .ok()
            .and_then(|more| Arc::clone(&self.room).try_acquire_many_owned(more).ok())
            .ok_or_else(|| {
                let message = "the server holds as many request bodies as it can; try again soon";
                ApiError::overloaded(message, 1)
            })?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// Ties the part to the bytes: it is given back with the last reference to them.
    fn keep(self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() { bytes } else { Bytes::from_owner(Kept { bytes, _held: self }) }
    }
}

struct Kept {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads and unpacks the body. A body that was read whole is taken out of `incoming`; one that was not stays
/// there, for whoever cleans up.
pub async fn read(
    app: &App,
    headers: &HeaderMap,
    incoming: &mut Option<Incoming>,
) -> Result<Bytes, ApiError> {
    let coding = coding(headers)?;
    let limit = app.config.limits.body_bytes;
    let wait = Duration::from_secs_f64(app.config.timeouts.body_s);
    let mut held = Held::new(&app.bodies);
    let body = match incoming.as_mut() {
        None => Bytes::new(),
        Some(body) => match tokio::time::timeout(wait, collect(body, limit, &mut held)).await {
            Ok(result) => result?,
            Err(_) => {
                let message =
                    format!("the body did not arrive within {} s; send it again", wait.as_secs_f64());
                let mut error = ApiError::timeout(message);
                error.status = http::StatusCode::REQUEST_TIMEOUT;
                return Err(error);
            }
        },
    };
    *incoming = None;
    let body = held.keep(body);
    let held = Held::new(&app.bodies);
    match coding {
        Coding::Identity => Ok(body),
        Coding::Gzip if body.len() <= INLINE_INFLATE_BYTES => inflate(&body, limit, held),
        Coding::Gzip => {
            let permit = Arc::clone(&app.compute).acquire_owned().await;
            let unpacked = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                inflate(&body, limit, held)
            });
            unpacked.await.unwrap_or_else(|_| Err(ApiError::internal("the body could not be unpacked")))
        }
    }
}

async fn collect(body: &mut Incoming, limit: usize, room: &mut Held) -> Result<Bytes, ApiError> {
    let mut whole = BytesMut::new();
    let mut first: Option<Bytes> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::invalid_json("the body ended before its declared length"))?;
        let Ok(data) = frame.into_data() else { continue };
        let held = whole.len() + first.as_ref().map_or(0, Bytes::len);
        if data.len() > limit.saturating_sub(held) {
            return Err(ApiError::too_large(limit as u64));
        }
        room.grow_to(held + data.len())?;
        // Most bodies are one frame, which need not be copied.
        match first.take() {
            None if whole.is_empty() => first = Some(data),
            None => whole.extend_from_slice(&data),
            Some(start) => {
                whole.reserve(start.len() + data.len());
                whole.extend_from_slice(&start);
                whole.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| whole.freeze()))
}

/// Unpacks gzip. The size in the file's tail is not trusted; what comes out is counted.
fn inflate(packed: &[u8], limit: usize, mut held: Held) -> Result<Bytes, ApiError> {
    let mut out = Vec::new();
    let mut reader = flate2::read::MultiGzDecoder::new(packed).take(limit as u64 + 1);
    loop {
        let before = out.len();
        held.grow_to(before + INFLATE_STEP_BYTES.min(limit - before + 1))?;
        let step = reader.by_ref().take(INFLATE_STEP_BYTES as u64).read_to_end(&mut out);
        if step.is_err() {
            return Err(ApiError::invalid_json(
                "the body is not valid gzip, though content-encoding says so",
            ));
        }
        if out.len() > limit {
            return Err(ApiError::too_large(limit as u64));
        }
        if out.len() == before {
            return Ok(held.keep(Bytes::from(out)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn room(kib: usize) -> Held {
        Held::new(&Arc::new(Semaphore::new(kib)))
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_bomb_is_refused_at_the_limit() {
        let packed = gzip(&vec![b'a'; 1 << 20]);
        assert!(packed.len() < 4096);
        assert_eq!(inflate(&packed, 1 << 20, room(2 << 10)).unwrap().len(), 1 << 20);
        assert_eq!(inflate(&packed, (1 << 20) - 1, room(2 << 10)).unwrap_err().status, 413);
    }

    #[test]
    fn what_is_unpacked_counts_with_all_other_bodies_until_it_is_dropped() {
        let packed = gzip(&vec![b'a'; 100 << 10]);
        let all = Arc::new(Semaphore::new(256));
        let first = inflate(&packed, 1 << 20, Held::new(&all)).unwrap();
        assert_eq!(first.len(), 100 << 10);
        assert_eq!(inflate(&packed, 1 << 20, Held::new(&all)).unwrap_err().status, 503);
        drop(first);
        assert_eq!(all.available_permits(), 256);
    }

    #[test]
    fn a_broken_or_cut_archive_is_a_client_error() {
        let packed = gzip(b"{\"model\":\"m\"}");
        assert_eq!(inflate(&packed[..packed.len() - 5], 1024, room(64)).unwrap_err().status, 400);
        assert_eq!(inflate(b"not gzip", 1024, room(64)).unwrap_err().status, 400);
    }

    #[test]
    fn json_with_any_charset_is_json_and_a_form_is_not() {
        let check = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static(value));
            check_media_type(&headers).map_err(|error| error.status.as_u16())
        };
        assert_eq!(check("application/json"), Ok(()));
        assert_eq!(check("Application/JSON; charset=utf-8"), Ok(()));
        assert_eq!(check("application/x-www-form-urlencoded"), Err(415));
        assert_eq!(check("text/plain"), Err(415));
        assert_eq!(check_media_type(&HeaderMap::new()), Ok(()));
    }
}
