//! Checks of groups: where they resume, who owns what, what is fenced.

use super::reader::{Reader, Seen, fetch};
use super::{Outcome, Stage, ensure, said};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_contract::broker::{Acks, Broker, Commit, Epoch, Position};
use windfall_contract::finished::Finished;

/// The payloads, sorted.
pub(super) fn payloads(seen: &Seen) -> BTreeSet<Vec<u8>> {
    seen.values().map(|record| record.payload.to_vec()).collect()
}

pub(super) fn numbers(range: std::ops::Range<u64>) -> BTreeSet<Vec<u8>> {
    range.map(|number| number.to_be_bytes().to_vec()).collect()
}

/// A new member starts where the group has committed: what was read and not committed comes again.
pub(super) async fn resumes(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(2).await?;
    stage.write(&broker, 0..100).await?;
    let mut first = stage.reader(&broker, "g").await?;
    let (committed, open) = (numbers(0..100), numbers(100..150));
    stage.came(&first.read(100, stage.patience()).await?, &committed, &BTreeSet::new())?;
    first.commit().await?;
    stage.write(&broker, 100..150).await?;
    let uncommitted = first.read(50, stage.patience()).await?;
    stage.came(&uncommitted, &open, &committed)?;
    first.close().await;
    let mut second = stage.reader(&broker, "g").await?;
    let again = second.read(50, stage.patience()).await?;
    stage.came(&again, &open, &committed)?;
    let same = second.acks() == Acks::Each || again.keys().eq(uncommitted.keys());
    ensure!(same, "the same records have other offsets");
    second.commit().await?;
    second.close().await;
    let mut third = stage.settled(&broker, 2).await?;
    stage.stays_quiet(&mut third).await
}

/// After all handles were dropped and the broker opened again, records, offsets and commits are there.
pub(super) async fn survives_restart(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(3).await?;
    stage.write(&broker, 0..300).await?;
    let mut reader = stage.reader(&broker, "g").await?;
    let seen = reader.read(120, stage.patience()).await?;
    reader.commit().await?;
    let open = 300 - u64::try_from(seen.len()).map_err(said)?;
    stage.lags(&broker, "g", open).await?;
    drop(reader);
    drop(broker);
    let broker = stage.open().await?;
    stage.lags(&broker, "g", open).await?;
    stage.write(&broker, 300..310).await?;
    let mut reader = stage.reader(&broker, "g").await?;
    let rest = reader.read(310 - seen.len(), stage.patience()).await?;
    let committed = payloads(&seen);
    let wanted = numbers(0..310).difference(&committed).cloned().collect();
    stage.came(&rest, &wanted, &committed)
}

/// Stored records and commits survive a kill of the process; the other records that were read come again.
pub(super) async fn survives_crash(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(2).await?;
    stage.write(&broker, 0..200).await?;
    let mut reader = stage.reader(&broker, "g").await?;
    let committed = reader.read(80, stage.patience()).await?;
    reader.commit().await?;
    reader.read(40, stage.patience()).await?;
    let Some(after) = stage.fixture.crashed(&*broker).await.map_err(said)? else { return Ok(()) };
    let mut reader = stage.reader(&after, "g").await?;
    let rest = reader.read(200 - committed.len(), stage.patience()).await?;
    let all: BTreeSet<_> = payloads(&committed).union(&payloads(&rest)).cloned().collect();
    ensure!(all == numbers(0..200), "{} of 200 records", all.len());
    Ok(())
}

/// Commits of another epoch, of a partition that is not owned, or backwards, change nothing and are no error; nor
/// does finishing records that were never brought.
pub(super) async fn fences(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(2).await?;
    stage.write(&broker, 0..100).await?;
    let mut reader = stage.reader(&broker, "g").await?;
    let seen = reader.read(100, stage.patience()).await?;
    let last = seen.values().next_back().ok_or("nothing was read")?;
    if reader.acks() == Acks::Each {
        let (epoch, offset) = (last.epoch, last.offset);
        let strange = [
            Position { partition: last.partition, epoch, offset: offset + 1_000_000 },
            Position { partition: last.partition, epoch: Epoch(epoch.0 + 1), offset },
            Position { partition: 77, epoch, offset },
        ];
        reader.consumer().finish(&strange).await.map_err(said)?;
        stage.lags(&broker, "g", 100).await?;
        reader.commit().await?;
        return stage.lags(&broker, "g", 0).await;
    }
    let (topic, group) = (stage.topic(), stage.group("g"));
    let committed = || async { Ok::<_, String>(broker.lag(&topic, &group).await.map_err(said)?.committed) };
    let epoch = seen.values().next().map_or(Epoch(0), |record| record.epoch);
    let commit = |partition, epoch, next_offset| Commit {
        partition,
        epoch,
        next_offset,
        finished: Finished::default(),
    };
    let over = [
        commit(0, Epoch(epoch.0 + 1), 5),
        commit(0, Epoch(epoch.0.wrapping_sub(1)), 5),
        commit(77, epoch, 5),
    ];
    reader.consumer().commit(&over).await.map_err(said)?;
    ensure!(committed().await? == 0, "a commit of another epoch counted");
    reader.commit().await?;
    let all = committed().await?;
    ensure!(all == 100, "{all} of 100 committed");
    let record = seen.values().next().ok_or("nothing was read")?;
    let back = commit(record.partition, record.epoch, 0);
    reader.consumer().commit(&[back]).await.map_err(said)?;
    ensure!(committed().await? == all, "a commit went backwards");
    Ok(())
}

/// Records that are finished beyond the position are not brought to the next owner, and no others are left out: after a
/// close, after a drop, and after a crash, as long as a record hangs; then the position goes on to the end.
pub(super) async fn finished_stay_finished(stage: &Stage<'_>) -> Outcome {
    let mut broker = stage.open_with(1).await?;
    stage.write(&broker, 0..600).await?;
    let mut reader = stage.reader(&broker, "g").await?;
    if reader.acks() == Acks::Each {
        return Ok(());
    }
    let seen = reader.read(600, stage.patience()).await?;
    let offsets: Vec<_> = seen.keys().map(|(_, offset)| *offset).collect();
    // The first hangs; of the others some in turn are finished, a run in the middle, and the last ones.
    let is_finished =
        |place: usize| place > 0 && (place % 3 == 1 || (200..500).contains(&place) || place >= 590);
    let finished = offsets.iter().enumerate().filter(|(place, _)| is_finished(*place));
    let finished = Finished::of(finished.map(|(_, &offset)| offset..offset + 1));
    let (partition, epoch) = reader.epochs().into_iter().next().ok_or("owns nothing")?;
    // Of an epoch that is over, and of records that were never brought: nothing of it counts.
    let void = Finished::of(std::iter::once(offsets[0]..offsets[0] + 600));
    let next_offset = offsets[0];
    for (epoch, finished) in [(Epoch(epoch.0.wrapping_sub(1)), void), (epoch, finished)] {
        let commit = Commit { partition, epoch, next_offset, finished };
        let started = Instant::now();
        while let Err(error) = reader.consumer().commit(std::slice::from_ref(&commit)).await {
            ensure!(started.elapsed() < stage.patience(), "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let left: Vec<_> = (0..600).filter(|place| !is_finished(*place)).map(|place| offsets[place]).collect();
    for round in ["closed", "dropped", "crashed"] {
        match round {
            "closed" => reader.close().await,
            "dropped" => drop(reader),
            _ => {
                if let Some(after) = stage.fixture.crashed(&*broker).await.map_err(said)? {
                    drop(reader);
                    broker = after;
                } else {
                    drop(reader);
                }
            }
        }
        reader = stage.reader(&broker, "g").await?;
        let again = reader.read(left.len(), stage.patience()).await?;
        let came: Vec<_> = again.keys().map(|(_, offset)| *offset).collect();
        ensure!(
            came == left,
            "{round}: {} records came again, not the {} unfinished ones",
            came.len(),
            left.len()
        );
        stage.stays_quiet(&mut reader).await?;
        // A commit that says nothing of it forgets nothing of it.
        let (partition, epoch) = reader.epochs().into_iter().next().ok_or("owns nothing")?;
        let finished = Finished::default();
        let said = reader.consumer().commit(&[Commit { partition, epoch, next_offset, finished }]).await;
        said.map_err(|error| error.to_string())?;
    }
    // What comes now is new, and the last ones may have been left out.
    let (topic, group) = (stage.topic(), stage.group("g"));
    reader.commit().await?;
    let lag = broker.lag(&topic, &group).await.map_err(said)?;
    ensure!(lag.records() == 0, "all is finished, and {lag:?} stays");
    stage.write(&broker, 600..620).await?;
    let fresh = reader.read(20, stage.patience()).await?;
    ensure!(payloads(&fresh) == numbers(600..620), "{} of 20 new records", fresh.len());
    Ok(())
}

/// Members come and go: no partition has two owners, nothing is lost, a revoked one may be committed until the next
/// poll and not after.
///
/// What was committed does not come again.
pub(super) async fn rebalances(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(6).await?;
    let (reader, repeated) = come_and_go(stage, &broker, "g").await?;
    if !repeated.is_empty() {
        return Err(stage.again(format!("records came twice, though all was committed: {repeated:?}")));
    }
    match reader.acks() {
        Acks::Prefix => late_commit(stage, &broker, "g", reader).await,
        Acks::Each => Ok(()),
    }
}

/// A record that came twice: the number of members, its partition and its offset.
type Repeated = (usize, u32, u64);

/// One group whose members come and go while records are written: the last member, and what came twice.
async fn come_and_go(
    stage: &Stage<'_>,
    broker: &Arc<dyn Broker>,
    group: &str,
) -> Result<(Reader, Vec<Repeated>), String> {
    let mut written = 0;
    let (mut seen, mut repeated) = (BTreeSet::new(), Vec::new());
    let mut readers = Vec::new();
    for members in [1usize, 2, 3, 2, 1] {
        while readers.len() < members {
            readers.push(stage.reader(broker, group).await?);
        }
        while readers.len() > members {
            // The one that joined first leaves, in turn by closing and by being dropped.
            let mut leaver = readers.remove(0);
            leaver.commit().await?;
            if members == 2 { leaver.close().await } else { drop(leaver) }
        }
        stage.write(broker, written..written + 120).await?;
        written += 120;
        settle(stage, &mut readers, &mut seen, &mut repeated, written).await?;
    }
    ensure!(seen == numbers(0..written), "{} of {written} records", seen.len());
    let last = readers.pop().ok_or("no member is left")?;
    Ok((last, repeated))
}

/// Polls all members in turn until each record was seen and, where partitions have owners, all are shared evenly.
async fn settle(
    stage: &Stage<'_>,
    readers: &mut [Reader],
    seen: &mut BTreeSet<Vec<u8>>,
    repeated: &mut Vec<Repeated>,
    written: u64,
) -> Outcome {
    let started = Instant::now();
    let members = readers.len();
    let share = 6 / members;
    loop {
        let mut is_committed = true;
        for reader in readers.iter_mut() {
            for record in reader.poll(fetch(16, Duration::from_millis(2))).await? {
                if !seen.insert(record.payload.to_vec()) {
                    repeated.push((members, record.partition, record.offset));
                }
            }
            is_committed &= reader.commit_or_later().await?;
        }
        let owners = readers.iter().filter(|reader| reader.acks() == Acks::Prefix);
        let owned: Vec<_> = owners.map(Reader::owned).collect();
        let all: BTreeSet<_> = owned.iter().flatten().collect();
        let sum: usize = owned.iter().map(BTreeSet::len).sum();
        ensure!(all.len() == sum, "a partition has two owners: {owned:?}");
        if is_committed && seen.len() as u64 == written && owned.iter().all(|owned| owned.len() == share) {
            return Ok(());
        }
        let slow = started.elapsed() > stage.patience();
        ensure!(!slow, "{} of {written} records; owned: {owned:?}", seen.len());
    }
}

/// A member that was told of a revocation polls, and only then commits: too late.
async fn late_commit(stage: &Stage<'_>, broker: &Arc<dyn Broker>, group: &str, mut old: Reader) -> Outcome {
    let epochs = old.epochs();
    stage.write(broker, 10_000..10_060).await?;
    old.read(60, stage.patience()).await?;
    let (topic, group_name) = (stage.topic(), stage.group(group));
    let before = broker.lag(&topic, &group_name).await.map_err(said)?.committed;
    let mut new = stage.reader(broker, group).await?;
    let started = Instant::now();
    while new.owned().is_empty() && started.elapsed() < stage.patience() {
        old.poll(fetch(0, Duration::from_millis(2))).await?;
        new.poll(fetch(0, Duration::from_millis(2))).await?;
    }
    let lost: Vec<_> = new.owned().into_iter().collect();
    ensure!(!lost.is_empty(), "the new member got nothing");
    let late = lost.iter().filter_map(|partition| {
        let epoch = *epochs.get(partition)?;
        let finished = Finished::default();
        Some(Commit { partition: *partition, epoch, next_offset: u64::MAX, finished })
    });
    let late: Vec<_> = late.collect();
    ensure!(late.len() == lost.len(), "the new member owns what the old one never did");
    old.consumer().commit(&late).await.map_err(said)?;
    let after = broker.lag(&topic, &group_name).await.map_err(said)?.committed;
    ensure!(before == after, "a commit after the partition had moved counted");
    let owners = old.owned().intersection(&new.owned()).count();
    ensure!(owners == 0, "{owners} partitions have two owners");
    Ok(())
}

/// A topic that grows while it is read: the new partitions are assigned too.
pub(super) async fn grows(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(1).await?;
    stage.write(&broker, 0..20).await?;
    let mut reader = stage.reader(&broker, "g").await?;
    reader.read(20, stage.patience()).await?;
    stage.ensure(&broker, 4).await?;
    stage.write(&broker, 20..120).await?;
    let seen = reader.read(100, stage.patience()).await?;
    stage.came(&seen, &numbers(20..120), &numbers(0..20))?;
    let whole = reader.acks() == Acks::Each || reader.owned().len() == 4;
    ensure!(whole, "owns {:?}", reader.owned());
    Ok(())
}
