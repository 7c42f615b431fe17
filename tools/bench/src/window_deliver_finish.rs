//! `window.deliver_finish`: a record taken into the window and the oldest of 100,000 finished, the position to
//! commit taken once a run. Also what the window holds in memory, on standard error.

use crate::measure::{Row, Unit, ns_a_call, per};
use anyhow::{Context, Result, ensure};
use std::collections::VecDeque;
use std::hint::black_box;
use windfall_consumer::window::Window;

const IN_HAND: u64 = 100_000;
/// Windows held at once to see their memory: some megabytes, so that pages are a fine enough measure.
const WINDOWS: u64 = 200;

pub fn measure(name: &'static str) -> Result<Row> {
    let bits = bits_a_record()?;
    eprintln!("  {bits:.2} bits of memory a record in hand, at {IN_HAND}");

    let mut window = Window::new(1, 0);
    let mut in_hand = VecDeque::with_capacity(usize::try_from(IN_HAND)? + 1);
    for offset in 0..IN_HAND {
        in_hand.push_back(window.deliver(offset)?);
    }
    let mut next = IN_HAND;
    let [cost_ns] = ns_a_call([&mut |calls| {
        for _ in 0..calls {
            in_hand.push_back(window.deliver(black_box(next))?);
            next += 1;
            if let Some(oldest) = in_hand.pop_front() {
                oldest.finish();
            }
        }
        ensure!(window.advance() == next - IN_HAND, "the position to commit is wrong");
        Ok(())
    }])?;
    Ok(Row::new(name, cost_ns, Unit::NsACall, None))
}

/// By the growth of this process. A record's ticket is the consumer's, not the window's, so it is finished here at
/// once; without `advance` the window keeps its blocks as if it were not.
fn bits_a_record() -> Result<f64> {
    let mut windows = Vec::with_capacity(usize::try_from(WINDOWS)?);
    let before = resident_bytes()?;
    for _ in 0..WINDOWS {
        let mut window = Window::new(1, 0);
        for offset in 0..IN_HAND {
            window.deliver(offset)?.finish();
        }
        windows.push(window);
    }
    let grown = resident_bytes()?.saturating_sub(before);
    drop(black_box(windows));
    Ok(per(grown * 8, WINDOWS * IN_HAND))
}

fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().strip_suffix("kB").context("VmRSS is not in kB")?.trim().parse()?;
    Ok(kib * 1024)
}
