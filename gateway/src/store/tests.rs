//! Tests of the store: what is acknowledged is there after the process is gone.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

fn record(id: usize) -> LedgerRecord {
    LedgerRecord {
        request_id: format!("req_{id}"),
        time_ms: 1000 + id as u64,
        tenant: if id.is_multiple_of(2) { "even" } else { "odd" }.to_owned(),
        key_id: String::new(),
        model: "m".to_owned(),
        route: "chat".to_owned(),
        stream: false,
        prompt_tokens: 10,
        cached_tokens: 4,
        output_tokens: 5,
        price_micro: 1000,
        queue_ms: 0,
        prefill_ms: 0,
        decode_ms: 0,
        total_ms: 1,
        finish_reasons: vec!["stop".to_owned()],
        status: 200,
        outcome: Outcome::Completed,
    }
}

fn all() -> LedgerFilter {
    LedgerFilter { limit: MAX_LISTED, ..LedgerFilter::default() }
}

#[tokio::test]
async fn what_was_committed_is_there_in_a_copy_of_the_file_taken_at_that_moment() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 8).unwrap();
    store.try_ledger_slot().unwrap().commit(record(1)).await.unwrap();
    // The copy is what a power cut would leave: nothing of the running process flows into it.
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join(FILE_NAME), copy.path().join(FILE_NAME)).unwrap();
    let reopened = Store::open(copy.path(), 8).unwrap();
    assert_eq!(reopened.ledger_list(&all()).unwrap(), vec![record(1)]);
}

#[tokio::test]
async fn c_budget_and_billing_04_a_thousand_at_once_add_up_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 1000).unwrap();
    let committed = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..1000)
        .map(|id| {
            let slot = store.try_ledger_slot().unwrap();
            let committed = Arc::clone(&committed);
            tokio::spawn(async move {
                slot.commit(record(id)).await.unwrap();
                committed.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(committed.load(Ordering::Relaxed), 1000);
    let sums = store.ledger_sum(&all()).unwrap();
    assert_eq!(sums.iter().map(|sum| sum.requests).sum::<u64>(), 1000);
    assert_eq!(sums.iter().map(|sum| sum.price_micro).sum::<u64>(), 1_000_000);
    assert_eq!((sums[0].tenant.as_str(), sums[0].output_tokens), ("even", 2500));
    // They shared commits: a commit for each would be 1000.
    assert!(store.take_commit_seconds().len() < 500);
}

#[tokio::test]
async fn slots_are_bounded_and_come_back_unused_or_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 2).unwrap();
    let (first, second) = (store.try_ledger_slot().unwrap(), store.try_ledger_slot().unwrap());
    assert!(store.try_ledger_slot().is_none());
    drop(first);
    let third = store.try_ledger_slot().unwrap();
    second.commit(record(2)).await.unwrap();
    assert!(store.try_ledger_slot().is_some());
    drop(third);
}

#[tokio::test]
async fn records_handed_over_without_waiting_are_written_before_the_store_closes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 100).unwrap();
    for id in 0..100 {
        store.try_ledger_slot().unwrap().record(record(id));
    }
    store.close();
    assert_eq!(store.ledger_list(&all()).unwrap().len(), 100);
}

#[tokio::test]
async fn a_slot_filled_after_the_close_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 4).unwrap();
    let slot = store.try_ledger_slot().unwrap();
    store.close();
    assert!(matches!(slot.commit(record(1)).await, Err(StoreError::Closed)));
    assert!(matches!(store.create_key("a").await, Err(StoreError::Closed)));
}

#[tokio::test]
async fn lists_are_filtered_newest_first_and_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 10).unwrap();
    for id in 0..10 {
        store.try_ledger_slot().unwrap().commit(record(id)).await.unwrap();
    }
    let ids = |filter: &LedgerFilter| {
        let records = store.ledger_list(filter).unwrap();
        records.into_iter().map(|record| record.request_id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&LedgerFilter { limit: 2, ..all() }), ["req_9", "req_8"]);
    assert_eq!(ids(&LedgerFilter { tenant: Some("odd".to_owned()), limit: 2, ..all() }), ["req_9", "req_7"]);
    assert_eq!(ids(&LedgerFilter { since_ms: Some(1008), ..all() }), ["req_9", "req_8"]);
    assert!(ids(&LedgerFilter { model: Some("other".to_owned()), ..all() }).is_empty());
}

#[tokio::test]
async fn only_the_hash_of_a_key_is_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 4).unwrap();
    let created = store.create_key("team").await.unwrap();
    let ring = store.keys();
    let caller = ring.find(&created.key).unwrap();
    assert_eq!((caller.tenant.as_str(), &caller.key_id), ("team", &created.info.id));
    assert!(ring.find(&created.key[..created.key.len() - 1]).is_none());
    assert!(ring.find("").is_none());
    store.close();
    let file = std::fs::read(dir.path().join(FILE_NAME)).unwrap();
    let text = created.key.as_bytes();
    assert!(!file.windows(text.len()).any(|window| window == text));
    let hash = hash_key(&created.key);
    assert!(file.windows(32).any(|window| window == hash));
}

#[tokio::test]
async fn a_revoked_key_stays_revoked_and_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 4).unwrap();
    assert!(!store.keys().ever_created());
    let created = store.create_key("team").await.unwrap();
    let revoked = store.revoke_key(&created.info.id).await.unwrap();
    assert_eq!(store.revoke_key(&created.info.id).await.unwrap().revoked, revoked.revoked);
    let ring = store.keys();
    assert!(ring.find(&created.key).is_none() && ring.ever_created());
    assert!(matches!(store.revoke_key("key_none").await, Err(StoreError::NoSuchKey { .. })));
}

#[tokio::test]
async fn a_key_whose_revocation_nobody_waits_for_is_invalid_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 4).unwrap();
    let created = store.create_key("team").await.unwrap();
    let mut asked = Box::pin(store.revoke_key(&created.info.id));
    // One poll hands the change over; then whoever asked is gone.
    assert!(futures_util::poll!(&mut asked).is_pending());
    drop(asked);
    // The writer takes one thing after the other, so this one comes back after that one is done.
    store.try_ledger_slot().unwrap().commit(record(1)).await.unwrap();
    assert!(store.list_keys().unwrap()[0].revoked.is_some());
    assert!(store.keys().find(&created.key).is_none());
}

#[tokio::test]
async fn cache_salts_differ_by_tenant_and_by_installation_and_survive_a_restart() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(dir.path(), 4).unwrap();
    let salts = (store.cache_salt(1), store.cache_salt(2));
    assert_ne!(salts.0, salts.1);
    assert_ne!(salts.0, Store::open(other.path(), 4).unwrap().cache_salt(1));
    drop(store);
    assert_eq!(Store::open(dir.path(), 4).unwrap().cache_salt(1), salts.0);
}

#[tokio::test]
async fn tenant_names_that_could_confuse_a_log_or_a_path_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 4).unwrap();
    for name in ["", "a b", "a/b", "ä", "a\n", &"x".repeat(65)] {
        assert!(matches!(store.create_key(name).await, Err(StoreError::BadTenantName { .. })), "{name:?}");
    }
    assert!(store.create_key("Team_1.a-b").await.is_ok());
    assert_eq!(store.list_keys().unwrap().len(), 1);
}

#[test]
fn a_newer_schema_is_refused_by_number() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path(), 4).unwrap());
    let database = Database::create(dir.path().join(FILE_NAME)).unwrap();
    let txn = begin(&database).unwrap();
    txn.open_table(META).unwrap().insert("schema", 7u32.to_le_bytes().as_slice()).unwrap();
    txn.commit().unwrap();
    drop(database);
    let error = Store::open(dir.path(), 4).unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { found: 7, known: SCHEMA_VERSION, .. }), "{error}");
}

#[test]
fn a_second_owner_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Store::open(dir.path(), 4).unwrap();
    assert!(matches!(Store::open(dir.path(), 4), Err(StoreError::InUse { .. })));
}

#[test]
fn a_file_that_is_no_database_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(FILE_NAME), vec![7; 4096]).unwrap();
    let error = Store::open(dir.path(), 4).unwrap_err().to_string();
    assert!(error.contains(FILE_NAME), "{error}");
}
