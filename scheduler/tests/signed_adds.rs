//! I12: where a process has keys, its queue of adds takes only what a known key has signed.
#![allow(clippy::unwrap_used)]

mod model;

use model::broker::{MemoryBroker, Shared, TestWriter};
use model::{ModelStore, clock, payload, rules, simulate, sleep_ms, target_rules, wait_for};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use windfall_contract::due::{Shard, SlotStore, TaskKey};
use windfall_scheduler::{
    ADD_SIGNATURE_BYTES, AddError, AddQueue, AddQueueOptions, AddQueueParts, AddSignatures, Class, NewTask,
    NotVerified, SetAside, Tenants, Timers, TimersOptions, read_set_aside,
};

const TOPICS: [&str; 2] = ["adds-a", "adds-b"];
const SHARDS: u16 = 8;

/// Keys that are numbers. The code of an add is the key's number and the length of the add.
struct Keys {
    signs: AtomicU8,
    knows: Mutex<BTreeSet<u8>>,
    changes: AtomicU64,
    accepts: AtomicBool,
}

impl Keys {
    fn know(&self, keys: impl IntoIterator<Item = u8>) {
        *self.knows.lock() = keys.into_iter().collect();
        self.changes.fetch_add(1, SeqCst);
    }
}

fn code(key: u8, add: &[u8]) -> [u8; ADD_SIGNATURE_BYTES] {
    let mut code = [key; ADD_SIGNATURE_BYTES];
    code[4..12].copy_from_slice(&(add.len() as u64).to_be_bytes());
    code
}

impl AddSignatures for Keys {
    fn sign(&self, add: &[u8]) -> Result<[u8; ADD_SIGNATURE_BYTES], String> {
        match self.signs.load(SeqCst) {
            0 => Err("there is no key".into()),
            key => Ok(code(key, add)),
        }
    }

    fn verify(&self, add: &[u8], signature: &[u8; ADD_SIGNATURE_BYTES]) -> Result<(), NotVerified> {
        let (key, knows) = (signature[0], self.knows.lock());
        match knows.contains(&key) && code(key, add) == *signature {
            true => Ok(()),
            false => Err(NotVerified {
                what: format!("key {key}"),
                may_become_known: knows.last().is_none_or(|last| key > *last),
            }),
        }
    }

    fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    fn accepts_unsigned(&self, _: &str) -> bool {
        self.accepts.load(SeqCst)
    }
}

/// A process with keys, and what it writes to and reads from.
struct Process {
    store: Arc<ModelStore>,
    broker: Arc<MemoryBroker>,
    keys: Arc<Keys>,
    timers: Timers,
    queue: AddQueue,
    folder: tempfile::TempDir,
}

impl Process {
    /// It knows key 1, and signs with it if it is to `sign`.
    async fn start(sign: bool) -> Self {
        let store = Arc::new(ModelStore::new(SHARDS, 3, None));
        let (broker, folder) = (Arc::<MemoryBroker>::default(), tempfile::tempdir().unwrap());
        let keys = Arc::new(Keys {
            signs: AtomicU8::new(1),
            knows: Mutex::new([1].into()),
            changes: AtomicU64::new(0),
            accepts: AtomicBool::new(false),
        });
        let shop = rules(Class::Normal, target_rules(10));
        let tenants = Arc::new(Tenants([("shop".to_owned(), shop)].into()));
        let slots = Arc::clone(&store) as Arc<dyn SlotStore>;
        let queue = AddQueue::start(AddQueueParts {
            options: AddQueueOptions { settle_ms: 2_000, sign, ..AddQueueOptions::default() },
            tenants: Arc::clone(&tenants),
            store: Arc::clone(&slots),
            writer: TestWriter::new(&broker, &TOPICS),
            signatures: Some(Arc::clone(&keys) as Arc<dyn AddSignatures>),
            topics: TOPICS.map(|name| Shared::topic(&broker, name)).to_vec(),
            folder: folder.path().to_owned(),
            clock: clock(),
        });
        let own = Some(queue.clone());
        let timers = Timers::start_with(TimersOptions::default(), tenants, slots, own, clock());
        wait_for("the store's id", 10_000, || queue.check().is_ok()).await;
        Self { store, broker, keys, timers, queue, folder }
    }

    async fn add(&self, number: u64) -> Result<(), AddError> {
        let task = NewTask {
            target: "out".into(),
            due_ms: self.store.now_ms() + 3_600_000,
            key: Some(key(number)),
            payload: payload(number),
        };
        self.timers.add_by_queue("shop", vec![task]).await.remove(0)
    }

    fn stored(&self) -> u64 {
        self.queue.stats().stored.get()
    }

    fn set_aside(&self) -> Vec<SetAside> {
        read_set_aside(self.folder.path()).unwrap().0
    }

    async fn close(self) {
        self.timers.close().await;
        self.queue.close(Duration::from_secs(10)).await;
        assert_eq!(self.queue.stats().in_memory.get(), 0);
    }
}

fn key(number: u64) -> TaskKey {
    TaskKey::new(format!("order-{number}").as_bytes()).unwrap()
}

#[test]
fn what_nobody_has_signed_is_set_aside_unless_the_topic_takes_it_by_name() {
    simulate(async {
        let process = Process::start(false).await;
        process.add(1).await.unwrap();
        let stats = process.queue.stats();
        wait_for("it to be set aside", 10_000, || stats.unsigned.get() == 1).await;
        let aside = process.set_aside().remove(0);
        assert_eq!((&*aside.reason, aside.timer.unwrap().key), ("unsigned", "order-1".to_owned()));
        assert_eq!(process.stored(), 0);
        process.keys.accepts.store(true, SeqCst);
        process.add(2).await.unwrap();
        wait_for("it to be stored", 10_000, || process.stored() == 1).await;
        assert_eq!(stats.unsigned_taken.get(), 1);
        // It blocks nothing.
        sleep_ms(10_000).await;
        assert_eq!(process.broker.committed(TOPICS[0]), 2);
        process.close().await;
    });
}

#[test]
fn signed_adds_are_stored_and_a_process_without_a_key_writes_none() {
    simulate(async {
        let process = Process::start(true).await;
        process.add(1).await.unwrap();
        wait_for("it to be stored", 10_000, || process.stored() == 1).await;
        assert_eq!(process.queue.stats().unsigned_taken.get(), 0);
        process.keys.signs.store(0, SeqCst);
        let refused = process.add(2).await;
        assert!(matches!(&refused, Err(AddError::QueueAway(what)) if what.contains("no key")), "{refused:?}");
        assert_eq!(process.broker.written(TOPICS[0]), 1);
        process.close().await;
    });
}

#[test]
fn a_key_that_may_become_known_is_waited_for_and_holds_up_no_other() {
    simulate(async {
        let process = Process::start(true).await;
        process.keys.signs.store(2, SeqCst);
        process.add(1).await.unwrap();
        process.keys.signs.store(1, SeqCst);
        process.add(2).await.unwrap();
        wait_for("the other one to be stored", 10_000, || process.stored() == 1).await;
        assert_eq!((process.set_aside(), process.queue.stats().in_memory.get()), (vec![], 1));
        process.keys.know([1, 2]);
        wait_for("it to be stored", 2_000, || process.stored() == 2).await;
        // In vain.
        process.keys.signs.store(3, SeqCst);
        process.add(3).await.unwrap();
        sleep_ms(10_000).await;
        assert_eq!(process.set_aside(), []);
        wait_for("it to be set aside", 10_000, || process.set_aside().len() == 1).await;
        let aside = process.set_aside().remove(0);
        assert!(aside.reason == "unverified" && aside.what.contains("key 3"), "{aside:?}");
        // A key of before is not waited for.
        process.keys.know([2, 3]);
        process.keys.signs.store(1, SeqCst);
        process.add(4).await.unwrap();
        wait_for("it to be set aside", 5_000, || process.queue.stats().unverified.get() == 2).await;
        sleep_ms(10_000).await;
        assert_eq!(process.broker.committed(TOPICS[0]), 4);
        process.close().await;
    });
}

#[test]
fn what_waits_for_its_shard_is_set_aside_when_its_key_is_destroyed() {
    simulate(async {
        let process = Process::start(true).await;
        process.store.away_shards((0..SHARDS).map(Shard));
        process.add(1).await.unwrap();
        sleep_ms(5_000).await;
        assert_eq!(process.queue.stats().held.get(), 1);
        process.keys.know([2]);
        wait_for("it to be set aside", 20_000, || process.queue.stats().unverified.get() == 1).await;
        process.store.away_shards([]);
        sleep_ms(10_000).await;
        assert_eq!((process.stored(), process.broker.committed(TOPICS[0])), (0, 1));
        process.close().await;
    });
}
