//! What to start now, and what to do about occurrences that were missed.

use super::Schedule;
use serde::{Deserialize, Serialize};

/// The most occurrences that one decision counts as missed. Beyond it, [`Decision::missed`] says this figure.
pub const COUNTED_MAX: u64 = 10_000;
/// The most missed occurrences that [`Misfire::FireAll`] catches up with.
pub const FIRE_ALL_MAX: u32 = 1_000;

/// What happens with occurrences that were missed, because no process ran or all were too busy: those that are late by
/// more than the threshold. An occurrence that is late by at most the threshold is started whatever the strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// They are skipped. A one-off job that was missed never runs then.
    #[default]
    #[serde(alias = "DO_NOTHING")]
    DoNothing,
    /// One run stands for all of them. If an occurrence is due that is not too late, it is that run; otherwise the latest
    /// missed one is started.
    #[serde(alias = "FIRE_ONCE_NOW")]
    FireOnceNow,
    /// Each of them is started, one after the other, oldest first; of more than the limit, only the latest.
    #[serde(alias = "FIRE_ALL")]
    FireAll(FireAllLimit),
}

/// How many missed occurrences are caught up with at most: 1 to [`FIRE_ALL_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawFireAllLimit")]
pub struct FireAllLimit {
    limit: u32,
}

impl FireAllLimit {
    /// None if the limit is not between 1 and [`FIRE_ALL_MAX`].
    #[must_use]
    pub fn new(limit: u32) -> Option<Self> {
        (1..=FIRE_ALL_MAX).contains(&limit).then_some(Self { limit })
    }

    /// The limit.
    #[must_use]
    pub fn get(self) -> u32 {
        self.limit
    }
}

/// What to do about a job now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Decision {
    /// The occurrence to start now.
    pub start_ms: Option<u64>,
    /// How many occurrences were missed and will not be started, at most [`COUNTED_MAX`].
    pub missed: u64,
    /// The occurrence to decide about next. It may be due already: then decide again at once. For a fixed delay it is
    /// known only when the run has ended.
    pub next_ms: Option<u64>,
}

/// Says which occurrence to start now, if any.
///
/// `last_ms` is the occurrence that was decided about last, started or skipped; at first, the time when the job was made; for
/// a fixed delay, the end of the last run. Every occurrence after `last_ms` up to `now_ms` is due. After the decision,
/// `last_ms` becomes the occurrence that was started, or `now_ms` if none was and something was missed.
///
/// An occurrence is started at most once, even if the clock goes back: nothing at or before `last_ms` is ever due.
///
/// A fixed delay has no missed occurrences. Its only occurrence is started however late it is, since otherwise the job
/// would stop for good.
#[must_use]
pub fn due_now(
    schedule: &Schedule,
    last_ms: u64,
    now_ms: u64,
    misfire: Misfire,
    threshold_ms: u64,
) -> Decision {
    if let Schedule::FixedDelay(delay) = schedule {
        let next_ms = delay.next_after_end(last_ms);
        return match next_ms {
            Some(due_ms) if due_ms <= now_ms => Decision { start_ms: next_ms, missed: 0, next_ms: None },
            _ => Decision { start_ms: None, missed: 0, next_ms },
        };
    }
    let Some(first_ms) = schedule.next_after(last_ms) else { return Decision::default() };
    if first_ms > now_ms {
        return Decision { start_ms: None, missed: 0, next_ms: Some(first_ms) };
    }
    let on_time_from_ms = now_ms.saturating_sub(threshold_ms);
    let start = |start_ms: u64, missed: u64| Decision {
        start_ms: Some(start_ms),
        missed,
        next_ms: schedule.next_after(start_ms),
    };
    if first_ms >= on_time_from_ms {
        return start(first_ms, 0);
    }
    let missed = count(schedule, first_ms, on_time_from_ms);
    let on_time_ms = schedule.first_from(on_time_from_ms).filter(|due_ms| *due_ms <= now_ms);
    match (misfire, on_time_ms) {
        (Misfire::FireAll(limit), _) => {
            let latest_ms = latest(schedule, first_ms, on_time_from_ms, limit.get() as usize);
            let (start_ms, caught_up) =
                latest_ms.first().map_or((first_ms, 1), |oldest_ms| (*oldest_ms, latest_ms.len()));
            start(start_ms, missed.saturating_sub(caught_up as u64))
        }
        (Misfire::DoNothing | Misfire::FireOnceNow, Some(on_time_ms)) => start(on_time_ms, missed),
        (Misfire::FireOnceNow, None) => {
            let latest_ms = latest(schedule, first_ms, on_time_from_ms, 1);
            let start_ms = latest_ms.last().copied().unwrap_or(first_ms);
            start(start_ms, missed.saturating_sub(1))
        }
        (Misfire::DoNothing, None) => {
            Decision { start_ms: None, missed, next_ms: schedule.next_after(now_ms) }
        }
    }
}

/// How many occurrences there are from `first_ms` on and before `end_ms`, counted up to a limit.
fn count(schedule: &Schedule, first_ms: u64, end_ms: u64) -> u64 {
    let rest = schedule.occurrences_after(first_ms);
    let counted = std::iter::once(first_ms).chain(rest).take_while(|due_ms| *due_ms < end_ms);
    counted.zip(0..COUNTED_MAX).map(|(_, passed)| passed + 1).last().unwrap_or_default()
}

/// The latest occurrences, `limit` at most, from `first_ms` on and before `end_ms`, in order. The window that is looked
/// at grows backwards from the end, so that a short outage and one of a year cost about the same.
fn latest(schedule: &Schedule, first_ms: u64, end_ms: u64, limit: usize) -> Vec<u64> {
    let mut window_ms = super::INTERVAL_MIN_MS * limit as u64;
    loop {
        let from_ms = end_ms.saturating_sub(window_ms).max(first_ms);
        let mut found = std::collections::VecDeque::with_capacity(limit.saturating_add(1));
        let mut total = 0_usize;
        let mut next_ms = schedule.first_from(from_ms);
        while let Some(due_ms) = next_ms.filter(|due_ms| *due_ms < end_ms) {
            total += 1;
            found.push_back(due_ms);
            if found.len() > limit {
                found.pop_front();
            }
            next_ms = schedule.next_after(due_ms);
        }
        if total >= limit || from_ms == first_ms {
            return found.into();
        }
        window_ms = window_ms.saturating_mul(2);
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFireAllLimit {
    limit: u32,
}

impl TryFrom<RawFireAllLimit> for FireAllLimit {
    type Error = String;

    fn try_from(raw: RawFireAllLimit) -> Result<Self, String> {
        Self::new(raw.limit)
            .ok_or_else(|| format!("the limit is {}, but must be between 1 and {FIRE_ALL_MAX}", raw.limit))
    }
}
