//! Tenants and their keys. The rule: the text of a key is never stored, only its SHA-256.

use super::{KEYS, StoreError, TENANTS, random_bytes};
use redb::{Database, ReadableDatabase, ReadableTable, WriteTransaction};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

/// The tenant of requests without a key, where those are allowed.
pub const DEFAULT_TENANT: &str = "default";

/// What every key starts with, so that leaked ones can be searched for.
const KEY_PREFIX: &str = "sk-pons-";

/// Characters of a key that may be shown, prefix included.
const SHOWN_CHARACTERS: usize = 14;

#[derive(Serialize, Deserialize)]
struct TenantRow {
    id: u64,
    created: u64,
}

#[derive(Serialize, Deserialize)]
struct KeyRow {
    id: String,
    shown: String,
    tenant: String,
    created: u64,
    revoked: Option<u64>,
}

/// A key as it may be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyInfo {
    /// Name of the key, for `pons key revoke` and the ledger.
    pub id: String,
    /// First characters of the key.
    pub shown: String,
    /// Its tenant.
    pub tenant: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Seconds since 1970, if it is no longer valid.
    pub revoked: Option<u64>,
}

/// A key that was just made; the only time its text exists on our side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewKey {
    /// What is stored about it.
    pub info: KeyInfo,
    /// The key.
    pub key: String,
}

/// Who asks: what authentication hands to the rest of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Name of the tenant.
    pub tenant: String,
    /// Number of the tenant, as the brain knows it.
    pub tenant_id: u64,
    /// Id of the key; empty when the request came without one.
    pub key_id: String,
    /// Secret part of the tenant's prefix-cache key.
    pub cache_salt: [u8; 16],
}

impl Caller {
    /// The tenant's salt, narrowed by one that the client names. A client's value alone would let it name
    /// another tenant's cache.
    pub fn cache_salt_with(&self, named: Option<&str>) -> [u8; 16] {
        match named {
            Some(named) => first_half(Sha256::new().chain_update(self.cache_salt).chain_update(named)),
            None => self.cache_salt,
        }
    }
}

/// All valid keys by hash. Looking up a hash tells nothing about how close a wrong key was.
#[derive(Clone, Debug)]
pub struct KeyRing {
    callers: HashMap<[u8; 32], Arc<Caller>>,
    anonymous: Arc<Caller>,
    ever_created: bool,
}

impl KeyRing {
    pub(super) fn load(database: &Database, secret: &[u8; 32]) -> Result<Self, StoreError> {
        let txn = database.begin_read().map_err(StoreError::database)?;
        let tenants = txn.open_table(TENANTS).map_err(StoreError::database)?;
        let mut ids = HashMap::new();
        for entry in tenants.iter().map_err(StoreError::database)? {
            let (name, row) = entry.map_err(StoreError::database)?;
            let row: TenantRow = decode("tenants", row.value())?;
            ids.insert(name.value().to_owned(), row.id);
        }
        let caller = |tenant: &str, key_id: String| {
            let tenant_id = ids.get(tenant).copied().unwrap_or(0);
            let cache_salt = cache_salt(secret, tenant_id);
            Arc::new(Caller { tenant: tenant.to_owned(), tenant_id, key_id, cache_salt })
        };
        let keys = txn.open_table(KEYS).map_err(StoreError::database)?;
        let mut callers = HashMap::new();
        let mut ever_created = false;
        for entry in keys.iter().map_err(StoreError::database)? {
            let (hash, row) = entry.map_err(StoreError::database)?;
            let row: KeyRow = decode("keys", row.value())?;
            ever_created = true;
            if row.revoked.is_none()
                && let Ok(hash) = <[u8; 32]>::try_from(hash.value())
            {
                callers.insert(hash, caller(&row.tenant, row.id));
            }
        }
        Ok(Self { callers, anonymous: caller(DEFAULT_TENANT, String::new()), ever_created })
    }

    /// The caller that owns this key.
    pub fn find(&self, key: &str) -> Option<Arc<Caller>> {
        self.callers.get(&hash_key(key)).cloned()
    }

    /// The caller of a request without a key.
    pub fn anonymous(&self) -> Arc<Caller> {
        Arc::clone(&self.anonymous)
    }

    /// Whether a key was ever made. Revoking the last key must not open the door again.
    pub fn ever_created(&self) -> bool {
        self.ever_created
    }
}

/// SHA-256 of a key. Keys hold 256 random bits, so a slow hash would add nothing.
pub fn hash_key(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Derived, so that it survives restarts and differs between installations.
pub(super) fn cache_salt(secret: &[u8; 32], tenant_id: u64) -> [u8; 16] {
    let named = Sha256::new().chain_update(b"pons prefix cache\0").chain_update(secret);
    first_half(named.chain_update(tenant_id.to_le_bytes()))
}

fn first_half(hasher: Sha256) -> [u8; 16] {
    let digest: [u8; 32] = hasher.finalize().into();
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    half
}

/// Creates a tenant unless it exists, and returns its number.
pub(super) fn ensure_tenant(txn: &WriteTransaction, name: &str) -> Result<u64, StoreError> {
    let usable = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 64 || !name.chars().all(usable) {
        return Err(StoreError::BadTenantName { name: name.chars().take(80).collect() });
    }
    let mut tenants = txn.open_table(TENANTS).map_err(StoreError::database)?;
    if let Some(row) = tenants.get(name).map_err(StoreError::database)? {
        return Ok(decode::<TenantRow>("tenants", row.value())?.id);
    }
    let mut last = 0;
    for entry in tenants.iter().map_err(StoreError::database)? {
        let (_, row) = entry.map_err(StoreError::database)?;
        last = last.max(decode::<TenantRow>("tenants", row.value())?.id);
    }
    let row = encode(&TenantRow { id: last + 1, created: now_s() });
    tenants.insert(name, row.as_slice()).map_err(StoreError::database)?;
    Ok(last + 1)
}

pub(super) fn create(txn: &WriteTransaction, tenant: &str) -> Result<NewKey, StoreError> {
    ensure_tenant(txn, tenant)?;
    let key = format!("{KEY_PREFIX}{}", hex(&random_bytes::<32>()?));
    let row = KeyRow {
        id: format!("key_{}", hex(&random_bytes::<6>()?)),
        shown: key.chars().take(SHOWN_CHARACTERS).collect(),
        tenant: tenant.to_owned(),
        created: now_s(),
        revoked: None,
    };
    let mut keys = txn.open_table(KEYS).map_err(StoreError::database)?;
    keys.insert(hash_key(&key).as_slice(), encode(&row).as_slice()).map_err(StoreError::database)?;
    Ok(NewKey { info: info(row), key })
}

pub(super) fn revoke(txn: &WriteTransaction, id: &str) -> Result<KeyInfo, StoreError> {
    let mut keys = txn.open_table(KEYS).map_err(StoreError::database)?;
    let mut found = None;
    for entry in keys.iter().map_err(StoreError::database)? {
        let (hash, row) = entry.map_err(StoreError::database)?;
        let row: KeyRow = decode("keys", row.value())?;
        if row.id == id {
            found = Some((hash.value().to_vec(), row));
            break;
        }
    }
    let Some((hash, mut row)) = found else { return Err(StoreError::NoSuchKey { id: id.to_owned() }) };
    // Revoking twice keeps the first time: it is when the key stopped working.
    row.revoked = row.revoked.or(Some(now_s()));
    keys.insert(hash.as_slice(), encode(&row).as_slice()).map_err(StoreError::database)?;
    Ok(info(row))
}

pub(super) fn list(database: &Database) -> Result<Vec<KeyInfo>, StoreError> {
    let txn = database.begin_read().map_err(StoreError::database)?;
    let keys = txn.open_table(KEYS).map_err(StoreError::database)?;
    let mut rows = Vec::new();
    for entry in keys.iter().map_err(StoreError::database)? {
        let (_, row) = entry.map_err(StoreError::database)?;
        rows.push(info(decode("keys", row.value())?));
    }
    rows.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
    Ok(rows)
}

fn info(row: KeyRow) -> KeyInfo {
    KeyInfo { id: row.id, shown: row.shown, tenant: row.tenant, created: row.created, revoked: row.revoked }
}

pub(super) fn encode(row: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(row).expect("rows are plain structs of strings and integers")
}

pub(super) fn decode<T: serde::de::DeserializeOwned>(
    table: &'static str,
    bytes: &[u8],
) -> Result<T, StoreError> {
    serde_json::from_slice(bytes).map_err(|error| StoreError::Corrupt { table, reason: error.to_string() })
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |age| age.as_secs())
}
