//! A tenant has as many jobs as it may, and no more.

use crate::definition::{ChangeNote, JobNumber};
use crate::testing::{Call, DAILY, Fault, Fleet, TO_APP, name, sleep_ms, spec};
use crate::{JobsError, JobsOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use windfall_contract::due::Shard;

const FULL: JobsError = JobsError::TooManyJobs { jobs_max: 3 };

fn options() -> JobsOptions {
    JobsOptions { jobs_max: 3, ..JobsOptions::default() }
}

async fn put(fleet: &Fleet, tenant: &str, job: &str, more: &str) -> Result<JobNumber, JobsError> {
    let spec = spec(DAILY, TO_APP, more);
    let put = fleet.jobs.put(tenant, &name(job), &spec, None, ChangeNote::default()).await;
    put.map(|view| view.number)
}

async fn put_new(fleet: &Fleet, jobs: &[&str]) -> Vec<Result<JobNumber, JobsError>> {
    let jobs: Vec<_> = jobs.iter().map(|job| (name(job), spec(DAILY, TO_APP, ""))).collect();
    fleet.jobs.put_new("t", &jobs, &ChangeNote::default()).await
}

#[tokio::test(start_paused = true)]
async fn a_tenant_makes_no_more_jobs_than_it_may_and_changes_those_that_it_has() {
    let mut fleet = Fleet::start(2, options()).await;
    let first = put(&fleet, "t", "one", "").await.unwrap();
    let made = put_new(&fleet, &["two", "three", "four"]).await;
    assert!(made[0].is_ok() && made[1].is_ok(), "{made:?}");
    assert_eq!(made[2], Err(FULL));
    // A repeated call finds what is there.
    assert_eq!(put_new(&fleet, &["two", "three", "four"]).await, made);
    assert_eq!(put(&fleet, "t", "five", "").await, Err(FULL));
    assert_eq!(put(&fleet, "t", "one", r#", "params": "new""#).await, Ok(first));
    assert!(put(&fleet, "u", "one", "").await.is_ok(), "another tenant has jobs of its own");
    // Another process counts what it has not made.
    fleet.restart(options()).await;
    assert_eq!(put(&fleet, "t", "five", "").await, Err(FULL));
    assert!(fleet.jobs.remove("t", &name("two")).await.unwrap());
    assert!(put(&fleet, "t", "five", "").await.is_ok());
    assert_eq!(put(&fleet, "t", "six", "").await, Err(FULL));
}

#[tokio::test(start_paused = true)]
async fn jobs_that_another_process_removes_make_room_within_a_moment() {
    let fleet = Fleet::start(1, options()).await;
    assert!(put_new(&fleet, &["one", "two", "three"]).await.iter().all(Result::is_ok));
    assert_eq!(put(&fleet, "t", "four", "").await, Err(FULL));
    fleet.core().quotas.made("t", 1);
    assert!(fleet.jobs.remove("t", &name("one")).await.unwrap());
    assert_eq!(put(&fleet, "t", "four", "").await, Err(FULL), "this process does not know of it");
    sleep_ms(1_000).await;
    assert!(put(&fleet, "t", "four", "").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_does_not_answer_keeps_no_job_of_another_one_from_being_made() {
    let fleet = Fleet::start(2, options()).await;
    fleet.store.fault(|shard, call| match call {
        Call::Scan(_) if shard == Shard(1) => Fault::Fails,
        _ => Fault::None,
    });
    assert!(put(&fleet, "t", &fleet.name_in(0), "").await.is_ok());
    assert!(fleet.jobs.stats().store_failed.get() > 0);
}

/// What the store does about each count of names in the second shard, and how many there were.
fn counts(fleet: &Fleet, fault: Fault) -> impl Fn() -> u32 + use<> {
    let counts = Arc::new(AtomicU32::new(0));
    let own = Arc::clone(&counts);
    fleet.store.fault(move |shard, call| match call {
        Call::Scan(_) if shard == Shard(1) && call.touches(b"n/") => {
            own.fetch_add(1, Ordering::Relaxed);
            fault
        }
        _ => Fault::None,
    });
    move || counts.load(Ordering::Relaxed)
}

/// Each call waited for a count of its own, one after the other.
#[tokio::test(start_paused = true)]
async fn while_jobs_cannot_be_counted_not_each_call_waits_for_that() {
    let fleet = Fleet::start(2, options()).await;
    let counted = counts(&fleet, Fault::Fails);
    for job in ["one", "two", "three"] {
        assert!(put(&fleet, "t", job, "").await.is_ok());
        assert!(put(&fleet, "u", job, "").await.is_ok());
    }
    assert_eq!(counted(), 1);
    fleet.store.heal();
    sleep_ms(5_000).await;
    assert_eq!(put(&fleet, "t", "four", "").await, Err(FULL));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_goes_on_asking_for_one_too_many_keeps_no_store_busy() {
    let fleet = Fleet::start(2, options()).await;
    assert!(put_new(&fleet, &["one", "two", "three"]).await.iter().all(Result::is_ok));
    // What is known of the tenant's jobs is over.
    sleep_ms(60_000).await;
    let counted = counts(&fleet, Fault::After(500));
    for _ in 0..9 {
        assert_eq!(put(&fleet, "t", "four", "").await, Err(FULL));
        sleep_ms(1_000).await;
    }
    assert_eq!(counted(), 1);
    sleep_ms(2_000).await;
    assert_eq!(put(&fleet, "t", "four", "").await, Err(FULL));
    assert_eq!(counted(), 2);
}
