//! Checks of producers and topics.

use super::reader::fetch;
use super::{Ledger, Outcome, Stage, close, ensure, said, send_within};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::broker::{Acks, Delivery, OpenError, OutRecord, SendRefused, Tag};

/// Exactly one report for each taken record, from any number of threads; none after `close`, which refuses more.
pub(super) async fn reports_once(stage: &Stage<'_>) -> Outcome {
    const EACH: u64 = 500;
    let broker = stage.open_with(3).await?;
    let (producer, ledger) = stage.producer(&broker).await?;
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let producer = producer.clone();
            let patience = stage.patience();
            tokio::task::spawn_blocking(move || {
                (thread * EACH..(thread + 1) * EACH).zip(0..).try_for_each(|(tag, size)| {
                    send_within(patience, &*producer, tag, &tag.to_be_bytes(), &vec![7; size])
                })
            })
        })
        .collect();
    for thread in threads {
        thread.await.map_err(said)??;
    }
    ensure!(close(producer.clone(), stage.patience()).await? == 0, "records were left open");
    ensure!(close(producer.clone(), stage.patience()).await? == 0, "a second close found records");
    let refused = producer.send(Tag(1), OutRecord { key: b"k", payload: b"p" });
    ensure!(refused == Err(SendRefused::Closed), "a send after close: {refused:?}");
    let reports = ledger.reports();
    ensure!(reports.len() as u64 == 4 * EACH, "{} of {} reported", reports.len(), 4 * EACH);
    let wrong = reports.iter().find(|(_, reports)| **reports != [Delivery::Stored]);
    ensure!(wrong.is_none(), "not stored exactly once: {wrong:?}");
    let mut reader = stage.reader(&broker, "g").await?;
    reader.read(reports.len(), stage.patience()).await?;
    Ok(())
}

/// `close` without patience: each record is reported once, and it returns how many as `Unknown`.
pub(super) async fn close_accounts(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(2).await?;
    for round in 0..20u64 {
        let (producer, ledger) = stage.producer(&broker).await?;
        for tag in 0..50 {
            stage.send(&*producer, tag, &tag.to_be_bytes(), &[1; 300])?;
        }
        let open = close(producer, Duration::from_micros(round * 100)).await?;
        // The driver may be in the middle of the last report.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let reports = ledger.reports();
        let once = reports.values().filter(|reports| reports.len() == 1).count();
        let unknown = reports.values().flatten().filter(|one| matches!(one, Delivery::Unknown(_))).count();
        ensure!(once == 50, "round {round}: {once} of 50 reported once");
        ensure!(unknown == open, "round {round}: close said {open} open, {unknown} reported unknown");
    }
    Ok(())
}

/// At least 1 MiB and as little as nothing is taken and comes back whole; too much is refused, not reported.
pub(super) async fn sizes(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(1).await?;
    let (producer, ledger) = stage.producer(&broker).await?;
    let sizes = [0usize, 1, 200, 70_000, 1 << 20, 3];
    let payload = |size: usize| -> Vec<u8> { (0u8..251).cycle().take(size).collect() };
    for (tag, size) in (0u64..).zip(sizes) {
        stage.send(&*producer, tag, b"", &payload(size))?;
    }
    let huge = vec![0u8; 256 << 20];
    let refused = producer.send(Tag(99), OutRecord { key: b"k", payload: &huge });
    let right =
        matches!(refused, Err(SendRefused::TooLarge { bytes, max }) if bytes == huge.len() && max < bytes);
    ensure!(right, "256 MiB: {refused:?}");
    ensure!(close(producer, stage.patience()).await? == 0, "records were left open");
    ensure!(!ledger.reports().contains_key(&Tag(99)), "a refused record was reported");
    let mut reader = stage.reader(&broker, "g").await?;
    let seen = reader.read(sizes.len(), stage.patience()).await?;
    let came: BTreeSet<_> = seen.values().map(|record| record.payload.len()).collect();
    ensure!(came == BTreeSet::from(sizes), "{sizes:?} bytes came as {came:?}");
    for record in seen.values() {
        let whole = record.payload == payload(record.payload.len());
        ensure!(whole, "{} bytes came damaged", record.payload.len());
        ensure!(record.key.is_empty(), "no key came as {:?}", record.key);
    }
    Ok(())
}

/// Equal keys, equal partition; within it the order of sending; keys come back.
pub(super) async fn order_by_key(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open_with(4).await?;
    let (producer, _) = stage.producer(&broker).await?;
    for number in 0u64..2000 {
        stage.send(&*producer, number, format!("key-{}", number % 17).as_bytes(), &number.to_be_bytes())?;
        if number % 700 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    ensure!(close(producer, stage.patience()).await? == 0, "records were left open");
    let mut reader = stage.reader(&broker, "g").await?;
    let seen = reader.read(2000, stage.patience()).await?;
    let mut last: BTreeMap<Vec<u8>, (u32, Vec<u8>)> = BTreeMap::new();
    for record in seen.values() {
        let (partition, payload) = (record.partition, record.payload.to_vec());
        let before = last.insert(record.key.to_vec(), (partition, payload.clone()));
        // Where each record is acknowledged by itself, there is no order to keep.
        if let Some((home, before)) = before.filter(|_| reader.acks() == Acks::Prefix) {
            ensure!(home == partition, "{:?} is in partitions {home} and {partition}", record.key);
            ensure!(before < payload, "{:?} is out of order", record.key);
        }
    }
    let partitions: BTreeSet<_> = seen.keys().map(|(partition, _)| *partition).collect();
    let spread = partitions.len() > 1 || reader.acks() == Acks::Each;
    ensure!(last.len() == 17 && spread, "{} keys in {partitions:?}", last.len());
    Ok(())
}

/// A topic must exist; `ensure_topic` makes it, makes it larger, never smaller.
pub(super) async fn names(stage: &Stage<'_>) -> Outcome {
    let broker = stage.open().await?;
    let ledger = Arc::new(Ledger::default());
    let absent = |what: &str, error: Option<OpenError>| match error {
        Some(OpenError::Absent(_)) => Ok(()),
        other => Err(format!("{what} of a topic that is not there: {other:?}")),
    };
    let nowhere = format!("{}conformance-nowhere", stage.fixture.prefix());
    let (blocking, name) = (Arc::clone(&broker), nowhere.clone());
    let producer = tokio::task::spawn_blocking(move || blocking.producer(&name, ledger).err());
    absent("a producer", producer.await.map_err(said)?)?;
    absent("a consumer", broker.consumer(&nowhere, &stage.group("g")).await.err())?;
    for partitions in [2, 5, 1] {
        stage.ensure(&broker, partitions).await?;
    }
    let mut reader = stage.reader(&broker, "g").await?;
    let partitions = reader.consumer().partitions();
    ensure!(partitions == 5 || reader.acks() == Acks::Each, "{partitions} partitions, not 5");
    stage.write(&broker, 0..10).await?;
    reader.read(10, stage.patience()).await?;
    reader.poll(fetch(0, Duration::ZERO)).await?;
    Ok(())
}
