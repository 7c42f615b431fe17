//! Runs as they are listed.

use crate::JobsOptions;
use crate::book::{change, group, run_key};
use crate::runs::RunNumber;
use crate::testing::{DAILY, Fleet, TO_APP, eventually, name};
use windfall_contract::due::Shard;
use windfall_contract::entries::{EntryStore, Expect, To};

/// All runs of the job, two by two; a page with fewer is the last one.
async fn listed(fleet: &Fleet) -> Vec<RunNumber> {
    let mut all: Vec<RunNumber> = Vec::new();
    loop {
        let page = fleet.jobs.runs("t", &name("job"), all.last().copied(), 2).await.unwrap();
        all.extend(page.iter().map(|view| view.number));
        if page.len() < 2 {
            return all;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_forgotten_while_it_is_listed_hides_no_older_ones() {
    let fleet = Fleet::start(1, JobsOptions::default()).await;
    fleet.put("job", DAILY, TO_APP, "").await;
    let mut runs = Vec::new();
    for _ in 0..7 {
        runs.push(fleet.run("job").await);
    }
    eventually(|| fleet.jobs.stats().succeeded.get() == 7).await;
    runs.reverse();
    assert_eq!(listed(&fleet).await, runs);
    for place in [5, 1, 0] {
        let gone = change(run_key(runs.remove(place)), Expect::Anything, To::Deleted);
        fleet.store.apply(Shard(0), &[group(vec![gone])]).await.unwrap();
        assert_eq!(listed(&fleet).await, runs);
    }
}
