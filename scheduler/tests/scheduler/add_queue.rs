//! Adds by a queue, on a simulated clock: whatever is lost, repeated or away, each timer that was answered Ok fires once.

use crate::model::broker::{MemoryBroker, Shared, TestWriter};
use crate::model::{
    ModelStore, TestTarget, clock, payload, rules, simulate, sleep_ms, target_rules, wait_for,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use windfall_contract::due::{CancelledOnce, Shard, SlotStore, Target, TaskKey};
use windfall_scheduler::{
    AddError, AddQueue, AddQueueOptions, AddQueueParts, Class, DispatchOptions, Dispatcher, NewTask,
    SetAside, TenantRules, Tenants, Timers, TimersError, TimersOptions, read_set_aside,
};

const TOPICS: [&str; 2] = ["adds-a", "adds-b"];
const SHARDS: u16 = 8;

/// A store, and the topics of its queue.
struct Town {
    store: Arc<ModelStore>,
    broker: Arc<MemoryBroker>,
    writer: Arc<TestWriter>,
    tenants: Arc<Tenants>,
    target: Arc<TestTarget>,
    folder: tempfile::TempDir,
}

/// A process: its timers and its queue.
struct Process {
    timers: Timers,
    queue: AddQueue,
}

fn options() -> AddQueueOptions {
    AddQueueOptions { settle_ms: 2_000, ..AddQueueOptions::default() }
}

fn shop(waiting_max: u64) -> TenantRules {
    TenantRules { waiting_max, ..rules(Class::Normal, target_rules(10)) }
}

impl Town {
    fn new(store: ModelStore) -> Self {
        Self::of(store, Arc::new(MemoryBroker::default()), shop(1_000_000))
    }

    fn of(store: ModelStore, broker: Arc<MemoryBroker>, rules: TenantRules) -> Self {
        let store = Arc::new(store);
        Self {
            writer: TestWriter::new(&broker, &TOPICS),
            tenants: Arc::new(Tenants([("shop".to_owned(), rules)].into())),
            target: TestTarget::new(&store),
            folder: tempfile::tempdir().unwrap(),
            store,
            broker,
        }
    }

    fn start(&self) -> Process {
        self.start_with(options(), self.folder.path())
    }

    fn start_with(&self, options: AddQueueOptions, folder: &Path) -> Process {
        let store = Arc::clone(&self.store) as Arc<dyn SlotStore>;
        let queue = AddQueue::start(AddQueueParts {
            options,
            tenants: Arc::clone(&self.tenants),
            store: Arc::clone(&store),
            writer: Arc::clone(&self.writer) as _,
            signatures: None,
            topics: TOPICS.map(|name| Shared::topic(&self.broker, name)).to_vec(),
            folder: folder.to_owned(),
            clock: clock(),
        });
        let (whose, own) = (Arc::clone(&self.tenants), Some(queue.clone()));
        let timers = Timers::start_with(TimersOptions::default(), whose, store, own, clock());
        Process { timers, queue }
    }

    fn dispatcher(&self) -> Dispatcher {
        let store = Arc::clone(&self.store) as Arc<dyn SlotStore>;
        let target = Arc::clone(&self.target) as Arc<dyn Target>;
        let targets = BTreeMap::from([(("shop".to_owned(), "out".to_owned()), target)]);
        Dispatcher::start(
            DispatchOptions::default(),
            Arc::clone(&self.tenants),
            store,
            targets,
            "one".into(),
            clock(),
        )
    }

    fn task(&self, number: u64, in_ms: i64) -> NewTask {
        NewTask {
            target: "out".into(),
            due_ms: self.store.now_ms().saturating_add_signed(in_ms),
            key: Some(key(number)),
            payload: payload(number),
        }
    }

    fn set_aside(&self) -> Vec<SetAside> {
        read_set_aside(self.folder.path()).unwrap().0
    }

    /// The numbers that have fired, sorted.
    fn fired(&self) -> Vec<u64> {
        let mut numbers = self.target.numbers();
        numbers.sort_unstable();
        numbers
    }

    fn shard_of(&self, number: u64) -> Shard {
        key(number).shard(0, SHARDS)
    }
}

impl Process {
    async fn add(&self, town: &Town, numbers: std::ops::Range<u64>, in_ms: i64) {
        let tasks = numbers.map(|number| town.task(number, in_ms)).collect();
        for added in self.timers.add_by_queue("shop", tasks).await {
            added.unwrap();
        }
    }

    async fn cancel(&self, number: u64) -> Result<CancelledOnce, TimersError> {
        self.timers.cancel_once("shop", vec![key(number)]).await.pop().unwrap()
    }

    async fn close(self) {
        self.timers.close().await;
        self.queue.close(Duration::from_secs(10)).await;
    }

    /// Until the store has said its id.
    async fn known(&self) {
        wait_for("the store's id", 10_000, || self.queue.check().is_ok()).await;
    }
}

fn key(number: u64) -> TaskKey {
    TaskKey::new(format!("order-{number}").as_bytes()).unwrap()
}

fn all(numbers: std::ops::Range<u64>) -> Vec<u64> {
    numbers.collect()
}

#[test]
fn adds_succeed_while_the_store_is_away_and_fire_once_when_it_is_back() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, Some(Duration::from_millis(1))));
        let (process, dispatcher) = (town.start(), town.dispatcher());
        process.known().await;
        town.store.away_for(Duration::from_secs(60));
        // A broker's answer got lost, so each record is in both topics, and twice in each.
        town.writer.copies.store(true, SeqCst);
        process.add(&town, 0..300, 5_000).await;
        let direct = process.timers.add("shop", vec![town.task(9_999, 5_000)]).await;
        assert!(matches!(direct[..], [Err(AddError::Store(_))]), "{direct:?}");
        sleep_ms(30_000).await;
        assert_eq!(town.fired(), [] as [u64; 0]);
        assert_eq!(process.queue.stats().held.get(), 1_200, "the store takes nothing");
        // The first answers of the store get lost as well.
        town.store.lose_one_of(3);
        // Of three calls one succeeds, so that leases are lost again and again.
        wait_for("all to fire", 600_000, || town.fired().len() >= 300).await;
        town.store.lose_one_of(0);
        sleep_ms(10_000).await;
        assert_eq!(town.fired(), all(0..300));
        let stats = process.queue.stats();
        assert!(stats.known.get() >= 900, "{stats:?}");
        assert_eq!((stats.stored.get() + stats.known.get(), stats.held.get()), (1_200, 0));
        assert_eq!(town.broker.committed("adds-a") + town.broker.committed("adds-b"), 1_200);
        process.close().await;
        dispatcher.drain(Duration::from_secs(5)).await;
    });
}

/// Copies are dropped that come after the task has fired: by a group that was rewound, in a process with other options.
#[test]
fn a_rewound_group_fires_nothing_again_also_under_a_longer_time() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        let hours = |hours: u64| AddQueueOptions { keys_kept_ms: hours * 3_600_000, ..options() };
        let (process, dispatcher) = (town.start_with(hours(2), town.folder.path()), town.dispatcher());
        process.known().await;
        process.add(&town, 0..100, 1_000).await;
        wait_for("all to fire", 10_000, || town.fired().len() >= 100).await;
        sleep_ms(5_000).await;
        process.close().await;
        town.broker.rewind();
        let process = town.start_with(hours(24), town.folder.path());
        sleep_ms(10_000).await;
        assert_eq!(process.queue.stats().known.get(), 100);
        process.close().await;
        dispatcher.drain(Duration::from_secs(5)).await;
        // After the first time the marks are there still, by the longer one.
        sleep_ms(4 * 3_600_000).await;
        town.broker.rewind();
        let process = town.start_with(hours(24), town.folder.path());
        sleep_ms(10_000).await;
        let stats = process.queue.stats();
        assert_eq!((stats.known.get(), stats.stored.get()), (100, 0), "{stats:?}");
        process.close().await;
        // And after the longer one they are gone, but so is the time in which a copy is taken.
        sleep_ms(26 * 3_600_000).await;
        let process = town.start_with(hours(24), town.folder.path());
        wait_for("the marks to go", 120_000, || town.store.used_count() == 0).await;
        process.close().await;
        town.broker.rewind();
        let process = town.start_with(hours(24), town.folder.path());
        wait_for("all to be set aside", 10_000, || process.queue.stats().too_old.get() == 100).await;
        assert_eq!(town.fired(), all(0..100));
        let aside = town.set_aside();
        assert_eq!((aside.len(), &*aside[0].reason), (100, "too_old"));
        assert!(aside[0].what.contains("may have fired already"), "{}", aside[0].what);
        process.close().await;
    });
}

/// A reward that is sent again with the same order: its add is answered as the first one was, and fires nothing again.
#[test]
fn a_repeat_is_answered_as_the_first_add_and_dropped() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        let (process, dispatcher) = (town.start(), town.dispatcher());
        process.known().await;
        let (task, cancelled) = (town.task(7, 1_000), town.task(8, 3_600_000));
        let add = async |task: &NewTask| process.timers.add_by_queue("shop", vec![task.clone()]).await;
        for _ in 0..2 {
            assert_eq!(add(&task).await, [Ok(())]);
        }
        wait_for("it to fire", 10_000, || town.fired() == [7]).await;
        sleep_ms(60_000).await;
        assert_eq!(add(&task).await, [Ok(())]);
        assert_eq!(add(&cancelled).await, [Ok(())]);
        wait_for("all to be taken", 10_000, || process.queue.stats().stored.get() == 2).await;
        assert!(matches!(process.cancel(8).await, Ok(CancelledOnce::Done(_))));
        assert_eq!(add(&cancelled).await, [Ok(())]);
        sleep_ms(2 * 3_600_000).await;
        let stats = process.queue.stats();
        assert_eq!((stats.known.get(), stats.cancelled.get(), town.fired()), (2, 1, vec![7]));
        process.close().await;
        dispatcher.drain(Duration::from_secs(5)).await;
    });
}

/// One shard that is away, and records that nobody can store, hold up no others.
#[test]
fn a_shard_that_is_away_and_bad_records_hold_up_no_others() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        let (process, dispatcher) = (town.start(), town.dispatcher());
        process.known().await;
        let away = town.shard_of(0);
        town.store.away_shards([away]);
        for number in 0..20_u8 {
            town.broker.append(TOPICS[0], vec![number].into(), format!("no add {number}").into());
        }
        process.add(&town, 0..400, 1_000).await;
        let waiting: Vec<u64> = (0..400).filter(|number| town.shard_of(*number) == away).collect();
        wait_for("the others to fire", 20_000, || town.fired().len() == 400 - waiting.len()).await;
        let stats = process.queue.stats();
        assert_eq!(stats.held.get(), waiting.len() as u64, "{stats:?}");
        assert_eq!(stats.unreadable.get(), 20);
        // An hour later, too.
        sleep_ms(3_600_000).await;
        process.add(&town, 1_000..1_100, 1_000).await;
        let also = (1_000..1_100).filter(|number| town.shard_of(*number) != away).count();
        wait_for("the others to fire", 20_000, || town.fired().len() == 400 - waiting.len() + also).await;
        town.store.away_shards([]);
        wait_for("the rest to fire", 20_000, || town.fired().len() == 500).await;
        assert_eq!(town.target.distinct(), 500);
        sleep_ms(5_000).await;
        assert_eq!((stats.held.get(), stats.in_memory.get()), (0, 0));
        assert_eq!(town.broker.committed(TOPICS[0]) as usize, town.broker.written(TOPICS[0]));
        let reasons: BTreeSet<String> = town.set_aside().into_iter().map(|aside| aside.reason).collect();
        assert_eq!(reasons, ["unreadable".to_owned()].into());
        process.close().await;
        dispatcher.drain(Duration::from_secs(5)).await;
    });
}

/// A store that begins to refuse everything refuses no record for its own sake: they are held, though it has answered just
/// before. A record that is refused while others are taken is set aside.
#[test]
fn a_record_is_set_aside_as_refused_only_if_its_shard_answers_since() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        let (process, dispatcher) = (town.start(), town.dispatcher());
        process.known().await;
        process.add(&town, 0..50, 1_000).await;
        wait_for("them to be taken", 10_000, || process.queue.stats().stored.get() == 50).await;
        town.store.refuse(Some(bytes::Bytes::new()));
        process.add(&town, 50..60, 1_000).await;
        sleep_ms(60_000).await;
        assert_eq!(town.set_aside(), []);
        town.store.refuse(Some(payload(55)));
        wait_for("the others to fire", 60_000, || town.fired().len() == 59).await;
        wait_for("it to be set aside", 60_000, || !town.set_aside().is_empty()).await;
        let aside = town.set_aside().remove(0);
        assert_eq!((&*aside.reason, aside.timer.unwrap().key.as_bytes()), ("refused", key(55).as_bytes()));
        sleep_ms(5_000).await;
        assert_eq!(town.broker.committed(TOPICS[0]), 60);
        process.close().await;
        dispatcher.drain(Duration::from_secs(5)).await;
    });
}

/// A topic that cannot be read for some seconds is told, until it can be read.
#[test]
fn a_topic_that_cannot_be_read_is_told() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        let process = town.start();
        process.known().await;
        sleep_ms(1_000).await;
        assert_eq!(process.queue.check(), Ok(()));
        town.broker.is_away.store(true, SeqCst);
        sleep_ms(3_000).await;
        assert_eq!(process.queue.check(), Ok(()), "a moment");
        sleep_ms(4_000).await;
        let said = process.queue.check().unwrap_err();
        assert!(said.contains("the topic adds-a") && said.contains("a test wants it"), "{said}");
        assert!(process.queue.stats().errors.get() > 10);
        town.broker.is_away.store(false, SeqCst);
        sleep_ms(1_000).await;
        assert_eq!(process.queue.check(), Ok(()));
        process.close().await;
    });
}

/// What is held has a bound: beyond it the topics are not read, and nothing is lost.
#[test]
fn no_more_is_held_than_may_be() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        let small = AddQueueOptions { held_records_max: 100, ..options() };
        let (process, dispatcher) = (town.start_with(small, town.folder.path()), town.dispatcher());
        process.known().await;
        town.store.away_shards((0..SHARDS).map(Shard));
        process.add(&town, 0..500, 1_000).await;
        process.add(&town, 500..1_000, 1_000).await;
        sleep_ms(60_000).await;
        assert_eq!(process.queue.stats().in_memory.get(), 100);
        town.store.away_shards([]);
        wait_for("all to fire", 60_000, || town.fired().len() == 1_000).await;
        assert_eq!(town.fired(), all(0..1_000));
        process.close().await;
        dispatcher.drain(Duration::from_secs(5)).await;
    });
}

/// A cancel that comes before the store has heard of any queue keeps the add away all the same.
#[test]
fn a_cancel_may_come_before_its_add_and_before_the_store_knows_the_queue() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        let process = town.start();
        // In the same moment: nobody has asked the store for its id yet.
        assert_eq!(town.store.queue_id_now(), None);
        assert_eq!(process.cancel(3).await, Ok(CancelledOnce::Marked));
        process.known().await;
        let dispatcher = town.dispatcher();
        process.add(&town, 0..6, 1_000).await;
        sleep_ms(20_000).await;
        assert_eq!(town.fired(), [0, 1, 2, 4, 5]);
        assert_eq!(process.queue.stats().cancelled.get(), 1);
        assert_eq!(process.cancel(3).await, Ok(CancelledOnce::Cancelled));
        assert_eq!(process.cancel(0).await, Ok(CancelledOnce::Firing));
        process.close().await;
        dispatcher.drain(Duration::from_secs(5)).await;
    });
}

/// Marks of keys that nobody knows count as waiting timers, so that no caller fills the store with them.
#[test]
fn cancels_of_unknown_keys_have_a_quota() {
    simulate(async {
        let broker = Arc::new(MemoryBroker::default());
        let town = Town::of(ModelStore::new(SHARDS, 3, None), broker, shop(10));
        let process = town.start();
        process.known().await;
        for number in 0..5 {
            assert_eq!(process.cancel(number).await, Ok(CancelledOnce::Marked), "{number}");
        }
        // One call takes no more room than there is.
        let many = process.timers.cancel_once("shop", (5..30).map(key).collect()).await;
        let marked = many.iter().filter(|answer| **answer == Ok(CancelledOnce::Marked)).count();
        assert_eq!(marked, 5, "{many:?}");
        assert_eq!(process.cancel(30).await, Err(TimersError::NoRoomForMark));
        assert_eq!(process.cancel(3).await, Ok(CancelledOnce::Cancelled), "it takes no more room");
        sleep_ms(20_000).await;
        assert_eq!(process.cancel(10).await, Err(TimersError::NoRoomForMark), "they are counted");
        let added = process.timers.add_by_queue("shop", vec![town.task(20, 1_000)]).await;
        assert!(matches!(added[..], [Err(AddError::QuotaWaiting { .. })]), "{added:?}");
        process.close().await;
        // When their time is over, there is room again.
        sleep_ms(26 * 3_600_000).await;
        let process = town.start();
        wait_for("the marks to go", 120_000, || town.store.used_count() == 0).await;
        assert_eq!(process.cancel(10).await, Ok(CancelledOnce::Marked));
        process.close().await;
    });
}

/// Records with an id that is not the store's are set aside and not dropped, and the id's owner is told.
#[test]
fn a_mistyped_store_id_is_told_and_its_records_are_set_aside() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        let first = town.start();
        first.known().await;
        town.store.away_for(Duration::from_secs(20));
        let elsewhere = tempfile::tempdir().unwrap();
        let mistyped = AddQueueOptions { store_id: Some(0xbad), ..options() };
        let process = town.start_with(mistyped, elsewhere.path());
        process.add(&town, 0..3, 1_000).await;
        sleep_ms(30_000).await;
        let refused = process.timers.add_by_queue("shop", vec![town.task(5, 1_000)]).await;
        assert!(
            matches!(&refused[..], [Err(AddError::QueueAway(what))] if what.contains("0000000000000bad"))
        );
        assert!(process.queue.check().unwrap_err().contains("store_id"));
        let aside: Vec<SetAside> = [town.folder.path(), elsewhere.path()]
            .into_iter()
            .flat_map(|folder| read_set_aside(folder).unwrap().0)
            .collect();
        let keys: BTreeSet<String> =
            aside.iter().map(|aside| aside.timer.as_ref().unwrap().key.clone()).collect();
        assert_eq!(keys, ["order-0", "order-1", "order-2"].map(str::to_owned).into());
        assert!(aside.iter().all(|aside| aside.reason == "other_store"));
        first.close().await;
        process.close().await;
    });
}

/// Two fleets with the same options on two stores: each has a group of its own, and takes its own timers alone.
#[test]
fn two_stores_on_the_same_topics_take_nothing_from_each_other() {
    simulate(async {
        let one = Town::new(ModelStore::new(SHARDS, 3, None));
        let two = Town::of(ModelStore::new(SHARDS, 4, None), Arc::clone(&one.broker), shop(1_000));
        let (first, second) = (one.start(), two.start());
        first.known().await;
        second.known().await;
        let dispatchers = [one.dispatcher(), two.dispatcher()];
        first.add(&one, 0..50, 1_000).await;
        second.add(&two, 100..150, 1_000).await;
        sleep_ms(20_000).await;
        assert_eq!((one.fired(), two.fired()), (all(0..50), all(100..150)));
        assert_eq!(one.broker.groups(TOPICS[0]).len(), 2);
        assert_eq!((one.set_aside().len(), two.set_aside().len()), (50, 50));
        assert!(one.set_aside().iter().all(|aside| aside.reason == "other_store"));
        first.close().await;
        second.close().await;
        for dispatcher in dispatchers {
            dispatcher.drain(Duration::from_secs(5)).await;
        }
    });
}

/// A process that ends does not give a name to a store that was made anew.
#[test]
fn a_process_that_ends_makes_no_id() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        town.store.away_for(Duration::from_secs(10));
        let process = town.start();
        sleep_ms(5_000).await;
        process.close().await;
        sleep_ms(60_000).await;
        assert_eq!(town.store.queue_id_now(), None);
    });
}

/// A server that is killed loses what it took last: what is not committed yet is read again, by itself.
#[test]
fn a_server_that_lost_its_last_seconds_gets_them_again() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        let process = town.start();
        process.known().await;
        process.add(&town, 0..200, 30_000).await;
        wait_for("all to be taken", 10_000, || process.queue.stats().stored.get() == 200).await;
        assert_eq!(town.broker.committed(TOPICS[0]), 0, "not yet");
        town.store.restart_empty();
        assert_eq!(town.store.waiting_count(), 0);
        wait_for("them again", 20_000, || town.store.waiting_count() == 200).await;
        assert!(process.queue.stats().rereads.get() >= 1);
        let dispatcher = town.dispatcher();
        wait_for("all to fire", 60_000, || town.fired().len() >= 200).await;
        sleep_ms(10_000).await;
        assert_eq!(town.fired(), all(0..200));
        assert_eq!(town.broker.committed(TOPICS[0]), 200);
        process.close().await;
        dispatcher.drain(Duration::from_secs(5)).await;
    });
}

/// A process that has reached its store once takes adds at its next start, though the store is away.
#[test]
fn the_next_start_takes_adds_before_it_has_reached_the_store() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        let fresh = town.start();
        let refused = fresh.timers.add_by_queue("shop", vec![town.task(1, 1_000)]).await;
        assert!(matches!(refused[..], [Err(AddError::QueueAway(_))]), "nobody knows the id: {refused:?}");
        fresh.known().await;
        fresh.close().await;
        town.store.away_for(Duration::from_secs(60));
        let process = town.start();
        process.add(&town, 0..10, 1_000).await;
        let dispatcher = town.dispatcher();
        wait_for("all to fire", 120_000, || town.fired().len() == 10).await;
        process.close().await;
        dispatcher.drain(Duration::from_secs(5)).await;
    });
}

#[test]
fn what_cannot_be_added_by_the_queue_is_refused_and_leaves_nothing() {
    simulate(async {
        let town = Town::new(ModelStore::new(SHARDS, 3, None));
        let process = town.start();
        process.known().await;
        let good = town.task(1, 1_000);
        let tasks = vec![
            NewTask { key: None, ..good.clone() },
            NewTask { target: "nowhere".into(), ..good.clone() },
            NewTask { payload: vec![0; 70_000].into(), ..good.clone() },
            good.clone(),
        ];
        let answers = process.timers.add_by_queue("shop", tasks).await;
        assert!(
            matches!(
                answers[..],
                [
                    Err(AddError::KeyMissing),
                    Err(AddError::UnknownTarget(_)),
                    Err(AddError::PayloadTooLong(_)),
                    Ok(())
                ]
            ),
            "{answers:?}"
        );
        assert_eq!(town.broker.written(TOPICS[0]), 1);
        town.writer.refuses.store(true, SeqCst);
        let refused = process.timers.add_by_queue("shop", vec![town.task(2, 1_000)]).await;
        assert!(matches!(refused[..], [Err(AddError::QueueAway(_))]), "{refused:?}");
        town.writer.refuses.store(false, SeqCst);
        town.writer.loses_answers.store(true, SeqCst);
        let unknown = process.timers.add_by_queue("shop", vec![town.task(3, 1_000)]).await;
        assert!(matches!(unknown[..], [Err(AddError::QueueUnknown(_))]), "{unknown:?}");
        let without = Timers::start(
            TimersOptions::default(),
            Arc::clone(&town.tenants),
            Arc::clone(&town.store) as Arc<dyn SlotStore>,
            clock(),
        );
        assert_eq!(without.add_by_queue("shop", vec![good]).await, [Err(AddError::NoQueue)]);
        assert_eq!(without.cancel_once("shop", vec![key(1)]).await, [Err(TimersError::NoQueue)]);
        process.timers.close().await;
        process.queue.close(Duration::from_secs(1)).await;
        let closing = process.timers.add_by_queue("shop", vec![town.task(4, 1_000)]).await;
        assert_eq!(closing, [Err(AddError::Closing)]);
    });
}
