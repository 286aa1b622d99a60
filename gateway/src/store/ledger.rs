//! What each request used. The rule: tokens and money are integers, and a record is written once.

use super::{LEDGER, StoreError, keys};
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, WriteTransaction};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most records one listing returns.
pub const MAX_LISTED: usize = 10_000;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The client got its whole answer.
    Completed,
    /// The client left before the end.
    Aborted,
    /// It failed on our side; what was produced until then is recorded.
    Failed,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRecord {
    /// `x-request-id` of the answer.
    pub request_id: String,
    /// Milliseconds since 1970 when it arrived.
    pub time_ms: u64,
    /// Tenant.
    pub tenant: String,
    /// Id of the key; empty without one.
    pub key_id: String,
    /// Model.
    pub model: String,
    /// Route, by its name in the route table.
    pub route: String,
    /// Whether the answer was streamed.
    pub stream: bool,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Of those, found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Price in millionths of the currency's unit.
    pub price_micro: u64,
    /// Time before the first step.
    pub queue_ms: u64,
    /// Time from the first step to the first token.
    pub prefill_ms: u64,
    /// Time from the first to the last token.
    pub decode_ms: u64,
    /// Time from arrival to the end.
    pub total_ms: u64,
    /// One entry for each choice that ended.
    pub finish_reasons: Vec<String>,
    /// HTTP status that the client saw.
    pub status: u16,
    /// How it ended.
    pub outcome: Outcome,
}

/// Which records to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerFilter {
    /// Only this tenant.
    pub tenant: Option<String>,
    /// Only this model.
    pub model: Option<String>,
    /// Only requests that arrived at or after this time, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Most records; [`MAX_LISTED`] at the most. Totals ignore it.
    pub limit: usize,
}

impl LedgerFilter {
    fn matches(&self, record: &LedgerRecord) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == record.tenant)
            && self.model.as_ref().is_none_or(|model| *model == record.model)
            && self.since_ms.is_none_or(|since| record.time_ms >= since)
    }
}

/// Totals of one tenant and model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerSum {
    /// Tenant.
    pub tenant: String,
    /// Model.
    pub model: String,
    /// Number of requests.
    pub requests: u64,
    /// Of those, left by the client or failed.
    pub incomplete: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Of those, found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Price in millionths of the currency's unit.
    pub price_micro: u64,
}

/// Appends records to an open transaction.
pub(super) fn append(txn: &WriteTransaction, records: &[LedgerRecord]) -> Result<(), StoreError> {
    let mut table = txn.open_table(LEDGER).map_err(StoreError::database)?;
    let next = table.last().map_err(StoreError::database)?.map_or(0, |(key, _)| key.value() + 1);
    for (number, record) in (next..).zip(records) {
        table.insert(number, keys::encode(record).as_slice()).map_err(StoreError::database)?;
    }
    Ok(())
}

pub(super) fn list(database: &Database, filter: &LedgerFilter) -> Result<Vec<LedgerRecord>, StoreError> {
    let limit = filter.limit.min(MAX_LISTED);
    let txn = database.begin_read().map_err(StoreError::database)?;
    let table = txn.open_table(LEDGER).map_err(StoreError::database)?;
    let mut records = Vec::with_capacity(limit.min(table.len().map_err(StoreError::database)? as usize));
    for entry in table.iter().map_err(StoreError::database)?.rev() {
        if records.len() >= limit {
            break;
        }
        let (_, value) = entry.map_err(StoreError::database)?;
        let record: LedgerRecord = keys::decode("ledger", value.value())?;
        if filter.matches(&record) {
            records.push(record);
        }
    }
    Ok(records)
}

pub(super) fn sum(database: &Database, filter: &LedgerFilter) -> Result<Vec<LedgerSum>, StoreError> {
    let txn = database.begin_read().map_err(StoreError::database)?;
    let table = txn.open_table(LEDGER).map_err(StoreError::database)?;
    let mut sums: BTreeMap<(String, String), LedgerSum> = BTreeMap::new();
    for entry in table.iter().map_err(StoreError::database)? {
        let (_, value) = entry.map_err(StoreError::database)?;
        let record: LedgerRecord = keys::decode("ledger", value.value())?;
        if !filter.matches(&record) {
            continue;
        }
        let sum = sums.entry((record.tenant.clone(), record.model.clone())).or_default();
        sum.requests += 1;
        sum.incomplete += u64::from(record.outcome != Outcome::Completed);
        sum.prompt_tokens += record.prompt_tokens;
        sum.cached_tokens += record.cached_tokens;
        sum.output_tokens += record.output_tokens;
        sum.price_micro = sum.price_micro.saturating_add(record.price_micro);
    }
    Ok(sums.into_iter().map(|((tenant, model), sum)| LedgerSum { tenant, model, ..sum }).collect())
}
