//! Checks of one consumer.

use super::groups::numbers;
use super::reader::fetch;
use super::{Outcome, Stage, ensure};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use windfall_contract::broker::{Acks, Epoch, Fetch};

/// `max_records` and `max_bytes` hold, but one record always comes; 0 records are changes alone.
pub(super) async fn limits_of_a_poll(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(2).await?;
    stage.write(&broker, 0..200).await?;
    let mut reader = stage.settled(&broker, 2).await?;
    let started = Instant::now();
    let (mut count, mut brought) = (0, 0);
    while count < 200 && started.elapsed() < stage.patience() {
        // Payloads are 8 bytes: three fit, one is brought whatever the limit.
        let (max_bytes, most) = if count % 2 == 0 { (24, 3) } else { (1, 1) };
        let wait = Duration::from_millis(100);
        let records = reader.poll(Fetch { max_records: 5, max_bytes, wait }).await?;
        ensure!(records.len() <= most, "{} records where {max_bytes} bytes were asked for", records.len());
        count += records.len();
        brought = brought.max(records.len());
    }
    ensure!(count == 200, "{count} of 200 records");
    ensure!(brought > 1, "never more than one record a poll");
    stage.write(&broker, 200..300).await?;
    let mut count = 0;
    while count < 100 && started.elapsed() < stage.patience() {
        let records = reader.poll(fetch(7, Duration::from_millis(100))).await?;
        ensure!(records.len() <= 7, "{} records where 7 were asked for", records.len());
        count += records.len();
    }
    ensure!(count == 100, "{count} of 100 records");
    Ok(())
}

/// An empty poll returns after `wait`, not earlier; a record that comes meanwhile ends it.
pub(super) async fn waits_and_wakes(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(1).await?;
    let mut reader = stage.settled(&broker, 1).await?;
    let started = Instant::now();
    let records = reader.poll(fetch(1, Duration::from_millis(60))).await?;
    ensure!(records.is_empty(), "a record from nowhere");
    ensure!(started.elapsed() >= Duration::from_millis(50), "came back after {:?}", started.elapsed());
    let polling = async {
        let started = Instant::now();
        let records = reader.poll(fetch(1, stage.patience())).await?;
        Ok::<_, String>((records.len(), started.elapsed()))
    };
    let writing = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        stage.write(&broker, 0..1).await
    };
    let (polled, written) = futures_util::future::join(polling, writing).await;
    written?;
    let (count, took) = polled?;
    ensure!(count == 1 && took < stage.patience() / 2, "{count} records after {took:?}");
    Ok(())
}

/// A poll that is dropped before it is ready has taken nothing.
pub(super) async fn cancelled_polls(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(3).await?;
    let mut reader = stage.reader(&broker, "g").await?;
    let writing = stage.write(&broker, 0..1500);
    let reading = async {
        let started = Instant::now();
        let (mut seen, mut cancelled) = (BTreeSet::new(), 0);
        for round in 0u64.. {
            if seen.len() == 1500 || started.elapsed() > stage.patience() {
                break;
            }
            let patience = Duration::from_micros(round % 5 * 100);
            match tokio::time::timeout(patience, reader.poll(fetch(10, stage.patience()))).await {
                Ok(records) => seen.extend(records?.into_iter().map(|record| record.payload.to_vec())),
                Err(_) => cancelled += 1,
            }
        }
        Ok::<_, String>((seen, cancelled))
    };
    let (written, read) = futures_util::future::join(writing, reading).await;
    written?;
    let (seen, cancelled) = read?;
    ensure!(seen == numbers(0..1500), "{} of 1500 records, {cancelled} polls dropped", seen.len());
    Ok(())
}

/// A paused partition brings nothing, the others go on; resumed, it brings the rest.
pub(super) async fn pauses(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(2).await?;
    stage.write(&broker, 0..100).await?;
    let mut reader = stage.settled(&broker, 2).await?;
    let paused = *reader.owned().first().ok_or("owns nothing")?;
    let epoch = *reader.epochs().get(&paused).ok_or("owns nothing")?;
    reader.consumer().pause(paused, epoch, true);
    let mut others = 0;
    let quiet = stage.fixture.quiet();
    let started = Instant::now();
    let mut last = started;
    // How a topic with single acknowledgements is shared is its own affair: all of it may be in the paused part.
    let each = reader.acks() == Acks::Each;
    while last.elapsed() < quiet || (others == 0 && !each && started.elapsed() < stage.patience()) {
        for record in reader.poll(fetch(10, Duration::from_millis(20))).await? {
            ensure!(record.partition != paused, "a record of the paused partition");
            (others, last) = (others + 1, Instant::now());
        }
    }
    ensure!(others > 0 || each, "the other partition stood still");
    reader.consumer().pause(paused, epoch, false);
    let rest = reader.read(100 - others, stage.patience()).await?;
    let resumed = rest.keys().filter(|(partition, _)| *partition == paused).count();
    ensure!(resumed > 0 || each, "nothing came after the pause");
    Ok(())
}

/// A pause under another epoch than the one that lasts stops nothing, and its end resumes nothing.
pub(super) async fn old_pauses(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(1).await?;
    let mut reader = stage.settled(&broker, 1).await?;
    let (partition, epoch) = reader.epochs().into_iter().next().ok_or("owns nothing")?;
    for other in [Epoch(epoch.0.wrapping_sub(1)), Epoch(epoch.0.wrapping_add(1))] {
        reader.consumer().pause(partition, other, true);
    }
    stage.write(&broker, 0..20).await?;
    reader.read(20, stage.patience()).await?;
    reader.commit().await?;
    reader.consumer().pause(partition, epoch, true);
    reader.consumer().pause(partition, Epoch(epoch.0.wrapping_sub(1)), false);
    stage.write(&broker, 20..40).await?;
    stage.stays_quiet(&mut reader).await?;
    reader.consumer().pause(partition, epoch, false);
    reader.read(20, stage.patience()).await?;
    Ok(())
}

/// Each group gets all records.
pub(super) async fn groups_apart(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(2).await?;
    let mut one = stage.reader(&broker, "one").await?;
    let mut two = stage.reader(&broker, "two").await?;
    stage.write(&broker, 0..50).await?;
    one.read(50, stage.patience()).await?;
    one.commit().await?;
    // The other group's commit must not move this one.
    stage.lags(&broker, "two", 50).await?;
    two.read(50, stage.patience()).await?;
    Ok(())
}

/// Lag counts what is written and what is committed.
pub(super) async fn lag_counts(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(3).await?;
    stage.write(&broker, 0..30).await?;
    stage.lags(&broker, "g", 30).await?;
    let mut reader = stage.reader(&broker, "g").await?;
    reader.read(30, stage.patience()).await?;
    reader.commit().await?;
    stage.lags(&broker, "g", 0).await?;
    stage.write(&broker, 30..40).await?;
    stage.lags(&broker, "g", 10).await
}
