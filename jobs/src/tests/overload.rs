//! More occurrences are due than a fleet can start.

use crate::JobsOptions;
use crate::definition::JobNumber;
use crate::occurrences::Occurrence;
use crate::runs::JobState;
use crate::testing::{Fault, Fleet, TO_APP, eventually, name, sleep_ms};
use std::collections::BTreeMap;
use windfall_contract::due::Fired;

const EACH_SECOND: &str = r#"{"fixed_rate": {"every_ms": 1000}}"#;
const STRATEGIES: [&str; 3] = [r#""do_nothing""#, r#""fire_once_now""#, r#"{"fire_all": {"limit": 5}}"#];
const JOBS_OF_EACH: usize = 4;
/// What the store takes for a decision: with twelve jobs a second there is time for a third of them.
const SLOW_MS: u64 = 250;

/// Fires the occurrence that has been due longest, as the scheduler does where all of them are of one class.
async fn fire_oldest(fleet: &Fleet, jobs: &BTreeMap<String, JobNumber>) -> bool {
    let mut oldest = None;
    for (job, number) in jobs {
        let due_ms = state(fleet, job).await.next_ms.unwrap();
        let occurrence = Occurrence { job: *number, version: 1, due_ms };
        if oldest.is_none_or(|before: Occurrence| before.due_ms > due_ms) {
            oldest = Some(occurrence);
        }
    }
    let due = oldest.filter(|occurrence| occurrence.due_ms <= fleet.clock.unix_ms());
    let Some(occurrence) = due else { return false };
    assert_eq!(fleet.fire(&[occurrence]).await, [Fired::Done]);
    true
}

async fn state(fleet: &Fleet, job: &str) -> JobState {
    fleet.jobs.get("t", &name(job)).await.unwrap().state
}

#[tokio::test(start_paused = true)]
async fn occurrences_of_a_fleet_that_is_due_more_than_it_starts_are_late_or_counted_and_never_lost() {
    let fleet = Fleet::start(2, JobsOptions::default()).await;
    // Each next occurrence is added by the decision about the one before.
    *fleet.slots.knows_all.lock() = true;
    let mut jobs = BTreeMap::new();
    for nth in 0..JOBS_OF_EACH * STRATEGIES.len() {
        let (job, more) = (format!("job-{nth}"), format!(r#", "misfire": {}"#, STRATEGIES[nth % 3]));
        let number = fleet.put(&job, EACH_SECOND, TO_APP, &more).await;
        jobs.insert(job, number);
    }
    let mut first_ms = BTreeMap::new();
    for job in jobs.keys() {
        first_ms.insert(job.clone(), state(&fleet, job).await.next_ms.unwrap());
    }
    fleet.store.fault(|_, call| if call.touches(b"r/") { Fault::After(SLOW_MS) } else { Fault::None });
    let end_ms = fleet.clock.unix_ms() + 90_000;
    while fleet.clock.unix_ms() < end_ms {
        if !fire_oldest(&fleet, &jobs).await {
            sleep_ms(10).await;
        }
    }
    let left_out = fleet.jobs.stats().left_out.get();
    assert!(left_out > 0, "so long an overload leaves something out, and the metric says so");
    // The load is gone: what was not left out is caught up with.
    fleet.store.heal();
    while fire_oldest(&fleet, &jobs).await {}

    let (mut all_missed, mut all_started) = (0, 0);
    for (job, number) in &jobs {
        let is = state(&fleet, job).await;
        let of_job = || fleet.calls().into_iter().filter(|call| call.job == number.0);
        let decided = (is.next_ms.unwrap() - first_ms[job]) / 1_000;
        let started = decided - is.missed;
        eventually(|| of_job().count() as u64 >= started).await;
        let mut due: Vec<u64> = of_job().map(|call| call.due_ms).collect();
        let sent = due.len();
        due.sort_unstable();
        due.dedup();
        assert_eq!((due.len(), due.len() as u64), (sent, started), "{job}: each is run once, or counted");
        assert!(due.iter().all(|due_ms| due_ms % 1_000 == first_ms[job] % 1_000), "{job}: {due:?}");
        assert!(is.next_ms.unwrap() > fleet.clock.unix_ms(), "{job} goes on");
        all_missed += is.missed;
        all_started += started;
    }
    let stats = fleet.jobs.stats();
    assert_eq!(stats.left_out.get(), all_missed, "the metric counts occurrences, and not decisions");
    assert_eq!(stats.started.get(), all_started);
    let late: Vec<u64> = stats.lateness.iter().map(crate::stats::Count::get).collect();
    assert_eq!(late.iter().sum::<u64>(), all_started);
    assert!(late[8] > 0 && stats.lateness_sum_ms.get() > 1_000 * all_started, "it shows how late: {late:?}");
    assert_eq!((stats.failed.get(), stats.missed.get(), stats.overdue_found.get()), (0, 0, 0));
}
