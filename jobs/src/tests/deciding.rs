//! Occurrences are decided by the state that is stored, whatever this process remembers of it.

use crate::JobsOptions;
use crate::book::{change, group, kept, put, state_key};
use crate::definition::JobNumber;
use crate::occurrences::Occurrence;
use crate::runs::JobState;
use crate::testing::{Call, Fault, Fleet, TO_APP, eventually, sleep_ms};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use windfall_contract::due::{Fired, Shard};
use windfall_contract::entries::{EntryStore, Expect, To};

const EACH_MINUTE: &str = r#"{"fixed_rate": {"every_ms": 60000}}"#;

/// A fleet with a job, and how often states were read.
async fn fleet() -> (Fleet, JobNumber, Arc<AtomicUsize>) {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    *fleet.slots.knows_all.lock() = true;
    let job = fleet.put("job", EACH_MINUTE, TO_APP, "").await;
    let reads = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reads);
    fleet.store.fault(move |_, call| {
        if matches!(call, Call::Read(_)) && call.touches(b"s/") {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Fault::None
    });
    (fleet, job, reads)
}

fn stored(fleet: &Fleet, job: JobNumber) -> JobState {
    kept(&fleet.store.entry(Shard(0), &state_key(job)).unwrap()).unwrap().is
}

/// Fires the occurrence that comes next, when it is due. How often it was called.
async fn fire_next(fleet: &Fleet, job: JobNumber) -> usize {
    let JobState { version, next_ms: Some(due_ms), .. } = stored(fleet, job) else {
        panic!("nothing is due")
    };
    sleep_ms(due_ms.saturating_sub(fleet.clock.unix_ms())).await;
    assert_eq!(fleet.fire(&[Occurrence { job, version, due_ms }]).await, [Fired::Done]);
    assert!(stored(fleet, job).next_ms > Some(due_ms), "it is decided");
    eventually(|| fleet.store.count(b"r/") == fleet.calls().len()).await;
    fleet.calls().iter().filter(|call| call.due_ms == due_ms).count()
}

#[tokio::test(start_paused = true)]
async fn a_state_is_read_once_and_then_known() {
    let (fleet, job, reads) = fleet().await;
    for _ in 0..4 {
        assert_eq!(fire_next(&fleet, job).await, 1);
    }
    assert_eq!(reads.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_state_that_somebody_else_has_written_since_is_read_anew() {
    let (fleet, job, reads) = fleet().await;
    assert_eq!(fire_next(&fleet, job).await, 1);
    // A look of another process writes it as it is, with a new version.
    let state = stored(&fleet, job);
    let same = put(state_key(job), Expect::Anything, &state, state.wake_ms(0));
    fleet.store.apply(Shard(0), &[group(vec![same])]).await.unwrap();
    assert_eq!(fire_next(&fleet, job).await, 1);
    assert_eq!((reads.load(Ordering::Relaxed), fleet.jobs.stats().stale.get()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn an_occurrence_that_somebody_else_has_decided_is_not_run_by_a_state_from_before() {
    let (fleet, job, _) = fleet().await;
    assert_eq!(fire_next(&fleet, job).await, 1);
    let state = stored(&fleet, job);
    let due_ms = state.next_ms.unwrap();
    let decided = JobState { last_ms: Some(due_ms), next_ms: Some(due_ms + 60_000), ..state.clone() };
    let decide = put(state_key(job), Expect::Anything, &decided, decided.wake_ms(0));
    fleet.store.apply(Shard(0), &[group(vec![decide])]).await.unwrap();
    sleep_ms(60_000).await;
    let occurrence = Occurrence { job, version: state.version, due_ms };
    assert_eq!(fleet.fire(&[occurrence]).await, [Fired::Done]);
    sleep_ms(1_000).await;
    assert_eq!((fleet.calls().len(), stored(&fleet, job)), (1, decided));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_removed_is_not_run_by_a_state_from_before() {
    let (fleet, job, _) = fleet().await;
    assert_eq!(fire_next(&fleet, job).await, 1);
    let state = stored(&fleet, job);
    let gone = group(vec![change(state_key(job), Expect::Anything, To::Deleted)]);
    fleet.store.apply(Shard(0), &[gone]).await.unwrap();
    sleep_ms(60_000).await;
    let occurrence = Occurrence { job, version: state.version, due_ms: state.next_ms.unwrap() };
    assert_eq!(fleet.fire(&[occurrence]).await, [Fired::Done]);
    sleep_ms(1_000).await;
    assert_eq!((fleet.calls().len(), fleet.store.count(b"s/")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_lost_leaves_nothing_to_go_by() {
    let (fleet, job, _) = fleet().await;
    assert_eq!(fire_next(&fleet, job).await, 1);
    let JobState { version, next_ms, .. } = stored(&fleet, job);
    let occurrence = Occurrence { job, version, due_ms: next_ms.unwrap() };
    sleep_ms(60_000).await;
    fleet.store.fault(|_, call| match call {
        Call::Apply(_) if call.touches(b"s/") => Fault::AnswerLost,
        _ => Fault::None,
    });
    assert!(matches!(fleet.fire(&[occurrence]).await[..], [Fired::Away(_)]));
    fleet.store.heal();
    // It fires again, and was decided: its run is found when its lease is over.
    assert_eq!(fleet.fire(&[occurrence]).await, [Fired::Done]);
    sleep_ms(30_000).await;
    let calls = fleet.calls().iter().filter(|call| call.due_ms == occurrence.due_ms).count();
    assert_eq!((calls, fleet.store.count(b"r/")), (1, 2));
}
