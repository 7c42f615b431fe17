//! Writes records of one size to an embedded broker, then reads them back, and prints the rates.
//!
//! `cargo run --release -p windfall-queue-embedded --example embedded_rate -- [PAYLOAD_BYTES] [RECORDS] [DIR]`

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use windfall_contract::broker::{
    Broker, Change, Commit, Delivery, DeliverySink, Fetch, OutRecord, SendRefused, Tag,
};
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};

#[derive(Default)]
struct Count {
    stored: AtomicUsize,
    other: AtomicUsize,
}

impl DeliverySink for Count {
    fn delivered(&self, _: Tag, delivery: Delivery) {
        let counter = if delivery == Delivery::Stored { &self.stored } else { &self.other };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// User and system time of this process so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    // Without the name and the state, utime and stime are the 11th and 12th; a tick is 10 ms.
    Duration::from_millis(10 * (fields.get(10).unwrap_or(&0) + fields.get(11).unwrap_or(&0)))
}

fn memory(name: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim().to_owned()
}

#[allow(clippy::cast_precision_loss)]
fn print(what: &str, records: usize, bytes: usize, wall: Duration, cpu: Duration) {
    let rate = records as f64 / wall.as_secs_f64();
    println!(
        "{what}: {rate:.0} records/s, {:.0} MB/s, {:.2} µs CPU a record, {:.2} cores; memory {} (peak {})",
        rate * bytes as f64 / 1e6,
        cpu.as_secs_f64() * 1e6 / records as f64,
        cpu.as_secs_f64() / wall.as_secs_f64(),
        memory("VmRSS:"),
        memory("VmHWM:"),
    );
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let bytes: usize = args.next().unwrap_or("51200".into()).parse()?;
    let records: usize = args.next().unwrap_or("40000".into()).parse()?;
    let held = tempfile::tempdir()?;
    let dir = args.next().map_or_else(|| held.path().to_path_buf(), PathBuf::from);
    let broker = EmbeddedBroker::open(&dir, &EmbeddedOptions::default())?;
    broker.ensure_topic("rate", 8)?;
    let count = Arc::new(Count::default());
    let producer = broker.producer("rate", count.clone())?;
    let payload: Vec<u8> = (0u8..=255).cycle().take(bytes).collect();

    let (start, before) = (Instant::now(), cpu());
    for tag in 0u64..records as u64 {
        let record = OutRecord { key: &tag.to_be_bytes(), payload: &payload };
        while let Err(refused) = producer.send(Tag(tag), record) {
            assert_eq!(refused, SendRefused::Full);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    assert_eq!(producer.close(Duration::from_secs(60)), 0);
    assert_eq!(count.stored.load(Ordering::Relaxed), records);
    print("write", records, bytes, start.elapsed(), cpu() - before);

    let mut consumer = broker.consumer("rate", "readers").await?;
    let fetch = Fetch { max_records: 4096, max_bytes: 4 << 20, wait: Duration::from_secs(1) };
    let (start, before) = (Instant::now(), cpu());
    let mut read = 0;
    let mut epochs = std::collections::BTreeMap::new();
    let mut next = std::collections::BTreeMap::new();
    while read < records {
        let polled = consumer.poll(fetch).await?;
        for change in polled.changes {
            if let Change::Assigned { partition, epoch, .. } = change {
                epochs.insert(partition, epoch);
            }
        }
        for record in &polled.records {
            next.insert(record.partition, record.offset + 1);
        }
        read += polled.records.len();
    }
    print("read ", records, bytes, start.elapsed(), cpu() - before);
    let commits: Vec<_> = next
        .iter()
        .map(|(partition, next_offset)| Commit {
            partition: *partition,
            epoch: epochs[partition],
            next_offset: *next_offset,
            finished: Default::default(),
        })
        .collect();
    consumer.commit(&commits).await?;
    let start = Instant::now();
    drop(consumer);
    drop(producer);
    drop(broker);
    println!("closed in {:?}", start.elapsed());
    Ok(())
}
