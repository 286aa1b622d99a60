//! Chat and completions. The rule: everything that can be refused is refused before the first byte goes out,
//! so that a refusal always carries its status.

use super::{compute, read_body};
use crate::app::{App, now_ms, random_id};
use crate::brain::{GenerateRequest, Timeouts};
use crate::error::ApiError;
use crate::exchange::{Exchange, Ticket};
use crate::layer::arrival::Arrival;
use crate::layer::finish::{self, CountedAtItsEnd};
use crate::openai::{self, Prepared, RequestContext, ServedModel};
use crate::reply_body::{self, Reply};
use crate::routes::Endpoint;
use crate::stack::Call;
use bytes::Bytes;
use hyper::body::Incoming;
use pons_protocol::id::TenantId;
use std::sync::Arc;
use std::time::Duration;

/// Characters of the random part of a completion's id.
const ID_CHARACTERS: usize = 29;

pub(super) async fn handle(call: Call<'_>, incoming: &mut Option<Incoming>) -> Result<Reply, ApiError> {
    let app = Arc::clone(&call.app);
    let caller = call.caller.clone().ok_or_else(ApiError::invalid_api_key)?;
    // The place is taken before the body is read, so that the bodies held in memory are bounded too.
    let in_flight = Arc::clone(&app.in_flight).try_acquire_owned().map_err(|_| busy("requests"))?;
    let ledger = app.store.try_ledger_slot().ok_or_else(|| busy("unwritten ledger records"))?;
    let body = read_body(&call, incoming).await?;
    let (model, prepared) = prepare(&call, body).await?;
    let Prepared { sequences, stream, reply, serving } = prepared;
    let request = GenerateRequest {
        tenant: TenantId(caller.tenant_id),
        cache_salt: caller.cache_salt_with(serving.cache_salt.as_deref()),
        // A client may step back behind others, never in front of them: that right is a tenant's, not a request's.
        priority: serving.priority.max(0),
        sequences,
        timeouts: timeouts(&app),
    };
    let generation = app.pool().generate(&model, request).await?;
    let ticket = Ticket {
        app: Arc::clone(&app),
        arrival: call.arrival.clone(),
        caller,
        model: model.name.clone(),
        stream,
        in_flight,
        ledger,
    };
    let exchange = Exchange::begin(ticket, generation, reply);
    if !stream {
        return Ok(finish::whole_answer(exchange.collect()).await);
    }
    let heartbeat = Duration::from_secs_f64(app.config.heartbeat_s);
    let mut answer = reply_body::events(exchange.frames(heartbeat));
    answer.extensions_mut().insert(CountedAtItsEnd);
    Ok(answer)
}

fn busy(what: &str) -> ApiError {
    ApiError::overloaded(format!("the server has as many {what} as it can hold; try again soon"), 1)
}

fn timeouts(app: &App) -> Timeouts {
    let timeouts = &app.config.timeouts;
    Timeouts {
        first_token: Duration::from_secs_f64(timeouts.first_token_s),
        inter_token: Duration::from_secs_f64(timeouts.inter_token_s),
        total: Duration::from_secs_f64(timeouts.total_s),
    }
}

async fn prepare(call: &Call<'_>, body: Bytes) -> Result<(Arc<ServedModel>, Prepared), ApiError> {
    let app = Arc::clone(&call.app);
    let arrival = call.arrival.clone();
    let endpoint = call.route.endpoint;
    compute(&call.app, body.len(), move || parse(&app, &arrival, endpoint, &body)).await
}

fn parse(
    app: &App,
    arrival: &Arrival,
    endpoint: Endpoint,
    body: &[u8],
) -> Result<(Arc<ServedModel>, Prepared), ApiError> {
    let value = openai::json::parse(body)?;
    let name = openai::model_name(&value)?;
    arrival.set_model(name);
    let model = app.model(name)?;
    let context =
        RequestContext { id: random_id(ID_CHARACTERS), created: now_ms() / 1000, entropy: rand::random() };
    let prepared = match endpoint {
        Endpoint::Chat => openai::prepare_chat(value, &model, context)?,
        _ => openai::prepare_completion(value, &model, context)?,
    };
    Ok((model, prepared))
}
