//! The rows of the task queue: its HTTP API in this process, on a private Redis (append-only file, a sync each second), by
//! callers over HTTP/1.1 in this process too. The baseline is a bare hyper server with the same callers.

mod wire;

use crate::measure::{Row, Unit, median, per};
use crate::scheduler::{Control, on_redis, sized};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::due::Shard;
use windfall_contract::task_queue::{JobStore, NewJobs, QueueName, TTL_DEFAULT_S};
use windfall_task_queue::redis::{RedisJobs, RedisJobsOptions};
use windfall_task_queue::{ApiOptions, PoolParts, TaskQueues};
use wire::{Bare, Connection, request, send_all};

const TOKEN: &str = "a-token-for-measurements";
const ROUNDS: usize = 5;
/// A body of 64 bytes, as a JSON text where a call has many.
const BODY: &str = "\"--------------------------------------------------------------\"";
const BULK_JOBS: u64 = 64;

struct Served {
    queues: TaskQueues,
    store: Arc<RedisJobs>,
}

impl Served {
    async fn start(url: &str) -> Result<Self> {
        let options = RedisJobsOptions { call_timeout_ms: 30_000, ..RedisJobsOptions::at(url) };
        let store = RedisJobs::open(options).await?;
        let pool = PoolParts { store: Arc::clone(&store) as _, tokens: Arc::clone(&store) as _, far: None };
        let any_port = "127.0.0.1:0".parse()?;
        let options = ApiOptions { listen: any_port, admin_listen: any_port, ..ApiOptions::default() };
        let pools = BTreeMap::from([("default".to_owned(), pool)]);
        let queues = windfall_task_queue::start(options, pools, Clock::system()).await?;
        let mut admin = Connection::open(queues.admin_address()).await?;
        let path = format!("/token/bench?description=bench&token={TOKEN}");
        let (status, body) = admin.call(&request("POST", &path, "", "")).await?;
        ensure!(status == 201, "{}", String::from_utf8_lossy(&body));
        Ok(Self { queues, store })
    }

    async fn stop(self) {
        self.queues.close(Duration::from_secs(5)).await;
    }

    /// Publishes so many jobs in bulk.
    async fn fill(&self, jobs: u64) -> Result<Duration> {
        let count = usize::try_from(BULK_JOBS)?;
        let body = format!("[{}]", vec![BODY; count].join(","));
        let one = request("PUT", "/api/bench/q/bulk", TOKEN, &body);
        let calls = vec![one; usize::try_from(jobs / BULK_JOBS)?];
        Ok(send_all(self.queues.api_address(), calls, 201).await?.0)
    }
}

fn rate(jobs: u64, took: Duration) -> f64 {
    per(jobs * 1_000_000, u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1))
}

/// Publishing of single jobs, beside the bare server.
pub fn publish(name: &'static str) -> Result<Row> {
    on_redis(async |url: String| {
        let (served, bare) = (Served::start(&url).await?, Bare::start().await?);
        let calls = sized(40_000, 2_000);
        let one = request("PUT", "/api/bench/q", TOKEN, BODY);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let requests = vec![one.clone(); usize::try_from(calls)?];
            let own = send_all(served.queues.api_address(), requests.clone(), 201).await?.0;
            let other = send_all(bare.address, requests, 201).await?.0;
            // The first round warms up both.
            if round > 0 {
                ours.push(rate(calls, own));
                theirs.push(rate(calls, other));
            }
        }
        served.stop().await;
        Ok(Row::new(name, median(ours), Unit::PerSecond, Some(median(theirs))))
    })
}

/// Publishing of 64 jobs a call.
pub fn bulk(name: &'static str) -> Result<Row> {
    on_redis(async |url: String| {
        let served = Served::start(&url).await?;
        let jobs = sized(640_000, 12_800);
        let mut rates = Vec::new();
        for _ in 0..=ROUNDS {
            rates.push(rate(jobs, served.fill(jobs).await?));
        }
        rates.remove(0);
        served.stop().await;
        Ok(Row::new(name, median(rates), Unit::PerSecond, None))
    })
}

/// Consuming of 100 jobs a call.
pub fn consume(name: &'static str) -> Result<Row> {
    on_redis(async |url: String| {
        let served = Served::start(&url).await?;
        let jobs = sized(320_000, 12_800);
        let mut rates = Vec::new();
        for _ in 0..=ROUNDS {
            served.fill(jobs).await?;
            // Some are left, so that no call comes in vain.
            let calls = jobs / 100 * 9 / 10;
            let one = request("GET", "/api/bench/q?count=100&ttr=3600", TOKEN, "");
            let requests = vec![one; usize::try_from(calls)?];
            let (took, _) = send_all(served.queues.api_address(), requests, 200).await?;
            rates.push(rate(calls * 100, took));
        }
        rates.remove(0);
        served.stop().await;
        Ok(Row::new(name, median(rates), Unit::PerSecond, None))
    })
}

/// Acknowledging of single jobs, beside the bare server.
pub fn ack(name: &'static str) -> Result<Row> {
    on_redis(async |url: String| {
        let (served, bare) = (Served::start(&url).await?, Bare::start().await?);
        let jobs = sized(32_000, 1_920);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            served.fill(jobs).await?;
            let requests = acknowledgements(&served, jobs).await?;
            let calls = requests.len() as u64;
            let own = send_all(served.queues.api_address(), requests.clone(), 204).await?.0;
            let other = send_all(bare.address, requests, 201).await?.0;
            if round > 0 {
                ours.push(rate(calls, own));
                theirs.push(rate(calls, other));
            }
        }
        served.stop().await;
        Ok(Row::new(name, median(ours), Unit::PerSecond, Some(median(theirs))))
    })
}

/// Takes all jobs; the call that acknowledges each.
async fn acknowledgements(served: &Served, jobs: u64) -> Result<Vec<Vec<u8>>> {
    let mut connection = Connection::open(served.queues.api_address()).await?;
    let one = request("GET", "/api/bench/q?count=100&ttr=3600", TOKEN, "");
    let mut requests = Vec::new();
    while (requests.len() as u64) < jobs {
        let (status, body) = connection.call(&one).await?;
        ensure!(status == 200, "{}", String::from_utf8_lossy(&body));
        let taken: Vec<serde_json::Value> = serde_json::from_slice(&body)?;
        for job in taken {
            let id = job["job_id"].as_str().context("a job without an id")?;
            requests.push(request("DELETE", &format!("/api/bench/q/job/{id}"), TOKEN, ""));
        }
    }
    Ok(requests)
}

fn delayed(queue: &QueueName, delay_s: u32, count: u64) -> NewJobs {
    NewJobs {
        queue: queue.clone(),
        delay_s,
        ttl_s: TTL_DEFAULT_S,
        tries: 1,
        is_versioned: false,
        attributes: Vec::new(),
        bodies: (0..count).map(|_| Bytes::from_static(BODY.as_bytes())).collect(),
    }
}

/// How long after their time 100,000 jobs that are due at about the same time are all ready.
pub fn ready(name: &'static str) -> Result<Row> {
    on_redis(async |url: String| {
        let served = Served::start(&url).await?;
        let jobs = sized(100_000, 5_000);
        let (store, clock) = (&served.store, Clock::system());
        let queue = QueueName::new("bench", "due")?;
        let shards = u64::from(store.shards());
        for round in 0..jobs / 500 {
            let shard = Shard(u16::try_from(round % shards)?);
            store.publish(shard, &[delayed(&queue, 10, 500)]).await?;
        }
        let due_ms = clock.unix_ms() + 10_000;
        let mut path = Connection::open(served.queues.api_address()).await?;
        let size = request("GET", "/api/bench/due/size", TOKEN, "");
        loop {
            // A call that shows no token is answered, but after a hundred of them in a row the connection is closed.
            let Ok((_, body)) = path.call(&size).await else {
                path = Connection::open(served.queues.api_address()).await?;
                continue;
            };
            let found: serde_json::Value = serde_json::from_slice(&body)?;
            if found["size"] == jobs {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let late_ms = clock.unix_ms().saturating_sub(due_ms);
        served.stop().await;
        Ok(Row::new(name, per(late_ms, 1), Unit::Ms, None))
    })
}

/// What a delayed job of 64 bytes takes of Redis's `used_memory`, with due times evenly over an hour.
pub fn bytes_per_job(name: &'static str) -> Result<Row> {
    on_redis(async |url: String| {
        let mut control = Control::open(&url).await?;
        let served = Served::start(&url).await?;
        let jobs = sized(10_000_000, 200_000);
        let queue = QueueName::new("bench", "delayed")?;
        let empty = control.used_bytes().await?;
        let shards = u64::from(served.store.shards());
        for round in 0..jobs / 100 {
            let shard = Shard(u16::try_from(round % shards)?);
            let delay_s = 3_600 + u32::try_from(round * 7 % 3_600)?;
            served.store.publish(shard, &[delayed(&queue, delay_s, 100)]).await?;
        }
        let used = control.used_bytes().await? - empty;
        served.stop().await;
        Ok(Row::new(name, used / per(jobs, 1), Unit::Bytes, None).with("used_bytes", used))
    })
}
