//! Events and records from a broker: any bytes end without panic, and what reads reads as prost does.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use windfall_proto::event::{self, EventRef};
use windfall_proto::wire::{LEN, Reader};
use windfall_proto::{record, v1};

fn equal(view: &EventRef<'_>, owned: &v1::BonusEvent) -> bool {
    let user = owned.user.clone().unwrap_or_default();
    let bonus = owned.bonus.clone().unwrap_or_default();
    view.trade_no == owned.trade_no
        && view.user_id == user.user_id
        && view.device_id == user.device_id
        && view.app_id == user.app_id
        && view.activity == owned.activity
        && view.scene == owned.scene
        && view.bonus_type == bonus.r#type
        && view.amount == bonus.amount
        && view.description == bonus.description
        && view.award_time_ms == owned.award_time_ms
        && view.first_sent_ms == owned.first_sent_ms
        && view.trace_id == owned.trace_id
}

/// prost takes the map's field for an entry whatever its wire type says, and then reads all that follows otherwise
/// than the format has it. We go by the format.
fn prost_goes_astray(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        // A look ahead at the field's tag, which may be of a wire type that we do not read at all.
        if { reader }.varint().is_ok_and(|tag| tag >> 3 == 9 && tag & 7 != LEN) {
            return true;
        }
        if reader.field().is_err() {
            return false;
        }
    }
    false
}

fn one(bytes: &[u8]) {
    if prost_goes_astray(bytes) {
        // Read or refused, without panic.
        let _read = EventRef::parse(bytes);
        return;
    }
    let view = EventRef::parse(bytes);
    let owned = v1::BonusEvent::decode(bytes);
    // prost also checks the map's entries, which the view passes over; and passes over groups, which no writer of
    // proto3 makes and we refuse.
    if let (Err(bad), Ok(_)) = (&view, &owned) {
        assert_eq!(bad.what, "a known wire type", "prost reads what we do not");
    }
    let Ok(view) = view else { return };
    let Ok(owned) = owned else { return };
    assert!(equal(&view, &owned), "{view:?} is not {owned:?}");
    event::trade_no(bytes).expect("it has just been read");
    let mut written = Vec::new();
    view.encode(owned.extension.iter().map(|(key, value)| (key.as_str(), value.as_str())), &mut written);
    assert_eq!(EventRef::parse(&written), Ok(view));
    let again = v1::BonusEvent::decode(written.as_slice()).expect("what we write prost reads");
    assert!(equal(&view, &again) && again.extension == owned.extension);
}

fuzz_target!(|data: &[u8]| {
    one(data);
    let Ok((head, events)) = record::split(data) else { return };
    let ranges: Result<Vec<_>, _> = events.collect();
    let Ok(ranges) = ranges else { return };
    assert_eq!(ranges.len(), head.count as usize);
    for range in ranges.clone() {
        one(&data[range]);
    }
    let built = record::build(head, ranges.iter().map(|range| &data[range.clone()]).collect::<Vec<_>>());
    let (again, events) = record::split(&built).expect("what we write we read");
    assert_eq!(again, head);
    let same = |(a, b): (Result<std::ops::Range<usize>, _>, &std::ops::Range<usize>)| {
        a.is_ok_and(|a| built[a] == data[b.clone()])
    };
    assert!(events.zip(&ranges).all(same));
    if let Ok(batch) = v1::BonusEventBatch::decode(data) {
        assert_eq!(batch.events.len(), ranges.len());
        assert_eq!(
            (batch.r#type.as_str(), batch.attempt, batch.count),
            (head.bonus_type, head.attempt, head.count)
        );
        assert_eq!((batch.failures, batch.not_before_ms), (head.failures, head.not_before_ms));
    }
});
