//! Checks of one consumer.

use super::reader::{Reader, fetch};
use super::{Fixture, Outcome, PATIENCE, ensure, said, write};
use crate::contract::Fetch;
use std::time::{Duration, Instant};

/// `max_records` and `max_bytes` hold, but one record always comes; 0 records are changes alone.
pub(super) async fn limits_of_a_poll(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 2).map_err(said)?;
    write(&*broker, topic, 0..200).await?;
    let mut reader = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    let started = Instant::now();
    while reader.owned().len() < 2 && started.elapsed() < PATIENCE {
        let records = reader.poll(fetch(0, Duration::from_millis(20))).await?;
        ensure!(records.is_empty(), "{} records where none were asked for", records.len());
    }
    let (mut count, mut brought) = (0, 0);
    while count < 200 && started.elapsed() < PATIENCE {
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
    write(&*broker, topic, 200..300).await?;
    let mut count = 0;
    while count < 100 && started.elapsed() < PATIENCE {
        let records = reader.poll(fetch(7, Duration::from_millis(100))).await?;
        ensure!(records.len() <= 7, "{} records where 7 were asked for", records.len());
        count += records.len();
    }
    ensure!(count == 100, "{count} of 100 records");
    Ok(())
}

/// An empty poll returns after `wait`, not earlier; a record that comes meanwhile ends it.
pub(super) async fn waits_and_wakes(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 1).map_err(said)?;
    let mut reader = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    let started = Instant::now();
    while reader.owned().is_empty() && started.elapsed() < PATIENCE {
        reader.poll(fetch(1, Duration::from_millis(20))).await?;
    }
    let started = Instant::now();
    let records = reader.poll(fetch(1, Duration::from_millis(60))).await?;
    ensure!(records.is_empty(), "a record from nowhere");
    ensure!(started.elapsed() >= Duration::from_millis(50), "came back after {:?}", started.elapsed());
    let polling = async {
        let started = Instant::now();
        let records = reader.poll(fetch(1, PATIENCE)).await?;
        Ok::<_, String>((records.len(), started.elapsed()))
    };
    let writing = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        write(&*broker, topic, 0..1).await
    };
    let (polled, written) = futures_util::future::join(polling, writing).await;
    written?;
    let (count, took) = polled?;
    ensure!(count == 1 && took < PATIENCE / 2, "{count} records after {took:?}");
    Ok(())
}

/// A poll that is dropped before it is ready has taken nothing.
pub(super) async fn cancelled_polls(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 3).map_err(said)?;
    let mut reader = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    let writing = write(&*broker, topic, 0..1500);
    let reading = async {
        let started = Instant::now();
        let (mut count, mut cancelled) = (0, 0);
        for round in 0u64.. {
            if count == 1500 || started.elapsed() > PATIENCE {
                break;
            }
            let patience = Duration::from_micros(round % 5 * 100);
            match tokio::time::timeout(patience, reader.poll(fetch(10, PATIENCE))).await {
                Ok(records) => count += records?.len(),
                Err(_) => cancelled += 1,
            }
        }
        Ok::<_, String>((count, cancelled))
    };
    let (written, read) = futures_util::future::join(writing, reading).await;
    written?;
    let (count, cancelled) = read?;
    // The reader has checked each record's place, so the right number is the right records.
    ensure!(count == 1500, "{count} of 1500 records, {cancelled} polls dropped");
    Ok(())
}

/// A paused partition brings nothing, the others go on; resumed, it brings the rest.
pub(super) async fn pauses(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 2).map_err(said)?;
    write(&*broker, topic, 0..100).await?;
    let mut reader = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    let started = Instant::now();
    while reader.owned().len() < 2 && started.elapsed() < PATIENCE {
        reader.poll(fetch(0, Duration::from_millis(20))).await?;
    }
    reader.consumer().pause(0, true);
    let mut count = [0usize; 2];
    let until = Instant::now() + Duration::from_millis(150);
    while Instant::now() < until {
        for record in reader.poll(fetch(10, Duration::from_millis(20))).await? {
            ensure!(record.partition == 1, "a record of the paused partition");
            count[1] += 1;
        }
    }
    ensure!(count[1] > 0, "the other partition stood still");
    reader.consumer().pause(0, false);
    let rest = reader.read(100 - count[1], PATIENCE).await?;
    count[0] = rest.keys().filter(|(partition, _)| *partition == 0).count();
    ensure!(count[0] > 0, "nothing came after the pause");
    Ok(())
}

/// Each group gets all records.
pub(super) async fn groups_apart(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 2).map_err(said)?;
    let mut one = Reader::new(broker.consumer(topic, "one").await.map_err(said)?);
    let mut two = Reader::new(broker.consumer(topic, "two").await.map_err(said)?);
    write(&*broker, topic, 0..50).await?;
    one.read(50, PATIENCE).await?;
    one.commit().await?;
    let lag = broker.lag(topic, "two").await.map_err(said)?;
    ensure!(lag.records() == 50, "the other group's commit moved this one: {lag:?}");
    two.read(50, PATIENCE).await?;
    Ok(())
}

/// Lag counts what is written and what is committed.
pub(super) async fn lag_counts(fixture: &dyn Fixture, topic: &str) -> Outcome {
    let broker = fixture.open().await.map_err(said)?;
    broker.ensure_topic(topic, 3).map_err(said)?;
    write(&*broker, topic, 0..30).await?;
    let mut reader = Reader::new(broker.consumer(topic, "g").await.map_err(said)?);
    let lag = broker.lag(topic, "g").await.map_err(said)?;
    ensure!((lag.end, lag.committed) == (30, 0), "before the first read: {lag:?}");
    let seen = reader.read(30, PATIENCE).await?;
    reader.commit().await?;
    let lag = broker.lag(topic, "g").await.map_err(said)?;
    ensure!((lag.end, lag.records()) == (30, 0), "after {} records: {lag:?}", seen.len());
    write(&*broker, topic, 30..40).await?;
    let lag = broker.lag(topic, "g").await.map_err(said)?;
    ensure!((lag.end, lag.records()) == (40, 10), "after ten more: {lag:?}");
    Ok(())
}
