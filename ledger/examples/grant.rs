//! Measures how fast the ledger credits: `cargo run --release --example grant -- [orders] [users] [batch]`.
//! Prints one line per variant: orders per second, CPU time per order over the whole process, memory, bytes on disk.
//! `in order` numbers orders as the typed helpers do (round before user), `random` scatters them, which no caller
//! should do.

use std::error::Error;
use std::time::Instant;
use windfall_ledger::{BudgetSet, Ledger, LedgerOptions, LedgerReader, Order, OrderOutcome};

/// The bonus types, and how many of 100 orders have each.
const TYPES: [(&str, u64); 5] =
    [("cash", 70), ("coupon_tea", 8), ("coupon_taxi", 7), ("coupon_film", 5), ("coin", 10)];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let orders = args.next().transpose()?.unwrap_or(1_000_000);
    let users = args.next().transpose()?.unwrap_or(50_000);
    let batch = usize::try_from(args.next().transpose()?.unwrap_or(4096))?;
    for random in [false, true] {
        run(orders, users, batch, random)?;
    }
    Ok(())
}

fn run(orders: u64, users: u64, batch: usize, random: bool) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir_in(".")?;
    let path = folder.path().join("ledger.db");
    let mut ledger = Ledger::open(&path, &LedgerOptions::default())?;
    ledger.set_budgets(&[BudgetSet {
        activity: "spring-2027",
        scene: "red-packet-rain",
        bonus_type: "cash",
        total: 1 << 50,
        shards: 8,
    }])?;
    let rows: Vec<(String, i64, &str)> = (0..orders).map(|nth| row(nth, users, random)).collect();
    let (start, cpu) = (Instant::now(), cpu_ns());
    let mut credited = 0;
    for part in rows.chunks(batch) {
        let part: Vec<Order<'_>> = part
            .iter()
            .map(|(trade_no, user_id, bonus_type)| Order {
                trade_no,
                user_id: *user_id,
                activity: "spring-2027",
                scene: "red-packet-rain",
                bonus_type,
                amount: 1 + user_id % 1000,
                time_ms: 1_800_000_000_000,
            })
            .collect();
        let outcomes = ledger.apply(&part)?;
        credited += outcomes.iter().filter(|outcome| **outcome == OrderOutcome::Credited).count();
    }
    let (wall, cpu) = (start.elapsed(), cpu_ns() - cpu);
    let wall_us = u64::try_from(wall.as_micros())?;
    println!(
        "{}: {} credited, {} orders/s, {} ns CPU an order, peak {} KiB with the input's {} KiB, {} MiB file",
        if random { "random  " } else { "in order" },
        credited,
        orders * 1_000_000 / wall_us.max(1),
        cpu / orders,
        peak_kib()?,
        rows.iter().map(|(trade_no, ..)| trade_no.capacity() + 48).sum::<usize>() / 1024,
        std::fs::metadata(&path)?.len() >> 20,
    );
    let start = Instant::now();
    drop(ledger);
    let closed_ms = start.elapsed().as_millis();
    let (start, reader) = (Instant::now(), LedgerReader::open(&path)?);
    let clean = reader.reconcile()?.is_clean();
    let reconciled_ms = start.elapsed().as_millis();
    let start = Instant::now();
    let mut credits = 0;
    for line in reader.orders()? {
        credits += u64::from(line?.credits);
    }
    let read_ms = start.elapsed().as_millis();
    println!(
        "          closed in {closed_ms} ms, reconciled in {reconciled_ms} ms (clean: {clean}), {credits} credits \
         read in {read_ms} ms"
    );
    Ok(())
}

fn row(nth: u64, users: u64, random: bool) -> (String, i64, &'static str) {
    let mixed = mix(nth);
    let mut share = mixed % 100;
    let mut bonus_type = TYPES[0].0;
    for (name, of_100) in TYPES {
        if share < of_100 {
            bonus_type = name;
            break;
        }
        share -= of_100;
    }
    let user = mix(mixed) % users;
    let trade_no = if random {
        format!("spring-2027/{:016x}{:016x}", mix(nth ^ 0x55), mixed)
    } else {
        format!("spring-2027/rain/{:06}/{user}/{bonus_type}/{}", nth / 10_000, nth % 10_000)
    };
    (trade_no, user.cast_signed(), bonus_type)
}

/// splitmix64 (<https://prng.di.unimi.it/splitmix64.c>).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn peak_kib() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
