//! Puts tokens and removes them, and prints the CPU time each costs, all threads told.
//!
//! `cargo run --release -p windfall-store --example store_cost -- [TOKENS] [BATCH]`

use std::time::{Duration, Instant};
use windfall_contract::tokens::{NEVER, TokenKey, TokenPut, TokenStore};
use windfall_store::embedded::{EmbeddedStore, EmbeddedStoreOptions};

/// User and system time of this process so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let words = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let fields: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    // Without the name and the state, utime and stime are the 11th and 12th; a tick is 10 ms.
    Duration::from_millis(10 * (fields.get(10).unwrap_or(&0) + fields.get(11).unwrap_or(&0)))
}

#[allow(clippy::cast_precision_loss)]
fn print(what: &str, count: usize, started: Instant, before: Duration) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("?").trim().to_owned();
    let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    println!(
        "{what}: {:.2} µs CPU, {:.2} µs wall each; peak memory {peak}",
        each(cpu() - before),
        each(started.elapsed())
    );
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let count: usize = args.next().unwrap_or("1000000".into()).parse()?;
    let batch: usize = args.next().unwrap_or("1000".into()).parse()?;
    let dir = tempfile::tempdir()?;
    let store = EmbeddedStore::open(dir.path(), &EmbeddedStoreOptions::default())?;
    let token = "A".repeat(300);
    let name = |number: usize| format!("rain-2027-{number:010}").into_boxed_str();
    // Scattered like the users of a rain, not in order.
    let user = |number: usize| i64::try_from(number.wrapping_mul(2_654_435_761) % 50_000).unwrap_or(0);
    let numbers: Vec<usize> = (0..count).collect();

    for (what, gap) in [("remove long after", count), ("remove soon after", batch * 4)] {
        let (mut puts, mut removes) = (numbers.chunks(batch), numbers.chunks(batch));
        let (started, before) = (Instant::now(), cpu());
        let mut ahead = 0;
        loop {
            if let Some(numbers) = puts.next() {
                let puts: Vec<_> = numbers
                    .iter()
                    .map(|one| TokenPut {
                        user_id: user(*one),
                        name: name(*one),
                        token: token.as_str().into(),
                        expires_at_ms: NEVER,
                    })
                    .collect();
                store.put(&puts).await?;
                ahead += numbers.len();
                if ahead == count && gap == count {
                    print("put", count, started, before);
                }
                if ahead < gap {
                    continue;
                }
            }
            let Some(numbers) = removes.next() else { break };
            let keys: Vec<_> =
                numbers.iter().map(|one| TokenKey { user_id: user(*one), name: name(*one) }).collect();
            store.remove(&keys).await?;
        }
        print(&format!("put and {what}"), count, started, before);
    }
    Ok(())
}
