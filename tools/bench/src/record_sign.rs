//! `record.sign` and `record.verify`: what the signature of a record of 256 events of usual size costs per event: one
//! `Signer::sign`, as the SDK does it for each pack, and one `Verifier::verify`, as a consumer does it for each record. Beside
//! each of them, in runs that alternate with it, a keyed hash of the bare crate `blake3` over the same bytes.

use crate::measure::{Row, Unit, ns_a_call};
use crate::mint::FIELDS;
use crate::send_call::EVENT;
use anyhow::{Result, ensure};
use std::hint::black_box;
use windfall_proto::event::EventRef;
use windfall_proto::record::{self, Head};
use windfall_signing::{LiveRing, QueueTag, Ring, Signer, Verifier};

const EVENTS: u32 = 256;
/// What each of the rows has to reach.
const NS_AN_EVENT_MAX: f64 = 30.0;
const SENDER: &str = "gateway";
const TENANT: &str = "acme";
const QUEUE: &str = "cash";
/// The key of the bare hash: any other costs the same.
const BARE_KEY: [u8; 32] = [7; 32];

pub fn sign(name: &'static str) -> Result<Row> {
    let Ground { record, signer, queue, .. } = Ground::new()?;
    let parts = record::signed_parts(&record)?;
    let mut ours = |calls: u64| -> Result<()> {
        for _ in 0..calls {
            black_box(signer.sign(queue, black_box(parts.head), black_box(parts.events))?);
        }
        Ok(())
    };
    let mut bare = |calls: u64| -> Result<()> {
        for _ in 0..calls {
            black_box(blake3::keyed_hash(&BARE_KEY, black_box(&record)));
        }
        Ok(())
    };
    let costs_ns = ns_a_call([&mut ours, &mut bare])?;
    Ok(row(name, costs_ns))
}

pub fn verify(name: &'static str) -> Result<Row> {
    let Ground { record, signed, verifier, queue, .. } = Ground::new()?;
    let mut ours = |calls: u64| -> Result<()> {
        for _ in 0..calls {
            black_box(verifier.verify(black_box(&signed), |of| of == queue)?);
        }
        Ok(())
    };
    let expected = blake3::keyed_hash(&BARE_KEY, &record);
    let mut bare = |calls: u64| -> Result<()> {
        for _ in 0..calls {
            let found = blake3::keyed_hash(&BARE_KEY, black_box(&record));
            ensure!(found == expected, "the bare hash is another one");
        }
        Ok(())
    };
    let costs_ns = ns_a_call([&mut ours, &mut bare])?;
    Ok(row(name, costs_ns))
}

/// A record, as it is before and after a sender has signed it, and who signs and verifies it.
struct Ground {
    record: Vec<u8>,
    signed: Vec<u8>,
    signer: Signer,
    verifier: Verifier,
    queue: QueueTag,
}

impl Ground {
    fn new() -> Result<Self> {
        let ring = LiveRing::new(Ring::ephemeral(SENDER)?);
        let (signer, verifier) = (Signer::new(&ring, SENDER, TENANT)?, Verifier::new(&ring, TENANT));
        let (record, queue) = (unsigned(), QueueTag::of(QUEUE));
        let signed = signer.sign_record(&record, queue)?;
        eprintln!("  {EVENTS} events, {} bytes of a record without its signature", record.len());
        Ok(Self { record, signed, signer, verifier, queue })
    }
}

/// A record as the SDK packs it, each event of another user.
fn unsigned() -> Vec<u8> {
    let event = |user: u32| {
        let mut bytes = Vec::new();
        EventRef { user_id: FIELDS.user_id + i64::from(user), ..EVENT }.encode([], &mut bytes);
        bytes
    };
    let events: Vec<Vec<u8>> = (0..EVENTS).map(event).collect();
    let head =
        Head { bonus_type: FIELDS.bonus_type, attempt: 0, failures: 0, not_before_ms: 0, count: EVENTS };
    record::build(head, events.iter().map(Vec::as_slice))
}

/// By the nanoseconds per record, ours and those of the bare hash.
fn row(name: &'static str, costs_ns: [f64; 2]) -> Row {
    let [ours_ns, bare_ns] = costs_ns.map(|cost_ns| cost_ns / f64::from(EVENTS));
    let missed = missed(ours_ns);
    match &missed {
        None => eprintln!("  reached"),
        Some(what) => eprintln!("  not reached: {what}"),
    }
    Row::new(name, ours_ns, Unit::NsACall, Some(bare_ns))
        .with("bars_missed", if missed.is_some() { 1.0 } else { 0.0 })
}

/// The bar that is not reached, in words.
fn missed(ns_an_event: f64) -> Option<String> {
    let is_missed = ns_an_event > NS_AN_EVENT_MAX;
    is_missed.then(|| format!("{ns_an_event:.1} ns per event, at most {NS_AN_EVENT_MAX:.0} are asked for"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_signing::Refused;

    #[test]
    fn a_bar_that_is_not_reached_is_named() {
        assert_eq!(missed(30.0), None);
        assert!(missed(30.1).is_some_and(|what| what.starts_with("30.1 ns per event")));
        let row = row("record.sign", [30.1 * 256.0, 10.0 * 256.0]);
        let (_, value, _, baseline, _) = row.columns();
        assert!((value - 30.1).abs() < 1e-9 && baseline.is_some_and(|bare| (bare - 10.0).abs() < 1e-9));
        assert_eq!(row.more().get("bars_missed"), Some(&1.0));
    }

    /// What is verified is what was signed, whole and of this queue: the rows measure no refusal.
    #[test]
    fn the_record_has_all_events_and_one_changed_byte_is_refused() {
        let Ground { record, mut signed, verifier, queue, .. } = Ground::new().unwrap();
        let (head, events) = record::split(&signed).unwrap();
        assert_eq!(head.count, EVENTS);
        assert_eq!(events.filter(Result::is_ok).count(), 256);
        assert!(signed.len() > record.len());
        assert_eq!(verifier.verify(&signed, |of| of == queue).unwrap().key, 1);
        *signed.last_mut().unwrap() ^= 1;
        assert_eq!(verifier.verify(&signed, |of| of == queue), Err(Refused::Forged { key: 1 }));
    }
}
