//! Occurrences while the clocks of stores are wrong, or are set.

use crate::JobsOptions;
use crate::book::{kept, state_key};
use crate::definition::JobNumber;
use crate::occurrences::Occurrence;
use crate::runs::JobState;
use crate::testing::{Fleet, TO_APP, eventually, sleep_ms};
use parking_lot::Mutex;
use std::sync::Arc;
use windfall_contract::due::{Fired, Shard};

const EACH_SECOND: &str = r#"{"fixed_rate": {"every_ms": 1000}}"#;
const HOUR_MS: u64 = 3_600_000;

/// What the executor got: when it was due, and when it came.
type Came = Arc<Mutex<Vec<(u64, u64)>>>;

/// A fleet with a job, and a scheduler whose time never goes back.
struct Driven {
    fleet: Fleet,
    job: JobNumber,
    came: Came,
    watermark_ms: u64,
}

impl Driven {
    async fn start(schedule: &str, more: &str) -> Self {
        // So long that no run is forgotten when a clock is set ahead: the runs are counted.
        let options = JobsOptions { keep_succeeded_ms: 24 * HOUR_MS, ..JobsOptions::default() };
        let fleet = Fleet::start(1, options).await;
        let job = fleet.put("job", schedule, TO_APP, more).await;
        let came = Came::default();
        let (clock, note) = (fleet.clock.clone(), Arc::clone(&came));
        fleet.answer(move |_, call| {
            note.lock().push((call.due_ms, clock.unix_ms()));
            let done = crate::runs::Reported::Succeeded(String::new());
            (0, crate::runs::Sent::Finished(done))
        });
        Self { fleet, job, came, watermark_ms: 0 }
    }

    fn state(&self) -> JobState {
        kept(&self.fleet.store.entry(Shard(0), &state_key(self.job)).unwrap()).unwrap().is
    }

    /// Fires what is due by the scheduler's clock for so long, by the clock of the test.
    async fn drive_ms(&mut self, ms: u64) {
        let end_ms = self.fleet.clock.unix_ms() + ms;
        // Tasks that were added when the one that waited was taken, and not decided.
        let mut taken_at = None::<usize>;
        while self.fleet.clock.unix_ms() < end_ms {
            self.watermark_ms = self.watermark_ms.max(self.fleet.store.now_ms());
            let added = || self.fleet.slots.added.lock().len();
            let JobState { version, next_ms, .. } = self.state();
            let next_ms = next_ms.filter(|due_ms| *due_ms <= self.watermark_ms);
            let Some(due_ms) = next_ms.filter(|_| taken_at.is_none_or(|count| added() > count)) else {
                sleep_ms(20).await;
                continue;
            };
            taken_at = None;
            match &self.fleet.fire(&[Occurrence { job: self.job, version, due_ms }]).await[..] {
                [Fired::Done] if self.state().next_ms == Some(due_ms) => taken_at = Some(added()),
                [Fired::Done] => {}
                [Fired::Failed(_) | Fired::Busy(_)] => sleep_ms(200).await,
                other => panic!("{other:?}"),
            }
        }
        let (fleet, came) = (&self.fleet, &self.came);
        eventually(|| came.lock().len() == fleet.store.count(b"r/")).await;
    }

    /// When what came was due, in order: each once.
    fn due(&self) -> Vec<u64> {
        let mut due: Vec<u64> = self.came.lock().iter().map(|(due_ms, _)| *due_ms).collect();
        let sent = due.len();
        due.sort_unstable();
        due.dedup();
        assert_eq!(due.len(), sent, "one was sent twice: {:?}", self.came.lock());
        due
    }

    fn left_out(&self) -> u64 {
        self.fleet.jobs.stats().left_out.get()
    }
}

fn are_apart(due: &[u64], by_ms: u64) -> bool {
    due.windows(2).all(|pair| pair[1] - pair[0] == by_ms)
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_whose_clock_was_ahead_starts_no_occurrence_long_before_its_time() {
    for delivery in ["at_least_once", "at_most_once"] {
        let mut driven = Driven::start(EACH_SECOND, &format!(r#", "delivery": "{delivery}""#)).await;
        driven.watermark_ms = driven.fleet.clock.unix_ms() + HOUR_MS;
        driven.drive_ms(20_000).await;
        let due = driven.due();
        assert!((18..=23).contains(&due.len()) && are_apart(&due, 1_000), "{due:?}");
        let is_in_time = |(due_ms, at_ms): &(u64, u64)| *due_ms <= at_ms + 2_000 && *at_ms <= due_ms + 5_000;
        assert!(driven.came.lock().iter().all(is_in_time), "{:?}", driven.came.lock());
        assert!(driven.fleet.jobs.stats().early.get() > 0);
        assert_eq!(driven.left_out(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_occurrence_that_fires_far_before_its_time_is_left_to_the_look_for_overdue_ones() {
    let mut driven = Driven::start(r#"{"fixed_rate": {"every_ms": 600000}}"#, "").await;
    driven.watermark_ms = driven.fleet.clock.unix_ms() + HOUR_MS;
    driven.drive_ms(1_500_000).await;
    let due = driven.due();
    assert!((2..=3).contains(&due.len()) && are_apart(&due, 600_000), "{due:?}");
    let is_in_time = |(due_ms, at_ms): &(u64, u64)| due_ms <= at_ms && *at_ms <= due_ms + 6_000;
    assert!(driven.came.lock().iter().all(is_in_time), "{:?}", driven.came.lock());
    assert!(driven.fleet.jobs.stats().early.get() <= 4, "it costs next to nothing until then");
    assert_eq!(driven.left_out(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_ahead_makes_no_occurrence_missed() {
    let mut driven = Driven::start(EACH_SECOND, "").await;
    driven.drive_ms(5_000).await;
    driven.fleet.store.set_ahead_ms(HOUR_MS);
    driven.drive_ms(20_000).await;
    let is_in_time = |(due_ms, at_ms): &(u64, u64)| *due_ms <= at_ms + 2_000;
    assert!(driven.came.lock().iter().all(is_in_time), "nobody goes by it at once: {:?}", driven.came.lock());
    driven.drive_ms(60_000).await;
    let due = driven.due();
    assert!(are_apart(&due, 1_000) && due.len() > 3_600, "{}", due.len());
    let behind_ms = driven.fleet.store.now_ms() - due[due.len() - 1];
    assert_eq!((driven.left_out(), behind_ms / 3_000), (0, 0));
    assert_eq!(driven.state().missed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_ahead_and_back_again_changes_nothing() {
    let mut driven = Driven::start(EACH_SECOND, "").await;
    driven.drive_ms(5_000).await;
    driven.fleet.store.set_ahead_ms(HOUR_MS);
    driven.drive_ms(10_000).await;
    driven.fleet.store.set_ahead_ms(0);
    driven.drive_ms(30_000).await;
    let due = driven.due();
    assert!((43..=48).contains(&due.len()) && are_apart(&due, 1_000), "{due:?}");
    let is_in_time = |(due_ms, at_ms): &(u64, u64)| *due_ms <= at_ms + 2_000 && *at_ms <= due_ms + 3_000;
    assert!(driven.came.lock().iter().all(is_in_time), "{:?}", driven.came.lock());
    let next_ms = driven.state().next_ms.unwrap();
    assert!(next_ms <= driven.fleet.clock.unix_ms() + 4_000, "the job is not silent for an hour");
    assert_eq!(driven.left_out(), 0);
}
