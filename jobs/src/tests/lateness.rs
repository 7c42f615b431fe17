//! How late runs are called is counted once for each, however often it is tried.

use crate::JobsOptions;
use crate::occurrences::Occurrence;
use crate::runs::{Reported, Sent};
use crate::stats::Count;
use crate::testing::{Call, Fault, Fleet, TO_APP, eventually, name, sleep_ms};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use windfall_contract::due::Fired;

const MINUTELY: &str = r#"{"fixed_rate": {"every_ms": 60000}}"#;
const TO_HOOK: &str = r#"{"target": {"name": "hook"}}"#;

/// An occurrence of a new job begins in its time.
async fn begins(fleet: &Fleet, to: &str, more: &str) {
    let job = fleet.put("job", MINUTELY, to, more).await;
    let due_ms = fleet.jobs.get("t", &name("job")).await.unwrap().state.next_ms.unwrap();
    sleep_ms(due_ms - fleet.clock.unix_ms()).await;
    assert_eq!(fleet.fire(&[Occurrence { job, version: 1, due_ms }]).await, [Fired::Done]);
}

fn counted(fleet: &Fleet) -> u64 {
    fleet.jobs.stats().lateness.iter().map(Count::get).sum()
}

/// Each call of a busy target counted the occurrence as later still, and operators were told that jobs start late.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_put_off_by_whoever_was_called_is_counted_once() {
    for to in [TO_APP, TO_HOOK] {
        let mut fleet = Fleet::start(1, JobsOptions::default()).await;
        fleet.answer(|_, _| (0, Sent::Later("full".into())));
        fleet.target.answer(|_| Fired::Busy("full".into()));
        begins(&fleet, to, "").await;
        eventually(|| fleet.jobs.stats().sent.get() > 3).await;
        assert_eq!(counted(&fleet), 1, "{to}");
        assert!(fleet.jobs.stats().lateness_sum_ms.get() < 1_000, "{to}");
        // The process that calls it next knows that it was counted.
        fleet.restart(JobsOptions::default()).await;
        fleet.answer(|_, _| (0, Sent::Finished(Reported::Succeeded(String::new()))));
        fleet.target.answer(|_| Fired::Done);
        eventually(|| fleet.jobs.stats().succeeded.get() == 1).await;
        assert_eq!(counted(&fleet), 0, "{to}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_put_off_between_two_calls_is_counted_once() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.register("app", "y").await;
    let (store, is_first) = (Arc::clone(&fleet.store), AtomicBool::new(true));
    fleet.answer(move |_, _| {
        if is_first.swap(false, Ordering::Relaxed) {
            // Whether it may be sent to the other executor cannot be noted.
            store.fault(|_, call| match call {
                Call::Apply(_) => Fault::Fails,
                _ => Fault::None,
            });
            return (0, Sent::NotSent("nobody listens".into()));
        }
        (0, Sent::Finished(Reported::Succeeded(String::new())))
    });
    let to = r#"{"executor": {"app": "app", "handler": "h", "routing": "failover"}}"#;
    begins(&fleet, to, r#", "delivery": "at_most_once""#).await;
    eventually(|| fleet.calls().len() == 1).await;
    sleep_ms(1_000).await;
    fleet.store.heal();
    eventually(|| fleet.jobs.stats().succeeded.get() == 1).await;
    assert_eq!((fleet.calls().len(), counted(&fleet)), (2, 1));
}
