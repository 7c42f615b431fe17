//! Task queues on real Redis servers: the contract, what a job costs, many due at once, processes side by side, restarts.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod api;

use api::{Served, serve, whole_contract};
use async_trait::async_trait;
use bytes::Bytes;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windfall_conformance::redis_nodes::{self, SlotMoves, asked, command};
use windfall_conformance::task_queue::{self, Fixture, ModelClock};
use windfall_contract::due::{Durability, FAR_INDEX, Shard, SlotMinute, TaskId};
use windfall_contract::task_queue::{
    DoubtfulJobs, FarJob, JobId, JobStore, JobStoreError, NewJobs, ONCE_KEPT_MS, OnceJob, OnceMark,
    PublishedFar, QueueCounts, QueueName, QueueTokens, TTL_DEFAULT_S, Take,
};
use windfall_servers::{Private, RedisOptions as ServerOptions, Spec};
use windfall_task_queue::ApiOptions;
use windfall_task_queue::redis::{OpenRedisError, RedisJobs, RedisJobsOptions};

/// The machine is shared.
const PATIENCE: Duration = Duration::from_secs(90);

struct Redis {
    name: &'static str,
    options: RedisJobsOptions,
}

#[async_trait]
impl Fixture for Redis {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self) -> Result<(Arc<dyn JobStore>, Arc<dyn QueueTokens>), String> {
        let store = RedisJobs::open(self.options.clone()).await.map_err(|error| error.to_string())?;
        Ok((Arc::clone(&store) as _, store))
    }

    async fn wait_ms(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

/// Time limits for a machine that is busy with other tests.
fn patient(options: RedisJobsOptions) -> RedisJobsOptions {
    RedisJobsOptions { call_timeout_ms: 20_000, connect_timeout_ms: 20_000, ..options }
}

async fn single() -> Private {
    tokio::task::spawn_blocking(|| Private::start(ServerOptions::default()).unwrap()).await.unwrap()
}

async fn open(server: &Private) -> Arc<RedisJobs> {
    RedisJobs::open(patient(RedisJobsOptions::at(server.url()))).await.unwrap()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

fn jobs(queue: &QueueName, delay_s: u32, bodies: Vec<Bytes>) -> NewJobs {
    NewJobs {
        queue: queue.clone(),
        delay_s,
        ttl_s: TTL_DEFAULT_S,
        tries: 1,
        is_versioned: false,
        attributes: Vec::new(),
        bodies,
    }
}

fn name(queue: &str) -> QueueName {
    QueueName::new("n", queue).unwrap()
}

async fn all_counts(store: &RedisJobs, queue: &QueueName) -> QueueCounts {
    let mut all = QueueCounts::default();
    for shard in (0..store.shards()).map(Shard) {
        all += store.look(shard, std::slice::from_ref(queue)).await.unwrap()[0];
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn one_server_conforms() {
    let server = single().await;
    let options = patient(RedisJobsOptions::at(server.url()));
    let failed = task_queue::run(&Redis { name: "redis", options }).await;
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Random calls on stores that have a prefix each. The servers' clock decides, so a seed says which calls are made, and not
/// when. `WINDFALL_TASK_QUEUE_SEED` runs one seed alone.
async fn is_as_the_model(name: &'static str, options: &RedisJobsOptions, seeds: u64, steps: usize) {
    let stores = AtomicU64::new(0);
    let fresh = || {
        let prefix = format!("{}-m{}", options.prefix, stores.fetch_add(1, SeqCst));
        Box::new(Redis { name, options: RedisJobsOptions { prefix, ..options.clone() } }) as Box<dyn Fixture>
    };
    if let Err(what) = task_queue::run_model(&fresh, ModelClock::OfTheStore, seeds, steps).await {
        panic!("{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn one_server_is_as_the_model() {
    let server = single().await;
    is_as_the_model("redis", &patient(RedisJobsOptions::at(server.url())), 3, 150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn the_whole_contract_holds_over_http() {
    let server = single().await;
    let options = RedisJobsOptions { prefix: "other".into(), ..RedisJobsOptions::at(server.url()) };
    let other = RedisJobs::open(patient(options)).await.unwrap();
    whole_contract(open(&server).await, other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_cluster_conforms_and_is_followed_when_slots_move() {
    let cluster = tokio::task::spawn_blocking(|| Private::start(Spec::RedisCluster).unwrap()).await.unwrap();
    let urls: Vec<String> = cluster.url().split(',').map(str::to_owned).collect();
    let options = patient(RedisJobsOptions::cluster([urls[1].as_str()]));
    let fixture = Redis { name: "cluster", options: options.clone() };
    let failed = task_queue::run(&fixture).await;
    assert!(failed.is_empty(), "{failed:#?}");
    is_as_the_model("cluster", &options, 1, 100).await;
    // A queue's jobs lie on several masters.
    let store = RedisJobs::open(options.clone()).await.unwrap();
    let queue = name("spread");
    for shard in (0..store.shards()).map(Shard) {
        let bodies = (0..50).map(|at| Bytes::from(format!("{}-{at}", shard.0))).collect();
        store.publish(shard, &[jobs(&queue, 0, bodies)]).await.unwrap();
    }
    let moves = SlotMoves::between(&urls).await;
    let mut moved = 0;
    for shard in 0..store.shards() {
        if let Some(slot) = moves.slot_of(&format!("{{{}:{shard:04x}}}:s", options.prefix)).await {
            moved += moves.run(slot).await;
        }
    }
    assert!(moved > 0, "no shard lay on the first master");
    let mut taken = BTreeSet::new();
    for shard in (0..store.shards()).map(Shard) {
        let take = [Take { queue: queue.clone(), count: 100, ttr_s: 600 }];
        let (_, answers) = store.take(shard, &take).await.unwrap();
        taken.extend(answers[0].jobs.iter().map(|job| job.body.clone()));
    }
    assert_eq!(taken.len(), 50 * usize::from(store.shards()));
}

/// A node that has a part of a slot lets a script begin and stops it at the first key that is away: what it did before
/// would stay, and be done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn what_is_asked_while_a_slot_moves_is_done_once() {
    const JOBS: usize = 60;
    let (_cluster, urls, options, shard, slot) = cluster_with_a_shard_to_move().await;
    let store = RedisJobs::open(options).await.unwrap();
    let moves = SlotMoves::between(&urls).await;
    // Keys enough for a move that takes its time.
    for at in 0..30 {
        let other = name(&format!("other-{at}"));
        store
            .publish(shard, &[jobs(&other, 0, vec!["x".into()]), jobs(&other, 900, vec!["y".into()])])
            .await
            .unwrap();
    }
    let ended = name("ended");
    let twice = NewJobs { tries: 2, ..jobs(&ended, 0, vec!["x".into(); 20]) };
    store.publish(shard, &[twice]).await.unwrap();
    let take = |queue: &QueueName, count, ttr_s| [Take { queue: queue.clone(), count, ttr_s }];
    assert_eq!(store.take(shard, &take(&ended, 20, 1)).await.unwrap().1[0].jobs.len(), 20);
    tokio::time::sleep(Duration::from_millis(1_100)).await;

    let queue = name("moving");
    let publish = async {
        for at in 0..JOBS {
            store.publish(shard, &[jobs(&queue, 0, vec![format!("{at:02}").into()])]).await.unwrap();
        }
    };
    let taken = async {
        let mut taken = Vec::new();
        while taken.len() < JOBS {
            let (_, answers) = store.take(shard, &take(&queue, 7, 600)).await.unwrap();
            for job in &answers[0].jobs {
                taken.push(String::from_utf8_lossy(&job.body).into_owned());
                assert_eq!(store.remove(shard, &[(queue.clone(), job.id)]).await.unwrap(), [true]);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        taken
    };
    let tend = async {
        let mut again = 0;
        while again < 20 {
            again += store.tend(shard).await.unwrap().again;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        again
    };
    let moving = moves.run_slowly(slot, Duration::from_millis(20));
    let all = async { tokio::join!(moving, publish, taken, tend) };
    let (moved, (), mut taken, again) = tokio::time::timeout(PATIENCE, all).await.unwrap();
    assert!(moved > 50, "{moved} keys moved");
    taken.sort_unstable();
    assert_eq!(taken, (0..JOBS).map(|at| format!("{at:02}")).collect::<Vec<_>>());
    assert_eq!(again, 20);
    let counts = store.look(shard, &[queue, ended.clone()]).await.unwrap();
    assert_eq!(counts[0], QueueCounts::default());
    assert_eq!(counts[1], QueueCounts { ready: 20, ..QueueCounts::default() });
    assert_eq!(store.take(shard, &take(&ended, 100, 600)).await.unwrap().1[0].jobs.len(), 20);
}

/// A cluster, a shard whose slot lies on its first master, and that slot.
async fn cluster_with_a_shard_to_move() -> (Private, Vec<String>, RedisJobsOptions, Shard, u16) {
    let cluster = tokio::task::spawn_blocking(|| Private::start(Spec::RedisCluster).unwrap()).await.unwrap();
    let urls: Vec<String> = cluster.url().split(',').map(str::to_owned).collect();
    let options = patient(RedisJobsOptions::cluster([urls[1].as_str()]));
    let shards = RedisJobs::open(options.clone()).await.unwrap().shards();
    let moves = SlotMoves::between(&urls).await;
    for shard in 0..shards {
        if let Some(slot) = moves.slot_of(&format!("{{{}:{shard:04x}}}:s", options.prefix)).await {
            return (cluster, urls, options, Shard(shard), slot);
        }
    }
    panic!("no shard lies on the first master");
}

/// The node that a slot leaves has the lists of a queue and no more the jobs that were taken before. A script that began
/// there would take an entry off its list and end at the first key that is away: the job would be in no list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_node_that_has_lost_a_part_of_a_slot_changes_nothing_in_it() {
    let (_cluster, urls, options, shard, slot) = cluster_with_a_shard_to_move().await;
    let store = RedisJobs::open(options.clone()).await.unwrap();
    let queue = name("torn");
    let take = |count| [Take { queue: queue.clone(), count, ttr_s: 1 }];
    // Ready again, so that they are in a list and in a hash; one that is ready, and one that waits.
    let twice = NewJobs { tries: 9, ..jobs(&queue, 0, vec!["again".into(); 5]) };
    store.publish(shard, &[twice]).await.unwrap();
    assert_eq!(store.take(shard, &take(5)).await.unwrap().1[0].jobs.len(), 5);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(store.tend(shard).await.unwrap().again, 5);
    store.publish(shard, &[jobs(&queue, 0, vec!["ready".into()])]).await.unwrap();
    store.publish(shard, &[jobs(&queue, 900, vec!["later".into()])]).await.unwrap();
    let before = store.look(shard, std::slice::from_ref(&queue)).await.unwrap();

    let moves = SlotMoves::between(&urls).await;
    moves.begin(slot).await;
    moves.move_key(&format!("{{{}:{:04x}}}:j:{}", options.prefix, shard.0, queue.as_str())).await;
    let hasty = RedisJobsOptions { call_timeout_ms: 500, ..options };
    let hasty = RedisJobs::open(hasty).await.unwrap();
    for _ in 0..3 {
        let taken = hasty.take(shard, &take(3)).await;
        assert!(taken.is_err(), "{taken:?} was taken of a half");
    }
    moves.finish(slot).await;
    assert_eq!(store.look(shard, std::slice::from_ref(&queue)).await.unwrap(), before);
    let (_, answers) = store.take(shard, &take(100)).await.unwrap();
    let mut bodies: Vec<_> = answers[0].jobs.iter().map(|job| job.body.clone()).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, ["again", "again", "again", "again", "again", "ready"]);
}

/// The node that a slot comes to has a part of its keys. To a script there, the others would look as if they had never
/// been: it would begin a queue anew, and the list that comes afterwards could only be refused, or take the place of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_node_that_has_got_a_part_of_a_slot_begins_nothing_anew() {
    let (_cluster, urls, options, shard, slot) = cluster_with_a_shard_to_move().await;
    let store = RedisJobs::open(options.clone()).await.unwrap();
    let queue = name("begun");
    store.publish(shard, &[jobs(&queue, 0, vec!["old".into()])]).await.unwrap();
    let moves = SlotMoves::between(&urls).await;
    moves.begin(slot).await;
    // The key that calls name comes first, so that they are sent on to the new node.
    moves.move_key(&format!("{{{}:{:04x}}}:s", options.prefix, shard.0)).await;
    let publishing = tokio::spawn({
        let (store, jobs) = (Arc::clone(&store), jobs(&queue, 0, vec!["new".into()]));
        async move { store.publish(shard, &[jobs]).await }
    });
    let hasty = RedisJobsOptions { call_timeout_ms: 500, ..options };
    let hasty = RedisJobs::open(hasty).await.unwrap();
    let take = [Take { queue: queue.clone(), count: 9, ttr_s: 600 }];
    let taken = hasty.take(shard, &take).await;
    assert!(taken.is_err(), "{taken:?}: the node does not know what is in the queue");
    assert!(!publishing.is_finished(), "it was published into a half");
    moves.finish(slot).await;
    publishing.await.unwrap().unwrap();
    let (_, answers) = store.take(shard, &take).await.unwrap();
    let bodies: Vec<_> = answers[0].jobs.iter().map(|job| job.body.clone()).collect();
    assert_eq!(bodies, ["old", "new"]);
}

/// All marks of an hour were one set: when it expired, a server with two million of them answered nothing for a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn marks_of_an_hour_go_little_by_little() {
    let server = single().await;
    let store = open(&server).await;
    let once = |number: u16| {
        let mut mark = [0; 16];
        mark[10..12].copy_from_slice(&number.to_be_bytes());
        OnceJob { mark: OnceMark(mark), job: jobs(&name("once"), 0, vec!["x".into()]) }
    };
    let batch: Vec<OnceJob> = (0..1_024).map(once).collect();
    let stored = store.publish_once(Shard(1), &batch).await.unwrap();
    assert_eq!(stored.iter().flatten().count(), 1_024);
    let prefix = format!("{{{}:0001}}:o:", RedisJobsOptions::default().prefix);
    let sets = async || asked::<Vec<String>>(server.url(), &["KEYS", &format!("{prefix}*")]).await;
    let mut lefts_ms = Vec::new();
    for key in sets().await {
        let left_ms: u64 = asked(server.url(), &["PTTL", &key]).await;
        // What no sweep has taken goes in the third hour after its own; the rest is the time of this test.
        assert!((2 * ONCE_KEPT_MS - 600_000..=4 * ONCE_KEPT_MS).contains(&left_ms), "{key}: {left_ms} ms");
        lefts_ms.push(left_ms);
    }
    lefts_ms.sort_unstable();
    assert!(lefts_ms.len() >= 256 && lefts_ms[255] - lefts_ms[0] > ONCE_KEPT_MS / 2, "{lefts_ms:?}");

    // What was left by the two hours before, of which one is over, and both if the next hour begins just now.
    let hour = async || {
        let (seconds, _): (u64, u64) = asked(server.url(), &["TIME"]).await;
        seconds / (ONCE_KEPT_MS / 1_000)
    };
    let began = hour().await;
    let fill = "for set = ARGV[2], ARGV[2] + 31 do for mark = 1, 200 do redis.call('SADD', ARGV[1] .. set, 'mark' .. mark) end end";
    for before in [2, 1] {
        let of_hour = format!("{prefix}{}:", began - before);
        // Little by little, so that a busy machine answers in time.
        for first in (0..256).step_by(32) {
            command(server.url(), &["EVAL", fill, "0", &of_hour, &first.to_string()]).await.unwrap();
        }
    }
    let all = sets().await;
    assert_eq!(store.sweep(Shard(1), 0).await.unwrap().forgotten, 200, "one set");
    let left = sets().await;
    let gone: Vec<&String> = all.iter().filter(|key| !left.contains(key)).collect();
    assert_eq!(gone.len(), 1, "{gone:?}");
    if hour().await == began {
        assert!(gone[0].starts_with(&format!("{prefix}{}:", began - 2)), "{gone:?}");
    }
    redis_nodes::until("the server to free it beside its work", PATIENCE, async || {
        let info: String = asked(server.url(), &["INFO", "memory"]).await;
        info.lines().any(|line| line.strip_prefix("lazyfreed_objects:").is_some_and(|count| count != "0"))
    })
    .await;
    assert_eq!(store.publish_once(Shard(1), &batch).await.unwrap(), vec![None; 1_024], "these are kept");
}

/// A timer that no other one of this program is, due in 1970.
const FAR_TIMER: TaskId = TaskId { shard: Shard(3), slot: SlotMinute(0), index: FAR_INDEX };

/// A leased far job was made ready once more, under the hands of its consumer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_far_job_that_is_still_there_is_published_once_though_its_mark_is_gone() {
    let server = single().await;
    let store = open(&server).await;
    let queue = name("far");
    let new = NewJobs { ttl_s: 0, ..jobs(&queue, 0, vec!["x".into()]) };
    let job = FarJob::of_timer(&FarJob::payloads(&new, 0)[0], FAR_TIMER, 8).unwrap();
    let (id, batch) = (job.record.id, std::slice::from_ref(&job));
    let forget = async || {
        let marks: Vec<String> = asked(server.url(), &["KEYS", "*:o:*"]).await;
        for mark in marks {
            command(server.url(), &["DEL", &mark]).await.unwrap();
        }
    };
    assert_eq!(
        store.publish_far(id.shard(), batch, DoubtfulJobs::Refuse).await.unwrap(),
        [PublishedFar::Stored]
    );
    forget().await;
    assert_eq!(
        store.publish_far(id.shard(), batch, DoubtfulJobs::Refuse).await.unwrap(),
        [PublishedFar::Over],
        "it is ready"
    );
    let take = [Take { queue: queue.clone(), count: 5, ttr_s: 60 }];
    assert_eq!(store.take(id.shard(), &take).await.unwrap().1[0].jobs.len(), 1);
    assert_eq!(
        store.publish_far(id.shard(), batch, DoubtfulJobs::Refuse).await.unwrap(),
        [PublishedFar::Over],
        "it is leased"
    );
    assert_eq!(all_counts(&store, &queue).await, QueueCounts::default());
    assert_eq!(store.take(id.shard(), &take).await.unwrap().1[0].jobs.len(), 0);
    assert_eq!(store.remove(id.shard(), &[(queue, id)]).await.unwrap(), [true]);
    assert_eq!(
        store.publish_far(id.shard(), batch, DoubtfulJobs::Refuse).await.unwrap(),
        [PublishedFar::Stored],
        "nothing knows it"
    );
}

/// Deletions of far jobs are bounded, and what is forgotten leaves a doubt that no job passes silently.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn deletions_of_far_jobs_are_bounded_and_leave_a_doubt_when_they_are_forgotten() {
    let server = single().await;
    let options = RedisJobsOptions { far_removals_max: 16, ..RedisJobsOptions::at(server.url()) };
    let store = RedisJobs::open(patient(options)).await.unwrap();
    let queue = name("deleted");
    let new = NewJobs { ttl_s: 0, ..jobs(&queue, 0, vec!["x".into()]) };
    let payload = FarJob::payloads(&new, 0).remove(0);
    // All in one shard.
    let far = |number: u32| {
        let timer = TaskId { index: FAR_INDEX | (8 * number), ..FAR_TIMER };
        FarJob::of_timer(&payload, timer, 8).unwrap()
    };
    let all: Vec<FarJob> = (0..4).map(far).collect();
    let pair = |at: usize| (queue.clone(), all[at].record.id);
    let shard = pair(0).1.shard();
    let refused = JobStoreError::TooManyFarRemovals;
    let three = [pair(0), pair(1), pair(2)];
    assert_eq!(store.remove_far(shard, &three).await, Err(refused.clone()), "two of a shard, and not three");
    assert_eq!(store.remove_far(shard, &three[..2]).await, Ok(vec![false; 2]), "nothing was changed before");
    assert_eq!(store.remove_far(shard, &three[..2]).await, Ok(vec![false; 2]), "and again");
    assert_eq!(store.remove_far(shard, &three[2..]).await, Err(refused));
    assert_eq!(store.sweep(shard, 0).await.unwrap().far_removals, 2);
    let publish = async |from: usize, doubtful| store.publish_far(shard, &all[from..=from], doubtful).await;
    assert_eq!(publish(0, DoubtfulJobs::Publish).await, Ok(vec![PublishedFar::Over]));
    assert_eq!(
        publish(2, DoubtfulJobs::Refuse).await,
        Ok(vec![PublishedFar::Stored]),
        "there is no doubt yet"
    );
    // A week passes.
    let deletions: Vec<String> = asked(server.url(), &["KEYS", "*:v"]).await;
    assert_eq!(deletions.len(), 1, "{deletions:?}");
    let age = "local f = redis.call('ZRANGE', KEYS[1], 0, 0) redis.call('ZADD', KEYS[1], 400, f[1]) return 1";
    command(server.url(), &["EVAL", age, "1", &deletions[0]]).await.unwrap();
    let marks: Vec<String> = asked(server.url(), &["KEYS", "*:o:*"]).await;
    assert!(!marks.is_empty());
    for key in &marks {
        command(server.url(), &["DEL", key]).await.unwrap();
    }
    let swept = store.sweep(shard, 0).await.unwrap();
    assert_eq!((swept.forgotten, swept.far_removals), (1, 1), "one of two");
    let (first, second) =
        (publish(0, DoubtfulJobs::Refuse).await.unwrap(), publish(1, DoubtfulJobs::Refuse).await.unwrap());
    let mut fates = [first[0], second[0]];
    fates.sort_by_key(|fate| *fate == PublishedFar::Doubtful);
    assert_eq!(fates, [PublishedFar::Over, PublishedFar::Doubtful]);
    assert_eq!(publish(3, DoubtfulJobs::Refuse).await, Ok(vec![PublishedFar::Doubtful]), "it is as late");
    assert_eq!(publish(3, DoubtfulJobs::Publish).await, Ok(vec![PublishedFar::Stored]));
    assert_eq!(store.remove_far(shard, &[pair(2)]).await, Ok(vec![true]), "there is room again");
    // Processes of the release before note and look up deletions among the marks alone.
    command(server.url(), &["DEL", &deletions[0]]).await.unwrap();
    assert_eq!(publish(2, DoubtfulJobs::Publish).await, Ok(vec![PublishedFar::Over]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn nothing_is_early_after_the_servers_clock_went_back() {
    let server = single().await;
    let store = open(&server).await;
    let queue = name("back");
    store.publish(Shard(0), &[jobs(&queue, 0, vec!["now".into()])]).await.unwrap();
    // So it is where the clock was an hour ahead when jobs were counted last.
    let counted_to = (now_ms() + 3_600_000).to_string();
    let key = format!("{{{}:0000}}:m:{}", RedisJobsOptions::default().prefix, queue.as_str());
    asked::<i64>(server.url(), &["HSET", &key, "w", &counted_to]).await;
    store.publish(Shard(0), &[jobs(&queue, 2, vec!["soon".into()])]).await.unwrap();
    let take = [Take { queue: queue.clone(), count: 9, ttr_s: 600 }];
    let taken = async || {
        let (_, answers) = store.take(Shard(0), &take).await.unwrap();
        answers[0].jobs.iter().map(|job| job.body.clone()).collect::<Vec<_>>()
    };
    assert_eq!(taken().await, ["now"]);
    assert_eq!(store.peek(Shard(0), &queue).await.unwrap(), None);
    while store.drop_ready(Shard(0), &queue).await.unwrap() {}
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(taken().await, ["soon"]);
    assert_eq!(all_counts(&store, &queue).await, QueueCounts::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_delayed_job_costs_little_and_a_hundred_thousand_are_ready_at_once() {
    const JOBS: u64 = 200_000;
    let server = single().await;
    let store = open(&server).await;
    let used = async || {
        let info: String = asked(server.url(), &["INFO", "memory"]).await;
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let queue = name("cheap");
    let body = Bytes::from(vec![b'x'; 64]);
    let before = used().await;
    for round in 0..JOBS / 100 {
        let shard = Shard(u16::try_from(round % u64::from(store.shards())).unwrap());
        // Spread over twenty minutes, as a busy queue's delays are.
        let delay_s = 3_600 + u32::try_from(round * 7 % 1_200).unwrap();
        store.publish(shard, &[jobs(&queue, delay_s, vec![body.clone(); 100])]).await.unwrap();
    }
    let bytes = (used().await - before) / JOBS;
    assert!(bytes <= 115, "a delayed job costs {bytes} bytes");
    assert_eq!(all_counts(&store, &queue).await, QueueCounts { delayed: JOBS, ..QueueCounts::default() });

    let due = name("due");
    let published = now_ms();
    for round in 0..100_u16 {
        let shard = Shard(round % store.shards());
        store.publish(shard, &[jobs(&due, 20, vec![body.clone(); 1_000])]).await.unwrap();
    }
    let last = now_ms();
    assert!(last - published < 20_000, "it was published too slowly: {} ms", last - published);
    while now_ms() < last + 21_000 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(all_counts(&store, &due).await.ready, 100_000, "within a second of the last one's time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn processes_share_queues_polls_tokens_and_limits() {
    let server = single().await;
    let (one, two) = (open(&server).await, open(&server).await);
    let one = serve(&[("default", one)], ApiOptions::default()).await;
    let two = serve(&[("default", two)], ApiOptions::default()).await;
    // A poll in one process is woken by a publish in the other.
    let mut waits = Vec::new();
    for _ in 0..10 {
        let wire = two.wire.clone();
        let waiting = tokio::spawn(async move { wire.get("/api/n/far?timeout=30").await });
        tokio::time::sleep(Duration::from_millis(200)).await;
        one.wire.put("/api/n/far", "body").await;
        let job = waiting.await.unwrap();
        assert_eq!(job.status, 200, "{job:?}");
        waits.push(job.json()["elapsed_ms"].as_u64().unwrap());
    }
    waits.sort_unstable();
    assert!(waits[waits.len() / 2] <= 300, "{waits:?}");
    // Each job goes to one of them.
    let ids: Vec<_> = (0..200).map(|at| json!(at)).collect();
    for part in ids.chunks(50) {
        one.wire.put("/api/n/both/bulk", &json!(part).to_string()).await;
    }
    let drain = async |wire: &api::Wire| {
        let mut own = Vec::new();
        loop {
            let reply = wire.get("/api/n/both?count=7&ttr=600").await;
            if reply.status == 404 {
                return own;
            }
            own.extend(reply.json().as_array().unwrap().iter().map(|job| job["job_id"].to_string()));
        }
    };
    let (first, second) = tokio::join!(drain(&one.wire), drain(&two.wire));
    let unique: BTreeSet<_> = first.iter().chain(&second).collect();
    assert_eq!((unique.len(), first.len() + second.len()), (200, 200));
    // A token that one of them deletes stops working in the other within a second.
    let token = one.admin.post("/token/n?description=x", "").await.text("token");
    let use_it = async || two.wire.call("GET", "/api/n/none", &[("x-token", &token)], "").await.status;
    assert_eq!(use_it().await, 404);
    assert_eq!(one.admin.delete(&format!("/token/n/{token}")).await.status, 204);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(use_it().await, 401);
    // Calls of both count.
    let limited = one.admin.post("/token/n?description=x", "").await.text("token");
    let limit = json!({ "read": 0, "write": 3, "interval": 600 }).to_string();
    assert_eq!(two.admin.post(&format!("/token/n/{limited}/limit"), &limit).await.status, 201);
    let mut statuses = Vec::new();
    for wire in [&one.wire, &two.wire, &one.wire, &two.wire] {
        statuses.push(wire.call("PUT", "/api/n/limited", &[("x-token", &limited)], "").await.status);
    }
    assert_eq!(statuses, [201, 201, 201, 429]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn a_server_that_is_killed_loses_nothing_that_was_synced_and_is_taken_up_again() {
    let server = single().await;
    asked::<()>(server.url(), &["CONFIG", "SET", "appendfsync", "always"]).await;
    let store = open(&server).await;
    assert_eq!(store.durability(), Durability::Machine);
    let Served { wire, queues: _queues, .. } =
        serve(&[("default", Arc::clone(&store))], ApiOptions::default()).await;
    for at in 0..20 {
        assert_eq!(wire.put("/api/n/kept?tries=3", &format!("{at}")).await.status, 201);
    }
    assert_eq!(wire.get("/api/n/kept?ttr=2").await.status, 200);
    assert_eq!(wire.put("/api/n/kept?delay=3", "delayed").await.status, 201);
    server.kill().unwrap();
    let refused = wire.put("/api/n/kept", "refused").await;
    assert_eq!((refused.status, refused.json()), (500, json!({ "error": "internal error" })));
    server.start().unwrap();
    let mut taken = BTreeSet::new();
    redis_nodes::until("all jobs", PATIENCE, async || {
        let reply = wire.get("/api/n/kept?timeout=1&ttr=600&count=100").await;
        if reply.status == 200 {
            let jobs = reply.json();
            taken.extend(jobs.as_array().unwrap().iter().map(|job| job["data"].to_string()));
        }
        taken.len() >= 21
    })
    .await;
    assert_eq!(taken.len(), 21, "the leased one is back, the delayed one is there: {taken:?}");
    // A server that has forgotten the scripts.
    asked::<()>(server.url(), &["SCRIPT", "FLUSH"]).await;
    assert_eq!(wire.put("/api/n/kept", "again").await.status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn servers_that_lose_jobs_and_full_servers_say_so() {
    let server = single().await;
    let store = open(&server).await;
    let queue = name("full");
    let body = Bytes::from(vec![b'x'; 10_000]);
    let ids = store.publish(Shard(0), &[jobs(&queue, 0, vec![body.clone(); 10])]).await.unwrap();
    asked::<()>(server.url(), &["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = store.publish(Shard(0), &[jobs(&queue, 0, vec![body])]).await.unwrap_err();
    assert!(matches!(&refused, JobStoreError::Unavailable(why) if why.contains("OOM")), "{refused}");
    let take = [Take { queue: queue.clone(), count: 5, ttr_s: 60 }];
    assert_eq!(store.take(Shard(0), &take).await.unwrap().1[0].jobs.len(), 5);
    assert_eq!(store.count_call("full", 60).await.unwrap(), 1, "a limited token can consume");
    let all: Vec<_> = ids[0].iter().map(|id| (queue.clone(), *id)).collect();
    assert_eq!(store.remove(Shard(0), &all).await.unwrap(), vec![true; 10]);
    // A far job that is not there would leave a mark for days.
    let far = JobId::of_timer(FAR_TIMER, JobId::new(0, Shard(0), 0, 0, false), 8).unwrap();
    let refused = store.remove_far(far.shard(), &[(queue.clone(), far)]).await.unwrap_err();
    assert!(matches!(&refused, JobStoreError::Unavailable(why) if why.contains("OOM")), "{refused}");
    asked::<()>(server.url(), &["CONFIG", "SET", "maxmemory", "0"]).await;
    let other = RedisJobsOptions { shards: 9, ..RedisJobsOptions::at(server.url()) };
    let refused = RedisJobs::open(patient(other)).await.map(drop).unwrap_err();
    assert!(
        matches!(&refused, OpenRedisError::Invalid(what) if what.contains("was made with 8")),
        "{refused}"
    );
    assert_eq!(store.remove_far(far.shard(), &[(queue.clone(), far)]).await.unwrap(), [false]);
    command(server.url(), &["CONFIG", "SET", "appendonly", "no"]).await.unwrap();
    let refused = RedisJobs::open(patient(RedisJobsOptions::at(server.url()))).await.map(drop).unwrap_err();
    assert!(
        matches!(&refused, OpenRedisError::Unsuited { what, .. } if what.contains("append-only")),
        "{refused}"
    );
    // A process that starts while Redis is away.
    let away = RedisJobs::open_later(RedisJobsOptions::at("127.0.0.1:1")).unwrap();
    let began = Instant::now();
    assert!(away.connect().await.is_err_and(|error| error.may_pass()));
    let refused = away.look(Shard(0), &[queue]).await.unwrap_err();
    assert!(
        refused.to_string().contains("127.0.0.1:1") && began.elapsed() < Duration::from_secs(10),
        "{refused}"
    );
}

/// The user of the shipped file does its work with the rights there, and reaches no keys of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs real servers: ./dev test runs it"]
async fn the_shipped_user_suffices_and_reaches_no_other_keys() {
    let server = single().await;
    redis_nodes::give_users(server.url()).await;
    let options = RedisJobsOptions {
        username: Some("windfall-task-queue".into()),
        password: Some(redis_nodes::PASSWORD.into()),
        call_timeout_ms: 20_000,
        connect_timeout_ms: 20_000,
        ..RedisJobsOptions::at(server.url())
    };
    let failed = task_queue::run(&Redis { name: "redis", options }).await;
    assert!(failed.is_empty(), "{failed:#?}");
    redis_nodes::refuses(server.url(), "windfall-task-queue", redis_nodes::FOR_NO_USER).await;
    let others: [&[&str]; 4] = [
        &["HMGET", "windfall:tokens:1", "a"],
        &["HMGET", "{wf:0000}:s", "a"],
        &["HMGET", "{wfj:0000}:e", "a"],
        &["EVAL", "return redis.call('HGET', KEYS[1], 'a')", "1", "windfall:tokens:1"],
    ];
    redis_nodes::refuses(server.url(), "windfall-task-queue", &others).await;
}
