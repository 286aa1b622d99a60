//! `pons key`. The rule: the key is printed once, alone on the last line of standard output.

use super::link::{Link, block_on};
use super::{Place, answer, table, utc};
use crate::config::Overrides;
use crate::store::{KeyInfo, NewKey};
use anyhow::Context;
use clap::{Args, Subcommand};
use http::Method;
use serde_json::json;

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Create a key, and its tenant if that is new; the key is the last line of the output
    Create(CreateArguments),
    /// List all keys, without their text
    List(ListArguments),
    /// Revoke a key; requests that run go on
    Revoke(RevokeArguments),
}

#[derive(Debug, Args)]
pub(super) struct CreateArguments {
    #[command(flatten)]
    place: Place,
    /// Tenant that the key belongs to
    #[arg(long, value_name = "NAME", default_value = crate::store::DEFAULT_TENANT)]
    tenant: String,
}

#[derive(Debug, Args)]
pub(super) struct ListArguments {
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(super) struct RevokeArguments {
    #[command(flatten)]
    place: Place,
    /// Id of the key, as pons key list shows it
    id: String,
}

pub(super) fn run(command: KeyCommand) -> anyhow::Result<()> {
    match command {
        KeyCommand::Create(arguments) => create(&arguments),
        KeyCommand::List(arguments) => list(&arguments),
        KeyCommand::Revoke(arguments) => revoke(&arguments),
    }
}

fn create(arguments: &CreateArguments) -> anyhow::Result<()> {
    let link = Link::open(&arguments.place.resolve(Overrides::default())?)?;
    let tenant = arguments.tenant.clone();
    let created: NewKey = block_on(async move {
        match link {
            Link::File(store) => Ok(store.create_key(&tenant).await?),
            Link::Server(server) => {
                let body = json!({"tenant": tenant});
                let value = server.call(Method::POST, "/admin/v1/keys", Some(body)).await?;
                serde_json::from_value(value).context("the server's answer is no key")
            }
        }
    })?;
    answer(&format!(
        "created {} for tenant {}; it is shown only now:",
        created.info.id, created.info.tenant
    ))?;
    answer(&created.key)
}

fn list(arguments: &ListArguments) -> anyhow::Result<()> {
    let link = Link::open(&arguments.place.resolve(Overrides::default())?)?;
    let keys: Vec<KeyInfo> = block_on(async move {
        match link {
            Link::File(store) => Ok(store.list_keys()?),
            Link::Server(server) => {
                let mut value = server.call(Method::GET, "/admin/v1/keys", None).await?;
                serde_json::from_value(value["data"].take()).context("the server's answer is no list of keys")
            }
        }
    })?;
    let rows: Vec<Vec<String>> = keys
        .into_iter()
        .map(|key| {
            let revoked = key.revoked.map_or_else(|| "-".to_owned(), utc);
            vec![key.id, format!("{}…", key.shown), key.tenant, utc(key.created), revoked]
        })
        .collect();
    answer(&table(&["id", "key", "tenant", "created", "revoked"], &rows))
}

fn revoke(arguments: &RevokeArguments) -> anyhow::Result<()> {
    let link = Link::open(&arguments.place.resolve(Overrides::default())?)?;
    let id = arguments.id.clone();
    let info: KeyInfo = block_on(async move {
        match link {
            Link::File(store) => Ok(store.revoke_key(&id).await?),
            Link::Server(server) => {
                let path = format!("/admin/v1/keys/{}", escaped(&id));
                let value = server.call(Method::DELETE, &path, None).await?;
                serde_json::from_value(value).context("the server's answer is no key")
            }
        }
    })?;
    answer(&format!("revoked {} of tenant {}", info.id, info.tenant))
}

/// Percent-encodes everything that is not plainly part of a path or query value.
pub(super) fn escaped(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            out.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
