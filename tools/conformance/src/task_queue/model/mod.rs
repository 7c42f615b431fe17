//! Random calls on a store of jobs, held against a naive one in memory: a job has one lease at a time, what was acknowledged
//! never comes again, tries are counted, delays and ttl are kept, and sizes agree, whatever comes between, closing and opening
//! the store included. A seed stands for one sequence of calls; where the clock is the test's, it stands for their answers too.

mod jobs;
mod looks;
mod ops;
mod running;

pub use ops::ModelClock;

use super::Fixture;
use ops::Op;
use running::Run;

/// The variable that names one seed to be run alone.
const SEED: &str = "WINDFALL_TASK_QUEUE_SEED";
/// How many runs with fewer calls are made of one that has failed.
const SHRINKING_RUNS: u32 = 100;

/// Makes so many random calls with each of the seeds 1 to `seeds`, or with the one that `WINDFALL_TASK_QUEUE_SEED` names, each
/// on a store of its own: `fresh` makes one with nothing in it. Where the clock is the test's, a run that has failed is made
/// again with fewer calls, as long as that fails, too.
///
/// # Errors
/// The seed that fails, what is wrong, and the calls that lead there.
pub async fn run(
    fresh: &dyn Fn() -> Box<dyn Fixture>,
    clock: ModelClock,
    seeds: u64,
    steps: usize,
) -> Result<(), String> {
    let alone = match std::env::var(SEED) {
        Ok(text) => Some(text.parse::<u64>().map_err(|error| format!("{SEED}: {error}"))?),
        Err(_) => None,
    };
    for seed in alone.map_or(1..=seeds, |seed| seed..=seed) {
        let all = ops::drawn(seed, steps, clock);
        let Err(failed) = once(fresh, clock, &all).await else { continue };
        let (name, what, at) = (fresh().name().to_owned(), failed.what.clone(), failed.at);
        let (fewest, last) = match clock {
            ModelClock::OfTheTest => shrunk(fresh, clock, &all, failed).await,
            ModelClock::OfTheStore => (up_to(&all, failed.at), failed),
        };
        let calls: Vec<String> = fewest.iter().map(|op| format!("  {op:?}")).collect();
        return Err(format!(
            "{name}: step {at} of seed {seed}: {what}; run it alone with {SEED}={seed}\n{} calls lead to this: {}\n{}",
            calls.len(),
            last.what,
            calls.join("\n"),
        ));
    }
    Ok(())
}

/// A run that has failed.
struct Failed {
    /// The number of the call; behind the last one it is the end of the run.
    at: usize,
    what: String,
}

async fn once(fresh: &dyn Fn() -> Box<dyn Fixture>, clock: ModelClock, ops: &[Op]) -> Result<(), Failed> {
    let fixture = fresh();
    let mut run = Run::begin(&*fixture).await.map_err(|what| Failed { at: 0, what })?;
    for (at, op) in ops.iter().enumerate() {
        run.step(op).await.map_err(|what| Failed { at, what: format!("{what}, in {op:?}") })?;
    }
    let end = |what: String| Failed { at: ops.len(), what: format!("{what}, at the end") };
    run.finish(clock).await.map_err(end)
}

fn up_to(ops: &[Op], at: usize) -> Vec<Op> {
    ops[..ops.len().min(at + 1)].to_vec()
}

/// The fewest calls that were found to fail, in whatever way.
async fn shrunk(
    fresh: &dyn Fn() -> Box<dyn Fixture>,
    clock: ModelClock,
    ops: &[Op],
    mut failed: Failed,
) -> (Vec<Op>, Failed) {
    let mut kept = up_to(ops, failed.at);
    let (mut some, mut runs) = (kept.len().div_ceil(2), SHRINKING_RUNS);
    while some > 0 {
        let mut at = 0;
        while at < kept.len() && runs > 0 {
            runs -= 1;
            let mut fewer = kept.clone();
            fewer.drain(at..kept.len().min(at + some));
            match once(fresh, clock, &fewer).await {
                Err(again) => (kept, failed) = (up_to(&fewer, again.at), again),
                Ok(()) => at += some,
            }
        }
        some /= 2;
    }
    (kept, failed)
}
