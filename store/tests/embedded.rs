//! The embedded token store: the contract, its open errors, and the switch.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use windfall_conformance::tokens::{self, Fixture};
use windfall_contract::tokens::{NEVER, TokenKey, TokenPut, TokenStore};
use windfall_store::embedded::{EmbeddedStore, EmbeddedStoreOptions, OpenStoreError};
use windfall_store::switchable::{Down, Switchable};

struct Embedded {
    dir: tempfile::TempDir,
    switchable: bool,
}

impl Embedded {
    fn new(switchable: bool) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), switchable }
    }
}

#[async_trait]
impl Fixture for Embedded {
    fn name(&self) -> &str {
        "embedded"
    }

    async fn open(&self) -> Result<Arc<dyn TokenStore>, String> {
        let options = EmbeddedStoreOptions { memtable_bytes: 1 << 20, ..EmbeddedStoreOptions::default() };
        let store = EmbeddedStore::open(self.dir.path(), &options).map_err(|error| error.to_string())?;
        Ok(if self.switchable { Switchable::new(store) } else { store })
    }
}

fn token() -> (TokenPut, TokenKey) {
    let put = TokenPut { user_id: 7, name: "a".into(), token: "t".into(), expires_at_ms: NEVER };
    (put, TokenKey { user_id: 7, name: "a".into() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_conforms() {
    let failed = tokens::run(&Embedded::new(false)).await;
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switchable_that_is_up_conforms() {
    let failed = tokens::run(&Embedded::new(true)).await;
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test]
async fn a_store_that_is_down_says_unavailable_and_forgets_nothing() {
    let inner = Embedded::new(false).open().await.unwrap();
    let store = Switchable::new(inner);
    let (put, key) = token();
    store.put(std::slice::from_ref(&put)).await.unwrap();
    store.set_down(true);
    assert!(store.get(std::slice::from_ref(&key)).await.is_err());
    assert!(store.put(&[TokenPut { token: "other".into(), ..put }]).await.is_err());
    assert!(store.remove(std::slice::from_ref(&key)).await.is_err());
    assert!(store.list(7, None, 1).await.is_err());
    store.set(Some(Down::TimesOut(Duration::from_millis(30))));
    let started = std::time::Instant::now();
    assert!(store.get(std::slice::from_ref(&key)).await.is_err());
    assert!(started.elapsed() >= Duration::from_millis(25));
    store.set_down(false);
    assert_eq!(store.get(&[key]).await.unwrap(), vec![Some("t".into())]);
}

#[tokio::test]
async fn what_an_earlier_process_has_written_can_be_removed() {
    let embedded = Embedded::new(false);
    let (put, key) = token();
    let never = TokenKey { user_id: 8, name: "a".into() };
    let store = embedded.open().await.unwrap();
    store.remove(&[key.clone(), never.clone()]).await.unwrap();
    store.put(&[put]).await.unwrap();
    drop(store);
    let store = embedded.open().await.unwrap();
    assert_eq!(store.list(7, None, 9).await.unwrap().len(), 1);
    store.remove(&[never, key]).await.unwrap();
    assert_eq!(store.list(7, None, 9).await.unwrap(), Vec::new());
}

#[tokio::test]
async fn too_many_calls_at_a_time_are_unavailable_not_queued() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedStoreOptions { max_calls: 1, ..EmbeddedStoreOptions::default() };
    let store = EmbeddedStore::open(dir.path(), &options).unwrap();
    let many = (0..50_000).map(|one| TokenPut {
        user_id: one,
        name: "a".into(),
        token: "t".into(),
        expires_at_ms: NEVER,
    });
    let many: Vec<_> = many.collect();
    let (long, short) = tokio::join!(store.put(&many), async {
        tokio::task::yield_now().await;
        store.get(&[token().1]).await
    });
    long.unwrap();
    assert_eq!(short.unwrap_err().0, "too many calls at a time");
    assert_eq!(store.get(&[token().1]).await.unwrap(), vec![Some("t".into())]);
}

#[tokio::test]
async fn open_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedStoreOptions::default();
    let open = |options: &EmbeddedStoreOptions| EmbeddedStore::open(dir.path(), options).err();
    let first = EmbeddedStore::open(dir.path(), &options).unwrap();
    assert!(matches!(open(&options), Some(OpenStoreError::InUse(_))));
    drop(first);
    let wrong = EmbeddedStoreOptions { max_calls: 0, ..options.clone() };
    assert!(matches!(open(&wrong), Some(OpenStoreError::Invalid(_))));
    std::fs::write(dir.path().join("WINDFALL-STORE"), "3\n").unwrap();
    assert!(matches!(open(&options), Some(OpenStoreError::Newer { found: 3, .. })));
    std::fs::write(dir.path().join("WINDFALL-STORE"), "").unwrap();
    assert!(matches!(open(&options), Some(OpenStoreError::Damaged { .. })));
    let file = dir.path().join("WINDFALL-STORE");
    assert!(matches!(EmbeddedStore::open(&file, &options).err(), Some(OpenStoreError::Io { .. })));
}

#[tokio::test]
async fn any_text_comes_back_to_the_byte() {
    let store = Embedded::new(false).open().await.unwrap();
    // Canonical base64url, and what is nearly that: padding, stray last bits, the other alphabet, blanks, no base64.
    let texts =
        ["AQAB", "AQ", "AR", "AQ==", "+/+/", "-_-_", "", "A", "AQ\n", "AQAB AQAB", "\u{ff}\u{fffd}", "¿"];
    for text in texts {
        let (put, key) = token();
        store.put(&[TokenPut { token: text.into(), ..put }]).await.unwrap();
        assert_eq!(store.get(&[key]).await.unwrap(), vec![Some(text.into())]);
        assert_eq!(&*store.list(7, None, 1).await.unwrap()[0].token, text);
    }
}

#[tokio::test]
async fn a_kill_while_the_store_is_made_leaves_a_directory_that_opens() {
    // What a kill leaves behind: nothing but the lock, or some of the files.
    for left in ["", "making/0.jnl", "making/version"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("LOCK"), "").unwrap();
        if !left.is_empty() {
            std::fs::create_dir(dir.path().join("making")).unwrap();
            std::fs::write(dir.path().join(left), "").unwrap();
        }
        let store = EmbeddedStore::open(dir.path(), &EmbeddedStoreOptions::default()).unwrap();
        store.put(&[token().0]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_disk_fails_says_so_and_does_not_hang() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedStoreOptions { memtable_bytes: 1 << 20, ..EmbeddedStoreOptions::default() };
    let store = EmbeddedStore::open(dir.path(), &options).unwrap();
    // Table files have nowhere to go any more.
    let home = dir.path().join("db/keyspaces/1");
    std::fs::remove_dir_all(if home.exists() { home } else { dir.path().join("keyspaces/1") }).unwrap();
    let puts: Vec<_> = (0..2000).map(|one| TokenPut { user_id: one, ..token().0 }).collect();
    let failing = async {
        loop {
            if store.put(&puts).await.is_err() {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), failing).await.unwrap();
}
