//! Leases, tries, dead letters, and many consumers at once.

use super::{Case, Checked, Fixture, bodies, holds, said, same};
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::task_queue::{Lease, NewJobs, Take};

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("a leased job comes back when its ttr ends, until its tries are over", tries(fixture).await),
        ("an acknowledged job does not come back", acknowledged(fixture).await),
        ("a job that expires under its lease is gone, or dead", expiry_under_lease(fixture).await),
        ("what is given back has not cost a try", given_back(fixture).await),
        ("what another one has by now is not given back", given_back_late(fixture).await),
        ("the dead are brought back or dropped", dead_letters(fixture).await),
        ("no two consumers have one job", one_consumer_each(fixture).await),
        ("many jobs come back", many_leases(fixture).await),
    ]
}

/// Each on a queue of its own, so that they may wait at the same time.
pub(super) async fn run_short(fixture: &dyn Fixture) -> Vec<Checked> {
    let (tried, given, dead) = tokio::join!(tries(fixture), given_back(fixture), dead_letters(fixture));
    vec![
        ("a leased job comes back when its ttr ends, until its tries are over", tried),
        ("what is given back has not cost a try", given),
        ("the dead are brought back or dropped", dead),
    ]
}

async fn tries(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "tries").await?;
    let id = case.publish_one(NewJobs { tries: 2, ttl_s: 0, ..case.jobs(&["a"]) }).await?;
    for left in [1, 0] {
        let taken = case.take(2, 1).await?;
        same(
            "taken",
            &taken.iter().map(|job| (job.id, job.tries_left)).collect::<Vec<_>>(),
            &vec![(id, left)],
        )?;
        case.tend().await?;
        same("taken within its ttr", &case.take(1, 1).await?.len(), &0)?;
        fixture.wait_ms(1_050).await;
        case.tend().await?;
    }
    case.has("at the end", 0, 0, 1).await?;
    same("taken when it is dead", &case.take(1, 1).await?.len(), &0)?;
    let head = case.store.dead_head(case.shard, &case.queue).await.map_err(said)?;
    same("the head", &head, &Some(id))?;
    same("deleted when it is dead", &case.remove(id).await?, &true)?;
    case.has("after", 0, 0, 0).await?;
    same("the head", &case.store.dead_head(case.shard, &case.queue).await.map_err(said)?, &None)
}

async fn acknowledged(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "acknowledged").await?;
    case.publish(NewJobs { tries: 9, ..case.jobs(&["a", "b"]) }).await?;
    let taken = case.take(2, 1).await?;
    same("acknowledged", &case.remove(taken[0].id).await?, &true)?;
    fixture.wait_ms(1_050).await;
    case.tend().await?;
    same("what comes back", &bodies(&case.take(2, 1).await?), &vec!["b".to_owned()])?;
    same("acknowledged late", &case.remove(taken[1].id).await?, &true)?;
    fixture.wait_ms(1_050).await;
    case.tend().await?;
    case.has("at the end", 0, 0, 0).await
}

async fn expiry_under_lease(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "expiry-under-lease").await?;
    case.publish(NewJobs { tries: 2, ttl_s: 1, ..case.jobs(&["again"]) }).await?;
    let dead = case.publish_one(NewJobs { ttl_s: 1, ..case.jobs(&["dead"]) }).await?;
    same("taken", &case.take(9, 1).await?.len(), &2)?;
    fixture.wait_ms(1_100).await;
    case.tend().await?;
    case.has("then", 0, 0, 1).await?;
    let found = case.store.get(&case.queue, dead).await.map_err(said)?.ok_or("the dead one is lost")?;
    holds("its ttl no longer counts", !found.is_expired())?;
    let count = case.store.respawn(case.shard, &case.queue, 9, 5).await.map_err(said)?;
    same("brought back", &count, &1)?;
    let (now_ms, taken) = case.take_at(9, 60).await?;
    same("taken", &bodies(&taken.jobs), &vec!["dead".to_owned()])?;
    let left_ms = taken.jobs[0].expires_ms.saturating_sub(now_ms);
    holds("its new ttl counts from then", (1..=5_000).contains(&left_ms))
}

async fn given_back(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "given-back").await?;
    let id = case.publish_one(case.jobs(&["a"])).await?;
    let lease = |end_ms| [Lease { queue: case.queue.clone(), id, end_ms }];
    let back = lease(Lease::end_ms(id.published_ms(), 600));
    case.store.give_back(case.shard, &back).await.map_err(said)?;
    case.has("what nobody has is not given back", 1, 0, 0).await?;
    for _ in 0..3 {
        let (now_ms, taken) = case.take_at(2, 600).await?;
        same("taken", &taken.jobs.iter().map(|job| job.tries_left).collect::<Vec<_>>(), &vec![0])?;
        let back = lease(Lease::end_ms(now_ms, 600));
        case.store.give_back(case.shard, &back).await.map_err(said)?;
        case.store.give_back(case.shard, &back).await.map_err(said)?;
        case.has("given back", 1, 0, 0).await?;
    }
    let (now_ms, _) = case.take_at(1, 600).await?;
    case.remove(id).await?;
    case.store.give_back(case.shard, &lease(Lease::end_ms(now_ms, 600))).await.map_err(said)?;
    case.has("what is over is not given back", 0, 0, 0).await
}

/// A consumer hung up, and what was taken for it came back so late that another one has it.
async fn given_back_late(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "given-back-late").await?;
    let id = case.publish_one(NewJobs { tries: 3, ..case.jobs(&["a"]) }).await?;
    let (now_ms, _) = case.take_at(1, 1).await?;
    fixture.wait_ms(1_100).await;
    case.tend().await?;
    let (second_ms, second) = case.take_at(1, 600).await?;
    same("taken again", &second.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), &vec![id])?;
    let lease = |end_ms| [Lease { queue: case.queue.clone(), id, end_ms }];
    case.store.give_back(case.shard, &lease(Lease::end_ms(now_ms, 1))).await.map_err(said)?;
    case.has("the second one keeps it", 0, 0, 0).await?;
    same("taken from the second one", &case.take(1, 600).await?.len(), &0)?;
    case.store.give_back(case.shard, &lease(Lease::end_ms(second_ms, 600))).await.map_err(said)?;
    case.has("given back by the second one", 1, 0, 0).await
}

async fn dead_letters(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "dead-letters").await?;
    let ids = case.publish(case.jobs(&["a", "b", "c", "d", "e"])).await?;
    case.take(9, 1).await?;
    fixture.wait_ms(1_100).await;
    case.tend().await?;
    case.has("dead", 0, 0, 5).await?;
    case.remove(ids[1]).await?;
    let respawn =
        async |limit, ttl_s| case.store.respawn(case.shard, &case.queue, limit, ttl_s).await.map_err(said);
    same("brought back", &respawn(2, 0).await?, &2)?;
    case.has("then", 2, 0, 2).await?;
    let taken = case.take(9, 60).await?;
    same(
        "taken",
        &taken.iter().map(|job| (job.tries_left, job.expires_ms)).collect::<Vec<_>>(),
        &vec![(0, 0); 2],
    )?;
    let dropped = case.store.drop_dead(case.shard, &case.queue, 1).await.map_err(said)?;
    same("dropped", &dropped, &1)?;
    same("brought back at last", &respawn(9, 60).await?, &1)?;
    same("nothing is left", &respawn(9, 60).await?, &0)?;
    case.has("at the end", 1, 0, 0).await
}

async fn one_consumer_each(fixture: &dyn Fixture) -> Result<(), String> {
    const JOBS: usize = 400;
    let case = Case::open(fixture, "one-consumer-each").await?;
    let ids = case.publish(case.jobs(&vec!["x"; JOBS])).await?;
    let mut takers = Vec::new();
    for _ in 0..8 {
        let (store, queue, shard) = (Arc::clone(&case.store), case.queue.clone(), case.shard);
        takers.push(tokio::spawn(async move {
            let mut own = Vec::new();
            loop {
                let take = [Take { queue: queue.clone(), count: 7, ttr_s: 600 }];
                let (_, taken) = store.take(shard, &take).await.map_err(said)?;
                let jobs = &taken[0].jobs;
                if jobs.is_empty() {
                    return Ok::<_, String>(own);
                }
                own.extend(jobs.iter().map(|job| job.id));
            }
        }));
    }
    let mut times = BTreeMap::new();
    for taker in takers {
        for id in taker.await.map_err(said)?? {
            *times.entry(id).or_insert(0) += 1;
        }
    }
    same("each was taken once", &times.values().all(|times| *times == 1), &true)?;
    same("all were taken", &times.len(), &ids.len())
}

async fn many_leases(fixture: &dyn Fixture) -> Result<(), String> {
    const JOBS: usize = 2_600;
    let case = Case::open(fixture, "many-leases").await?;
    case.publish(NewJobs { tries: 2, ..case.jobs(&vec!["x"; JOBS]) }).await?;
    let take_all = async || {
        let mut count = 0;
        loop {
            match case.take(1_000, 3).await?.len() {
                0 => return Ok::<usize, String>(count),
                some => count += some,
            }
        }
    };
    same("taken", &take_all().await?, &JOBS)?;
    fixture.wait_ms(3_100).await;
    case.tend().await?;
    case.has("all are back", JOBS as u64, 0, 0).await?;
    same("taken again", &take_all().await?, &JOBS)?;
    fixture.wait_ms(3_100).await;
    case.tend().await?;
    case.has("all are dead", 0, 0, JOBS as u64).await
}
