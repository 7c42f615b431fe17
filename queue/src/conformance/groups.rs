//! Checks of groups: where they resume, who owns what, what is fenced.

use super::reader::{Reader, Seen, fetch};
use super::{Fixture, Outcome, PATIENCE, ensure, said, write};
use crate::contract::{Broker, Commit, Epoch};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The payloads, sorted.
fn payloads(seen: &Seen) -> BTreeSet<Vec<u8>> {
    seen.values().map(|record| record.payload.to_vec()).collect()
}

fn numbers(range: std::ops::Range<u64>) -> BTreeSet<Vec<u8>> {
    range.map(|number| number.to_be_bytes().to_vec()).collect()
}

/// A new member starts where the group has committed: what was read and not committed comes again.
pub(super) async fn resumes(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 2).map_err(said)?;
    write(&*broker, topic, 0..100).await?;
    let mut first = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    first.read(100, PATIENCE).await?;
    first.commit().await?;
    write(&*broker, topic, 100..150).await?;
    let uncommitted = first.read(50, PATIENCE).await?;
    first.close().await;
    let mut second = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    let again = second.read(50, PATIENCE).await?;
    ensure!(payloads(&again) == payloads(&uncommitted), "other records came again");
    ensure!(again.keys().eq(uncommitted.keys()), "the same records have other offsets");
    Ok(())
}

/// After all handles were dropped and the broker opened again, records, offsets and commits are there.
pub(super) async fn survives_restart(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 3).map_err(said)?;
    write(&*broker, topic, 0..300).await?;
    let mut reader = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    let seen = reader.read(120, PATIENCE).await?;
    reader.commit().await?;
    let lag = broker.lag(topic, "g").await.map_err(said)?;
    drop(reader);
    drop(broker);
    let broker = fixture.open().await.map_err(said)?;
    let after = broker.lag(topic, "g").await.map_err(said)?;
    ensure!(lag == after, "{lag:?} became {after:?}");
    write(&*broker, topic, 300..310).await?;
    let mut reader = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    let rest = reader.read(310 - seen.len(), PATIENCE).await?;
    let all: BTreeSet<_> = payloads(&seen).union(&payloads(&rest)).cloned().collect();
    ensure!(all == numbers(0..310), "{} of 310 records", all.len());
    ensure!(rest.keys().all(|place| !seen.contains_key(place)), "a committed record came again");
    Ok(())
}

/// What was stored and committed is there after the process was killed; the rest of what was read comes again.
pub(super) async fn survives_crash(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 2).map_err(said)?;
    write(&*broker, topic, 0..200).await?;
    let mut reader = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    let committed = reader.read(80, PATIENCE).await?;
    reader.commit().await?;
    reader.read(40, PATIENCE).await?;
    let Some(after) = fixture.crashed(&*broker).await.map_err(said)? else { return Ok(()) };
    let mut reader = Reader::new(after.consumer(topic, "g").await.map_err(said)?);
    let rest = reader.read(200 - committed.len(), PATIENCE).await?;
    let all: BTreeSet<_> = payloads(&committed).union(&payloads(&rest)).cloned().collect();
    ensure!(all == numbers(0..200), "{} of 200 records", all.len());
    Ok(())
}

/// Commits of another epoch, of a partition that is not owned, or backwards, change nothing and are no error.
pub(super) async fn fences(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 2).map_err(said)?;
    write(&*broker, topic, 0..100).await?;
    let mut reader = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    let seen = reader.read(100, PATIENCE).await?;
    let committed = || async { Ok::<_, String>(broker.lag(topic, "g").await.map_err(said)?.committed) };
    let epoch = seen.values().next().map_or(Epoch(0), |record| record.epoch);
    let over = [
        Commit { partition: 0, epoch: Epoch(epoch.0 + 1), next_offset: 5 },
        Commit { partition: 0, epoch: Epoch(epoch.0.wrapping_sub(1)), next_offset: 5 },
        Commit { partition: 77, epoch, next_offset: 5 },
    ];
    reader.consumer().commit(&over).await.map_err(said)?;
    ensure!(committed().await? == 0, "a commit of another epoch counted");
    reader.commit().await?;
    let all = committed().await?;
    ensure!(all == 100, "{all} of 100 committed");
    let record = seen.values().next().ok_or("nothing was read")?;
    let back = Commit { partition: record.partition, epoch: record.epoch, next_offset: 0 };
    reader.consumer().commit(&[back]).await.map_err(said)?;
    ensure!(committed().await? == all, "a commit went backwards");
    Ok(())
}

/// Members come and go: no partition has two owners, nothing is lost, a revoked one may be committed until the next
/// poll and not after.
pub(super) async fn rebalances(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 6).map_err(said)?;
    let mut seen = BTreeSet::new();
    let mut readers = Vec::new();
    let mut written = 0;
    for members in [1usize, 2, 3, 2, 1] {
        while readers.len() < members {
            readers.push(Reader::new(broker.consumer(topic, "g").await.map_err(said)?));
        }
        while readers.len() > members {
            // The one that joined first leaves, in turn by closing and by being dropped.
            let mut leaver = readers.remove(0);
            leaver.commit().await?;
            if members == 2 { leaver.close().await } else { drop(leaver) }
        }
        write(&*broker, topic, written..written + 120).await?;
        written += 120;
        settle(&mut readers, &mut seen, written).await?;
    }
    let twice_at_most = numbers(0..written);
    ensure!(seen == twice_at_most, "{} of {written} records", seen.len());
    late_commit(&*broker, topic, readers).await
}

/// Polls all members in turn until each record was seen and partitions are shared evenly.
async fn settle(readers: &mut [Reader], seen: &mut BTreeSet<Vec<u8>>, written: u64) -> Outcome {
    let started = Instant::now();
    let share = 6 / readers.len();
    loop {
        for reader in readers.iter_mut() {
            for record in reader.poll(fetch(16, Duration::from_millis(2))).await? {
                ensure!(seen.insert(record.payload.to_vec()), "a record came twice, though all is committed");
            }
            reader.commit().await?;
        }
        let owned: Vec<_> = readers.iter().map(Reader::owned).collect();
        let all: BTreeSet<_> = owned.iter().flatten().collect();
        let sum: usize = owned.iter().map(BTreeSet::len).sum();
        ensure!(all.len() == sum, "a partition has two owners: {owned:?}");
        if seen.len() as u64 == written && owned.iter().all(|owned| owned.len() == share) {
            return Ok(());
        }
        let slow = started.elapsed() > PATIENCE;
        ensure!(!slow, "{} of {written} records; owned: {owned:?}", seen.len());
    }
}

/// A member that was told of a revocation polls, and only then commits: too late.
async fn late_commit(broker: &dyn Broker, topic: &str, readers: Vec<Reader>) -> Outcome {
    let mut readers = readers.into_iter();
    let mut old = readers.next().ok_or("no member is left")?;
    let epochs = old.epochs();
    write(broker, topic, 10_000..10_060).await?;
    old.read(60, PATIENCE).await?;
    let before = broker.lag(topic, "g").await.map_err(said)?.committed;
    let mut new = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    let started = Instant::now();
    while new.owned().is_empty() && started.elapsed() < PATIENCE {
        old.poll(fetch(0, Duration::from_millis(2))).await?;
        new.poll(fetch(0, Duration::from_millis(2))).await?;
    }
    let lost: Vec<_> = new.owned().into_iter().collect();
    ensure!(!lost.is_empty(), "the new member got nothing");
    let late = lost.iter().filter_map(|partition| {
        let epoch = *epochs.get(partition)?;
        Some(Commit { partition: *partition, epoch, next_offset: u64::MAX })
    });
    let late: Vec<_> = late.collect();
    ensure!(late.len() == lost.len(), "the new member owns what the old one never did");
    old.consumer().commit(&late).await.map_err(said)?;
    let after = broker.lag(topic, "g").await.map_err(said)?.committed;
    ensure!(before == after, "a commit after the partition had moved counted");
    let owners = old.owned().intersection(&new.owned()).count();
    ensure!(owners == 0, "{owners} partitions have two owners");
    Ok(())
}

/// A topic that grows while it is read: the new partitions are assigned too.
pub(super) async fn grows(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 1).map_err(said)?;
    write(&*broker, topic, 0..20).await?;
    let mut reader = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    reader.read(20, PATIENCE).await?;
    broker.ensure_topic(topic, 4).map_err(said)?;
    write(&*broker, topic, 20..120).await?;
    let seen = reader.read(100, PATIENCE).await?;
    ensure!(payloads(&seen) == numbers(20..120), "{} of 100 records", seen.len());
    ensure!(reader.owned().len() == 4, "owns {:?}", reader.owned());
    Ok(())
}
