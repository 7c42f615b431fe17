//! What becomes of an occurrence whose time has come.

use super::{Cause, JobState, Keep, LEASE_MS, Run, RunState};
use crate::definition::{Definition, JobNumber};
use crate::schedule::{Misfire, Schedule, due_now};

/// By how much an occurrence may be late without being taken for missed. XXL-JOB has 5 s; a shard whose owner was killed is taken
/// over within 5 s, and that shall not count as a miss.
pub const MISFIRE_MS: u64 = 15_000;

/// When an occurrence is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The time, by the store's clock.
    pub ms: u64,
    /// By how much an occurrence may be late without being taken for missed: [`MISFIRE_MS`], and more where the clock was set.
    pub misfire_ms: u64,
}

/// What becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "it lives for a moment, and mostly is the largest one")]
pub enum Begin {
    /// The job was changed, paused or removed since: nothing.
    Stale,
    /// It was decided before. The due task of the occurrence that comes next may be missing.
    Before {
        /// The occurrence that comes next.
        next_ms: Option<u64>,
    },
    /// It is decided now: the state is to be written, in one step with the run.
    Now {
        /// The job's state from now on.
        state: JobState,
        /// What is started, still without the number of its lease; `None` where the misfire strategy starts nothing.
        run: Option<Run>,
    },
}

/// Decides about the occurrence `due_ms` of the job's version `version` now.
pub fn begin(
    number: JobNumber,
    definition: &Definition,
    state: &JobState,
    version: u64,
    due_ms: u64,
    keep: Keep,
    now: Now,
) -> Begin {
    if state.version != version || definition.version != version || definition.is_paused {
        return Begin::Stale;
    }
    if state.next_ms != Some(due_ms) {
        return Begin::Before { next_ms: state.next_ms };
    }
    // Whoever fires it has seen its time come, by a clock that may be ahead of ours.
    let now_ms = now.ms.max(due_ms);
    let spec = &definition.spec;
    let misfire = match (&spec.schedule, spec.misfire) {
        // It has no other occurrence that could stand for it.
        (Schedule::At(_), Misfire::DoNothing) => Misfire::FireOnceNow,
        (_, misfire) => misfire,
    };
    let decision = due_now(&spec.schedule, due_ms.saturating_sub(1), now_ms, misfire, now.misfire_ms);
    // A fixed delay has one occurrence at a time, which is never left out: nothing would follow it.
    let follows_end = spec.schedule.next_after_end(due_ms).is_some();
    let within = |start_ms: u64| {
        if spec.ends_ms.is_some_and(|ends_ms| start_ms > ends_ms) { due_ms } else { start_ms }
    };
    let start_ms = if follows_end { Some(due_ms) } else { decision.start_ms.map(within) };
    let next_ms = decision.next_ms.and_then(|next_ms| spec.next_after(next_ms.saturating_sub(1)));
    let next = JobState {
        next_ms,
        // Occurrences before the next one are decided, also those that are left out.
        last_ms: Some(start_ms.map_or(due_ms, |start_ms| start_ms.max(due_ms))),
        missed: state.missed.saturating_add(if follows_end { 0 } else { decision.missed }),
        forget_ms: (next_ms.is_none() && !follows_end).then(|| now_ms.saturating_add(keep.failed_ms)),
        ..state.clone()
    };
    let run = start_ms.map(|due_ms| Run {
        job: number,
        tenant: definition.tenant.clone(),
        version,
        due_ms,
        cause: Cause::Schedule,
        attempt: 1,
        part: None,
        params: None,
        state: RunState::Starting { until_ms: now_ms.saturating_add(LEASE_MS), is_sending: false },
        executor: None,
        message: String::new(),
        unanswered: 0,
        postponed: 0,
        was_called: false,
        lease: 0,
        again: 0,
        children: Vec::new(),
    });
    Begin::Now { state: next, run }
}
