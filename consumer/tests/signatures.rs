//! Nothing is granted of a record that nobody has signed, and no such record holds up those behind it. // I12
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;

use fake::{Troubles, World, record_of, rules};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use windfall_consumer::{ConsumerHandle, Options, Signatures, Unsigned};
use windfall_contract::rewards::Rejection;
use windfall_contract::rules::{Queue, Ratio, Topic};
use windfall_proto::record;
use windfall_signing::{KeyFile, LiveRing, QueueTag, Ring, Signer, Verifier};

const TENANT: &str = "acme";

struct Setup {
    _dir: tempfile::TempDir,
    keys: PathBuf,
    ring: LiveRing,
    world: Arc<World>,
}

/// Keys 1 (`mall`) and 2 (`consumer`, which may copy), and a topic `rain-a` of the queue `rain`.
fn setup(unsigned: Unsigned) -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("signing.toml");
    let mut file = KeyFile::create(&keys, "mall", false, 1).unwrap();
    file.add("consumer", true, 1).unwrap();
    file.promote(2).unwrap();
    let ring = LiveRing::new(Ring::load(&keys).unwrap());
    let mut rules = rules(&["cash", "badge"]);
    for queue in ["rain", "other"] {
        let [master, backup] = ["a", "b"].map(|side| format!("{queue}-{side}"));
        for (topic, broker) in [(&master, "a"), (&backup, "b")] {
            rules.topics.insert(topic.clone(), Topic { broker: broker.into(), partitions: 4 });
        }
        rules.queues.insert(queue.into(), Queue { master, backup, ratio: Ratio::ALL });
    }
    let world = World::new(4, 7, dir.path(), rules);
    *world.signatures.lock() = Some(Signatures { verifier: Verifier::new(&ring, TENANT), unsigned });
    *world.signer.lock() = Some(Signer::new(&ring, "consumer", TENANT).unwrap());
    Setup { _dir: dir, keys, ring, world }
}

impl Setup {
    fn signed(&self, sender: &str, tenant: &str, queue: &str, record: &[u8]) -> Vec<u8> {
        Signer::new(&self.ring, sender, tenant).unwrap().sign_record(record, QueueTag::of(queue)).unwrap()
    }

    fn mall(&self, prefix: &str, count: u32) -> Vec<u8> {
        self.signed("mall", TENANT, "rain", &record_of("cash", prefix, count))
    }

    fn start(&self) -> ConsumerHandle {
        self.world.start_as("rain-a@a", self.world.new_limiter(), Options::default())
    }

    /// A record of five events whose signature has a flipped bit.
    fn flipped(&self, prefix: &str) -> Vec<u8> {
        let mut record = self.mall(prefix, 5);
        let at = signature_at(&record);
        record[at + 20] ^= 0x40;
        record
    }

    fn archived_as_unverified(&self) -> usize {
        let state = self.world.state.lock();
        assert!(state.archived.values().all(|rejection| *rejection == Rejection::Unverified));
        assert!(
            state.archived.keys().all(|order| !state.credited.contains_key(order)),
            "granted and archived"
        );
        state.archived_raw.len()
    }
}

/// A file of keys that is newer than the ring of the consumer: the mall has promoted another key.
struct Newer<'s> {
    setup: &'s Setup,
}

impl<'s> Newer<'s> {
    fn of(setup: &'s Setup) -> Self {
        let mut file = KeyFile::open(&setup.keys).unwrap();
        let id = file.add("mall", false, 1).unwrap();
        file.promote(id).unwrap();
        Self { setup }
    }

    fn signed(&self, prefix: &str) -> Vec<u8> {
        let ring = LiveRing::new(Ring::load(&self.setup.keys).unwrap());
        let signer = Signer::new(&ring, "mall", TENANT).unwrap();
        signer.sign_record(&record_of("cash", prefix, 5), QueueTag::of("rain")).unwrap()
    }

    fn follow(&self) {
        self.setup.ring.replace(Ring::load(&self.setup.keys).unwrap(), None).unwrap();
    }
}

/// Where the first byte of the signature stands, its version.
fn signature_at(record: &[u8]) -> usize {
    record::signed_parts(record).unwrap().head.len() + 2
}

fn without_signature(signed: &[u8]) -> Vec<u8> {
    let parts = record::signed_parts(signed).unwrap();
    [parts.head, parts.events].concat()
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_archived_and_counted_and_what_is_behind_it_is_granted() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    let good = record_of("cash", "forged", 5);
    let mut unknown_key = setup.mall("unknown", 5);
    let at = signature_at(&unknown_key);
    unknown_key[at + 4] = 99;
    let mut newer = setup.mall("newer", 5);
    let at = signature_at(&newer);
    newer[at] = 9;
    let mut copy_of = Vec::new();
    record::split(&good).unwrap().0.encode(&mut copy_of);
    record::put_origin(&mut copy_of, 2);
    copy_of.extend_from_slice(record::signed_parts(&good).unwrap().events);
    let bad = [
        ("unsigned", good.clone()),
        ("unsigned", without_signature(&setup.mall("stripped", 5))),
        ("forged", setup.flipped("flipped")),
        ("forged", setup.signed("mall", "other-tenant", "rain", &good)),
        ("wrong_queue", setup.signed("mall", TENANT, "other", &good)),
        ("unknown_key", unknown_key),
        ("version", newer),
        ("no_copier", setup.signed("mall", TENANT, "rain", &copy_of)),
        ("malformed", b"\xff\xff\xff".to_vec()),
        ("malformed", setup.mall("cut", 5)[..12].to_vec()),
        // A bare event, which is no record.
        ("malformed", vec![0x0a, 3, b'a', b'-', b'1', 0x12]),
    ];
    for (n, (_, record)) in bad.iter().enumerate() {
        world.append(n % 4, record.clone());
        world.append(n % 4, setup.mall(&format!("good{n}"), 5));
    }
    let consumer = setup.start();
    world.settle(Duration::from_secs(60)).await;
    assert_eq!(setup.archived_as_unverified(), bad.len());
    assert_eq!(world.state.lock().credited.len(), bad.len() * 5);
    let stats = consumer.stats();
    for reason in windfall_signing::Refused::NAMES {
        let expected = bad.iter().filter(|(name, _)| *name == reason).count();
        assert_eq!(stats.refused(reason), expected as u64, "{reason}");
    }
    assert_eq!((stats.malformed.get(), stats.unsigned.get()), (0, 0));
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// The archive is away for long. Such a record goes to no queue, where another topic might take it, and the window waits.
#[tokio::test(start_paused = true)]
async fn it_waits_for_the_archive_and_goes_to_no_queue() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    *world.troubles.lock() = Troubles { archive_down: 100, ..Troubles::default() };
    world.append(0, record_of("cash", "forged", 5));
    (0..40).for_each(|n| world.append(n % 4, setup.mall(&format!("good{n}"), 5)));
    let consumer = setup.start();
    // Far beyond the head-of-line deadline of two seconds.
    tokio::time::sleep(Duration::from_secs(120)).await;
    {
        let state = world.state.lock();
        assert_eq!(state.credited.len(), 200, "what is behind it is granted");
        assert_eq!((state.archived_raw.len(), state.requeued_records), (0, 0));
        assert!(state.committed[0] <= state.partitions[0][0].offset, "I3: nothing is committed past it");
    }
    assert_eq!(consumer.stats().refused("unsigned"), 1);
    *world.troubles.lock() = Troubles::default();
    world.settle(Duration::from_secs(60)).await;
    assert_eq!(setup.archived_as_unverified(), 1);
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// The consumer closes while the archive is away: the record stays unfinished, and its next reader refuses it again.
#[tokio::test(start_paused = true)]
async fn a_drain_leaves_it_to_the_next_reader() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    *world.troubles.lock() = Troubles { archive_down: 100, ..Troubles::default() };
    world.append(0, record_of("cash", "forged", 5));
    let consumer = setup.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let report = consumer.drain(Duration::from_secs(5)).await.unwrap();
    assert_eq!(report.unfinished_records, 1);
    assert_eq!(world.state.lock().requeued_records, 0);
    *world.troubles.lock() = Troubles::default();
    let consumer = setup.start();
    world.settle(Duration::from_secs(60)).await;
    assert_eq!(setup.archived_as_unverified(), 1);
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// Copies are signed by the consumer, name the key of the original, and are granted.
#[tokio::test(start_paused = true)]
async fn copies_are_verified_in_their_turn() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    *world.troubles.lock() = Troubles { retry: 20, ..Troubles::default() };
    (0..40).for_each(|n| world.append(n % 4, setup.mall(&format!("good{n}"), 5)));
    let consumer = setup.start();
    world.settle(Duration::from_secs(600)).await;
    {
        let state = world.state.lock();
        assert_eq!((state.credited.len(), state.archived_raw.len()), (200, 0));
        assert!(state.requeued_records > 0);
        let records: Vec<_> = state.partitions.iter().flatten().collect();
        let origin = |payload: &[u8]| record::signed_parts(payload).unwrap().origin;
        let copies = records.iter().filter(|stored| record::split(&stored.payload).unwrap().0.attempt > 0);
        let origins: std::collections::BTreeSet<u32> = copies.map(|stored| origin(&stored.payload)).collect();
        assert_eq!(origins, [1].into(), "also those of copies of copies");
    }
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// A thief's records wait in a lane or to be due when the operator destroys his key. None of them is granted, whatever comes
/// next; those of others are.
#[tokio::test(start_paused = true)]
async fn what_waits_when_its_key_is_destroyed_is_granted_no_more() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    *world.troubles.lock() = Troubles { undecided: 100, ..Troubles::default() };
    (0..40).for_each(|n| world.append(n % 4, setup.mall(&format!("loot{n}"), 5)));
    let mut own = record_of("cash", "own", 5);
    own = setup.signed("consumer", TENANT, "rain", &own);
    world.append(0, own);
    let consumer = setup.start();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.state.lock().credited.len(), 0);
    let mut file = KeyFile::open(&setup.keys).unwrap();
    file.retire(1).unwrap();
    file.destroy(1).unwrap();
    setup.ring.replace(Ring::load(&setup.keys).unwrap(), None).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    *world.troubles.lock() = Troubles::default();
    world.settle(Duration::from_secs(120)).await;
    assert_eq!((setup.archived_as_unverified(), consumer.stats().refused("destroyed_key")), (40, 40));
    {
        let state = world.state.lock();
        assert!(state.credited.keys().all(|order| order.starts_with("own")), "{:?}", state.credited);
        assert_eq!(state.credited.len(), 5);
    }
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// A ring that comes into force while records wait: what was verified stays so, what comes later is judged by it.
#[tokio::test(start_paused = true)]
async fn a_destroyed_key_is_refused_from_the_next_record_on() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    world.append(0, setup.mall("before", 5));
    let late = setup.mall("late", 5);
    let consumer = setup.start();
    world.settle(Duration::from_secs(60)).await;
    let mut file = KeyFile::open(&setup.keys).unwrap();
    file.retire(1).unwrap();
    file.destroy(1).unwrap();
    setup.ring.replace(Ring::load(&setup.keys).unwrap(), None).unwrap();
    world.append(0, late);
    world.settle(Duration::from_secs(60)).await;
    assert_eq!((setup.archived_as_unverified(), consumer.stats().refused("destroyed_key")), (1, 1));
    assert_eq!(world.state.lock().credited.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn unsigned_records_are_granted_and_counted_where_that_is_said_by_name() {
    let setup = setup(Unsigned::Accept);
    let world = &setup.world;
    world.append(0, record_of("cash", "foreign", 5));
    world.append(1, setup.flipped("flipped"));
    world.append(2, b"\xff\xff\xff".to_vec());
    world.append(3, setup.mall("good", 5));
    *world.troubles.lock() = Troubles { retry: 30, ..Troubles::default() };
    let consumer = setup.start();
    world.settle(Duration::from_secs(600)).await;
    let stats = consumer.stats();
    assert_eq!((stats.accepts_unsigned.get(), stats.refuses_unsigned.get()), (1, 0));
    assert_eq!((stats.refused("forged"), stats.malformed.get()), (1, 1));
    // Copies of what nobody had signed are signed by the consumer, and stay what they are.
    assert!(stats.unsigned.get() > 1, "{}", stats.unsigned.get());
    assert_eq!(world.state.lock().credited.len(), 10);
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// A sender has a newer ring than the consumer. What it owes is not thrown away: it waits, holds nobody up, and is granted.
#[tokio::test(start_paused = true)]
async fn a_record_with_a_key_that_comes_later_waits_and_is_granted() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    let newer = Newer::of(&setup);
    world.append(0, newer.signed("late"));
    // A copy by another consumer, which has the newer ring.
    let mut copy = Vec::new();
    let original = record_of("cash", "copied", 5);
    record::split(&original).unwrap().0.encode(&mut copy);
    record::put_origin(&mut copy, 3);
    copy.extend_from_slice(record::signed_parts(&original).unwrap().events);
    world.append(1, setup.signed("consumer", TENANT, "rain", &copy));
    (0..40).for_each(|n| world.append(n % 4, setup.mall(&format!("good{n}"), 5)));
    let consumer = setup.start();
    tokio::time::sleep(Duration::from_secs(10)).await;
    {
        let state = world.state.lock();
        assert_eq!(state.credited.len(), 200, "what is behind them is granted");
        assert!(state.archived_raw.is_empty());
        let first = state.partitions[0][0].offset;
        assert!(state.committed[0] <= first, "I3: nothing is committed past it");
    }
    assert_eq!(consumer.stats().waiting_for_key.get(), 2);
    newer.follow();
    world.settle(Duration::from_secs(1)).await;
    assert_eq!(world.state.lock().credited.len(), 210);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stats = consumer.stats();
    assert_eq!((stats.waiting_for_key.get(), stats.refused("unknown_key"), stats.archived.get()), (0, 0, 0));
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// Nobody can keep records waiting by naming keys that will never be: a key is waited for once.
#[tokio::test(start_paused = true)]
async fn a_key_is_waited_for_once() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    let newer = Newer::of(&setup);
    world.append(0, newer.signed("late"));
    let consumer = setup.start();
    world.settle(Duration::from_secs(20)).await;
    assert_eq!(setup.archived_as_unverified(), 1, "the ring did not come");
    world.append(0, newer.signed("later"));
    world.settle(Duration::from_secs(1)).await;
    assert_eq!((setup.archived_as_unverified(), consumer.stats().refused("unknown_key")), (2, 2));
    newer.follow();
    world.append(0, newer.signed("good"));
    world.settle(Duration::from_secs(1)).await;
    assert_eq!(world.state.lock().credited.len(), 5);
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// Nothing waits any more when the ring changes. What lacks something after that is waited for as before.
#[tokio::test(start_paused = true)]
async fn waiting_does_not_switch_itself_off() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    let foreign = |prefix| setup.signed("mall", TENANT, "other", &record_of("cash", prefix, 5));
    world.append(0, foreign("first"));
    let consumer = setup.start();
    world.settle(Duration::from_secs(20)).await;
    assert_eq!(setup.archived_as_unverified(), 1);
    setup.ring.replace(Ring::load(&setup.keys).unwrap(), None).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.append(0, foreign("second"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((setup.archived_as_unverified(), consumer.stats().waiting_for_key.get()), (1, 1));
    world.settle(Duration::from_secs(20)).await;
    assert_eq!(setup.archived_as_unverified(), 2);
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// Garbage under many numbers of keys. The key of a sender that is ahead is waited for all the same.
#[tokio::test(start_paused = true)]
async fn garbage_does_not_end_the_waiting_for_a_key_that_comes() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    let newer = Newer::of(&setup);
    for key in 40..240 {
        let mut garbage = setup.mall("garbage", 1);
        let at = signature_at(&garbage);
        garbage[at + 4] = key;
        world.append(usize::from(key) % 4, garbage);
    }
    let consumer = setup.start();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((setup.archived_as_unverified(), consumer.stats().waiting_for_key.get()), (200, 0));
    world.append(0, newer.signed("late"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(consumer.stats().waiting_for_key.get(), 1);
    newer.follow();
    world.settle(Duration::from_secs(5)).await;
    assert_eq!(world.state.lock().credited.len(), 5);
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// A rolling restart in the middle of a rotation: the process goes at once, archives nothing of what waits, and the next one
/// grants it.
#[tokio::test(start_paused = true)]
async fn a_drain_leaves_what_waits_for_a_key_to_the_next_reader() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    let newer = Newer::of(&setup);
    world.append(0, newer.signed("late"));
    world.append(0, setup.mall("good", 5));
    let consumer = setup.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = tokio::time::Instant::now();
    let report = consumer.drain(Duration::from_secs(30)).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "it waited for {:?}", began.elapsed());
    assert_eq!(report.unfinished_records, 1);
    {
        let state = world.state.lock();
        assert_eq!((state.archived_raw.len(), state.requeued_records, state.credited.len()), (0, 0, 5));
    }
    newer.follow();
    let consumer = setup.start();
    world.settle(Duration::from_secs(5)).await;
    assert_eq!(world.state.lock().credited.len(), 10);
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// The partition of a record that waits for a key goes and comes back: the record is judged by whoever has it then, and by nobody
/// twice.
#[tokio::test(start_paused = true)]
async fn what_waits_for_a_key_goes_with_its_partition() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    let newer = Newer::of(&setup);
    (0..20).for_each(|n| world.append(n % 4, newer.signed(&format!("late{n}"))));
    let consumer = setup.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(consumer.stats().waiting_for_key.get(), 20);
    world.rebalance(0);
    world.rebalance(2);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(consumer.stats().waiting_for_key.get(), 20, "they came again");
    newer.follow();
    world.settle(Duration::from_secs(5)).await;
    let state = world.state.lock();
    assert_eq!((state.credited.len(), state.archived_raw.len()), (100, 0));
}

/// Rules give the topic to another queue, and the sender has heard of it first.
#[tokio::test(start_paused = true)]
async fn a_record_for_a_queue_that_new_rules_give_the_topic_to_waits_for_these() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    let record = record_of("cash", "moved", 5);
    world.append(0, setup.signed("mall", TENANT, "other", &record));
    let consumer = setup.start();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(consumer.stats().waiting_for_key.get(), 1);
    world.set_rules(|rules| {
        let rain = rules.queues.remove("rain").unwrap();
        rules.queues.insert("other".into(), rain);
    });
    world.settle(Duration::from_secs(1)).await;
    assert_eq!(world.state.lock().credited.len(), 5);
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}

/// Garbage under ever other keys takes bounded room, and what is behind it is granted at once.
#[tokio::test(start_paused = true)]
async fn garbage_under_many_keys_holds_nobody_up() {
    let setup = setup(Unsigned::Refuse);
    let world = &setup.world;
    for n in 0..2_000_u32 {
        let mut garbage = setup.mall(&format!("bad{n}"), 1);
        let at = signature_at(&garbage);
        garbage[at + 1..at + 5].copy_from_slice(&(1_000 + n).to_be_bytes());
        world.append(n as usize % 4, garbage);
    }
    (0..40).for_each(|n| world.append(n % 4, setup.mall(&format!("good{n}"), 5)));
    let consumer = setup.start();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.state.lock().credited.len(), 200);
    let stats = consumer.stats();
    assert!(stats.waiting_for_key.get() <= 64, "{}", stats.waiting_for_key.get());
    world.settle(Duration::from_secs(60)).await;
    assert_eq!((setup.archived_as_unverified(), stats.refused("unknown_key")), (2_000, 2_000));
    assert!(consumer.drain(Duration::from_secs(5)).await.unwrap().is_clean());
}
