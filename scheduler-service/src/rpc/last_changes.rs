//! The last change of each timer that another process has forwarded.
//!
//! A call may hang on its way long after its sender has given it up, asked again, and changed the timer once more. It must
//! not undo what came after it. So each process numbers the changes that it forwards, and one that arrives behind a later one
//! of the same process and timer is not done. How late it is does not matter: what is remembered is bounded, and where
//! a timer had to be forgotten, every change of that process that is not later than that one counts as too late.

use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use windfall_contract::due::TaskId;

/// Timers that are remembered, of all processes together: some 16 MiB. The oldest one of the process that has been silent for
/// longest is forgotten first.
const TIMERS_MAX: usize = 65_536;
/// Processes that are remembered; the one that has been silent for longest is forgotten first.
const RUNS_MAX: usize = 64;

/// Which changes came last.
#[derive(Default)]
pub(super) struct LastChanges(Mutex<Runs>);

#[derive(Default)]
struct Runs {
    /// Grows with each change.
    clock: u64,
    /// How many timers are remembered.
    timers: usize,
    of: HashMap<u64, Run>,
}

/// A process that forwards.
#[derive(Default)]
struct Run {
    heard: u64,
    /// The highest number of a timer that was forgotten.
    forgotten: u64,
    last: HashMap<Timer, u64>,
    by_number: BTreeSet<(u64, Timer)>,
}

/// The name of its tenant, and its id.
type Timer = (Box<str>, TaskId);

impl LastChanges {
    /// Whether a change of a timer comes in its turn, and is the last one from now on.
    pub fn is_in_turn(&self, run: u64, tenant: &str, id: TaskId, number: u64) -> bool {
        let mut runs = self.0.lock();
        runs.clock += 1;
        let clock = runs.clock;
        if !runs.of.contains_key(&run) && runs.of.len() >= RUNS_MAX {
            let silent = runs.of.iter().min_by_key(|(_, run)| run.heard).map(|(run, _)| *run);
            if let Some(silent) = silent {
                runs.timers -= runs.of.remove(&silent).map_or(0, |run| run.last.len());
            }
        }
        let run = runs.of.entry(run).or_default();
        run.heard = clock;
        let before = run.last.len();
        let is_in_turn = run.is_in_turn((tenant.into(), id), number);
        let added = run.last.len() - before;
        runs.timers += added;
        if runs.timers > TIMERS_MAX {
            runs.forget_one();
        }
        is_in_turn
    }
}

impl Runs {
    fn forget_one(&mut self) {
        let known = self.of.values_mut().filter(|run| !run.last.is_empty());
        if let Some(run) = known.min_by_key(|run| run.heard)
            && let Some((number, timer)) = run.by_number.pop_first()
        {
            run.last.remove(&timer);
            run.forgotten = run.forgotten.max(number);
            self.timers -= 1;
        }
    }
}

impl Run {
    fn is_in_turn(&mut self, timer: Timer, number: u64) -> bool {
        match self.last.entry(timer) {
            // Two changes of one call, or the same call once more.
            Entry::Occupied(last) if *last.get() == number => return true,
            Entry::Occupied(last) if *last.get() > number => return false,
            Entry::Occupied(mut last) => {
                let before = last.insert(number);
                self.by_number.remove(&(before, last.key().clone()));
                self.by_number.insert((number, last.key().clone()));
            }
            Entry::Vacant(_) if number <= self.forgotten => return false,
            Entry::Vacant(last) => {
                self.by_number.insert((number, last.key().clone()));
                last.insert(number);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> TaskId {
        TaskId { index, .."0012-01c3a2f0-8000002a".parse().unwrap() }
    }

    #[test]
    fn what_arrives_behind_a_later_change_of_the_same_process_and_timer_is_too_late() {
        let last = LastChanges::default();
        for (run, tenant, index, number, is_in_turn) in [
            (1, "shop", 1, 5, true),
            (1, "shop", 1, 5, true),
            (1, "shop", 1, 4, false),
            (1, "shop", 2, 4, true),
            (1, "mall", 1, 3, true),
            (2, "shop", 1, 1, true),
            (1, "shop", 1, 6, true),
            (1, "shop", 1, 5, false),
        ] {
            let is = last.is_in_turn(run, tenant, id(index), number);
            assert_eq!(is, is_in_turn, "{run} {tenant} {index} {number}");
        }
    }

    #[test]
    fn a_timer_that_was_forgotten_takes_no_earlier_change_and_memory_is_bounded() {
        let last = LastChanges::default();
        for number in 1..=100_000 {
            assert!(last.is_in_turn(1, "shop", id(number), u64::from(number) + 1));
        }
        assert!(!last.is_in_turn(1, "shop", id(1), 1), "it is forgotten, and may have been changed later");
        assert!(last.is_in_turn(1, "shop", id(1), 200_000));
        // All processes share the room, and what one has done is not lost with it.
        for number in 1..=60_000 {
            assert!(last.is_in_turn(2, "shop", id(number), u64::from(number)));
        }
        assert!(last.0.lock().of[&1].last.len() < 10_000);
        assert!(!last.is_in_turn(1, "shop", id(90_000), 90_000), "it may have been changed later");
        assert!(!last.is_in_turn(2, "shop", id(2), 1) && last.is_in_turn(1, "shop", id(90_000), 200_001));
        assert!(last.0.lock().timers <= TIMERS_MAX);
        for run in 3..500 {
            assert!(last.is_in_turn(run, "shop", id(1), 1));
        }
        let runs = last.0.lock();
        assert_eq!(runs.of.len(), RUNS_MAX);
        assert!(runs.of.values().all(|run| run.last.len() == run.by_number.len()));
        assert_eq!(runs.timers, runs.of.values().map(|run| run.last.len()).sum::<usize>());
    }
}
