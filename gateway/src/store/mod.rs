//! Durable state: tenants, keys, the ledger. One redb file in the state directory.
//!
//! The rule it keeps: one process has the file open, one thread writes to it, and whoever waits for a write
//! is told only after it is on the disk.

mod error;
mod keys;
mod ledger;
#[cfg(test)]
mod tests;
mod writer;

pub use error::StoreError;
pub use keys::{Caller, DEFAULT_TENANT, KeyInfo, KeyRing, NewKey, hash_key};
pub use ledger::{LedgerFilter, LedgerRecord, LedgerSum, MAX_LISTED, Outcome};
pub use writer::LedgerSlot;

use rand::TryRngCore;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use writer::Writer;

/// Most memory for the database's pages: enough for the keys and the ledger's newest end, and a bound that a
/// growing file can't push.
const CACHE_BYTES: usize = 16 << 20;

/// Version of the tables' layout. A file with a higher one is refused.
pub const SCHEMA_VERSION: u32 = 1;

/// Name of the database file in the state directory.
pub const FILE_NAME: &str = "state.redb";

pub(crate) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
pub(crate) const TENANTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("tenants");
pub(crate) const KEYS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("keys");
pub(crate) const LEDGER: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("ledger");

/// The open store. A clone is cheap and means the same file.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    database: Arc<Database>,
    writer: Writer,
    secret: [u8; 32],
    /// What authentication reads. Only the writer thread replaces it, so a newer ring never gives way to an older.
    ring: Arc<RwLock<Arc<KeyRing>>>,
}

impl Store {
    /// Opens the store of a state directory, which is created if it is absent. `ledger_slots` is the most
    /// ledger records that may be live or waiting for the disk at one time.
    pub fn open(dir: &Path, ledger_slots: usize) -> Result<Self, StoreError> {
        create_private_dir(dir)?;
        let path = dir.join(FILE_NAME);
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create(&path)
            .map_err(|error| open_error(dir, &path, error))?;
        restrict_file(&path)?;
        let secret = prepare(&database, dir)?;
        let database = Arc::new(database);
        let ring = Arc::new(RwLock::new(Arc::new(KeyRing::load(&database, &secret)?)));
        let writer = Writer::start(Arc::clone(&database), ledger_slots)?;
        Ok(Self { inner: Arc::new(Inner { database, writer, secret, ring }) })
    }

    /// Ends the writer thread once everything handed to it is on the disk.
    pub fn close(&self) {
        self.inner.writer.stop();
    }

    /// Reserves room for one ledger record, or says at once that there is none.
    pub fn try_ledger_slot(&self) -> Option<LedgerSlot> {
        self.inner.writer.try_slot()
    }

    /// Seconds each ledger commit took, newest last; taking them empties the list.
    pub fn take_commit_seconds(&self) -> Vec<f64> {
        self.inner.writer.take_commit_seconds()
    }

    /// The secret part of a tenant's prefix-cache key. It never leaves the gateway and the brain.
    pub fn cache_salt(&self, tenant_id: u64) -> [u8; 16] {
        keys::cache_salt(&self.inner.secret, tenant_id)
    }

    /// Ledger records, newest first.
    pub fn ledger_list(&self, filter: &LedgerFilter) -> Result<Vec<LedgerRecord>, StoreError> {
        ledger::list(&self.inner.database, filter)
    }

    /// Totals by tenant and model.
    pub fn ledger_sum(&self, filter: &LedgerFilter) -> Result<Vec<LedgerSum>, StoreError> {
        ledger::sum(&self.inner.database, filter)
    }

    /// Creates a key, and its tenant if that is new. The key itself is in the answer and nowhere else. It is
    /// valid once the answer is there.
    pub async fn create_key(&self, tenant: &str) -> Result<NewKey, StoreError> {
        let tenant = tenant.to_owned();
        self.inner.writer.apply(move |txn| keys::create(txn, &tenant), self.new_ring()).await
    }

    /// Revokes the key with this id. It is invalid from the commit on, whether or not anybody waits for the answer.
    pub async fn revoke_key(&self, id: &str) -> Result<KeyInfo, StoreError> {
        let id = id.to_owned();
        self.inner.writer.apply(move |txn| keys::revoke(txn, &id), self.new_ring()).await
    }

    /// Reads the keys again; for the writer thread, after a commit.
    fn new_ring(&self) -> impl FnOnce(&Database) -> Result<(), StoreError> + Send + 'static {
        let (ring, secret) = (Arc::clone(&self.inner.ring), self.inner.secret);
        move |database| {
            let fresh = Arc::new(KeyRing::load(database, &secret)?);
            *ring.write().unwrap_or_else(PoisonError::into_inner) = fresh;
            Ok(())
        }
    }

    /// All keys, revoked ones included, without their text.
    pub fn list_keys(&self) -> Result<Vec<KeyInfo>, StoreError> {
        keys::list(&self.inner.database)
    }

    /// The look-up table that authentication uses, as of now.
    pub fn keys(&self) -> Arc<KeyRing> {
        Arc::clone(&self.inner.ring.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Creates the tables, checks the version, and returns the store's secret.
fn prepare(database: &Database, dir: &Path) -> Result<[u8; 32], StoreError> {
    let found = stored_version(database)?;
    if let Some(found) = found.filter(|found| *found > SCHEMA_VERSION) {
        return Err(StoreError::NewerSchema { dir: dir.to_path_buf(), found, known: SCHEMA_VERSION });
    }
    let txn = begin(database)?;
    let secret = {
        let mut meta = txn.open_table(META).map_err(StoreError::database)?;
        let known = meta.get("secret").map_err(StoreError::database)?.map(|guard| guard.value().to_vec());
        let secret: [u8; 32] = match known {
            Some(bytes) => bytes.try_into().map_err(|_| StoreError::Corrupt {
                table: "meta",
                reason: "the secret does not have 32 bytes".to_owned(),
            })?,
            None => random_bytes()?,
        };
        meta.insert("secret", secret.as_slice()).map_err(StoreError::database)?;
        meta.insert("schema", SCHEMA_VERSION.to_le_bytes().as_slice()).map_err(StoreError::database)?;
        secret
    };
    txn.open_table(KEYS).map_err(StoreError::database)?;
    txn.open_table(LEDGER).map_err(StoreError::database)?;
    keys::ensure_tenant(&txn, DEFAULT_TENANT)?;
    txn.commit().map_err(StoreError::database)?;
    Ok(secret)
}

fn stored_version(database: &Database) -> Result<Option<u32>, StoreError> {
    let txn = database.begin_read().map_err(StoreError::database)?;
    let meta = match txn.open_table(META) {
        Ok(meta) => meta,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(StoreError::database(error)),
    };
    let Some(guard) = meta.get("schema").map_err(StoreError::database)? else { return Ok(None) };
    let bytes: [u8; 4] = guard.value().try_into().map_err(|_| StoreError::Corrupt {
        table: "meta",
        reason: "the schema version does not have 4 bytes".to_owned(),
    })?;
    Ok(Some(u32::from_le_bytes(bytes)))
}

/// Every write transaction is durable when it returns, and leaves a file that opens at once after a crash.
pub(crate) fn begin(database: &Database) -> Result<WriteTransaction, StoreError> {
    let mut txn = database.begin_write().map_err(StoreError::database)?;
    txn.set_durability(Durability::Immediate).map_err(StoreError::database)?;
    txn.set_quick_repair(true);
    Ok(txn)
}

/// Bytes from the operating system's generator.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0u8; N];
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| StoreError::Database(format!("no random numbers from the system: {error}")))?;
    Ok(bytes)
}

fn open_error(dir: &Path, path: &Path, error: redb::DatabaseError) -> StoreError {
    match error {
        redb::DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { dir: dir.to_path_buf() },
        other => StoreError::Io { path: path.to_path_buf(), reason: other.to_string() },
    }
}

fn io_error(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Io { path: PathBuf::from(path), reason: error.to_string() }
}

/// Only the owner may enter: the directory holds secrets.
fn create_private_dir(dir: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::DirBuilderExt;
    if dir.is_dir() {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| io_error(dir, &error))
}

fn restrict_file(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|error| io_error(path, &error))
}
