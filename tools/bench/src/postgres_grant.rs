//! `postgres.grant`: grants into PostgreSQL through the reward service in process, beside the bare batched
//! statements that write the same rows: same tables, batch, connections and durability, alternating.

use crate::measure::{Row, Unit, median, per};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};
use windfall_contract::Clock;
use windfall_contract::rewards::Rewards;
use windfall_ledger::{BudgetSet, Ledger, PostgresOptions, Unbudgeted};
use windfall_proto::event::EventRef;
use windfall_reward_service::{RewardHandle, RewardOptions, RewardService};
use windfall_servers::Private;

/// Orders of a writer in a round, where the command line says nothing else.
pub const ORDERS_PER_WRITER: u64 = 30_000;
/// What the command line says.
pub static ORDERS: OnceLock<u64> = OnceLock::new();
/// Connections of either side, each with batches of its own.
pub const WRITERS: u64 = 3;
pub const ROUNDS: u64 = 5;
/// The number of orders in a batch of this benchmark.
const BATCH: u64 = 1_000;
const USERS: u64 = 50_000;

/// Takes no more than one transaction's events per call, and as many calls at once as there are connections.
pub fn measure(name: &'static str) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = Private::start(windfall_servers::PostgresOptions::default())?;
    let (ours, bare) = (schema("ours"), schema("bare"));
    let rewards = service(server.url(), &ours)?;
    let mut hands = bare_hands(&runtime, server.url(), &bare)?;
    let (mut grant_s, mut bare_s) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let ours = runtime.block_on(grant(&rewards, round))?;
        let own = runtime.block_on(write(&mut hands, round, BATCH))?;
        // The first round warms up both.
        if round > 0 {
            grant_s.push(rate(ours));
            bare_s.push(rate(own));
        }
    }
    rewards.close();
    check(server.url(), &[&ours, &bare])?;
    Ok(Row::new(name, median(grant_s), Unit::PerSecond, Some(median(bare_s))))
}

/// Orders of a writer in a round.
pub fn orders_per_writer() -> u64 {
    ORDERS.get().copied().unwrap_or(ORDERS_PER_WRITER)
}

/// Every order is there, and nothing does not fit.
pub fn check(url: &str, schemas: &[&PostgresOptions]) -> Result<()> {
    for options in schemas {
        let found = Ledger::connect(url, options)?.reconcile()?;
        ensure!(found.is_clean(), "{}: {found:?}", options.schema);
        ensure!(found.orders == (ROUNDS + 1) * WRITERS * orders_per_writer(), "{} orders", found.orders);
    }
    Ok(())
}

pub fn schema(name: &str) -> PostgresOptions {
    PostgresOptions { schema: name.into(), unbudgeted: Unbudgeted::Allow, ..PostgresOptions::default() }
}

pub fn rate(took: Duration) -> f64 {
    per(WRITERS * orders_per_writer(), 1) / took.as_secs_f64()
}

pub fn service(url: &str, options: &PostgresOptions) -> Result<RewardHandle> {
    let mut ledger = Ledger::connect(url, options)?;
    ledger.set_budgets(&[budget()])?;
    let options = RewardOptions {
        writers: Some(usize::try_from(WRITERS)?),
        batch_events_max: Some(usize::try_from(BATCH)?),
        ..RewardOptions::default()
    };
    Ok(RewardService::start(options, ledger, vec![], None, Clock::system())?)
}

fn budget() -> BudgetSet<'static> {
    BudgetSet { activity: "spring", scene: "rain", bonus_type: "cash", total: 1 << 50, shards: 8 }
}

/// A writer's batches of a round.
pub fn batches(round: u64, writer: u64, batch: u64) -> Vec<Vec<(String, i64, i64)>> {
    let of_batch = |at: u64| (at * batch..(at + 1) * batch).map(|nth| order(round, writer, nth)).collect();
    (0..orders_per_writer() / batch).map(of_batch).collect()
}

/// Order number, user, amount; in the order in which the typed helpers number them.
fn order(round: u64, writer: u64, at: u64) -> (String, i64, i64) {
    let nth = (round * WRITERS + writer) * orders_per_writer() + at;
    let user = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20) % USERS + 1;
    (
        format!("spring/rain/{round:03}/{writer}/{:03}/{:04}/{user}", at / 1_000, at % 1_000),
        user.cast_signed(),
        1 + user.cast_signed() % 99,
    )
}

async fn grant(rewards: &RewardHandle, round: u64) -> Result<Duration> {
    let event = |(trade_no, user_id, amount): (String, i64, i64)| {
        let mut bytes = Vec::new();
        EventRef {
            trade_no: &trade_no,
            user_id,
            activity: "spring",
            scene: "rain",
            bonus_type: "cash",
            amount,
            ..EventRef::default()
        }
        .encode([], &mut bytes);
        Bytes::from(bytes)
    };
    let of_writer = |writer| {
        let of_batch = |orders: Vec<_>| orders.into_iter().map(event).collect();
        batches(round, writer, BATCH).into_iter().map(of_batch).collect()
    };
    let all: Vec<Vec<Vec<Bytes>>> = (0..WRITERS).map(of_writer).collect();
    let started = Instant::now();
    let callers: Vec<_> = all
        .into_iter()
        .map(|batches| {
            let rewards = rewards.clone();
            tokio::spawn(async move {
                for events in batches {
                    let replies = rewards.grant_batch("cash", &events).await;
                    ensure!(replies.iter().all(|reply| reply.is_credited()), "{:?}", replies.first());
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

/// A connection and its prepared statements, as one would write them by hand.
pub struct Hand {
    client: Client,
    statements: [tokio_postgres::Statement; 4],
    writer: u64,
    next_transfer: i64,
}

const INSERT: &str = "INSERT INTO orders \
    (order_key, user_id, amount, paid_by, program, created_ms, status, reason, took_ms) \
    SELECT w.*, 1, 1, 1, 0, 0 FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w \
    ON CONFLICT (order_key) DO NOTHING RETURNING order_key";
const BUDGET: &str = "UPDATE budget_shards SET used = used + $1 WHERE program = 1 AND shard = $2 \
    AND used + reserved + $1 <= total";
const ACCOUNTS: &str = "INSERT INTO accounts (kind, asset, holder, balance, last, before) \
    SELECT 0, (SELECT asset FROM programs WHERE id = 1), w.holder, w.balance, w.last, 0 \
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w(holder, balance, last) \
    ON CONFLICT (kind, asset, holder) DO UPDATE SET balance = accounts.balance + excluded.balance, \
    before = accounts.last, last = excluded.last RETURNING before";
const TRANSFERS: &str = "INSERT INTO transfers \
    (reference, credit_holder, amount, id, prev, kind, asset, debit, debit_holder, credit, time_ms) \
    SELECT w.*, 0, (SELECT asset FROM programs WHERE id = 1), 2, 1, 0, 1 \
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS w";

pub fn bare_hands(runtime: &Runtime, url: &str, options: &PostgresOptions) -> Result<Vec<Hand>> {
    // Makes the tables and the program's rows, then goes.
    Ledger::connect(url, options)?.set_budgets(&[budget()])?;
    (0..WRITERS)
        .map(|writer| {
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
                // Ends when its client is dropped, with the measurement.
                tokio::spawn(connection);
                client.batch_execute(&format!("SET search_path = {}; SET jit = off", options.schema)).await?;
                let statements = [
                    client.prepare(INSERT).await?,
                    client.prepare(BUDGET).await?,
                    client.prepare(ACCOUNTS).await?,
                    client.prepare(TRANSFERS).await?,
                ];
                let next_transfer = i64::try_from(writer + 1)? << 40;
                Ok(Hand { client, statements, writer, next_transfer })
            })
        })
        .collect()
}

/// The same orders by hand, so many a transaction.
pub async fn write(hands: &mut [Hand], round: u64, batch: u64) -> Result<Duration> {
    let all: Vec<Vec<Vec<(String, i64, i64)>>> =
        hands.iter().map(|hand| batches(round, hand.writer, batch)).collect();
    let started = Instant::now();
    let work = hands.iter_mut().zip(all).map(|(hand, batches)| async move {
        for batch in batches {
            hand.batch(&batch).await?;
        }
        Ok::<_, anyhow::Error>(())
    });
    futures_util::future::try_join_all(work).await?;
    Ok(started.elapsed())
}

impl Hand {
    async fn batch(&mut self, batch: &[(String, i64, i64)]) -> Result<()> {
        let [orders, budget, accounts, transfers] = &self.statements;
        // An order is known within its activity, and so is the reference of what it moved.
        let keys: Vec<String> = batch.iter().map(|(number, ..)| format!("{number} spring")).collect();
        let users: Vec<i64> = batch.iter().map(|(_, user, _)| *user).collect();
        let amounts: Vec<i64> = batch.iter().map(|(.., amount)| *amount).collect();
        let ids: Vec<i64> = (self.next_transfer..).take(batch.len()).collect();
        self.next_transfer += i64::try_from(batch.len())?;
        let sum: i64 = amounts.iter().sum();
        let own = i64::try_from(self.writer)?;
        // A user's balance moves once, its transfers hang on each other.
        let mut moved: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
        let mut prevs = Vec::with_capacity(batch.len());
        for ((user, amount), id) in users.iter().zip(&amounts).zip(&ids) {
            let entry = moved.entry(*user).or_insert((0, 0));
            prevs.push(entry.1);
            *entry = (entry.0 + amount, *id);
        }
        let holders: Vec<i64> = moved.keys().copied().collect();
        let balances: Vec<i64> = moved.values().map(|(sum, _)| *sum).collect();
        let lasts: Vec<i64> = moved.values().map(|(_, last)| *last).collect();
        self.client.batch_execute("BEGIN").await?;
        let new = self.client.query(orders, &[&keys, &users, &amounts, &ids]).await?;
        ensure!(new.len() == batch.len(), "an order was there");
        ensure!(self.client.execute(budget, &[&sum, &own]).await? == 1, "the budget is used up");
        let rows = self.client.query(accounts, &[&holders, &balances, &lasts]).await?;
        let mut before: BTreeMap<i64, i64> = BTreeMap::new();
        for (user, row) in moved.keys().zip(&rows) {
            before.insert(*user, row.try_get(0)?);
        }
        for (user, prev) in users.iter().zip(&mut prevs) {
            if *prev == 0 {
                *prev = before.get(user).copied().context("an account is missing")?;
            }
        }
        self.client.execute(transfers, &[&keys, &users, &amounts, &ids, &prevs]).await?;
        Ok(self.client.batch_execute("COMMIT").await?)
    }
}
