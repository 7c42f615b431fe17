//! Measures how fast the service grants: `cargo run --release --example grants -- [events] [callers] [batch]`.
//!
//! Callers send batches of one type each, as lanes do; the ledger pays. It prints events per second from the first call
//! to the last answer, the process's CPU time per event, and events per transaction.

use bytes::Bytes;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use windfall_contract::Clock;
use windfall_contract::rewards::Rewards;
use windfall_ledger::{Ledger, LedgerOptions, Unbudgeted};
use windfall_proto::event::EventRef;
use windfall_reward_service::{RewardOptions, RewardService};

const TYPES: [&str; 10] =
    ["cash", "cash", "cash", "cash", "cash", "cash", "cash", "coupon_tea", "coupon_taxi", "coin"];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>());
    let events = args.next().transpose()?.unwrap_or(500_000);
    let callers = args.next().transpose()?.unwrap_or(64);
    let batch = args.next().transpose()?.unwrap_or(256);
    let folder = tempfile::tempdir_in(".")?;
    let ledger = Ledger::open(
        folder.path().join("ledger.db"),
        &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() },
    )?;
    let rewards = RewardService::start(RewardOptions::default(), ledger, vec![], None, Clock::system())?;
    let batches: Arc<Vec<(&str, Vec<Bytes>)>> =
        Arc::new((0..events / batch).map(|nth| (TYPES[nth % 10], pack(nth, batch))).collect());
    let (start, cpu) = (Instant::now(), cpu_ns());
    let next = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (rewards, batches, next) = (rewards.clone(), Arc::clone(&batches), Arc::clone(&next));
            tokio::spawn(async move {
                let mut credited = 0;
                while let Some((bonus_type, events)) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let replies = rewards.grant_batch(bonus_type, events).await;
                    credited += replies.iter().filter(|reply| reply.is_credited()).count();
                }
                credited
            })
        })
        .collect();
    let mut credited = 0;
    for task in tasks {
        credited += task.await?;
    }
    let (wall_us, cpu) = (u64::try_from(start.elapsed().as_micros())?.max(1), cpu_ns() - cpu);
    let (events, commits) = (u64::try_from(credited)?.max(1), rewards.stats().commits.max(1));
    println!(
        "{credited} credited, {} events/s, {} ns CPU an event, {} events a transaction",
        events * 1_000_000 / wall_us,
        cpu / events,
        events / commits,
    );
    rewards.close();
    Ok(())
}

fn pack(batch: usize, count: usize) -> Vec<Bytes> {
    let round = batch / 40;
    let event = |nth: usize| {
        let user = (batch * 7_919 + nth * 104_729) % 50_000 + 1;
        let trade_no = format!("spring-2027/rain/{round:06}/{user}/{batch}/{nth}");
        let mut bytes = Vec::new();
        let event = EventRef {
            trade_no: &trade_no,
            user_id: i64::try_from(user).unwrap_or(0),
            app_id: "app",
            activity: "spring-2027",
            scene: "red-packet-rain",
            bonus_type: TYPES[batch % 10],
            amount: 88,
            award_time_ms: 1_800_000_000_000,
            first_sent_ms: 1_800_000_000_000,
            ..EventRef::default()
        };
        event.encode([], &mut bytes);
        bytes.into()
    };
    (0..count).map(event).collect()
}

fn cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
