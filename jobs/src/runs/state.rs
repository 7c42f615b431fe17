//! What is known of a job besides its definition.

use crate::definition::{Definition, JobName, JobSpec};
use crate::schedule::COUNTED_MAX;
use serde::{Deserialize, Serialize};

/// What changes with each occurrence of a job. It is written in one group with the run that the occurrence becomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobState {
    /// The version of the definition that it follows. A due task of another version is dropped.
    pub version: u64,
    /// The occurrence that comes next. A due task for it has been added, or is going to be.
    #[serde(default)]
    pub next_ms: Option<u64>,
    /// The last occurrence that was decided.
    #[serde(default)]
    pub last_ms: Option<u64>,
    /// Occurrences that the misfire strategy left out, or that were due and not decided when the job was changed or paused, since
    /// the job was made.
    #[serde(default)]
    pub missed: u64,
    /// When the job is forgotten, because no occurrence follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forget_ms: Option<u64>,
    /// Whose it is.
    pub tenant: String,
    /// The job's name.
    pub name: JobName,
}

impl JobState {
    /// After the occurrence that comes next has been due for so long, it is looked for: its due task may be lost. What was
    /// fired by a process that died is fired again by another one within this time.
    pub const OVERDUE_MS: u64 = 5_000;
    /// Where occurrences follow each other faster than this, the look is put off to a multiple of it, so that not each of them
    /// has to move it.
    const LOOKS_APART_MS: u64 = 5_000;
    /// Where it is there and only late, the next look comes after as long as it has been late, but at the latest after this.
    const OVERDUE_AGAIN_MOST_MS: u64 = 30_000;
    /// An occurrence that was decided later than this after its time shows that there is more to do than can be done: a shard that
    /// is taken over from a dead process is late by less.
    const LATE_MS: u64 = 6_000;
    /// Only an occurrence that comes so soon after a late one will be late, too.
    const SOON_MS: u64 = 60_000;

    /// The state of a job that was made or changed at `now_ms`. What it has decided before stays decided, and an occurrence
    /// that is due and not decided yet stays due, where the change leaves the schedule as it was; otherwise it is left out.
    pub fn of(definition: &Definition, before: Option<(&Definition, &Self)>, now_ms: u64) -> Self {
        let state = before.map(|(_, state)| state);
        let after_ms = state.and_then(|state| state.last_ms).map_or(now_ms, |last_ms| last_ms.max(now_ms));
        let spec = &definition.spec;
        let due = before.and_then(|(before, state)| {
            let due_ms = state.next_ms.filter(|next_ms| *next_ms <= now_ms)?;
            Some((before, due_ms))
        });
        let is_same = |before: &Definition| {
            !before.is_paused && !definition.is_paused && before.spec.schedule == spec.schedule
        };
        let kept = due.filter(|&(before, _)| is_same(before)).map(|(_, due_ms)| due_ms);
        let dropped = due.filter(|_| kept.is_none());
        let left_out = dropped.map_or(0, |(before, due_ms)| due_until(&before.spec, due_ms, now_ms));
        let next_ms = kept.or_else(|| spec.next_after(after_ms)).or_else(|| spec.next_after_end(now_ms));
        let before = state;
        Self {
            version: definition.version,
            next_ms: next_ms.filter(|_| !definition.is_paused),
            last_ms: before.and_then(|state| state.last_ms),
            missed: before.map_or(0, |state| state.missed).saturating_add(left_out),
            forget_ms: None,
            tenant: definition.tenant.clone(),
            name: definition.name.clone(),
        }
    }

    /// When somebody has to look whether the next occurrence was decided, or has to forget the job. `late_ms`: how late the last
    /// one was decided. A look for the next one before it is as late would only take time from those that wait.
    pub fn wake_ms(&self, late_ms: u64) -> Option<u64> {
        let Some(next_ms) = self.next_ms else { return self.forget_ms };
        let overdue_ms = next_ms.saturating_add(Self::OVERDUE_MS);
        let apart_ms = self.last_ms.map_or(u64::MAX, |last_ms| next_ms.saturating_sub(last_ms));
        if late_ms > Self::LATE_MS && apart_ms < Self::SOON_MS {
            // Up to some 10 s late, it still is found before it counts as missed.
            return Some(overdue_ms.saturating_add(late_ms.min(Self::OVERDUE_AGAIN_MOST_MS)));
        }
        let is_often = apart_ms < Self::LOOKS_APART_MS;
        let apart = overdue_ms.checked_next_multiple_of(Self::LOOKS_APART_MS).filter(|_| is_often);
        Some(apart.unwrap_or(overdue_ms))
    }

    /// When an occurrence that was overdue at `now_ms` is looked for again. At first that is soon: whoever looked may have died
    /// before its due task was added, and the next look is to come before it counts as missed.
    pub fn looked_for_again_ms(due_ms: u64, now_ms: u64) -> u64 {
        let late_ms = now_ms.saturating_sub(due_ms);
        let pause_ms = match late_ms < 2 * Self::OVERDUE_MS {
            true => Self::OVERDUE_MS,
            false => late_ms.min(Self::OVERDUE_AGAIN_MOST_MS),
        };
        now_ms.saturating_add(pause_ms)
    }
}

/// How many occurrences are due up to now, counted up to a limit.
fn due_until(spec: &JobSpec, first_ms: u64, now_ms: u64) -> u64 {
    let due = std::iter::successors(Some(first_ms), |due_ms| spec.next_after(*due_ms));
    let due = due.take_while(|due_ms| *due_ms <= now_ms);
    due.zip(1..=COUNTED_MAX).last().map_or(0, |(_, count)| count)
}
