//! A topic full of events, written through the embedded broker's own producer.

use crate::mint::FIELDS;
use anyhow::{Result, ensure};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use windfall_contract::broker::{Broker, Delivery, DeliverySink, OutRecord, SendRefused, Tag};
use windfall_proto::event::EventRef;
use windfall_proto::record::{self, Head};

pub const NAME: &str = "rain";
/// Take turns, record by record.
pub const TYPES: [&str; 2] = ["cash", "coin"];
const PARTITIONS: u32 = 4;
/// How long the last records may take to reach the disk.
const CLOSE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Stored(AtomicU64);

impl DeliverySink for Stored {
    fn delivered(&self, _tag: Tag, delivery: Delivery) {
        if delivery == Delivery::Stored {
            self.0.fetch_add(1, Relaxed);
        }
    }
}

/// Writes `events` events, `pack` a record; the last record holds what is left.
/// `key` makes a record's key of its number.
pub fn fill(
    broker: &dyn Broker,
    topic: &str,
    events: u64,
    pack: u32,
    mut key: impl FnMut(u64) -> u64,
) -> Result<()> {
    broker.ensure_topic(topic, PARTITIONS)?;
    let stored = Arc::new(Stored::default());
    let producer = broker.producer(topic, Arc::clone(&stored) as Arc<dyn DeliverySink>)?;
    let (mut payload, mut written, mut records) = (Vec::new(), 0, 0_u64);
    for bonus_type in TYPES.into_iter().cycle() {
        let count = u32::try_from(u64::from(pack).min(events - written))?;
        if count == 0 {
            break;
        }
        payload.clear();
        Head { bonus_type, attempt: 0, failures: 0, not_before_ms: 0, count }.encode(&mut payload);
        for number in written..written + u64::from(count) {
            push_event(&mut payload, bonus_type, i64::try_from(number)?);
        }
        written += u64::from(count);
        let record = OutRecord { key: &key(records).to_be_bytes(), payload: &payload };
        while let Err(refused) = producer.send(Tag(records), record) {
            ensure!(refused == SendRefused::Full, "the broker takes no records: {refused}");
            std::thread::sleep(Duration::from_millis(1));
        }
        records += 1;
    }
    producer.close(CLOSE);
    ensure!(stored.0.load(Relaxed) == records, "not all of {records} records are stored");
    Ok(())
}

/// About 200 bytes.
fn push_event(payload: &mut Vec<u8>, bonus_type: &str, user_id: i64) {
    let trade_no = format!("spring-2027/rain/0000000001/{bonus_type}/{user_id}/0");
    let event = EventRef {
        trade_no: &trade_no,
        user_id,
        device_id: "device-0123456789abcdef",
        app_id: FIELDS.app_id,
        activity: FIELDS.activity,
        scene: FIELDS.scene,
        bonus_type,
        amount: FIELDS.amount,
        description: "Happy new year: a red packet of 8.88 yuan for you",
        award_time_ms: FIELDS.award_time_ms,
        first_sent_ms: FIELDS.award_time_ms,
        trace_id: &[],
    };
    let mut bytes = Vec::with_capacity(256);
    event.encode([], &mut bytes);
    record::push_event(payload, &bytes);
}
