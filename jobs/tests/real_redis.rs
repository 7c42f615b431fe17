//! The store of entries on real Redis servers: the contract, the model, refusals, restarts, losses, a cluster that moves.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windfall_conformance::entries::{self, Fixture};
use windfall_conformance::redis_nodes::{self, SlotMoves, asked, command};
use windfall_contract::due::{Durability, Shard};
use windfall_contract::entries::{
    Applied, Entry, EntryChange, EntryError, EntryGroup, EntryKey, EntryStore, Expect, To,
};
use windfall_jobs::store::redis::{OpenRedisError, RedisEntries, RedisEntriesOptions};
use windfall_servers::{Private, RedisOptions as ServerOptions, Spec};

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(90);

struct Redis {
    name: &'static str,
    options: RedisEntriesOptions,
}

#[async_trait]
impl Fixture for Redis {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self) -> Result<Arc<dyn EntryStore>, String> {
        let store = RedisEntries::open(self.options.clone()).await.map_err(|error| error.to_string())?;
        Ok(store)
    }

    async fn beside(&self, _open: &Arc<dyn EntryStore>) -> Result<Arc<dyn EntryStore>, String> {
        self.open().await
    }

    async fn wait_ms(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    fn clock_back_ms(&self, _ms: u64) -> bool {
        false
    }
}

/// Keys of this run alone, and time limits for a machine that is busy with other tests.
fn patient(options: RedisEntriesOptions) -> RedisEntriesOptions {
    let prefix = format!("test-{}-{}", std::process::id(), now_ms());
    RedisEntriesOptions { prefix, call_timeout_ms: 20_000, connect_timeout_ms: 20_000, ..options }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

async fn start(spec: impl Into<Spec> + Send + 'static) -> Private {
    tokio::task::spawn_blocking(|| Private::start(spec).unwrap()).await.unwrap()
}

async fn single() -> Private {
    start(ServerOptions::default()).await
}

async fn open(server: &Private) -> (Arc<RedisEntries>, RedisEntriesOptions) {
    let options = patient(RedisEntriesOptions::at(server.url()));
    (RedisEntries::open(options.clone()).await.unwrap(), options)
}

async fn until(what: &str, reached: impl AsyncFnMut() -> bool) {
    redis_nodes::until(what, PATIENCE, reached).await;
}

fn key(name: &str) -> EntryKey {
    EntryKey::new(name.as_bytes().to_vec()).unwrap()
}

fn change(name: &str, expect: Expect, value: &str) -> EntryChange {
    let to = To::Put { value: value.as_bytes().to_vec().into(), wake_ms: Some(1_000) };
    EntryChange { key: key(name), expect, to }
}

fn put(name: &str, value: &str) -> EntryChange {
    change(name, Expect::Anything, value)
}

fn delete(name: &str) -> EntryChange {
    EntryChange { key: key(name), expect: Expect::Anything, to: To::Deleted }
}

async fn apply(store: &RedisEntries, shard: Shard, changes: Vec<EntryChange>) -> Result<Applied, EntryError> {
    let group = EntryGroup { changes, not_after_ms: None };
    Ok(store.apply(shard, &[group]).await?.1[0])
}

async fn done(store: &RedisEntries, shard: Shard, changes: Vec<EntryChange>) -> u64 {
    match apply(store, shard, changes).await.unwrap() {
        Applied::Done(version) => version,
        other => panic!("{other:?}"),
    }
}

async fn values(store: &RedisEntries, shard: Shard) -> Result<Vec<(EntryKey, String)>, EntryError> {
    let page = store.scan(shard, b"", None, 1_000).await?;
    let value = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    Ok(page.entries.into_iter().map(|entry| (entry.key, value(&entry.value))).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn one_server_conforms() {
    let server = single().await;
    let fixture = Redis { name: "redis", options: patient(RedisEntriesOptions::at(server.url())) };
    let failed = entries::run(&fixture).await;
    assert!(failed.is_empty(), "{failed:#?}");
    entries::run_model(&fixture, 10, 200).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_cluster_conforms_and_is_followed_when_slots_move_and_nodes_die() {
    let cluster = start(Spec::RedisCluster).await;
    let urls: Vec<String> = cluster.url().split(',').map(str::to_owned).collect();
    // One address is enough to learn the others, and one that is away does not matter.
    let options = patient(RedisEntriesOptions::cluster(["redis://127.0.0.1:1", urls[1].as_str()]));
    let fixture = Redis { name: "cluster", options: options.clone() };
    let failed = entries::run(&fixture).await;
    assert!(failed.is_empty(), "{failed:#?}");
    entries::run_model(&fixture, 5, 100).await.unwrap();

    let options = RedisEntriesOptions { prefix: format!("{}-moved", options.prefix), ..options };
    let store = RedisEntries::open(options.clone()).await.unwrap();
    slots_move_under_load(&store, &urls, &options.prefix).await;

    // A node that dies takes its shards with it, and comes back with them.
    let all = async || {
        let mut all = Vec::new();
        for shard in (0..store.shards()).map(Shard) {
            all.push(values(&store, shard).await?);
        }
        Ok::<_, EntryError>(all)
    };
    let before = all().await.unwrap();
    cluster.part("node2").unwrap().kill().unwrap();
    until("a refusal", async || all().await.is_err()).await;
    cluster.part("node2").unwrap().start().unwrap();
    until("all of it again", async || all().await.is_ok_and(|found| found == before)).await;
}

/// Moves the shards of the first node one by one while entries are made, changed, deleted, read and woken: no call fails,
/// and each is carried out as a whole.
async fn slots_move_under_load(store: &Arc<RedisEntries>, urls: &[String], prefix: &str) {
    let (is_over, reached) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (own, over, at) = (Arc::clone(store), Arc::clone(&is_over), Arc::clone(&reached));
    let load = tokio::spawn(async move {
        let mut rounds = 0_u64;
        let mut versions = vec![0; 64];
        while !over.load(SeqCst) {
            let shard = Shard(u16::try_from(rounds % 64).unwrap());
            let last = &mut versions[usize::from(shard.0)];
            let (round, own_key) = (rounds.to_string(), format!("own-{}", rounds % 7));
            let expect = if *last == 0 { Expect::Absent } else { Expect::Version(*last) };
            let changes =
                vec![change("a", expect, &round), change("b", expect, &round), put(&own_key, &round)];
            let Applied::Done(version) = apply(&own, shard, changes).await.unwrap() else {
                panic!("somebody else has changed shard {shard:?}");
            };
            *last = version;
            let found = own.read(shard, &[key("a"), key("b"), key("none")]).await.unwrap();
            let found: Vec<_> = found.iter().map(|one| one.as_ref().map(|one| one.version)).collect();
            assert_eq!(found, [Some(version), Some(version), None]);
            let woken = own.woken(shard, 1_000).await.unwrap().entries;
            assert_eq!(values(&own, shard).await.unwrap().len(), woken.len());
            done(&own, shard, vec![delete(&own_key)]).await;
            own.numbers(shard, 1).await.unwrap();
            rounds += 1;
            at.store(rounds, SeqCst);
        }
    });
    // Each shard twice.
    until("rounds", async || reached.load(SeqCst) > 128 || load.is_finished()).await;
    let (moves, mut moved) = (SlotMoves::between(urls).await, 0);
    for shard in 0..64 {
        if let Some(slot) = moves.slot_of(&format!("{{{prefix}:{shard:04x}}}:m")).await {
            moved += moves.run_slowly(slot, Duration::from_millis(20)).await;
        }
    }
    is_over.store(true, SeqCst);
    load.await.unwrap();
    assert!(moved > 20, "{moved} moved");
    for shard in (0..store.shards()).map(Shard) {
        let found = values(store, shard).await.unwrap();
        assert_eq!(found.len(), 2, "shard {shard:?}");
        assert_eq!(found[0].1, found[1].1, "shard {shard:?}");
    }
}

/// Whatever was answered before a kill is there after it, as a whole, and no version and no number is given twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn killed_and_restarted_in_mid_stream() {
    let server = single().await;
    let options =
        RedisEntriesOptions { call_timeout_ms: 2_000, ..patient(RedisEntriesOptions::at(server.url())) };
    let store = RedisEntries::open(options).await.unwrap();
    let shard = Shard(1);
    let (is_over, reached) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (own, over, at) = (Arc::clone(&store), Arc::clone(&is_over), Arc::clone(&reached));
    let writer = tokio::spawn(async move {
        let (mut versions, mut numbers, mut failures) = (BTreeSet::new(), BTreeSet::new(), 0);
        let mut round = 0_u64;
        while !over.load(SeqCst) {
            round += 1;
            let text = round.to_string();
            let changes = vec![put("last", &text), put(&format!("k-{}", round % 40), &text)];
            match apply(&own, shard, changes).await {
                Ok(Applied::Done(version)) => assert!(versions.insert(version), "{version} twice"),
                Ok(other) => panic!("{other:?}"),
                Err(_) => {
                    failures += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            }
            // It is there, and nothing that came after it.
            if let Ok(found) = own.read(shard, &[key("last"), key(&format!("k-{}", round % 40))]).await {
                let found: Vec<_> = found.into_iter().map(|one| one.unwrap().value).collect();
                assert_eq!(found, [text.clone(), text]);
            }
            if let Ok(first) = own.numbers(shard, 3).await {
                (first..first + 3).for_each(|number| assert!(numbers.insert(number), "{number} twice"));
                at.fetch_add(1, SeqCst);
            }
        }
        (versions, numbers, failures)
    });
    let more = async || {
        let before = reached.load(SeqCst);
        until("changes", async || reached.load(SeqCst) > before + 100 || writer.is_finished()).await;
    };
    for _ in 0..3 {
        more().await;
        server.kill().unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.start().unwrap();
    }
    more().await;
    is_over.store(true, SeqCst);
    let (versions, numbers, failures) = writer.await.unwrap();
    assert!(failures > 0 && versions.len() > 400, "{failures} failures, {} changes", versions.len());
    assert!(*numbers.last().unwrap() > 1_000_000, "another run skips numbers");
    // The server has forgotten the scripts, and nothing else.
    command(server.url(), &["SCRIPT", "FLUSH"]).await.unwrap();
    assert!(done(&store, shard, vec![put("last", "end")]).await > *versions.last().unwrap());
}

/// A frozen server costs one time-out; what was sent to it is in doubt, and is not sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_frozen_server_is_unavailable_in_time() {
    let server = single().await;
    let options = RedisEntriesOptions {
        call_timeout_ms: 500,
        connect_timeout_ms: 5_000,
        ..patient(RedisEntriesOptions::at(server.url()))
    };
    let store = RedisEntries::open(options).await.unwrap();
    let shard = Shard(2);
    let version = done(&store, shard, vec![put("a", "0")]).await;
    server.freeze().unwrap();
    let mut longest = Duration::ZERO;
    for round in 0..12 {
        let started = Instant::now();
        let answer = match round % 4 {
            0 => apply(&store, shard, vec![change("a", Expect::Version(version), "1")]).await.map(drop),
            1 => store.read(shard, &[key("a")]).await.map(drop),
            2 => store.woken(shard, 1).await.map(drop),
            _ => store.numbers(shard, 1).await.map(drop),
        };
        assert!(matches!(answer, Err(EntryError::Unavailable(_))), "{answer:?}");
        longest = longest.max(started.elapsed());
    }
    // The rest is for a machine that stands still meanwhile.
    assert!(longest < Duration::from_millis(500 + 5_000), "{longest:?}");
    server.thaw().unwrap();
    until("an answer", async || store.read(shard, &[key("a")]).await.is_ok()).await;
    // Read before it is repeated: it is done or not, once.
    let entry = store.read(shard, &[key("a")]).await.unwrap().remove(0).unwrap();
    let is_done = entry.value == "1";
    assert_eq!(entry.version > version, is_done);
    let again = apply(&store, shard, vec![change("a", Expect::Version(version), "1")]).await.unwrap();
    assert_eq!(again == Applied::Conflict, is_done, "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_store_opened_later_begins_when_its_server_does() {
    let server = single().await;
    server.kill().unwrap();
    let options =
        RedisEntriesOptions { connect_timeout_ms: 1_000, ..patient(RedisEntriesOptions::at(server.url())) };
    let store = RedisEntries::open_later(options).unwrap();
    let error = values(&store, Shard(1)).await.unwrap_err();
    assert!(error.to_string().contains("not reached yet"), "{error}");
    let error = store.connect().await.unwrap_err();
    assert!(error.may_pass(), "{error}");
    assert_eq!(store.durability(), Durability::Process);
    let error = apply(&store, Shard(1), vec![put("a", "1")]).await.unwrap_err();
    assert!(matches!(error, EntryError::Unavailable(_)), "{error}");
    server.start().unwrap();
    until("a connection", async || store.connect().await.is_ok()).await;
    done(&store, Shard(1), vec![put("a", "1")]).await;
    assert_eq!(store.durability(), Durability::EverySecond);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn open_says_what_is_wrong() {
    let server = single().await;
    let (_, options) = open(&server).await;
    let open = async |options| RedisEntries::open(options).await.map(drop);
    let error = open(RedisEntriesOptions { shards: 128, ..options.clone() }).await.unwrap_err();
    assert!(error.to_string().contains("made with 64"), "{error}");
    let config = async |name: &str, value: &str| {
        command(server.url(), &["CONFIG", "SET", name, value]).await.unwrap();
    };
    let strict = RedisEntriesOptions { needs_disk_sync: true, ..options.clone() };
    let error = open(strict.clone()).await.unwrap_err();
    assert!(error.to_string().contains("appendfsync always"), "{error}");
    config("appendfsync", "always").await;
    assert_eq!(RedisEntries::open(strict).await.unwrap().durability(), Durability::Machine);
    config("maxmemory-policy", "allkeys-lru").await;
    let error = open(options.clone()).await.unwrap_err();
    assert!(error.to_string().contains("set maxmemory-policy noeviction"), "{error}");
    open(RedisEntriesOptions { allow_eviction: true, ..options.clone() }).await.unwrap();
    config("maxmemory-policy", "noeviction").await;
    config("appendonly", "no").await;
    let error = open(options.clone()).await.unwrap_err();
    assert!(error.to_string().contains("set appendonly yes"), "{error}");
    open(RedisEntriesOptions { allow_without_appendonly: true, ..options.clone() }).await.unwrap();
    config("appendonly", "yes").await;
    for wrong in [
        RedisEntriesOptions { prefix: "a{b".into(), ..options.clone() },
        RedisEntriesOptions { shards: 2_000, ..options.clone() },
    ] {
        assert!(matches!(open(wrong).await, Err(OpenRedisError::Invalid(_))));
    }

    // A user who may do all but one thing would be stopped in the middle of a call.
    for denied in ["zadd", "zrem", "hdel", "hset", "hmget", "zrangebylex", "zrangebyscore", "info"] {
        let but = format!("-{denied}");
        let user = ["ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "+@all", &but];
        command(server.url(), &user).await.unwrap();
        let (username, password) = (Some("limited".into()), Some("secret".into()));
        let error = open(RedisEntriesOptions { username, password, ..options.clone() }).await.unwrap_err();
        assert!(matches!(error, OpenRedisError::Credentials { .. }), "{denied}: {error:?}");
    }
    let mut user = vec!["ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*"];
    let rights = "+eval +evalsha +exists +time +info +hget +hmget +hset +hdel +zadd +zrem +zcard +zrangebylex \
                  +zrangebyscore +set +get +config|get +role +ping";
    user.extend(rights.split(' ').filter(|word| !word.is_empty()));
    command(server.url(), &user).await.unwrap();
    let (username, password) = (Some("limited".into()), Some("secret".into()));
    let limited = RedisEntriesOptions { username, password, ..options };
    let limited = RedisEntries::open(limited).await.unwrap();
    done(&limited, Shard(1), vec![put("a", "1"), delete("b")]).await;
    assert_eq!(values(&limited, Shard(1)).await.unwrap().len(), 1);
    assert_eq!(limited.woken(Shard(1), 1).await.unwrap().entries.len(), 1);
    assert_eq!(limited.read(Shard(1), &[key("a")]).await.unwrap().len(), 1);
    assert_eq!(limited.numbers(Shard(1), 1).await, Ok(1));
}

/// A full server takes no new entries, and loses none; what is there can be changed and deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_full_server_refuses_whole_calls() {
    let server = single().await;
    let (store, _) = open(&server).await;
    let shard = Shard(3);
    let version = done(&store, shard, vec![put("a", "1"), put("b", "1"), put("c", "1")]).await;
    command(server.url(), &["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    for changes in [vec![put("new", "x")], vec![put("a", "x"), delete("b"), put("new", "x")]] {
        let error = apply(&store, shard, changes).await.unwrap_err();
        assert!(matches!(&error, EntryError::Unavailable(what) if what.contains("full")), "{error}");
    }
    let before = store.scan(shard, b"", None, 10).await.unwrap().entries;
    assert!(before.len() == 3 && before.iter().all(|entry| entry.version == version), "{before:?}");
    let error = store.numbers(shard, 1).await.unwrap_err();
    assert!(error.to_string().contains("OOM") || error.to_string().contains("maxmemory"), "{error}");

    let next = done(&store, shard, vec![change("a", Expect::Version(version), "2"), delete("b")]).await;
    assert!(next > version);
    assert_eq!(apply(&store, shard, vec![change("c", Expect::Absent, "x")]).await, Ok(Applied::Conflict));
    done(&store, shard, vec![delete("c")]).await;
    assert_eq!(values(&store, shard).await.unwrap(), [(key("a"), "2".to_owned())]);
    assert_eq!(store.woken(shard, 10).await.unwrap().entries.len(), 1);
    command(server.url(), &["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    done(&store, shard, vec![put("new", "x")]).await;
}

/// What jobs never list has no place in the order of keys, and is read, woken, refused by a full server and deleted all the
/// same; so is what a store wrote that lists it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn what_jobs_never_list_is_read_woken_and_deleted() {
    let server = single().await;
    let (lists_all, options) = open(&server).await;
    let store = RedisEntries::open(options.clone().for_jobs()).await.unwrap();
    let (url, shard) = (server.url(), Shard(3));
    let of = |name: &str| format!("{{{}:0003}}:{name}", options.prefix);
    let listed = async || asked::<Vec<String>>(url, &["ZRANGE", &of("k"), "0", "-1"]).await;

    done(&lists_all, shard, vec![put("r/old", "1"), put("n/old", "1")]).await;
    let made = done(&store, shard, vec![put("r/new", "1"), put("n/new", "1"), put("rest", "1")]).await;
    done(&store, shard, vec![change("r/new", Expect::Version(made), "2"), put("r/old", "2")]).await;
    assert_eq!(listed().await, ["n/new", "n/old", "r/old", "rest"]);
    assert_eq!(store.woken(shard, 10).await.unwrap().entries.len(), 5);
    let found = store.read(shard, &[key("r/new"), key("r/old")]).await.unwrap();
    assert!(found.into_iter().all(|entry| entry.is_some_and(|entry| entry.value == "2")));
    let indexed = store.scan(shard, b"n/", None, 10).await.unwrap().entries;
    assert_eq!(indexed.into_iter().map(|entry| entry.key).collect::<Vec<_>>(), [key("n/new"), key("n/old")]);
    for prefix in [&b""[..], b"r", b"r/", b"r/new"] {
        let refused = store.scan(shard, prefix, None, 10).await;
        assert!(matches!(refused, Err(EntryError::Unusable(_))), "{prefix:?}: {refused:?}");
    }

    command(url, &["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    assert!(matches!(apply(&store, shard, vec![put("r/more", "1")]).await, Err(EntryError::Unavailable(_))));
    done(&store, shard, vec![put("r/new", "3")]).await;
    done(&store, shard, vec![delete("r/old"), delete("n/old"), delete("rest")]).await;
    // A store that lists all forgets, too, what is not listed.
    done(&lists_all, shard, vec![delete("r/new")]).await;
    assert_eq!(listed().await, ["n/new"]);
    assert_eq!(store.woken(shard, 10).await.unwrap().entries.len(), 1);
    assert_eq!(asked::<u64>(url, &["HLEN", &of("e")]).await, 1);
}

/// Of a mark the key alone is kept. Those of a store without marks are found and deleted, too; a group that is refused leaves none; and
/// a full server takes none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn of_marks_the_key_alone_is_kept() {
    let server = single().await;
    let (lists_all, options) = open(&server).await;
    let store = RedisEntries::open(options.clone().for_jobs()).await.unwrap();
    let (url, shard) = (server.url(), Shard(3));
    let of = |name: &str| format!("{{{}:0003}}:{name}", options.prefix);
    let mark = |name: &str| EntryChange {
        key: key(name),
        expect: Expect::Anything,
        to: To::Put { value: Bytes::new(), wake_ms: None },
    };
    let found = async |prefix: &[u8], after: Option<EntryKey>, limit| {
        let page = store.scan(shard, prefix, after.as_ref(), limit).await.unwrap();
        let is_bare = |entry: &Entry| entry.value.is_empty() && entry.wake_ms.is_none() && entry.version == 0;
        assert!(page.entries.iter().all(is_bare), "{page:?}");
        let keys: Vec<_> = page.entries.into_iter().map(|entry| entry.key).collect();
        (keys, page.next)
    };

    done(&lists_all, shard, vec![mark("i/1")]).await;
    done(&store, shard, vec![put("r/2", "1"), mark("i/2"), mark("x/2")]).await;
    done(&store, shard, vec![mark("i/3"), mark("i/2")]).await;
    assert_eq!(asked::<Vec<String>>(url, &["HKEYS", &of("e")]).await.len(), 2, "i/1 and r/2");
    assert_eq!(found(b"i/", None, 2).await, (vec![key("i/1"), key("i/2")], Some(key("i/2"))));
    assert_eq!(found(b"i/", Some(key("i/2")), 2).await, (vec![key("i/3")], None));
    assert_eq!(found(b"x/2", None, 9).await, (vec![key("x/2")], None));

    // Together with its group or not at all, and the last group of a call has the last word.
    let group = |changes| EntryGroup { changes, not_after_ms: None };
    let refused = vec![change("r/2", Expect::Absent, "2"), mark("i/4"), delete("i/3")];
    let (_, applied) = store
        .apply(
            shard,
            &[
                group(refused),
                group(vec![mark("i/5")]),
                group(vec![delete("i/5"), delete("i/1")]),
                group(vec![delete("x/2")]),
                group(vec![mark("x/2")]),
            ],
        )
        .await
        .unwrap();
    assert_eq!(applied[0], Applied::Conflict);
    assert!(applied[1..].iter().all(|one| matches!(one, Applied::Done(_))), "{applied:?}");
    assert_eq!(found(b"i/", None, 9).await.0, [key("i/2"), key("i/3")]);
    assert_eq!(found(b"x/", None, 9).await.0, [key("x/2")]);

    command(url, &["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    assert!(matches!(apply(&store, shard, vec![mark("i/6")]).await, Err(EntryError::Unavailable(_))));
    done(&store, shard, vec![put("r/2", "2"), mark("i/2"), mark("x/2")]).await;
    done(&store, shard, vec![delete("r/2"), delete("i/2"), delete("i/3"), delete("x/2")]).await;
    assert_eq!(asked::<u64>(url, &["EXISTS", &of("e"), &of("k"), &of("w")]).await, 0);
}

/// A fail-over or a machine that died may have lost the last changes: who holds the version of a lost one finds a conflict,
/// and no number is given twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn versions_and_numbers_of_lost_changes_are_not_given_again() {
    let server = single().await;
    let (store, options) = open(&server).await;
    let (url, shard) = (server.url(), Shard(4));
    let of = |name: &str| format!("{{{}:0004}}:{name}", options.prefix);
    let kept = done(&store, shard, vec![put("a", "kept")]).await;
    let number = store.numbers(shard, 10).await.unwrap() + 9;
    let counters: Vec<String> = asked(url, &["HGETALL", &of("m")]).await;
    let entry: Vec<u8> = asked(url, &["HGET", &of("e"), "a"]).await;
    let mut lost = kept;
    for round in 0..20 {
        lost = done(&store, shard, vec![change("a", Expect::Version(lost), &round.to_string())]).await;
    }
    let lost_number = store.numbers(shard, 1_000).await.unwrap() + 999;
    // The replica that takes over knows of none of it, and is another run.
    let client = redis::Client::open(url).unwrap();
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
    let mut back = redis::pipe();
    back.cmd("DEL").arg(of("m")).ignore();
    back.cmd("HSET").arg(of("m")).arg(&counters[..]).arg("r").arg("another").ignore();
    back.cmd("HSET").arg(of("e")).arg("a").arg(entry).ignore();
    let () = back.query_async(&mut connection).await.unwrap();

    let mut version = kept;
    for round in 0..40 {
        version = done(&store, shard, vec![change("a", Expect::Version(version), &round.to_string())]).await;
        assert!(version > lost, "the version of a lost change is given again");
        let stale = apply(&store, shard, vec![change("a", Expect::Version(lost), "stale")]).await;
        assert_eq!(stale, Ok(Applied::Conflict));
    }
    let next = store.numbers(shard, 1).await.unwrap();
    assert!(next > lost_number && next == number + 1_000_001, "{next} after {lost_number}");
    assert_eq!(store.numbers(shard, 1).await, Ok(next + 1), "the same run skips none");
}

/// A key that somebody else has put there refuses the call before a part of it is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_key_of_another_type_refuses_the_call_as_a_whole() {
    let server = single().await;
    let (store, options) = open(&server).await;
    for name in ["e", "k", "w", "m"] {
        let shard = Shard(5);
        let foreign = format!("{{{}:0005}}:{name}", options.prefix);
        command(server.url(), &["SET", &foreign, "x"]).await.unwrap();
        let error = apply(&store, shard, vec![put("a", "1")]).await.unwrap_err();
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
        let mine = format!("{{{}:0005}}:*", options.prefix);
        let found: Vec<String> = asked(server.url(), &["KEYS", &mine]).await;
        assert_eq!(found, std::slice::from_ref(&foreign));
        command(server.url(), &["DEL", &foreign]).await.unwrap();
    }
    done(&store, Shard(5), vec![put("a", "1")]).await;
}

/// What changes cost: bytes of an entry of 200 bytes, and the server's CPU time for a group of three changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn what_changes_cost() {
    const GROUPS: u64 = 60_000;
    const BATCH: u64 = 300;
    let server = single().await;
    let url = server.url();
    let info = async |section: &str, name: &str| -> f64 {
        let report: String = asked(url, &["INFO", section]).await;
        let line = report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().trim().parse().unwrap()
    };
    let cpu_s = async || info("cpu", "used_cpu_user").await + info("cpu", "used_cpu_sys").await;
    let (store, _) = open(&server).await;
    let (bytes, cpu, began) = (info("memory", "used_memory").await, cpu_s().await, Instant::now());
    let value = "v".repeat(200);
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let (store, value) = (Arc::clone(&store), value.clone());
            tokio::spawn(async move {
                for call in (caller..GROUPS / BATCH).step_by(4) {
                    let group = |at: u64| EntryGroup {
                        changes: vec![
                            put(&format!("job/{:04}", at % 100), &value),
                            change(&format!("run/{at:012}"), Expect::Absent, &value),
                            delete(&format!("gone/{at:012}")),
                        ],
                        not_after_ms: None,
                    };
                    let groups: Vec<_> = (0..BATCH).map(|at| group(call * BATCH + at)).collect();
                    let shard = Shard(u16::try_from(call % 64).unwrap());
                    let (_, applied) = store.apply(shard, &groups).await.unwrap();
                    assert!(applied.iter().all(|one| matches!(one, Applied::Done(_))));
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let (took, cpu) = (began.elapsed(), cpu_s().await - cpu);
    let bytes = info("memory", "used_memory").await - bytes;
    #[allow(clippy::cast_precision_loss, reason = "a report")]
    let groups = GROUPS as f64;
    println!(
        "entries: {:.0} B an entry and {:.2} µs of Redis's CPU a group of 3 changes, {GROUPS} by {BATCH} in {took:?}",
        bytes / groups,
        cpu * 1e6 / groups
    );
}

/// The user of the shipped file does its work with the rights there, and reaches no keys of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn the_shipped_user_suffices_and_reaches_no_other_keys() {
    let server = single().await;
    redis_nodes::give_users(server.url()).await;
    let options = RedisEntriesOptions {
        username: Some("windfall-jobs".into()),
        password: Some(redis_nodes::PASSWORD.into()),
        call_timeout_ms: 20_000,
        connect_timeout_ms: 20_000,
        ..RedisEntriesOptions::at(server.url())
    };
    let failed = entries::run(&Redis { name: "redis", options }).await;
    assert!(failed.is_empty(), "{failed:#?}");
    redis_nodes::refuses(server.url(), "windfall-jobs", redis_nodes::FOR_NO_USER).await;
    let others: [&[&str]; 4] = [
        &["HMGET", "windfall:tokens:1", "a"],
        &["HMGET", "{wf:0000}:s", "a"],
        &["HMGET", "{wfq:0000}:s", "a"],
        &["EVAL", "return redis.call('HGET', KEYS[1], 'a')", "1", "windfall:tokens:1"],
    ];
    redis_nodes::refuses(server.url(), "windfall-jobs", &others).await;
}
