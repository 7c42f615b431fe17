//! The slot store on real Redis servers: the contract, what it costs, refusals, restarts, a cluster that moves.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windfall_conformance::redis_nodes::{self, SlotMoves, asked, command};
use windfall_conformance::slots::{self, Fixture};
use windfall_contract::due::{
    Added, CancelOnce, CancelledOnce, Change, Changed, DeadTask, Durability, FinishBatch, KEY_MARGIN_MS,
    KnownName, LeaseError, Moved, NameKept, NewRecord, ReadFrom, Route, Shard, SlotEntry, SlotStore,
    StoreError, TaskAt, TaskId, TaskKey, Waiting,
};
use windfall_servers::{Private, RedisOptions as ServerOptions, Servers, Spec};
use windfall_slots::redis::{OpenRedisError, RedisSlots, RedisSlotsOptions};

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(90);

struct Redis {
    name: &'static str,
    options: RedisSlotsOptions,
    /// All nodes.
    urls: Vec<String>,
}

#[async_trait]
impl Fixture for Redis {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self) -> Result<Arc<dyn SlotStore>, String> {
        let store = RedisSlots::open(self.options.clone()).await.map_err(|error| error.to_string())?;
        Ok(store)
    }

    fn now_ms(&self) -> u64 {
        now_ms()
    }

    async fn wait_ms(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Moves what the server remembers of its clock.
    async fn clock_back_ms(&self, ms: u64) -> Result<(), String> {
        for url in &self.urls {
            let mine = format!("{{{}:*}}:[mb]", self.options.prefix);
            let names: Vec<String> = asked(url, &["KEYS", &mine]).await;
            for name in names {
                let fields: Vec<String> = asked(url, &["HGETALL", &name]).await;
                for pair in fields.chunks_exact(2) {
                    let later = match pair[1].split_once(':') {
                        Some((end, ttl)) => format!("{}:{ttl}", end.parse::<u64>().unwrap() + ms),
                        None if ["w", "u"].contains(&&*pair[0]) => {
                            (pair[1].parse::<u64>().unwrap() + ms).to_string()
                        }
                        None => continue,
                    };
                    asked::<i64>(url, &["HSET", &name, &pair[0], &later]).await;
                }
            }
        }
        Ok(())
    }

    fn clock_ahead_ms(&self, _ms: u64) -> bool {
        false
    }
}

/// Keys of this run alone, and time limits for a machine that is busy with other tests.
fn patient(options: RedisSlotsOptions) -> RedisSlotsOptions {
    let prefix = format!("test-{}-{}", std::process::id(), now_ms());
    RedisSlotsOptions { prefix, call_timeout_ms: 20_000, connect_timeout_ms: 20_000, ..options }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

fn single() -> Private {
    Private::start(ServerOptions::default()).unwrap()
}

fn task(due_ms: u64, payload: &str) -> NewRecord {
    let payload = bytes::Bytes::copy_from_slice(payload.as_bytes());
    NewRecord { due_ms, route: Route { tenant: 1, target: 1 }, key: None, payload }
}

fn stored(added: &[Added]) -> Vec<TaskId> {
    let id = |added: &Added| match added {
        Added::Stored(id) => *id,
        Added::Exists(id) => panic!("{id} exists"),
    };
    added.iter().map(id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn one_server_conforms() {
    let servers =
        tokio::task::spawn_blocking(|| Servers::from_env_or_start(&["redis"]).unwrap()).await.unwrap();
    let url = servers.server("redis").unwrap().url().to_owned();
    let options = patient(RedisSlotsOptions::at(&url));
    let failed = slots::run(&Redis { name: "redis", options, urls: vec![url] }).await;
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_cluster_conforms_and_is_followed_when_slots_move_and_nodes_die() {
    let cluster = Private::start(Spec::RedisCluster).unwrap();
    let urls: Vec<String> = cluster.url().split(',').map(str::to_owned).collect();
    // One address is enough to learn the others, and one that is away does not matter.
    let options = patient(RedisSlotsOptions::cluster(["redis://127.0.0.1:1", urls[1].as_str()]));
    let fixture = Redis { name: "cluster", options: options.clone(), urls: urls.clone() };
    let failed = slots::run(&fixture).await;
    assert!(failed.is_empty(), "{failed:#?}");

    let options = RedisSlotsOptions { prefix: format!("{}-moved", options.prefix), ..options };
    let store = RedisSlots::open(options.clone()).await.unwrap();
    slots_move_under_load(&store, &urls, &options.prefix).await;

    // A node that dies takes its shards with it, and comes back with them.
    let before: Vec<_> = all_counts(&store).await.unwrap();
    cluster.part("node2").unwrap().kill().unwrap();
    until("a refusal", async || all_counts(&store).await.is_err()).await;
    cluster.part("node2").unwrap().start().unwrap();
    until("all of it again", async || all_counts(&store).await.is_ok_and(|counts| counts == before)).await;
}

async fn all_counts(store: &RedisSlots) -> Result<Vec<u64>, StoreError> {
    let mut counts = Vec::new();
    for shard in 0..store.shards() {
        counts.push(store.counts(Shard(shard)).await?.values().sum());
    }
    Ok(counts)
}

async fn until(what: &str, reached: impl AsyncFnMut() -> bool) {
    redis_nodes::until(what, PATIENCE, reached).await;
}

/// Moves the shards of the first node one by one while tasks are added, moved and cancelled: no call fails, and each is
/// carried out as a whole.
async fn slots_move_under_load(store: &Arc<RedisSlots>, urls: &[String], prefix: &str) {
    let due_ms = now_ms() + 3_600_000;
    let is_over = Arc::new(AtomicBool::new(false));
    let (own, over) = (Arc::clone(store), Arc::clone(&is_over));
    let load = tokio::spawn(async move {
        let (mut rounds, mut waiting) = (0_u64, vec![0_u64; 64]);
        while !over.load(SeqCst) {
            let shard = Shard(u16::try_from(rounds % 64).unwrap());
            let batch: Vec<_> =
                (0..20).map(|minute| task(due_ms + (rounds + minute) * 60_000, "x")).collect();
            let ids = stored(&own.add(shard, &batch).await.unwrap());
            let mut changes: Vec<_> =
                ids[..5].iter().map(|id| Change { tenant: 1, at: TaskAt::Id(*id), to: None }).collect();
            let later = Moved { due_ms: Some(due_ms + 40 * 60_000), payload: None };
            changes.extend(ids[5..10].iter().map(|id| Change {
                tenant: 1,
                at: TaskAt::Id(*id),
                to: Some(later.clone()),
            }));
            let changed = own.change(shard, &changes).await.unwrap();
            assert!(changed.iter().all(|changed| matches!(changed, Changed::Done(_))), "{changed:?}");
            waiting[usize::from(shard.0)] += 15;
            rounds += 1;
        }
        (rounds, waiting)
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (moves, mut moved) = (SlotMoves::between(urls).await, 0);
    for shard in 0..64 {
        if let Some(slot) = moves.slot_of(&format!("{{{prefix}:{shard:04x}}}:m")).await {
            moved += moves.run(slot).await;
        }
    }
    is_over.store(true, SeqCst);
    let (rounds, waiting) = load.await.unwrap();
    assert!(rounds > 10 && moved > 20, "{rounds} rounds, {moved} moved");
    assert_eq!(all_counts(store).await.unwrap(), waiting, "by the counts");
    let (mut found, mut after) = (vec![0; 64], None);
    loop {
        let page = store.list(1, after, 1_000).await.unwrap();
        page.tasks.iter().for_each(|task| found[usize::from(task.id.shard.0)] += 1);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, waiting, "by the tasks themselves");
}

/// A server that was emptied has the same numbers again as soon as somebody who knows them says so, and gives them to nobody
/// else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn names_that_a_flush_took_are_put_back() {
    let server = single();
    let store = RedisSlots::open(patient(RedisSlotsOptions::at(server.url()))).await.unwrap();
    let mut known = Vec::new();
    for tenant in ["acme", "beta", "gamma"] {
        let number = store.tenant(tenant).await.unwrap();
        let target = Some((store.target(number, "out").await.unwrap(), "out".to_owned()));
        known.push(KnownName { tenant: (number, tenant.to_owned()), target });
    }
    assert_eq!(store.keep_names(&known).await.unwrap(), [NameKept::Same; 3]);
    command(server.url(), &["FLUSHALL"]).await.unwrap();
    assert_eq!(store.keep_names(&known).await.unwrap(), [NameKept::PutBack; 3]);
    assert_eq!(store.keep_names(&known).await.unwrap(), [NameKept::Same; 3]);
    assert_eq!(store.tenant("delta").await.unwrap(), 4);
    for KnownName { tenant: (number, name), target } in known {
        assert_eq!(store.tenant(&name).await.unwrap(), number);
        let (target, _) = target.unwrap();
        assert_eq!(store.target(number, "out").await.unwrap(), target);
        let names = store.names(Route { tenant: number, target }).await.unwrap();
        assert_eq!(names, Some((name, "out".to_owned())));
    }
}

/// Who names tenants first after a flush has their numbers: whoever knows others is told, and changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_number_that_another_has_by_now_is_used_for_nobody() {
    let server = single();
    let store = RedisSlots::open(patient(RedisSlotsOptions::at(server.url()))).await.unwrap();
    let (acme, beta) = (store.tenant("acme").await.unwrap(), store.tenant("beta").await.unwrap());
    let out = store.target(acme, "out").await.unwrap();
    command(server.url(), &["FLUSHALL"]).await.unwrap();
    assert_eq!(store.tenant("beta").await.unwrap(), acme);
    let name = |number: u16, name: &str| KnownName { tenant: (number, name.to_owned()), target: None };
    let of_acme = KnownName { target: Some((out, "out".to_owned())), ..name(acme, "acme") };
    let kept = store.keep_names(&[name(acme, "acme"), of_acme, name(beta, "beta")]).await.unwrap();
    assert_eq!(kept, [NameKept::Taken, NameKept::Taken, NameKept::Moved]);
    assert_eq!(store.names(Route { tenant: acme, target: out }).await.unwrap(), None);
    assert_eq!(store.tenant("beta").await.unwrap(), acme);
    let anew = store.tenant("acme").await.unwrap();
    assert!(anew > acme && anew > beta, "{anew}");
}

/// I10: whatever was answered Ok before a kill is there after it, also what fired and who owns what.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn killed_and_restarted_in_mid_stream() {
    let server = single();
    let options =
        RedisSlotsOptions { call_timeout_ms: 2_000, ..patient(RedisSlotsOptions::at(server.url())) };
    let store = RedisSlots::open(options).await.unwrap();
    let lease = store.acquire(Shard(1), "one", 600_000).await.unwrap().unwrap();
    let due_ms = now_ms() + 3_600_000;
    let is_over = Arc::new(AtomicBool::new(false));
    let (own, over) = (Arc::clone(&store), Arc::clone(&is_over));
    let writer = tokio::spawn(async move {
        let (mut waiting, mut cancelled, mut failures) = (BTreeSet::new(), BTreeSet::new(), 0);
        while !over.load(SeqCst) {
            let batch: Vec<_> = (0..50).map(|at| task(due_ms + at * 10_000, "x")).collect();
            let Ok(added) = own.add(Shard(1), &batch).await else {
                failures += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let ids = stored(&added);
            waiting.extend(&ids[1..]);
            let cancel = Change { tenant: 1, at: TaskAt::Id(ids[0]), to: None };
            match own.change(Shard(1), &[cancel]).await {
                Ok(changed) => {
                    assert_eq!(changed, [Changed::Done(ids[0])]);
                    cancelled.insert(ids[0]);
                }
                Err(_) => failures += 1,
            }
        }
        (waiting, cancelled, failures)
    });
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        server.kill().unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.start().unwrap();
    }
    until("an answer", async || store.counts(Shard(1)).await.is_ok()).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    is_over.store(true, SeqCst);
    let (waiting, cancelled, failures) = writer.await.unwrap();
    assert!(failures > 0 && waiting.len() > 1_000, "{failures} failures, {} tasks", waiting.len());
    for (ids, expected) in [(&waiting, Waiting::Waiting), (&cancelled, Waiting::Cancelled)] {
        let at: Vec<_> = ids.iter().map(|id| TaskAt::Id(*id)).collect();
        for at in at.chunks(500) {
            let found = store.get(Shard(1), 1, at).await.unwrap();
            let wrong = found.iter().filter(|found| found.as_ref().is_none_or(|one| one.state != expected));
            assert_eq!(wrong.count(), 0, "{expected:?}");
        }
    }
    // The server has forgotten the scripts, and nothing else.
    store.renew(&lease, 1_000).await.unwrap();
    let newer = windfall_contract::due::Lease { epoch: lease.epoch + 1, ..lease };
    assert_eq!(store.renew(&newer, 1_000).await, Err(LeaseError::Lost));
    command(server.url(), &["SCRIPT", "FLUSH"]).await.unwrap();
    store.add(Shard(2), &[task(due_ms, "x")]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn open_says_what_is_wrong() {
    let server = single();
    let options = patient(RedisSlotsOptions::at(server.url()));
    let open = async |options| RedisSlots::open(options).await.map(drop);
    let store = RedisSlots::open(options.clone()).await.unwrap();
    assert_eq!(store.durability(), Durability::EverySecond);
    drop(store);
    let error = open(RedisSlotsOptions { shards: 128, ..options.clone() }).await.unwrap_err();
    assert!(error.to_string().contains("made with 64"), "{error}");
    let config = async |name: &str, value: &str| {
        command(server.url(), &["CONFIG", "SET", name, value]).await.unwrap();
    };
    config("appendfsync", "always").await;
    assert_eq!(RedisSlots::open(options.clone()).await.unwrap().durability(), Durability::Machine);
    config("maxmemory-policy", "allkeys-lru").await;
    let error = open(options.clone()).await.unwrap_err();
    assert!(error.to_string().contains("set maxmemory-policy noeviction"), "{error}");
    open(RedisSlotsOptions { allow_eviction: true, ..options.clone() }).await.unwrap();
    config("maxmemory-policy", "noeviction").await;
    config("appendonly", "no").await;
    let error = open(options.clone()).await.unwrap_err();
    assert!(error.to_string().contains("set appendonly yes"), "{error}");
    open(RedisSlotsOptions { allow_without_appendonly: true, ..options.clone() }).await.unwrap();
    config("appendonly", "yes").await;
    for wrong in [
        RedisSlotsOptions { prefix: "a{b".into(), ..options.clone() },
        RedisSlotsOptions { shards: 2_000, ..options },
    ] {
        assert!(matches!(open(wrong).await, Err(OpenRedisError::Invalid(_))));
    }

    let cluster = Private::start(Spec::RedisCluster).unwrap();
    let urls: Vec<String> = cluster.url().split(',').map(str::to_owned).collect();
    // Any master may be the one that forgets.
    command(&urls[2], &["CONFIG", "SET", "appendonly", "no"]).await.unwrap();
    let error = open(patient(RedisSlotsOptions::cluster(&urls[..1]))).await.unwrap_err();
    assert!(error.to_string().contains("set appendonly yes"), "{error}");
}

/// A full server refuses tasks and moves, and loses none; what is there can be cancelled, fired, finished and dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_full_server_refuses_whole_calls() {
    let server = single();
    let store = RedisSlots::open(patient(RedisSlotsOptions::at(server.url()))).await.unwrap();
    let due_ms = now_ms() + 3_600_000;
    let batch: Vec<_> = (0..50).map(|minute| task(due_ms + minute * 60_000, "x")).collect();
    let ids = stored(&store.add(Shard(3), &batch).await.unwrap());
    let past = stored(&store.add(Shard(3), &[task(now_ms() - 300_000, "past")]).await.unwrap())[0];
    command(server.url(), &["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    let error = store.add(Shard(3), &batch).await.unwrap_err();
    assert!(error.to_string().contains("OOM") || error.to_string().contains("maxmemory"), "{error}");
    assert_eq!(store.counts(Shard(3)).await.unwrap()[&1], 51);
    let change = |id, to| Change { tenant: 1, at: TaskAt::Id(id), to };
    let later = Moved { due_ms: Some(due_ms + 7_200_000), payload: None };
    let mixed = [change(ids[1], None), change(ids[0], Some(later))];
    for moves in [&mixed[1..], &mixed[..]] {
        let error = store.change(Shard(3), moves).await.unwrap_err();
        assert!(error.to_string().contains("OOM") || error.to_string().contains("maxmemory"), "{error}");
    }
    assert_eq!(store.counts(Shard(3)).await.unwrap()[&1], 51);
    store.tenant("new").await.unwrap_err();

    assert_eq!(store.change(Shard(3), &mixed[..1]).await.unwrap(), [Changed::Done(ids[1])]);
    assert_eq!(store.beat("one", 60_000).await.unwrap(), ["one"]);
    let lease = store.acquire(Shard(3), "one", 60_000).await.unwrap().unwrap();
    store.renew(&lease, 60_000).await.unwrap();
    let from = [ReadFrom { slot: past.slot, next_index: 0 }];
    let advanced = store.advance(&lease, 0, &from, 1_000).await.unwrap();
    assert_eq!((advanced.slots, advanced.entries.len()), (vec![(past.slot, 1)], 1));
    let record = store.get(Shard(3), 1, &[TaskAt::Id(past)]).await.unwrap().remove(0).unwrap().record;
    let (due_ms, reason) = (past.slot.start_ms(), "full".to_owned());
    let dead = DeadTask { id: past, due_ms, died_ms: due_ms + 1, attempts: 2, reason, record };
    let batch_over = FinishBatch {
        sequence: 1,
        done: vec![(0, vec![0x80].into())],
        over: BTreeMap::from([(1, 1)]),
        attempts: BTreeMap::from([(0, 2)]),
        dead: vec![dead],
        ..FinishBatch::default()
    };
    store.finish(&lease, past.slot, &batch_over).await.unwrap();
    assert_eq!(store.drop_slot(&lease, past.slot, 1).await, Ok(true));
    assert_eq!(store.end_dead(Shard(3), 1, &[past], false).await, Ok(vec![true]));
    store.release(&lease).await.unwrap();
    assert_eq!(store.counts(Shard(3)).await.unwrap()[&1], 49);
    command(server.url(), &["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    store.add(Shard(3), &batch).await.unwrap();
    assert_eq!(store.counts(Shard(3)).await.unwrap()[&1], 99);
}

/// A machine or a fail-over may lose the last second: an owner that has read entries which are lost learns of it before
/// others take their places, and no epoch is given twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn an_owner_learns_that_the_server_has_lost_what_it_read() {
    let server = single();
    let options = patient(RedisSlotsOptions::at(server.url()));
    let prefix = format!("{{{}:0004}}", options.prefix);
    let store = RedisSlots::open(options).await.unwrap();
    let (shard, due_ms) = (Shard(4), (now_ms() / 60_000 + 5) * 60_000);
    let ids = stored(&store.add(shard, &["a", "b", "c"].map(|payload| task(due_ms, payload))).await.unwrap());
    let (slot, list, meta) = (ids[0].slot, format!("{prefix}:l:{}", ids[0].slot.0), format!("{prefix}:m"));
    let old = store.acquire(shard, "one", 600_000).await.unwrap().unwrap();
    let from = [ReadFrom { slot, next_index: 0 }];
    for turn in ["1", "2"] {
        let advanced = store.advance(&old, 600_000, &from, 1_000).await.unwrap();
        assert_eq!((advanced.slots, advanced.entries[0].2.len()), (vec![(slot, 3)], 3));
        assert_eq!(asked::<String>(server.url(), &["HGET", &meta, "t"]).await, turn);
    }
    asked::<Vec<String>>(server.url(), &["RPOP", &list, "2"]).await;
    asked::<i64>(server.url(), &["HSET", &meta, "t", "1"]).await;
    let again = stored(&store.add(shard, &["d", "e"].map(|payload| task(due_ms, payload))).await.unwrap());
    assert_eq!(again, ids[1..]);
    let batch = FinishBatch { sequence: 1, done: vec![(0, vec![0x60].into())], ..FinishBatch::default() };
    assert_eq!(store.finish(&old, slot, &batch).await, Err(LeaseError::Lost));
    assert_eq!(store.drop_slot(&old, slot, 3).await, Err(LeaseError::Lost));
    assert_eq!(store.advance(&old, 600_000, &from, 1_000).await, Err(LeaseError::Lost));

    // The lease itself may be lost as well.
    command(server.url(), &["HDEL", &meta, "e", "o", "u"]).await.unwrap();
    let new = store.acquire(shard, "two", 600_000).await.unwrap().unwrap();
    assert!(new.epoch > old.epoch, "{} after {}", new.epoch, old.epoch);
    let advanced = store.advance(&new, 600_000, &from, 1_000).await.unwrap();
    let payload = |entry: &bytes::Bytes| match SlotEntry::decode(entry).unwrap() {
        SlotEntry::Task(record) => record.payload,
        SlotEntry::End(index) => panic!("{index} has ended"),
    };
    let read: Vec<_> = advanced.entries[0].2.iter().map(payload).collect();
    assert_eq!(read, ["a", "d", "e"]);
    store.finish(&new, slot, &batch).await.unwrap();
}

/// A script takes no more than some thousand arguments of a command at once: a call has more keys than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_call_with_more_keys_than_a_command_takes_is_whole() {
    const TASKS: usize = 9_500;
    let server = single();
    let options = patient(RedisSlotsOptions { shards: 16, ..RedisSlotsOptions::at(server.url()) });
    let store = RedisSlots::open(options).await.unwrap();
    let (shard, due_ms) = (Shard(4), (now_ms() / 60_000 + 5) * 60_000);
    let key = |number: u32| TaskKey::new(&number.to_be_bytes()).unwrap();
    let own = (0..).map(key).filter(|key| key.shard(1, 16) == shard);
    let keys: Vec<TaskKey> = own.take(TASKS).collect();
    let keyed = |key: &TaskKey| NewRecord { key: Some(key.clone()), ..task(due_ms, "x") };
    let tasks: Vec<_> = keys.iter().map(keyed).collect();
    let ids = stored(&store.add(shard, &tasks).await.unwrap());
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), TASKS);
    // Once more, with another one at each end: of what is there nothing is stored again.
    let more: Vec<_> = own_more(&keys, shard).iter().map(keyed).collect();
    let again = [&more[..1], &tasks[..], &more[1..]].concat();
    let again = store.add(shard, &again).await.unwrap();
    let before: Vec<_> = ids.iter().map(|id| Added::Exists(*id)).collect();
    assert_eq!(again[1..=TASKS], before);
    stored(&[again[0], again[TASKS + 1]]);
    assert_eq!(all_counts(&store).await.unwrap().iter().sum::<u64>(), TASKS as u64 + 2);

    // All are over by one call, and their keys are free.
    let lease = store.acquire(shard, "one", 600_000).await.unwrap().unwrap();
    let over = BTreeMap::from([(1, u32::try_from(TASKS).unwrap())]);
    let at = |(id, key): (&TaskId, &TaskKey)| (1, key.clone(), id.index);
    let batch = FinishBatch {
        sequence: 1,
        done: vec![(0, vec![0xff; TASKS / 8].into())],
        keys: ids.iter().zip(&keys).map(at).collect(),
        over,
        ..FinishBatch::default()
    };
    store.finish(&lease, ids[0].slot, &batch).await.unwrap();
    assert_eq!(all_counts(&store).await.unwrap().iter().sum::<u64>(), 2);
    let anew = stored(&store.add(shard, &tasks).await.unwrap());
    assert!(anew.iter().all(|id| !ids.contains(id)));
}

/// Two keys of the shard that are not among these.
fn own_more(keys: &[TaskKey], shard: Shard) -> Vec<TaskKey> {
    let known: BTreeSet<_> = keys.iter().collect();
    let all = (0_u32..).map(|number| TaskKey::new(&number.to_be_bytes()).unwrap());
    all.filter(|key| key.shard(1, 16) == shard && !known.contains(key)).take(2).collect()
}

/// Marks of used keys are moved into the past, which is the same to the server as a day that passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn marks_of_used_keys_go_when_their_time_is_over() {
    const DAY_MS: u64 = 86_400_000;
    let server = single();
    let options = patient(RedisSlotsOptions::at(server.url()));
    let (used, ended) = (format!("{{{}:0004}}:u", options.prefix), format!("{{{}:0004}}:x", options.prefix));
    let store = RedisSlots::open(options).await.unwrap();
    let shard = Shard(4);
    let keys = (0..).filter_map(|nth: u32| TaskKey::new(format!("k-{nth}").as_bytes()).ok());
    let keys: Vec<_> = keys.filter(|key| key.shard(1, store.shards()) == shard).take(2).collect();
    let cancel = |key: &TaskKey| CancelOnce { tenant: 1, key: key.clone(), may_mark: true };
    let marked = store.cancel_once(shard, &keys.iter().map(cancel).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(marked, [CancelledOnce::Marked; 2]);
    let first = asked::<Vec<String>>(server.url(), &["ZRANGE", &ended, "0", "0"]).await.remove(0);
    let ago = |ms: u64| format!("-{ms}");
    asked::<String>(server.url(), &["ZINCRBY", &ended, &ago(DAY_MS + KEY_MARGIN_MS / 2), &first]).await;
    store.add_once(shard, &[], DAY_MS).await.unwrap();
    assert_eq!(store.counts(shard).await.unwrap(), [(1, 2)].into(), "not yet");
    asked::<String>(server.url(), &["ZINCRBY", &ended, &ago(KEY_MARGIN_MS), &first]).await;
    store.add_once(shard, &[], 2 * DAY_MS).await.unwrap();
    assert_eq!(store.counts(shard).await.unwrap(), [(1, 2)].into(), "kept for longer from now on");
    store.add_once(shard, &[], DAY_MS).await.unwrap();
    assert_eq!(store.counts(shard).await.unwrap(), [(1, 1)].into());
    assert_eq!(asked::<i64>(server.url(), &["HLEN", &used]).await, 1);
    assert_eq!(asked::<i64>(server.url(), &["ZCARD", &ended]).await, 1);
}

/// The watermark may have gone back by a second: what is due by the server's clock may have fired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn what_is_due_by_the_servers_clock_cannot_be_cancelled() {
    let server = single();
    let store = RedisSlots::open(patient(RedisSlotsOptions::at(server.url()))).await.unwrap();
    let ids = stored(
        &store
            .add(Shard(6), &[task(now_ms() - 1_000, "due"), task(now_ms() + 600_000, "later")])
            .await
            .unwrap(),
    );
    let cancel = |id: &TaskId| Change { tenant: 1, at: TaskAt::Id(*id), to: None };
    let changed = store.change(Shard(6), &ids.iter().map(cancel).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(changed, [Changed::Firing, Changed::Done(ids[1])]);
}

/// The bar of `scheduler.bytes_per_task`: 1,000,000 tasks of 64 bytes over two hours on 64 shards take 85 bytes each at
/// most; and the server's CPU time for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn what_a_million_tasks_cost() {
    const TASKS: u64 = 1_000_000;
    const BATCH: u64 = 1_000;
    let server = single();
    let url = server.url();
    let info = async |section: &str, name: &str| -> f64 {
        let report: String = asked(url, &["INFO", section]).await;
        let line = report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().trim().parse().unwrap()
    };
    let cpu_s = async || info("cpu", "used_cpu_user").await + info("cpu", "used_cpu_sys").await;
    let store = RedisSlots::open(patient(RedisSlotsOptions::at(url))).await.unwrap();
    let start_ms = (now_ms() / 60_000 + 10) * 60_000;
    let payload = "p".repeat(64);
    let due_ms = move |at: u64| start_ms + at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 7_200_000;
    let (bytes_before, cpu_before, began) =
        (info("memory", "used_memory").await, cpu_s().await, Instant::now());
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let (store, payload) = (Arc::clone(&store), payload.clone());
            tokio::spawn(async move {
                for batch in (caller..TASKS / BATCH).step_by(8) {
                    let tasks: Vec<_> =
                        (0..BATCH).map(|at| task(due_ms(batch * BATCH + at), &payload)).collect();
                    store.add(Shard(u16::try_from(batch % 64).unwrap()), &tasks).await.unwrap();
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let (took, cpu) = (began.elapsed(), cpu_s().await - cpu_before);
    let bytes = (info("memory", "used_memory").await - bytes_before) / 1e6;
    println!("slots: {bytes:.1} B and {cpu:.2} µs of Redis's CPU a task, in {took:?} for {TASKS} by {BATCH}");
    assert!(bytes <= 85.0, "{bytes} B a task");
}

/// The user of the shipped file does its work with the rights there, and reaches no keys of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn the_shipped_user_suffices_and_reaches_no_other_keys() {
    let server = tokio::task::spawn_blocking(single).await.unwrap();
    redis_nodes::give_users(server.url()).await;
    let options = RedisSlotsOptions {
        username: Some("windfall-timers".into()),
        password: Some(redis_nodes::PASSWORD.into()),
        call_timeout_ms: 20_000,
        connect_timeout_ms: 20_000,
        ..RedisSlotsOptions::at(server.url())
    };
    let failed = slots::run(&Redis { name: "redis", options, urls: vec![server.url().to_owned()] }).await;
    assert!(failed.is_empty(), "{failed:#?}");
    redis_nodes::refuses(server.url(), "windfall-timers", redis_nodes::FOR_NO_USER).await;
    let others: [&[&str]; 4] = [
        &["HMGET", "windfall:tokens:1", "a"],
        &["HMGET", "{wfj:0000}:e", "a"],
        &["HMGET", "{wfq:0000}:s", "a"],
        &["EVAL", "return redis.call('HGET', KEYS[1], 'a')", "1", "windfall:tokens:1"],
    ];
    redis_nodes::refuses(server.url(), "windfall-timers", &others).await;
}
