//! Far jobs: they come with the ids that their publishers were given long before.

use super::{Case, Checked, Fixture, holds, said, same};
use windfall_contract::due::{FAR_INDEX, Shard, SlotMinute, TaskId};
use windfall_contract::task_queue::{
    DoubtfulJobs, FarJob, JobId, NewJobs, PublishedFar, QueueName, ready_ms,
};

const DELAY_S: u32 = 86_400;

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("a far job is published once, under its own id", once_under_its_id(fixture).await),
        ("a far job that was deleted is kept away", deleted(fixture).await),
        ("a far job is neither early nor there after its ttl", neither_early_nor_late(fixture).await),
        ("far jobs have tries, leases and a dead letter as others", lives_as_others(fixture).await),
    ]
}

/// A far job that was published so long ago, of a timer with this number.
async fn far_job(case: &Case, ago_s: u64, ttl_s: u32, number: u32) -> Result<FarJob, String> {
    let (now_ms, _) = case.store.take(case.shard, &[]).await.map_err(said)?;
    let published_ms = now_ms - ago_s * 1_000;
    let slot = SlotMinute::of(ready_ms(published_ms, DELAY_S));
    // The number says in which shard the job lies.
    let index = FAR_INDEX | (number * u32::from(case.store.shards()) + u32::from(case.shard.0));
    let timer = TaskId { shard: Shard(5), slot, index };
    let jobs = NewJobs { delay_s: DELAY_S, ttl_s, tries: 2, ..case.jobs(&[&format!("far {number}")]) };
    let payload = FarJob::payloads(&jobs, published_ms).remove(0);
    FarJob::of_timer(&payload, timer, case.store.shards()).map_err(said)
}

async fn publish(case: &Case, jobs: &[FarJob]) -> Result<Vec<PublishedFar>, String> {
    case.store.publish_far(case.shard, jobs, DoubtfulJobs::Refuse).await.map_err(said)
}

/// More than its delay ago.
const DUE_AGO_S: u64 = DELAY_S as u64 + 10;

async fn once_under_its_id(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "far-once").await?;
    let (one, two) = (far_job(&case, DUE_AGO_S, 0, 1).await?, far_job(&case, DUE_AGO_S, 0, 2).await?);
    let batch = [one.clone(), two.clone(), one.clone()];
    let expected = vec![PublishedFar::Stored, PublishedFar::Stored, PublishedFar::Over];
    same("two jobs, one of them twice", &publish(&case, &batch).await?, &expected)?;
    case.has("both", 2, 0, 0).await?;
    same("again", &publish(&case, &batch).await?, &vec![PublishedFar::Over; 3])?;
    case.has("still both", 2, 0, 0).await?;
    let found = case.store.get(&case.queue, one.record.id).await.map_err(said)?.ok_or("it is not found")?;
    same("its body", &&found.job.body[..], &&one.record.body[..])?;
    same("its tries", &found.job.tries_left, &2)?;
    let mut ids: Vec<JobId> = case.take(9, 60).await?.iter().map(|job| job.id).collect();
    ids.sort_unstable();
    let mut expected = vec![one.record.id, two.record.id];
    expected.sort_unstable();
    same("what is taken", &ids, &expected)?;
    holds("one is acknowledged", case.remove(one.record.id).await?)?;
    same("after its end", &publish(&case, &batch).await?, &vec![PublishedFar::Over; 3])?;
    case.has("nothing more", 0, 0, 0).await
}

async fn deleted(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "far-deleted").await?;
    let (gone, there) = (far_job(&case, DUE_AGO_S, 0, 11).await?, far_job(&case, DUE_AGO_S, 0, 12).await?);
    let remove = async |job: &FarJob| {
        let own = [(case.queue.clone(), job.record.id)];
        case.store.remove_far(case.shard, &own).await.map_err(said)
    };
    same("it was not there yet", &remove(&gone).await?, &vec![false])?;
    let expected = vec![PublishedFar::Over, PublishedFar::Stored];
    same("it comes later", &publish(&case, &[gone.clone(), there.clone()]).await?, &expected)?;
    same("one that was there", &remove(&there).await?, &vec![true])?;
    same("both come again", &publish(&case, &[gone.clone(), there]).await?, &vec![PublishedFar::Over; 2])?;
    case.has("none is there", 0, 0, 0).await?;
    // A deletion is one of the queue that it names.
    let job = FarJob { queue: QueueName::new("checks", "far-deleted-other").map_err(said)?, ..gone };
    same("of another queue", &publish(&case, &[job]).await?, &vec![PublishedFar::Stored])
}

async fn neither_early_nor_late(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "far-times").await?;
    let early = far_job(&case, 0, 0, 21).await?;
    let expired = far_job(&case, DUE_AGO_S, DELAY_S + 2, 22).await?;
    let published = publish(&case, &[early.clone(), expired]).await?;
    let [PublishedFar::Early(left_ms), PublishedFar::Over] = published[..] else {
        return Err(format!("an early one and one whose ttl has ended: {published:?}"));
    };
    holds("the time that is left is within the delay", left_ms <= u64::from(DELAY_S) * 1_000 + 1_000)?;
    case.has("nothing was stored", 0, 0, 0).await?;
    let living = far_job(&case, DUE_AGO_S, DELAY_S + 3_600, 23).await?;
    same(
        "one that lives",
        &publish(&case, std::slice::from_ref(&living)).await?,
        &vec![PublishedFar::Stored],
    )?;
    let found =
        case.store.get(&case.queue, living.record.id).await.map_err(said)?.ok_or("it is not found")?;
    let expires_ms = living.record.id.published_ms() + u64::from(DELAY_S + 3_600) * 1_000;
    same("its ttl counts from when it was published", &found.job.expires_ms, &expires_ms)
}

async fn lives_as_others(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "far-life").await?;
    let job = far_job(&case, DUE_AGO_S, 0, 31).await?;
    same("it", &publish(&case, std::slice::from_ref(&job)).await?, &vec![PublishedFar::Stored])?;
    for (tries_left, again, dead) in [(1, 1, 0), (0, 0, 1)] {
        let taken = case.take(1, 0).await?;
        same(
            "its id",
            &taken.first().map(|job| (job.id, job.tries_left)),
            &Some((job.record.id, tries_left)),
        )?;
        fixture.wait_ms(20).await;
        case.tend().await?;
        case.has("after its lease", again, 0, dead).await?;
    }
    let back = case.store.respawn(case.shard, &case.queue, 1, 60).await.map_err(said)?;
    same("brought back", &back, &1)?;
    holds("it is ended", case.remove(job.record.id).await?)?;
    case.has("nothing", 0, 0, 0).await
}
