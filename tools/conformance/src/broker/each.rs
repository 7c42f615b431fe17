//! Checks of brokers that take an acknowledgement for each record.

use super::groups::numbers;
use super::reader::fetch;
use super::{Outcome, Stage, said};
use std::time::{Duration, Instant};
use windfall_contract::broker::{Acks, Commit, Position};
use windfall_contract::finished::Finished;

/// Finished records never come again, unfinished ones do: after a close, and after a drop.
pub(super) async fn unfinished_come_again(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(2).await?;
    let mut left = numbers(0..0);
    for round in 0..2 {
        let mut reader = stage.reader(&broker, "g").await?;
        if reader.acks() == Acks::Prefix {
            return Ok(());
        }
        stage.write(&broker, round * 40..(round + 1) * 40).await?;
        let seen = reader.read(left.len() + 40, stage.patience()).await?;
        left.extend(numbers(round * 40..(round + 1) * 40));
        let all = numbers(0..(round + 1) * 40);
        stage.came(&seen, &left, &all.difference(&left).cloned().collect())?;
        let halves = seen.values().enumerate().filter(|(number, _)| number % 2 == 0);
        let finished: Vec<_> = halves.map(|(_, record)| record).collect();
        for record in &finished {
            left.remove(record.payload.as_ref());
        }
        let positions = finished.iter().map(|record| Position {
            partition: record.partition,
            epoch: record.epoch,
            offset: record.offset,
        });
        let positions: Vec<_> = positions.collect();
        reader.consumer().finish(&positions).await.map_err(said)?;
        // Once more is harmless, and there is no position to commit.
        reader.consumer().finish(&positions).await.map_err(said)?;
        let commits = seen.values().map(|record| Commit {
            partition: record.partition,
            epoch: record.epoch,
            next_offset: record.offset + 1,
            finished: Finished::default(),
        });
        let commits: Vec<_> = commits.collect();
        reader.consumer().commit(&commits).await.map_err(said)?;
        if round == 0 { reader.close().await } else { drop(reader) }
    }
    let mut reader = stage.reader(&broker, "g").await?;
    let seen = reader.read(left.len(), stage.patience()).await?;
    stage.came(&seen, &left, &numbers(0..80).difference(&left).cloned().collect())?;
    reader.commit().await?;
    stage.stays_quiet(&mut reader).await?;
    reader.close().await;
    let mut last = stage.settled(&broker, 2).await?;
    stage.stays_quiet(&mut last).await
}

/// Records that a member holds unfinished are not given to another while the first one polls, and are once it has left.
pub(super) async fn held_stay_hidden(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(2).await?;
    let mut first = stage.reader(&broker, "g").await?;
    if first.acks() == Acks::Prefix {
        return Ok(());
    }
    stage.write(&broker, 0..40).await?;
    let held = first.read(40, stage.patience()).await?;
    stage.came(&held, &numbers(0..40), &numbers(0..0))?;
    let mut second = stage.reader(&broker, "g").await?;
    let started = Instant::now();
    while started.elapsed() < stage.fixture.quiet() {
        let again = first.poll(fetch(16, Duration::from_millis(10))).await?;
        let taken = second.poll(fetch(16, Duration::from_millis(10))).await?;
        if !again.is_empty() {
            return Err(stage.again(format!("{} held records came to their holder again", again.len())));
        }
        if !taken.is_empty() {
            return Err(stage.again(format!("{} held records came to another member", taken.len())));
        }
    }
    // Still good for being finished, however long it was held.
    let kept: Vec<_> = held.values().take(10).collect();
    let positions = kept.iter().map(|record| Position {
        partition: record.partition,
        epoch: record.epoch,
        offset: record.offset,
    });
    let positions: Vec<_> = positions.collect();
    first.consumer().finish(&positions).await.map_err(said)?;
    first.close().await;
    let rest = second.read(30, stage.patience()).await?;
    let finished = kept.iter().map(|record| record.payload.to_vec()).collect();
    let left = numbers(0..40).difference(&finished).cloned().collect();
    stage.came(&rest, &left, &finished)?;
    second.commit().await?;
    stage.stays_quiet(&mut second).await
}
