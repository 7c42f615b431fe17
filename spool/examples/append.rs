//! Measures what an event costs in the spool: claim, append, seal and free, per event.
//!
//! `cargo run --release -p windfall-spool --example append -- [DIRECTORY]`, by default a temporary one. Its file
//! system matters for the `machine` row.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;
use windfall_spool::{Durability, NoRoom, OpenPack, SealedPack, Spool, SpoolOptions};

const EVENT: [u8; 200] = [0x5A; 200];
const HEAD: [u8; 12] = [1; 12];
const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let root = std::env::args().nth(1).map_or_else(|| temporary.path().join("spool"), PathBuf::from);
    let process = SpoolOptions::default();
    let machine = SpoolOptions { durability: Durability::Machine, ..process };

    let memory = Spool::memory(&process);
    row("memory, 4 packs in flight", 2_000_000, || send(&memory, 2_000_000, 4))?;
    let spool = empty(&root, &process)?;
    row("mapped, 4 packs in flight", 2_000_000, || send(&spool, 2_000_000, 4))?;
    row("mapped, 900 packs in flight", 2_000_000, || send(&spool, 2_000_000, 900))?;
    drop(spool);
    let spool = empty(&root, &machine)?;
    row("mapped, machine", 200, || send(&spool, 200, 4))?;
    Ok(())
}

/// Opens a spool under `root` and frees everything that was left there.
fn empty(root: &Path, options: &SpoolOptions) -> Result<Spool, Box<dyn Error>> {
    let (spool, left) = Spool::open(root, options)?;
    left.packs.into_iter().for_each(|pack| pack.seal(&[]).free());
    Ok(spool)
}

/// Prints the nanoseconds per event of the best and the worst of some runs.
fn row(name: &str, events: u32, run: impl Fn() -> Result<(), Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let mut costs_ns = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        costs_ns.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(events));
    }
    costs_ns.sort_by(f64::total_cmp);
    println!("{name:<28} {:>10.1} ns an event, at worst {:>10.1}", costs_ns[0], costs_ns[RUNS - 1]);
    Ok(())
}

/// Sends events; the oldest pack is acknowledged when more than `in_flight` are under way.
fn send(spool: &Spool, events: u32, in_flight: usize) -> Result<(), Box<dyn Error>> {
    let mut sent = std::collections::VecDeque::<SealedPack>::with_capacity(in_flight + 1);
    let mut open: OpenPack = spool.claim(b"queue/cash")?;
    for _ in 0..events {
        if let Err(NoRoom) = open.append(&EVENT) {
            sent.push_back(open.seal(&HEAD));
            if sent.len() > in_flight {
                sent.pop_front().into_iter().for_each(SealedPack::free);
            }
            open = spool.claim(b"queue/cash")?;
            open.append(&EVENT)?;
        }
    }
    sent.push_back(open.seal(&HEAD));
    sent.into_iter().for_each(SealedPack::free);
    Ok(())
}
