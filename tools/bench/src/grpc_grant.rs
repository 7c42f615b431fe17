//! `grpc.grant`: grants into PostgreSQL over gRPC in batches of 500, by three callers at once, through the server with
//! keys and limits, beside the bare batched statements that write the same rows, 500 a transaction, on three
//! connections: same tables, same durability, alternating. Caller, server and database share the machine.

use crate::measure::{Row, Unit, median};
use crate::postgres_grant::{ROUNDS, WRITERS, bare_hands, batches, check, rate, schema, service, write};
use crate::served::Served;
use anyhow::{Result, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_client::RewardsClient;
use windfall_edge::{Role, Router};
use windfall_proto::v1::{Bonus, BonusEvent, GrantOutcome, User};
use windfall_reward_service::rpc::RewardsService;
use windfall_servers::Private;

/// The number of events in a call, and of orders in a transaction of the handwritten candidate.
const BATCH: u64 = 500;

pub fn measure(name: &'static str) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = Private::start(windfall_servers::PostgresOptions::default())?;
    let (ours, bare) = (schema("ours"), schema("bare"));
    let rewards = service(server.url(), &ours)?;
    let mut hands = bare_hands(&runtime, server.url(), &bare)?;
    let router = Router::new().rewards(Arc::new(RewardsService::new(rewards.clone())));
    let served = runtime.block_on(Served::start(router, Role::Grant))?;
    let client = runtime.block_on(async { RewardsClient::open(served.client()) })?;
    let (mut grpc_s, mut bare_s) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let ours = runtime.block_on(ask_all(&client, round, GrantOutcome::Credited))?;
        let own = runtime.block_on(write(&mut hands, round, BATCH))?;
        // The first round warms up both.
        if round > 0 {
            grpc_s.push(rate(ours));
            bare_s.push(rate(own));
        }
    }
    runtime.block_on(served.stop());
    rewards.close();
    check(server.url(), &[&ours, &bare])?;
    Ok(Row::new(name, median(grpc_s), Unit::PerSecond, Some(median(bare_s))))
}

/// The calls of each caller in a round: their events.
fn calls(round: u64) -> Vec<Vec<Vec<BonusEvent>>> {
    let event = |(trade_no, user_id, amount): (String, i64, i64)| BonusEvent {
        trade_no,
        user: Some(User { user_id, ..User::default() }),
        activity: "spring".into(),
        scene: "rain".into(),
        bonus: Some(Bonus { r#type: "cash".into(), amount, description: String::new() }),
        ..BonusEvent::default()
    };
    let of_writer = |writer| {
        let of_batch = |orders: Vec<_>| orders.into_iter().map(event).collect();
        batches(round, writer, BATCH).into_iter().map(of_batch).collect()
    };
    (0..WRITERS).map(of_writer).collect()
}

/// Has every event of a round answered as expected: accepted by `GrantAsync`, or anything else by `GrantBatch`.
pub async fn ask_all(client: &RewardsClient, round: u64, expected: GrantOutcome) -> Result<Duration> {
    let all = calls(round);
    let started = Instant::now();
    let callers: Vec<_> = all
        .into_iter()
        .map(|batches| {
            let client = client.clone();
            tokio::spawn(async move {
                for events in batches {
                    let replies = match expected {
                        GrantOutcome::Accepted => client.grant_async(events).await?,
                        _ => client.grant_batch(events).await?,
                    };
                    let all_are = replies.iter().all(|reply| reply.outcome() == expected);
                    ensure!(all_are, "{:?}", replies.first());
                }
                Ok(())
            })
        })
        .collect();
    for caller in callers {
        caller.await??;
    }
    Ok(started.elapsed())
}
