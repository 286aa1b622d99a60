//! Bodies that nobody wanted. The rule: a bounded amount is read and thrown away, in the background, so that
//! the client can read its answer before the connection closes.

use crate::app::App;
use http::{HeaderMap, header};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;

/// Most bytes that are read for one answer.
const MAX_BYTES: u64 = 64 << 20;

/// Longest time that is spent on one answer.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Reads what is left of a refused request. A client that waits for `100 Continue` has sent nothing and must
/// not be asked to.
pub fn take_off_the_wire(app: &Arc<App>, body: Option<Incoming>, headers: &HeaderMap) {
    let Some(mut body) = body.filter(|body| !body.is_end_stream()) else { return };
    if headers.contains_key(header::EXPECT) {
        return;
    }
    let Ok(permit) = Arc::clone(&app.unread).try_acquire_owned() else { return };
    tokio::spawn(async move {
        let _permit = permit;
        let drain = async {
            let mut left = MAX_BYTES;
            while let Some(Ok(frame)) = body.frame().await {
                let taken = frame.data_ref().map_or(0, |data| data.len() as u64);
                if taken > left {
                    return;
                }
                left -= taken;
            }
        };
        // Running out of time only means that the client sees a closed connection.
        let _ = tokio::time::timeout(MAX_WAIT, drain).await;
    });
}
