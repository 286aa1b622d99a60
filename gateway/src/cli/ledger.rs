//! `pons ledger`. The rule: money is printed in whole millionths, as it is stored.

use super::key::escaped;
use super::link::{Link, block_on};
use super::{Place, answer, table, utc};
use crate::config::Overrides;
use crate::store::{LedgerFilter, LedgerRecord, LedgerSum};
use anyhow::Context;
use clap::{Args, Subcommand};
use http::Method;
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(super) enum LedgerCommand {
    /// List requests, newest first
    List(ListArguments),
    /// Add up requests by tenant and model
    Sum(FilterArguments),
}

#[derive(Debug, Args)]
pub(super) struct ListArguments {
    #[command(flatten)]
    filter: FilterArguments,
    /// Most requests
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

#[derive(Debug, Args)]
pub(super) struct FilterArguments {
    #[command(flatten)]
    place: Place,
    /// Only this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only this model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Only requests of the last so many seconds
    #[arg(long, value_name = "S")]
    last_s: Option<u64>,
    /// Print JSON lines instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn run(command: LedgerCommand) -> anyhow::Result<()> {
    match command {
        LedgerCommand::List(arguments) => list(&arguments),
        LedgerCommand::Sum(arguments) => sum(&arguments),
    }
}

fn list(arguments: &ListArguments) -> anyhow::Result<()> {
    let filter = filter(&arguments.filter, arguments.limit);
    let link = Link::open(&arguments.filter.place.resolve(Overrides::default())?)?;
    let records: Vec<LedgerRecord> = block_on(async move {
        match link {
            Link::File(store) => Ok(store.ledger_list(&filter)?),
            Link::Server(server) => {
                let path = format!("/admin/v1/ledger?{}", query(&filter));
                let mut value = server.call(Method::GET, &path, None).await?;
                serde_json::from_value(value["data"].take()).context("the server's answer is no ledger")
            }
        }
    })?;
    if arguments.filter.json {
        return lines(&records);
    }
    let rows: Vec<Vec<String>> = records.iter().map(record_row).collect();
    let header = [
        "time", "request", "tenant", "model", "route", "prompt", "cached", "output", "price", "ms", "outcome",
    ];
    answer(&table(&header, &rows))
}

fn record_row(record: &LedgerRecord) -> Vec<String> {
    vec![
        utc(record.time_ms / 1000),
        record.request_id.clone(),
        record.tenant.clone(),
        record.model.clone(),
        record.route.clone(),
        record.prompt_tokens.to_string(),
        record.cached_tokens.to_string(),
        record.output_tokens.to_string(),
        record.price_micro.to_string(),
        record.total_ms.to_string(),
        format!("{:?}", record.outcome).to_lowercase(),
    ]
}

fn sum(arguments: &FilterArguments) -> anyhow::Result<()> {
    let filter = filter(arguments, 0);
    let link = Link::open(&arguments.place.resolve(Overrides::default())?)?;
    let sums: Vec<LedgerSum> = block_on(async move {
        match link {
            Link::File(store) => Ok(store.ledger_sum(&filter)?),
            Link::Server(server) => {
                let path = format!("/admin/v1/ledger/sum?{}", query(&filter));
                let mut value = server.call(Method::GET, &path, None).await?;
                serde_json::from_value(value["data"].take()).context("the server's answer has no totals")
            }
        }
    })?;
    if arguments.json {
        return lines(&sums);
    }
    let rows: Vec<Vec<String>> = sums
        .into_iter()
        .map(|sum| {
            let numbers = [
                sum.requests,
                sum.incomplete,
                sum.prompt_tokens,
                sum.cached_tokens,
                sum.output_tokens,
                sum.price_micro,
            ];
            let mut row = vec![sum.tenant, sum.model];
            row.extend(numbers.iter().map(u64::to_string));
            row
        })
        .collect();
    let header = ["tenant", "model", "requests", "incomplete", "prompt", "cached", "output", "price"];
    answer(&table(&header, &rows))
}

fn filter(arguments: &FilterArguments, limit: usize) -> LedgerFilter {
    let since_ms = arguments.last_s.map(|s| crate::app::now_ms().saturating_sub(s.saturating_mul(1000)));
    LedgerFilter { tenant: arguments.tenant.clone(), model: arguments.model.clone(), since_ms, limit }
}

fn query(filter: &LedgerFilter) -> String {
    let mut pairs = vec![format!("limit={}", filter.limit)];
    pairs.extend(filter.tenant.as_ref().map(|tenant| format!("tenant={}", escaped(tenant))));
    pairs.extend(filter.model.as_ref().map(|model| format!("model={}", escaped(model))));
    pairs.extend(filter.since_ms.map(|since| format!("since_ms={since}")));
    pairs.join("&")
}

fn lines(records: &[impl Serialize]) -> anyhow::Result<()> {
    for record in records {
        answer(&serde_json::to_string(record)?)?;
    }
    Ok(())
}
