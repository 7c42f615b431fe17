//! Publishing, delays, ttl, looking, ending.

use super::{Case, Checked, Fixture, bodies, holds, said, same};
use std::collections::BTreeSet;
use windfall_contract::task_queue::{
    JobId, Lease, NewJobs, OnceJob, OnceMark, QUEUES_PAGE, QueueName, TAKE_BYTES_MAX, Take, ready_ms,
};

pub(super) async fn run(fixture: &dyn Fixture) -> Vec<Checked> {
    vec![
        ("a job is taken as it was published", as_published(fixture).await),
        ("ids are unique and say what they must", ids(fixture).await),
        ("a delayed job is ready when it is due and not before", delays(fixture).await),
        ("what has expired is passed over", expiry(fixture).await),
        ("a deleted job is never taken, wherever it waited", deletion(fixture).await),
        ("many jobs are deleted in one call", deletion_of_many(fixture).await),
        ("a call takes no more bytes than one may", bounded_bytes(fixture).await),
        ("jobs that are gone hide none that is ready", gone_heads(fixture).await),
        ("a job is found wherever it is", finding(fixture).await),
        ("it is said for how long jobs have been ready", readiness(fixture).await),
        ("a job with a mark is published once, whatever became of it", once(fixture).await),
        ("ready jobs are dropped and no others", dropping(fixture).await),
        ("what is stored is there when it is opened again", reopening(fixture).await),
        ("an empty queue is forgotten", sweeping(fixture).await),
        ("very many queues are named page by page", many_queues(fixture).await),
    ]
}

/// Each on a queue of its own, so that they may wait at the same time.
pub(super) async fn run_short(fixture: &dyn Fixture) -> Vec<Checked> {
    let (published, deleted, found, ready, marked, swept) = tokio::join!(
        as_published(fixture),
        deletion_of_many(fixture),
        finding(fixture),
        readiness(fixture),
        once(fixture),
        sweeping(fixture),
    );
    vec![
        ("a job is taken as it was published", published),
        ("many jobs are deleted in one call", deleted),
        ("a job is found wherever it is", found),
        ("it is said for how long jobs have been ready", ready),
        ("a job with a mark is published once, whatever became of it", marked),
        ("an empty queue is forgotten", swept),
    ]
}

async fn as_published(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "as-published").await?;
    let plain = case.jobs(&["one", "", "three"]);
    let attributes = vec![("color".to_owned(), "red".to_owned()), ("k".to_owned(), String::new())];
    let full = NewJobs {
        attributes,
        is_versioned: true,
        tries: 7,
        ttl_s: 0,
        bodies: vec![vec![0; 70_000].into()],
        ..plain.clone()
    };
    let ids = case.store.publish(case.shard, &[plain, full]).await.map_err(said)?;
    same("ids by group", &ids.iter().map(Vec::len).collect::<Vec<_>>(), &vec![3, 1])?;
    case.has("before", 4, 0, 0).await?;
    let (now_ms, taken) = case.take_at(10, 60).await?;
    same("bodies", &bodies(&taken.jobs[..3]), &vec!["one".into(), String::new(), "three".into()])?;
    let all: Vec<_> = ids.concat();
    same("ids", &taken.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), &all)?;
    let (first, last) = (&taken.jobs[0], &taken.jobs[3]);
    same("the end of the ttl", &first.expires_ms, &(first.id.published_ms() + 86_400_000))?;
    same("tries", &(first.tries_left, last.tries_left), &(0, 6))?;
    same("a job for ever", &last.expires_ms, &0)?;
    same("attributes", &last.attributes.first(), &Some(&("color".to_owned(), "red".to_owned())))?;
    same("a long body", &last.body.len(), &70_000)?;
    holds("the clock is behind the publishing", now_ms >= first.id.published_ms())?;
    same("what is left", &(taken.ready_left, taken.is_cut), &(0, false))?;
    case.has("after", 0, 0, 0).await
}

async fn ids(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "ids").await?;
    let mut seen = BTreeSet::new();
    for round in 0..20_u32 {
        let jobs = NewJobs { delay_s: round, is_versioned: round % 2 == 1, ..case.jobs(&["a", "b", "c"]) };
        for id in case.publish(jobs).await? {
            same("shard", &id.shard(), &case.shard)?;
            same("delay and version", &(id.delay_s(), id.is_versioned()), &(round, round % 2 == 1))?;
            holds("an id is new", seen.insert(id))?;
        }
    }
    Ok(())
}

async fn delays(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "delays").await?;
    let soon = case.publish_one(NewJobs { delay_s: 1, ..case.jobs(&["soon"]) }).await?;
    case.publish(NewJobs { delay_s: 4, ..case.jobs(&["later", "later"]) }).await?;
    case.publish(NewJobs { delay_s: 4_000, ..case.jobs(&["far"]) }).await?;
    case.has("at first", 0, 4, 0).await?;
    same("taken at first", &case.take(9, 60).await?.len(), &0)?;
    fixture.wait_ms(1_150).await;
    let (now_ms, taken) = case.take_at(9, 60).await?;
    same("taken when it was due", &bodies(&taken.jobs), &vec!["soon".to_owned()])?;
    holds("it is not early", now_ms >= soon.published_ms() + 1_000)?;
    holds("it is ready as is said", now_ms >= ready_ms(soon.published_ms(), 1))?;
    case.has("then", 0, 3, 0).await?;
    fixture.wait_ms(3_100).await;
    case.has("at last", 2, 1, 0).await?;
    same("taken at last", &bodies(&case.take(9, 60).await?), &vec!["later".to_owned(); 2])
}

async fn expiry(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "expiry").await?;
    case.publish(NewJobs { ttl_s: 1, ..case.jobs(&["gone", "gone"]) }).await?;
    case.publish(NewJobs { ttl_s: 1, delay_s: 1, ..case.jobs(&["gone"]) }).await?;
    case.publish(case.jobs(&["here"])).await?;
    fixture.wait_ms(1_300).await;
    let head = case.store.peek(case.shard, &case.queue).await.map_err(said)?;
    holds("an expired head is shown as such", head.is_some_and(|head| head.is_expired()))?;
    let (_, first) = case.take_at(1, 60).await?;
    same("taken", &bodies(&first.jobs), &vec!["here".to_owned()])?;
    let (_, rest) = case.take_at(9, 60).await?;
    same("those that are over are counted", &(first.expired, rest.expired), &(2, 1))?;
    case.has("after", 0, 0, 0).await?;
    // One that somebody had is counted as well.
    case.publish(NewJobs { ttl_s: 3, ..case.jobs(&["back"]) }).await?;
    let (now_ms, taken) = case.take_at(1, 600).await?;
    let id = taken.jobs.first().map(|job| job.id).ok_or("it was not taken")?;
    let lease = Lease { queue: case.queue.clone(), id, end_ms: Lease::end_ms(now_ms, 600) };
    case.store.give_back(case.shard, &[lease]).await.map_err(said)?;
    fixture.wait_ms(3_100).await;
    let (_, none) = case.take_at(1, 600).await?;
    same("one that was given back", &(none.jobs.len(), none.expired), &(0, 1))?;
    case.has("at last", 0, 0, 0).await
}

async fn deletion(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "deletion").await?;
    let ready = case.publish(case.jobs(&["a", "b", "c", "d", "e"])).await?;
    let delayed = case.publish(NewJobs { delay_s: 1, ..case.jobs(&["f", "g", "h"]) }).await?;
    let alone = case.publish_one(NewJobs { delay_s: 9, ..case.jobs(&["i"]) }).await?;
    for id in [ready[0], ready[3], delayed[1], alone] {
        same("deleted", &case.remove(id).await?, &true)?;
        same("deleted again", &case.remove(id).await?, &false)?;
    }
    case.has("counts", 3, 2, 0).await?;
    fixture.wait_ms(1_150).await;
    case.has("counts when they are due", 5, 0, 0).await?;
    same("deleted when it is ready", &case.remove(delayed[2]).await?, &true)?;
    let taken = case.take(9, 60).await?;
    same("taken", &bodies(&taken), &["b", "c", "e", "f"].map(str::to_owned).to_vec())?;
    for job in &taken {
        same("acknowledged", &case.remove(job.id).await?, &true)?;
        same("acknowledged again", &case.remove(job.id).await?, &false)?;
    }
    let unknown = "01ARYZ6S41TSV4RRFFQ69G5FAV".parse().map_err(said)?;
    same("an id that nobody gave", &case.remove(unknown).await?, &false)?;
    case.has("at the end", 0, 0, 0).await
}

async fn deletion_of_many(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "deletion-of-many").await?;
    let ids = case.publish(case.jobs(&vec!["x"; 1_500])).await?;
    let named = |ids: &[JobId]| ids.iter().map(|id| (case.queue.clone(), *id)).collect::<Vec<_>>();
    let removed = case.store.remove(case.shard, &named(&ids[..60])).await.map_err(said)?;
    same("deleted", &removed, &vec![true; 60])?;
    case.has("then", 1_440, 0, 0).await?;
    let removed = case.store.remove(case.shard, &named(&ids[50..70])).await.map_err(said)?;
    same("some of them again", &removed, &[vec![false; 10], vec![true; 10]].concat())?;
    let first = case.take(1, 600).await?;
    same("the first one that is left", &first.first().map(|job| job.id), &Some(ids[70]))?;
    while case.store.drop_ready(case.shard, &case.queue).await.map_err(said)? {}
    Ok(())
}

async fn bounded_bytes(fixture: &dyn Fixture) -> Result<(), String> {
    const LONG: usize = 1 << 20;
    let case = Case::open(fixture, "bounded-bytes").await?;
    case.publish(case.jobs(&["x"])).await?;
    for _ in 0..12 {
        case.publish(NewJobs { bodies: vec![vec![b'y'; LONG].into()], tries: 2, ..case.jobs(&[]) }).await?;
    }
    let take = |count| Take { queue: case.queue.clone(), count, ttr_s: 1 };
    let (_, answers) = case.store.take(case.shard, &[take(100), take(100), take(1)]).await.map_err(said)?;
    let bytes: usize = answers.iter().flat_map(|taken| &taken.jobs).map(|job| job.body.len()).sum();
    holds("it takes some", bytes > LONG)?;
    holds("it takes no more than it may, and what it had begun", bytes <= TAKE_BYTES_MAX + 4 * LONG)?;
    let last = &answers[2];
    holds("what it did not reach is to be asked for again", last.jobs.is_empty() && last.is_cut)?;
    let mut taken: usize = answers.iter().map(|taken| taken.jobs.len()).sum();
    while taken < 13 {
        match case.take(100, 1).await?.len() {
            0 => return Err(format!("{taken} of 13 jobs were taken")),
            some => taken += some,
        }
    }
    // Leases of so many bytes end in several calls.
    fixture.wait_ms(1_100).await;
    case.tend().await?;
    case.has("back, and dead", 12, 0, 1).await?;
    while case.store.drop_ready(case.shard, &case.queue).await.map_err(said)? {}
    case.has("dropped", 0, 0, 1).await
}

async fn gone_heads(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "gone-heads").await?;
    let many = vec!["x"; 300];
    for id in case.publish(case.jobs(&many)).await? {
        case.remove(id).await?;
    }
    case.publish(NewJobs { ttl_s: 1, ..case.jobs(&many) }).await?;
    fixture.wait_ms(1_100).await;
    case.publish(case.jobs(&["here"])).await?;
    same("taken", &bodies(&case.take(1, 60).await?), &vec!["here".to_owned()])
}

async fn finding(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "finding").await?;
    let find = async |id| {
        let found = case.store.get(&case.queue, id).await.map_err(said)?;
        Ok::<_, String>(found.map(|found| String::from_utf8_lossy(&found.job.body).into_owned()))
    };
    let ready = case.publish(case.jobs(&["a", "b"])).await?;
    let delayed = case.publish_one(NewJobs { delay_s: 700, ttl_s: 900, ..case.jobs(&["c"]) }).await?;
    same("ready", &find(ready[1]).await?, &Some("b".into()))?;
    same("delayed", &find(delayed).await?, &Some("c".into()))?;
    let head = case.store.peek(case.shard, &case.queue).await.map_err(said)?;
    same("the head", &head.map(|head| head.job.id), &Some(ready[0]))?;
    case.take(1, 1).await?;
    same("leased", &find(ready[0]).await?, &Some("a".into()))?;
    fixture.wait_ms(1_100).await;
    case.tend().await?;
    same("dead", &find(ready[0]).await?, &Some("a".into()))?;
    case.remove(ready[0]).await?;
    same("gone", &find(ready[0]).await?, &None)?;
    case.has("counts", 1, 1, 0).await
}

async fn readiness(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "readiness").await?;
    let unused = QueueName::new("checks", "readiness-of-none").map_err(said)?;
    let asked = [unused, case.queue.clone()];
    let ready_for_ms = async || {
        let found = case.store.ready_for_ms(case.shard, &asked).await.map_err(said)?;
        same("answers", &found.len(), &2)?;
        same("of a queue without jobs", &found[0], &None)?;
        Ok::<_, String>(found[1])
    };
    same("of an empty queue", &ready_for_ms().await?, &None)?;
    case.publish(NewJobs { delay_s: 1, tries: 2, ..case.jobs(&["x"]) }).await?;
    same("of a delayed job", &ready_for_ms().await?, &None)?;
    fixture.wait_ms(1_650).await;
    let waited_ms = ready_for_ms().await?;
    holds("it counts from the end of the delay", waited_ms.is_some_and(|ms| ms >= 500))?;
    case.publish(case.jobs(&["y"])).await?;
    holds("the oldest one counts", ready_for_ms().await? >= waited_ms)?;
    same("taken", &case.take(9, 1).await?.len(), &2)?;
    same("of leased jobs", &ready_for_ms().await?, &None)?;
    fixture.wait_ms(1_100).await;
    case.tend().await?;
    holds("it is ready again", ready_for_ms().await?.is_some())?;
    while case.store.drop_ready(case.shard, &case.queue).await.map_err(said)? {}
    same("of dropped jobs", &ready_for_ms().await?, &None)
}

async fn once(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "once").await?;
    let with = |mark: u8, job: NewJobs| OnceJob { mark: OnceMark([mark; 16]), job };
    let publish = async |batch: &[OnceJob]| case.store.publish_once(case.shard, batch).await.map_err(said);
    let attributes = vec![("timer-id".to_owned(), "7".to_owned())];
    let first = NewJobs { attributes: attributes.clone(), is_versioned: true, tries: 2, ..case.jobs(&["a"]) };
    let later = NewJobs { delay_s: 1, ..case.jobs(&["later"]) };
    // The same mark twice in one call is the same job.
    let batch = [with(1, first), with(2, case.jobs(&["b"])), with(2, case.jobs(&["b"])), with(3, later)];
    let ids = publish(&batch).await?;
    let found: Vec<bool> = ids.iter().map(Option::is_some).collect();
    same("stored", &found, &vec![true, true, false, true])?;
    holds("the id says what it is", ids[0].is_some_and(|id| id.is_versioned() && id.shard() == case.shard))?;
    holds("the delay is in the id", ids[3].is_some_and(|id| id.delay_s() == 1))?;
    same("stored again", &publish(&batch).await?, &vec![None; 4])?;
    case.has("after the repeat", 2, 1, 0).await?;
    fixture.wait_ms(1_150).await;
    let taken = case.take(9, 60).await?;
    same("taken", &bodies(&taken), &["a", "b", "later"].map(str::to_owned).to_vec())?;
    same("attributes", &taken[0].attributes, &attributes)?;
    same("ids", &taken.iter().map(|job| Some(job.id)).collect::<Vec<_>>(), &vec![ids[0], ids[1], ids[3]])?;
    same("while they are leased", &publish(&batch).await?, &vec![None; 4])?;
    for job in &taken {
        same("acknowledged", &case.remove(job.id).await?, &true)?;
    }
    same("when they are over", &publish(&batch).await?, &vec![None; 4])?;
    case.has("at the end", 0, 0, 0).await?;
    // A restart forgets nothing.
    let (store, queue) = (case.store.shards(), case.queue.clone());
    drop(case);
    let again = Case::open(fixture, "once").await?;
    same("shards", &again.store.shards(), &store)?;
    let repeated = again.store.publish_once(again.shard, &batch).await.map_err(said)?;
    same("after a restart", &repeated, &vec![None; 4])?;
    let counts = again.store.look(again.shard, &[queue]).await.map_err(said)?;
    same("nothing is there", &counts, &vec![windfall_contract::task_queue::QueueCounts::default()])
}

async fn dropping(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "dropping").await?;
    case.publish(NewJobs { tries: 2, ..case.jobs(&["leased", "again"]) }).await?;
    case.take(1, 60).await?;
    case.take(1, 1).await?;
    case.publish(NewJobs { delay_s: 1, ..case.jobs(&["due"]) }).await?;
    case.publish(NewJobs { delay_s: 90, ..case.jobs(&["delayed"]) }).await?;
    case.publish(case.jobs(&vec!["ready"; 1_500])).await?;
    fixture.wait_ms(1_150).await;
    case.tend().await?;
    case.has("before", 1_502, 1, 0).await?;
    while case.store.drop_ready(case.shard, &case.queue).await.map_err(said)? {}
    case.has("after", 0, 1, 0).await?;
    same("taken", &case.take(9, 60).await?.len(), &0)
}

async fn reopening(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "reopening").await?;
    case.publish(NewJobs { tries: 2, ..case.jobs(&["again", "leased", "ready"]) }).await?;
    case.take(1, 1).await?;
    let leased = case.take(1, 600).await?;
    case.publish(NewJobs { delay_s: 2, ..case.jobs(&["delayed", "delayed"]) }).await?;
    let dead = case.publish_one(case.jobs(&["dead"])).await?;
    fixture.wait_ms(1_100).await;
    case.tend().await?;
    // "ready" and "dead" wait, "again" was taken before them.
    let (now_ms, again) = case.take_at(1, 600).await?;
    same("the oldest", &bodies(&again.jobs), &vec!["ready".to_owned()])?;
    let lease = Lease { queue: case.queue.clone(), id: again.jobs[0].id, end_ms: Lease::end_ms(now_ms, 600) };
    case.store.give_back(case.shard, &[lease]).await.map_err(said)?;
    let before = case.counts().await?;
    drop(case);
    let case = Case::open(fixture, "reopening").await?;
    same("counts", &case.counts().await?, &before)?;
    same("acknowledged", &case.remove(leased[0].id).await?, &true)?;
    let mut taken = bodies(&case.take(9, 600).await?);
    taken.sort_unstable();
    same("taken", &taken, &["again", "dead", "ready"].map(str::to_owned).to_vec())?;
    same("acknowledged", &case.remove(dead).await?, &true)?;
    fixture.wait_ms(2_000).await;
    let next = case.publish_one(case.jobs(&["new"])).await?;
    holds("numbers go on", next.sequence() > dead.sequence())?;
    same("taken when it was due", &case.take(9, 600).await?.len(), &3)
}

async fn sweeping(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "sweeping").await?;
    case.publish(NewJobs { ttl_s: 1, ..case.jobs(&vec!["x"; 150]) }).await?;
    let (names, _) = case.queues().await?;
    holds("the queue is known", names.contains(&case.queue))?;
    fixture.wait_ms(1_100).await;
    let mut cursor = 0;
    for _ in 0..1_000 {
        cursor = case.store.sweep(case.shard, cursor).await.map_err(said)?.cursor;
        let (names, _) = case.queues().await?;
        if !names.contains(&case.queue) {
            case.publish(case.jobs(&["y"])).await?;
            return case.has("a queue that was forgotten", 1, 0, 0).await;
        }
    }
    Err("the queue is still there".into())
}

async fn many_queues(fixture: &dyn Fixture) -> Result<(), String> {
    let case = Case::open(fixture, "many-queues").await?;
    let mut batch = Vec::new();
    for at in 0..5 * QUEUES_PAGE / 2 {
        let queue = QueueName::new("checks", &format!("many-{at}")).map_err(said)?;
        batch.push(NewJobs { queue, ttl_s: 1, ..case.jobs(&["x"]) });
    }
    case.store.publish(case.shard, &batch).await.map_err(said)?;
    let (found, pages) = case.queues().await?;
    holds("pages are short", pages >= 2)?;
    let own: BTreeSet<QueueName> = batch.into_iter().map(|jobs| jobs.queue).collect();
    holds("each queue is named", own.is_subset(&found))?;
    fixture.wait_ms(1_100).await;
    let mut cursor = 0;
    for _ in 0..1_000 {
        cursor = case.store.sweep(case.shard, cursor).await.map_err(said)?.cursor;
        if cursor == 0 && case.queues().await?.0.is_disjoint(&own) {
            return Ok(());
        }
    }
    Err("the queues are still there".into())
}
