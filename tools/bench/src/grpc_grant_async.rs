//! `grpc.grant_async`: grants over gRPC that are taken now and done later, in batches of 500, by three callers at once: each
//! is answered when its order and its budget are reserved in PostgreSQL and its event is on a queue. The queue acknowledges
//! at once, so that the reservation is what is measured; what a real one takes is `kafka.send`.

use crate::grpc_grant::ask_all;
use crate::measure::{Row, Unit, median};
use crate::postgres_grant::{ROUNDS, WRITERS, orders_per_writer, rate, schema, service};
use crate::served::Served;
use anyhow::{Result, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use windfall_client::RewardsClient;
use windfall_edge::{Role, Router};
use windfall_ledger::Ledger;
use windfall_proto::v1::GrantOutcome;
use windfall_reward_service::rpc::RewardsService;
use windfall_reward_service::{AsyncGrantOptions, AsyncGrants, EventQueue, NotQueued};
use windfall_servers::Private;

/// Counts what it is given.
#[derive(Default)]
struct Queue(AtomicU64);

#[async_trait]
impl EventQueue for Queue {
    fn check(&self, _: &Bytes) -> Result<(), NotQueued> {
        Ok(())
    }

    async fn enqueue(&self, events: &[Bytes], _: bool) -> Vec<Result<(), NotQueued>> {
        self.0.fetch_add(events.len() as u64, Ordering::Relaxed);
        events.iter().map(|_| Ok(())).collect()
    }
}

pub fn measure(name: &'static str) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = Private::start(windfall_servers::PostgresOptions::default())?;
    let options = schema("ours");
    let rewards = service(server.url(), &options)?;
    let queue = Arc::new(Queue::default());
    let later = AsyncGrants::new(rewards.clone(), queue.clone(), AsyncGrantOptions::default());
    let router = Router::new().rewards(Arc::new(RewardsService::with_queue(later)));
    let served = runtime.block_on(Served::start(router, Role::Grant))?;
    let client = runtime.block_on(async { RewardsClient::open(served.client()) })?;
    let mut per_s = Vec::new();
    for round in 0..=ROUNDS {
        let took = runtime.block_on(ask_all(&client, round, GrantOutcome::Accepted))?;
        // The first round warms up.
        if round > 0 {
            per_s.push(rate(took));
        }
    }
    runtime.block_on(served.stop());
    rewards.close();
    let found = Ledger::connect(server.url(), &options)?.reconcile()?;
    let all = (ROUNDS + 1) * WRITERS * orders_per_writer();
    ensure!(found.is_clean() && found.orders == all, "{all} orders, and found {found:?}");
    ensure!(
        queue.0.load(Ordering::Relaxed) == all,
        "{} events on the queue",
        queue.0.load(Ordering::Relaxed)
    );
    Ok(Row::new(name, median(per_s), Unit::PerSecond, None))
}
