//! `redis.store`: tokens put per second into a real Redis with an append-only file, by two callers in batches of 1,000,
//! each token of another user, over two connections. Beside it what one would write by hand with the same client
//! crate: a pipeline of `HSET` a batch, of the same keys and the very bytes that the store keeps. The store's own
//! side also gives each user's hash its end. Private server, alternating rounds, emptied in between.

use crate::measure::{Row, Unit, median, per, process_cpu_ns};
use crate::mint::FIELDS;
use anyhow::{Context, Result, ensure};
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use windfall_contract::tokens::{TokenKey, TokenPut, TokenStore};
use windfall_servers::{Private, RedisOptions as ServerOptions};
use windfall_store::redis::{RedisOptions, RedisStore};
use windfall_token::KeyRing;

const ROUNDS: usize = 9;
const CALLERS: usize = 2;
const BATCHES: usize = 100;
const BATCH: usize = 1_000;
const PREFIX: &str = "windfall:tokens:";

/// The tokens that one caller sends.
struct Load {
    puts: Vec<TokenPut>,
    /// The same, as the store keeps them.
    values: Arc<[u8]>,
}

/// Puts per second and nanoseconds of CPU time per put; the same with a removal of each token.
#[derive(Default)]
struct Figures {
    puts_per_s: Vec<f64>,
    cpu_ns: Vec<f64>,
    mixed_per_s: Vec<f64>,
    mixed_cpu_ns: Vec<f64>,
}

pub fn measure(name: &'static str) -> Result<Row> {
    let server = Private::start(ServerOptions::default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(name, server.url()))
}

async fn run(name: &'static str, url: &str) -> Result<Row> {
    let client = redis::Client::open(url)?;
    // Without a time limit: emptying takes its time, and neither side shall wait for another reason.
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let mut control = client.get_multiplexed_async_connection_with_config(&patient).await?;
    let options = RedisOptions { connections: CALLERS, call_timeout_ms: 60_000, ..RedisOptions::at(url) };
    let store = RedisStore::open(options).await?;
    let mut loads = Vec::new();
    let mut bare = Vec::new();
    for caller in 0..CALLERS {
        loads.push(Arc::new(load(caller, &mut control, &store).await?));
        bare.push(client.get_multiplexed_async_connection_with_config(&patient).await?);
    }
    let (mut ours, mut theirs) = (Figures::default(), Figures::default());
    for round in 0..=ROUNDS {
        for is_ours in [true, false] {
            for is_mixed in [false, true] {
                empty(&mut control).await?;
                let (before, started) = (process_cpu_ns(), Instant::now());
                let callers: Vec<_> = (0..CALLERS)
                    .map(|caller| {
                        let (load, store) = (Arc::clone(&loads[caller]), Arc::clone(&store));
                        let connection = bare[caller].clone();
                        tokio::spawn(async move {
                            if is_ours {
                                by_store(&store, &load, is_mixed).await
                            } else {
                                by_hand(connection, &load, is_mixed).await
                            }
                        })
                    })
                    .collect();
                for caller in callers {
                    caller.await??;
                }
                let (gone, cpu_ns) = (started.elapsed(), process_cpu_ns() - before);
                let left: usize = redis::cmd("DBSIZE").query_async(&mut control).await?;
                ensure!(
                    left == if is_mixed { 0 } else { CALLERS * BATCHES * BATCH },
                    "{left} hashes are there"
                );
                // The first round warms up.
                if round > 0 {
                    let figures = if is_ours { &mut ours } else { &mut theirs };
                    figures.take(is_mixed, gone, cpu_ns)?;
                }
            }
        }
    }
    let ours = ours.medians();
    let theirs = theirs.medians();
    Ok(Row::new(name, ours[0], Unit::PerSecond, Some(theirs[0]))
        .with("cpu_ns_a_put", ours[1])
        .with("cpu_ns_a_put_by_hand", theirs[1])
        .with("put_and_removed_per_s", ours[2])
        .with("put_and_removed_per_s_by_hand", theirs[2])
        .with("cpu_ns_put_and_removed", ours[3])
        .with("cpu_ns_put_and_removed_by_hand", theirs[3]))
}

impl Figures {
    fn take(&mut self, is_mixed: bool, gone: Duration, cpu_ns: u64) -> Result<()> {
        let puts = u64::try_from(CALLERS * BATCHES * BATCH)?;
        let per_s = per(puts * 1_000_000_000, u64::try_from(gone.as_nanos())?);
        let (rates, costs) = if is_mixed {
            (&mut self.mixed_per_s, &mut self.mixed_cpu_ns)
        } else {
            (&mut self.puts_per_s, &mut self.cpu_ns)
        };
        rates.push(per_s);
        costs.push(per(cpu_ns, puts));
        Ok(())
    }

    fn medians(self) -> [f64; 4] {
        [self.puts_per_s, self.cpu_ns, self.mixed_per_s, self.mixed_cpu_ns].map(median)
    }
}

async fn load(caller: usize, control: &mut MultiplexedConnection, store: &RedisStore) -> Result<Load> {
    let token = KeyRing::ephemeral()?.minter(FIELDS.app_id)?.mint(&FIELDS, 0)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let expires_at_ms = u64::try_from(now.as_millis())? + 30 * 86_400_000;
    let puts: Vec<TokenPut> = (0..BATCHES * BATCH)
        .map(|one| {
            let user_id = i64::try_from(1_234_000_000 + (caller * BATCHES * BATCH + one) * 7)?;
            let name = format!("spring-2027/rain/0000000001/cash/{user_id}/0").into();
            Ok(TokenPut { user_id, name, token: token.as_str().into(), expires_at_ms })
        })
        .collect::<Result<_>>()?;
    // The bytes are learnt from the store itself.
    store.put(&puts[..1]).await?;
    let (key, field) = (format!("{PREFIX}{}", puts[0].user_id), &*puts[0].name);
    let values: Vec<u8> = redis::cmd("HGET").arg(key).arg(field).query_async(control).await?;
    ensure!(values.len() > 100, "the store keeps {} bytes", values.len());
    Ok(Load { puts, values: values.into() })
}

async fn empty(control: &mut MultiplexedConnection) -> Result<()> {
    redis::cmd("FLUSHALL").arg("SYNC").exec_async(control).await.context("Redis cannot be emptied")
}

async fn by_store(store: &RedisStore, load: &Load, is_mixed: bool) -> Result<()> {
    for batch in load.puts.chunks(BATCH) {
        store.put(batch).await?;
        if is_mixed {
            let keys = batch.iter().map(|put| TokenKey { user_id: put.user_id, name: put.name.clone() });
            store.remove(&keys.collect::<Vec<_>>()).await?;
        }
    }
    Ok(())
}

async fn by_hand(mut connection: MultiplexedConnection, load: &Load, is_mixed: bool) -> Result<()> {
    for batch in load.puts.chunks(BATCH) {
        let mut pipe = redis::pipe();
        for put in batch {
            let key = format!("{PREFIX}{}", put.user_id);
            pipe.hset(key, &*put.name, &*load.values).ignore();
        }
        pipe.exec_async(&mut connection).await?;
        if is_mixed {
            let mut pipe = redis::pipe();
            for put in batch {
                pipe.hdel(format!("{PREFIX}{}", put.user_id), &*put.name).ignore();
            }
            pipe.exec_async(&mut connection).await?;
        }
    }
    Ok(())
}
