//! One turn with the broker: pause, commit, poll. The source travels through it, so that nothing is cancelled half
//! way and the loop goes on meanwhile.

use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::broker::{Commit, CommitError, Consumer, Fetch, PollError, Polled, Position};

pub(crate) type Source = Box<dyn Consumer>;

/// What to do.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub pauses: Vec<(u32, bool)>,
    pub commits: Vec<Commit>,
    /// Records to finish one by one, where the broker wants it so.
    pub finished: Vec<Position>,
    pub fetch: Option<Fetch>,
    pub commit_timeout: Duration,
}

/// What came of it.
pub(crate) struct Turned {
    pub source: Source,
    pub commits: Vec<Commit>,
    pub finished: Vec<Position>,
    pub committed: Result<(), CommitError>,
    pub polled: Option<Result<Polled, PollError>>,
    /// When the poll began. The broker counted us as alive then, or later; never earlier.
    pub polled_ns: u64,
    pub polled_wall_ms: i64,
}

pub(crate) async fn turn(mut source: Source, plan: Plan, clock: Clock) -> Turned {
    for (partition, paused) in plan.pauses {
        source.pause(partition, paused);
    }
    // Dropped half way none, some or all of it is stored; saying it again is harmless.
    let settling = settle(&mut source, &plan.commits, &plan.finished);
    let committed = match tokio::time::timeout(plan.commit_timeout, settling).await {
        Ok(done) => done,
        Err(_) => Err(CommitError::Unavailable("no answer in time".into())),
    };
    let (polled_ns, polled_wall_ms) = (clock.monotonic_ns(), clock.wall_ms());
    let polled = match plan.fetch {
        Some(fetch) => Some(source.poll(fetch).await),
        None => None,
    };
    let Plan { commits, finished, .. } = plan;
    Turned { source, commits, finished, committed, polled, polled_ns, polled_wall_ms }
}

/// Tells the broker what is finished.
pub(crate) async fn settle(
    source: &mut Source,
    commits: &[Commit],
    finished: &[Position],
) -> Result<(), CommitError> {
    if !commits.is_empty() {
        source.commit(commits).await?;
    }
    if !finished.is_empty() {
        source.finish(finished).await?;
    }
    Ok(())
}
