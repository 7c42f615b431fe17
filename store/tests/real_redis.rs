//! The token store on real Redis servers: the contract, time limits, restarts, refusals, expiry, a cluster that moves.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use async_trait::async_trait;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windfall_conformance::redis_nodes::{self, SlotMoves, asked, command};
use windfall_conformance::tokens::{self, Fixture};
use windfall_contract::tokens::{NEVER, TokenKey, TokenPut, TokenStore, Unavailable};
use windfall_servers::{Private, RedisOptions as ServerOptions, Servers, Spec};
use windfall_store::redis::{OpenRedisError, RedisOptions, RedisStore};

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(90);

struct Redis {
    name: &'static str,
    options: RedisOptions,
}

#[async_trait]
impl Fixture for Redis {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self) -> Result<Arc<dyn TokenStore>, String> {
        let store = RedisStore::open(self.options.clone()).await.map_err(|error| error.to_string())?;
        Ok(store)
    }
}

/// Keys of this run alone, and time limits for a machine that is busy with other tests.
fn patient(options: RedisOptions) -> RedisOptions {
    let prefix = format!("test-{}-{}:", std::process::id(), now_ms());
    RedisOptions { prefix, call_timeout_ms: 20_000, connect_timeout_ms: 20_000, ..options }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

fn put(user_id: i64, name: &str) -> TokenPut {
    TokenPut { user_id, name: name.into(), token: "AQAB".into(), expires_at_ms: NEVER }
}

fn key(user_id: i64, name: &str) -> TokenKey {
    TokenKey { user_id, name: name.into() }
}

fn single() -> Private {
    Private::start(ServerOptions::default()).unwrap()
}

async fn until(what: &str, reached: impl AsyncFnMut() -> bool) {
    redis_nodes::until(what, PATIENCE, reached).await;
}

/// Puts until it is taken, as the SDK does.
async fn put_at_last(store: &RedisStore, batch: &[TokenPut]) {
    until("a put", async || store.put(batch).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn one_server_conforms() {
    let servers =
        tokio::task::spawn_blocking(|| Servers::from_env_or_start(&["redis"]).unwrap()).await.unwrap();
    let url = servers.server("redis").unwrap().url().to_owned();
    // Two users a pipeline: every batch is several.
    for options in
        [RedisOptions::at(&url), RedisOptions { pipeline_users: 2, connections: 1, ..RedisOptions::at(&url) }]
    {
        let failed = tokens::run(&Redis { name: "redis", options: patient(options) }).await;
        assert!(failed.is_empty(), "{failed:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_cluster_conforms_and_is_followed_when_slots_move_and_nodes_die() {
    let cluster = Private::start(Spec::RedisCluster).unwrap();
    let urls: Vec<String> = cluster.url().split(',').map(str::to_owned).collect();
    // One address is enough to learn the others, and one that is away does not matter.
    let seeds = ["redis://127.0.0.1:1", urls[1].as_str()];
    let options = patient(RedisOptions::cluster(seeds));
    let failed = tokens::run(&Redis { name: "cluster", options: options.clone() }).await;
    assert!(failed.is_empty(), "{failed:#?}");

    let store = RedisStore::open(options.clone()).await.unwrap();
    slots_move_under_load(&store, &urls, &options.prefix).await;

    // A node that dies takes its users with it, and comes back with them.
    let users: Vec<TokenKey> = (0..300).map(|user| key(user, "moved")).collect();
    cluster.part("node2").unwrap().kill().unwrap();
    until("a refusal", async || store.get(&users).await.is_err()).await;
    cluster.part("node2").unwrap().start().unwrap();
    until("all of it again", async || {
        store.get(&users).await.is_ok_and(|found| found.iter().all(Option::is_some))
    })
    .await;
}

/// Moves slots one by one while puts and reads go on: no call fails, and nothing is missing for a moment.
async fn slots_move_under_load(store: &Arc<RedisStore>, urls: &[String], prefix: &str) {
    let puts: Vec<TokenPut> = (0..300).map(|user| put(user, "moved")).collect();
    store.put(&puts).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let (own, over) = (Arc::clone(store), Arc::clone(&is_over));
    let load = tokio::spawn(async move {
        let keys: Vec<TokenKey> = puts.iter().map(|put| key(put.user_id, "moved")).collect();
        let mut rounds = 0;
        while !over.load(SeqCst) {
            own.put(&puts).await?;
            let found = own.get(&keys).await?;
            assert!(
                found.iter().all(Option::is_some),
                "{} missing",
                found.iter().filter(|one| one.is_none()).count()
            );
            rounds += 1;
        }
        Ok::<_, Unavailable>(rounds)
    });
    let moves = SlotMoves::between(urls).await;
    let (mut moved, mut moved_slots) = (0, BTreeSet::new());
    for user in 0..300 {
        // Two users may lie in one slot, which moves once.
        if let Some(slot) = moves.slot_of(&format!("{prefix}{user}")).await
            && moved_slots.insert(slot)
        {
            moved += moves.run(slot).await;
        }
    }
    is_over.store(true, SeqCst);
    let rounds = load.await.unwrap().unwrap();
    assert!(rounds > 1 && moved > 30, "{rounds} rounds, {moved} moved");
    // A store that begins now learns the new map.
    assert!(store.list(7, None, 10).await.unwrap().iter().any(|token| &*token.name == "moved"));
}

/// Every put that was answered Ok is there after a kill: the append-only file is written before the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn killed_and_restarted_in_mid_stream() {
    let server = single();
    let options = RedisOptions { call_timeout_ms: 2_000, ..patient(RedisOptions::at(server.url())) };
    let store = RedisStore::open(options).await.unwrap();
    let (reached, is_over) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(false)));
    let (own, own_reached, over) = (Arc::clone(&store), Arc::clone(&reached), Arc::clone(&is_over));
    let writer = tokio::spawn(async move {
        let mut failures = 0;
        while !over.load(SeqCst) {
            let first = own_reached.load(SeqCst);
            let batch: Vec<_> = (first..first + 100).map(|user| put(user, "a")).collect();
            while own.put(&batch).await.is_err() {
                failures += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            own_reached.store(first + 100, SeqCst);
        }
        failures
    });
    let more_than = async |count: i64| until("puts", async || reached.load(SeqCst) > count).await;
    for _ in 0..3 {
        more_than(reached.load(SeqCst) + 500).await;
        server.kill().unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.start().unwrap();
    }
    more_than(reached.load(SeqCst) + 500).await;
    is_over.store(true, SeqCst);
    assert!(writer.await.unwrap() > 0, "it was down thrice");
    let keys: Vec<_> = (0..reached.load(SeqCst)).map(|user| key(user, "a")).collect();
    let found = store.get(&keys).await.unwrap();
    assert!(found.iter().all(Option::is_some), "{} lost", found.iter().filter(|one| one.is_none()).count());

    // Restarted while nobody calls: the next call does not even notice.
    server.restart().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    store.get(&keys[..1]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_frozen_server_costs_one_time_out_and_says_unavailable() {
    let server = single();
    let options = RedisOptions { call_timeout_ms: 300, ..patient(RedisOptions::at(server.url())) };
    let store = RedisStore::open(options).await.unwrap();
    put_at_last(&store, &[put(1, "a")]).await;
    server.freeze().unwrap();
    let mut longest = Duration::ZERO;
    for _ in 0..5 {
        for call in 0..4 {
            let started = Instant::now();
            let answer = match call {
                0 => store.put(&[put(1, "b")]).await,
                1 => store.remove(&[key(1, "a")]).await,
                // I7: a token that is there must not be answered away.
                2 => store.get(&[key(1, "a")]).await.map(drop),
                _ => store.list(1, None, 10).await.map(drop),
            };
            assert!(answer.is_err());
            longest = longest.max(started.elapsed());
        }
    }
    // The rest is for a machine that stands still meanwhile.
    assert!(longest < Duration::from_millis(300 + 700), "{longest:?}");
    server.thaw().unwrap();
    until("an answer", async || store.get(&[key(1, "a")]).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_store_opened_in_the_background_begins_when_its_server_does() {
    let server = single();
    server.kill().unwrap();
    let store = RedisStore::open_in_background(patient(RedisOptions::at(server.url()))).unwrap();
    until("a refusal", async || {
        store.get(&[key(1, "a")]).await.is_err_and(|error| error.0.contains("no connection"))
    })
    .await;
    server.start().unwrap();
    put_at_last(&store, &[put(1, "a")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn open_says_what_is_wrong() {
    let server =
        Private::start(ServerOptions { password: Some("secret".into()), ..ServerOptions::default() })
            .unwrap();
    let address = server.address("main").unwrap();
    let open = async |options| RedisStore::open(options).await.map(drop);
    let at = |url: &str| RedisOptions { connect_timeout_ms: 3_000, ..RedisOptions::at(url) };
    open(patient(RedisOptions::at(server.url()))).await.unwrap();
    open(RedisOptions { password: Some("secret".into()), ..patient(RedisOptions::at(address)) })
        .await
        .unwrap();

    for wrong in [format!("redis://{address}"), format!("redis://:wrong@{address}")] {
        let error = open(patient(RedisOptions::at(&wrong))).await.unwrap_err();
        assert!(matches!(error, OpenRedisError::Credentials { .. }), "{error:?}");
        assert!(error.to_string().contains(address) && !error.to_string().contains("wrong@"), "{error}");
    }
    let error = open(at("127.0.0.1:1")).await.unwrap_err();
    assert!(matches!(error, OpenRedisError::Unreachable { .. }), "{error:?}");
    let error =
        open(RedisOptions { is_cluster: true, ..patient(RedisOptions::at(server.url())) }).await.unwrap_err();
    assert!(error.to_string().contains("is no cluster"), "{error}");
    for wrong in ["redis+unix:///tmp/redis.sock", "http://127.0.0.1", "127.0.0.1:port", "10.0.0.5:6379"] {
        let error = open(at(wrong)).await.unwrap_err();
        assert!(matches!(error, OpenRedisError::Invalid(_)), "{error:?}");
    }
    let error = open(RedisOptions { prefix: "a{b}".into(), ..RedisOptions::default() }).await.unwrap_err();
    assert!(error.to_string().contains("without braces"), "{error}");

    // Tokens may not be evicted at will, and a replica may be behind.
    let config = |words: &'static [&'static str]| command(server.url(), words);
    config(&["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru"]).await.unwrap();
    let error = open(patient(RedisOptions::at(server.url()))).await.unwrap_err();
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
    open(RedisOptions { allow_eviction: true, ..patient(RedisOptions::at(server.url())) }).await.unwrap();
    config(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    config(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    let error = open(patient(RedisOptions::at(server.url()))).await.unwrap_err();
    assert!(error.to_string().contains("replica"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_port_that_is_not_redis_says_so() {
    for (greeting, expected) in
        [("HTTP/1.1 400 Bad Request\r\n\r\n", "not Redis"), ("", "not Redis"), ("hangs", "reached")]
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let heard = stream.read(&mut [0; 64]).unwrap();
            assert!(heard > 0);
            if greeting == "hangs" {
                ended.recv().ok();
            } else {
                stream.write_all(greeting.as_bytes()).ok();
            }
        });
        let options = RedisOptions { connect_timeout_ms: 1_500, ..RedisOptions::at(&address) };
        let started = Instant::now();
        let error = RedisStore::open(options).await.map(drop).unwrap_err().to_string();
        assert!(started.elapsed() < PATIENCE);
        assert!(error.contains(expected) && error.contains(&address), "{error}");
        drop(end);
        other.join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn hashes_go_when_their_last_token_expires_or_is_removed() {
    let server = single();
    let options = patient(RedisOptions::at(server.url()));
    let store = RedisStore::open(options).await.unwrap();
    let soon = |user_id, name, expires_at_ms| TokenPut { expires_at_ms, ..put(user_id, name) };
    let end_ms = now_ms() + 1_500;
    store.put(&[soon(1, "a", end_ms), soon(2, "a", end_ms + 2_000), put(3, "a")]).await.unwrap();
    // The later one holds, whichever comes last.
    store.put(&[soon(2, "b", end_ms)]).await.unwrap();
    let keys = [key(1, "a"), key(2, "a"), key(3, "a")];
    until("the first to go", async || store.get(&keys[..1]).await.unwrap() == [None]).await;
    assert!(now_ms() + 100 >= end_ms, "not before its time");
    until("the second to go", async || store.get(&keys[1..2]).await.unwrap() == [None]).await;
    assert!(now_ms() + 100 >= end_ms + 2_000, "not before its time");
    store.remove(&keys).await.unwrap();
    let left: i64 = redis::from_redis_value(command(server.url(), &["DBSIZE"]).await.unwrap()).unwrap();
    assert_eq!(left, 0, "no hash is left behind");
    // Made again after it was freed, it has an end again.
    store.put(&[soon(1, "c", now_ms() + 60_000)]).await.unwrap();
    let name = command(server.url(), &["RANDOMKEY"]).await.unwrap();
    let name: String = redis::from_redis_value(name).unwrap();
    let ttl = command(server.url(), &["TTL", &name]).await.unwrap();
    assert!(redis::from_redis_value::<i64>(ttl).unwrap() > 0);
}

/// I7: neither a full server, nor one that became a replica, nor a key of another kind is an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn doubt_is_unavailable() {
    let server = single();
    let options = patient(RedisOptions::at(server.url()));
    let store = RedisStore::open(options.clone()).await.unwrap();
    store.put(&[put(1, "a")]).await.unwrap();
    command(server.url(), &["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    let error = store.put(&[put(2, "a")]).await.unwrap_err();
    assert!(error.0.contains("OOM"), "{error}");
    // What is there can be read and removed.
    assert_eq!(store.get(&[key(1, "a")]).await.unwrap(), [Some("AQAB".into())]);
    command(server.url(), &["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    put_at_last(&store, &[put(2, "a")]).await;

    let name = format!("{}3", options.prefix);
    command(server.url(), &["SET", &name, "no hash"]).await.unwrap();
    assert!(store.get(&[key(3, "a")]).await.is_err());
    assert!(store.put(&[put(3, "a")]).await.is_err());
    assert!(store.get(&[key(1, "a")]).await.is_ok());

    command(server.url(), &["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    for _ in 0..3 {
        assert!(store.get(&[key(1, "none")]).await.is_err());
        assert!(store.put(&[put(1, "b")]).await.is_err());
        assert!(store.list(1, None, 10).await.is_err());
    }
    command(server.url(), &["REPLICAOF", "NO", "ONE"]).await.unwrap();
    put_at_last(&store, &[put(1, "b")]).await;
}

/// Nothing of a store outlives it: no connection, no task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_dropped_store_leaves_nothing_behind() {
    let server = single();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..5 {
        let options = RedisOptions { connections: 4, ..patient(RedisOptions::at(server.url())) };
        let store = RedisStore::open(options).await.unwrap();
        store.put(&[put(1, "a")]).await.unwrap();
    }
    until("the tasks to end", async || tasks() == before).await;
}

/// A new hash comes as one command with its end; one that is there, whoever made it, gets more, and a later end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn first_tokens_come_as_a_whole_and_further_ones_are_added() {
    let server = single();
    let url = server.url();
    // The server looks at every byte of what it is given.
    command(url, &["CONFIG", "SET", "sanitize-dump-payload", "yes"]).await.unwrap();
    let options = patient(RedisOptions::at(url));
    let one = RedisStore::open(options.clone()).await.unwrap();
    let other = RedisStore::open(options.clone()).await.unwrap();
    let name = format!("{}1", options.prefix);
    let end_ms = now_ms() + 60_000;
    let lengths = [1, 61, 62, 63, 64, 126, 127, 128, 4_094, 4_096, 20_000];
    let mut batch: Vec<TokenPut> = lengths
        .map(|length| TokenPut { token: "x".repeat(length).into(), ..put(1, &format!("{length}")) })
        .into();
    batch.iter_mut().for_each(|put| put.expires_at_ms = end_ms);
    // The last put of an order wins.
    let again = TokenPut { token: "AQAB".into(), expires_at_ms: end_ms - 5, ..put(1, "61") };
    batch.push(again.clone());
    one.put(&batch).await.unwrap();
    batch[1] = again;
    assert_eq!(asked::<String>(url, &["OBJECT", "ENCODING", &name]).await, "listpack", "as a whole");
    assert_eq!(asked::<u64>(url, &["PEXPIRETIME", &name]).await, end_ms);
    let keys: Vec<TokenKey> = batch[..lengths.len()].iter().map(|put| key(1, &put.name)).collect();
    let expected: Vec<_> = batch[..lengths.len()].iter().map(|put| Some(put.token.clone())).collect();
    assert_eq!(one.get(&keys).await.unwrap(), expected);
    // The other one has not seen the user; the first one has.
    for (store, order, change_ms, expected_ms) in
        [(&other, "b", 500, 500), (&one, "c", 1_000, 1_000), (&one, "d", 7, 1_000), (&other, "e", 8, 1_000)]
    {
        store.put(&[TokenPut { expires_at_ms: end_ms + change_ms, ..put(1, order) }]).await.unwrap();
        assert_eq!(asked::<u64>(url, &["PEXPIRETIME", &name]).await, end_ms + expected_ms);
    }
    assert_eq!(one.list(1, None, 100).await.unwrap().len(), lengths.len() + 4);
    // Freed by the other: the first one believes that it is there, and the end is set all the same.
    let all = other.list(1, None, 100).await.unwrap();
    let all: Vec<TokenKey> = all.iter().map(|token| key(1, &token.name)).collect();
    other.remove(&all).await.unwrap();
    assert_eq!(asked::<u64>(url, &["EXISTS", &name]).await, 0);
    one.put(&[TokenPut { expires_at_ms: end_ms, ..put(1, "f") }]).await.unwrap();
    assert_eq!(asked::<u64>(url, &["PEXPIRETIME", &name]).await, end_ms);
}

/// A user of the server who may not RESTORE can keep tokens all the same, and they expire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn without_the_right_to_restore_tokens_are_kept_and_expire() {
    let server = single();
    let url = server.url();
    command(url, &["ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "-restore"]).await.unwrap();
    let (username, password) = (Some("limited".into()), Some("secret".into()));
    let options = RedisOptions { username, password, ..patient(RedisOptions::at(url)) };
    let store = RedisStore::open(options.clone()).await.unwrap();
    for user_id in 1..4 {
        store.put(&[put(user_id, "a"), put(user_id + 10, "a")]).await.unwrap();
        let name = format!("{}{user_id}", options.prefix);
        assert!(asked::<i64>(url, &["PTTL", &name]).await > 0);
        assert_eq!(store.get(&[key(user_id, "a")]).await.unwrap(), [Some("AQAB".into())]);
    }
}

/// Two processes give and take tokens of the same users: no hash stays without an end, and none has an end before
/// that of a token in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn ends_are_right_whoever_gives_and_takes_at_once() {
    const USERS: i64 = 8;
    const ROUNDS: u64 = 400;
    let server = single();
    let url = server.url();
    let options = patient(RedisOptions::at(url));
    let base_ms = now_ms() + 3_600_000;
    let end_of = move |process: u64, round: u64| base_ms + (round * 7_919 + process * 31) % 1_000_003;
    let mut processes = tokio::task::JoinSet::new();
    for process in 0..2 {
        let store = RedisStore::open(options.clone()).await.unwrap();
        processes.spawn(async move {
            for round in 0..ROUNDS {
                let of = |round: u64| (round.cast_signed() * 5 + 3) % USERS;
                let name = |round: u64| format!("{process}-{round}");
                let end_ms = end_of(process, round);
                let put = TokenPut { expires_at_ms: end_ms, ..put(of(round), &name(round)) };
                store.put(&[put]).await.unwrap();
                // All but the last few go again, so that hashes are freed and made all the time.
                if round > 0 && round < ROUNDS - 3 {
                    store.remove(&[key(of(round - 1), &name(round - 1))]).await.unwrap();
                }
            }
        });
    }
    while let Some(done) = processes.join_next().await {
        done.unwrap();
    }
    let store = RedisStore::open(options.clone()).await.unwrap();
    let mut tokens = 0;
    for user_id in 0..USERS {
        let here = store.list(user_id, None, 100).await.unwrap();
        tokens += here.len();
        let name = format!("{}{user_id}", options.prefix);
        let end_ms: i64 = asked(url, &["PEXPIRETIME", &name]).await;
        assert_eq!(end_ms == -2, here.is_empty(), "{end_ms}");
        for token in here {
            let (process, round) = token.name.split_once('-').unwrap();
            let own_ms = end_of(process.parse().unwrap(), round.parse().unwrap());
            assert!(end_ms >= own_ms.cast_signed(), "{} ends at {end_ms}, not {own_ms}", token.name);
        }
    }
    assert!(tokens >= 6, "{tokens}");
}

/// The users of the shipped file do their work with its rights, and reach no keys of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn the_shipped_users_suffice_and_reach_no_other_keys() {
    let server = tokio::task::spawn_blocking(single).await.unwrap();
    redis_nodes::give_users(server.url()).await;
    let of = |user: &str| RedisOptions {
        username: Some(user.into()),
        password: Some(redis_nodes::PASSWORD.into()),
        call_timeout_ms: 20_000,
        connect_timeout_ms: 20_000,
        ..RedisOptions::at(server.url())
    };
    let failed = tokens::run(&Redis { name: "redis", options: of("windfall-tokens") }).await;
    assert!(failed.is_empty(), "{failed:#?}");

    // The token service only looks.
    let writer = RedisStore::open(of("windfall-tokens")).await.unwrap();
    writer.put(&[put(1, "a")]).await.unwrap();
    let reader = RedisStore::open(of("windfall-tokens-read")).await.unwrap();
    let found = reader.get(&[key(1, "a"), key(1, "b")]).await.unwrap();
    assert!(found[0].is_some() && found[1].is_none(), "{found:?}");
    assert!(reader.put(&[put(1, "b")]).await.is_err());
    assert!(reader.remove(&[key(1, "a")]).await.is_err());
    assert!(writer.get(&[key(1, "a")]).await.unwrap()[0].is_some());

    for user in ["windfall-tokens", "windfall-tokens-read"] {
        redis_nodes::refuses(server.url(), user, redis_nodes::FOR_NO_USER).await;
        let others: [&[&str]; 4] = [
            &["HMGET", "{wf:0000}:s", "a"],
            &["HMGET", "{wfj:0000}:e", "a"],
            &["HMGET", "{wfq:0000}:s", "a"],
            &["EVAL", "return 1", "0"],
        ];
        redis_nodes::refuses(server.url(), user, &others).await;
    }
    let changes: [&[&str]; 2] =
        [&["HSET", "windfall:tokens:1", "a", "b"], &["HDEL", "windfall:tokens:1", "a"]];
    redis_nodes::refuses(server.url(), "windfall-tokens-read", &changes).await;
}
