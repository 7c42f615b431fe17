//! States of jobs as this process wrote them last, so that it need not read them for the next occurrence.
//!
//! Nothing is decided by them alone: what is written expects the version that is remembered, and where somebody else has changed
//! the state meanwhile, that is a conflict, after which the state is read.

use crate::book::{Kept, forget_some};
use crate::definition::JobNumber;
use crate::occurrences::Occurrence;
use crate::runs::JobState;
use parking_lot::Mutex;
use std::collections::HashMap;

/// States that are remembered: at most some 40 MB, since the names of tenants and jobs are short.
const KNOWN_MAX: usize = 100_000;
#[derive(Default)]
pub(crate) struct KnownStates(Mutex<HashMap<JobNumber, Kept<JobState>>>);

impl KnownStates {
    /// The state in which this occurrence comes next, if it is known. It is remembered no more: whoever has decided the occurrence
    /// says what it is then.
    pub fn take(&self, occurrence: &Occurrence) -> Option<Kept<JobState>> {
        let known = self.0.lock().remove(&occurrence.job)?;
        let is_next = known.is.next_ms == Some(occurrence.due_ms) && known.is.version == occurrence.version;
        is_next.then_some(known)
    }

    pub fn put(&self, job: JobNumber, state: Kept<JobState>) {
        let mut known = self.0.lock();
        if known.len() >= KNOWN_MAX {
            forget_some(&mut known, |_| {});
        }
        known.insert(job, state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::name;

    fn state(next_ms: u64) -> Kept<JobState> {
        let (tenant, name) = ("t".to_owned(), name("job"));
        let is = JobState {
            version: 3,
            next_ms: Some(next_ms),
            last_ms: None,
            missed: 0,
            forget_ms: None,
            tenant,
            name,
        };
        Kept { version: 9, is }
    }

    #[test]
    fn a_state_is_known_for_the_occurrence_that_comes_next_and_once() {
        let known = KnownStates::default();
        let job = JobNumber(7);
        let next = Occurrence { job, version: 3, due_ms: 1_000 };
        for other in [Occurrence { version: 4, ..next }, Occurrence { due_ms: 2_000, ..next }] {
            known.put(job, state(1_000));
            assert_eq!(known.take(&other), None);
        }
        known.put(job, state(1_000));
        assert_eq!(known.take(&next), Some(state(1_000)));
        assert_eq!(known.take(&next), None, "two that decide at a time must not both go by it");
    }

    #[test]
    fn states_are_remembered_up_to_their_number() {
        let known = KnownStates::default();
        let jobs = u64::try_from(KNOWN_MAX).unwrap() + 10;
        (0..jobs).for_each(|job| known.put(JobNumber(job), state(1_000)));
        let left = known.0.lock().len();
        assert!((KNOWN_MAX / 2..=KNOWN_MAX).contains(&left), "{left}");
    }
}
