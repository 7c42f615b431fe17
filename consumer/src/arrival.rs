//! Decides about a record that arrives: whether it comes in, may wait for a key, or goes to the archive. I12: nothing of it is
//! looked at before it is known who wrote it.

use crate::in_flight::InFlightRecord;
use crate::late_keys::LateKeys;
use crate::probation::position;
use crate::signatures::{Admitted, Entrance};
use crate::window::Ticket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use windfall_contract::broker::InRecord;
use windfall_contract::rewards::Rejection;
use windfall_signing::Refused;

/// What becomes of a record that arrives.
#[derive(Debug)]
pub(crate) enum Judgement {
    /// It comes in.
    Admitted(Admitted),
    /// It does not come in now.
    Refused {
        why: Refused,
        /// Whether another ring, or other rules, may let it in, so that it may wait for them.
        may_wait: bool,
    },
}

/// A record that is in its window, before anything of it is looked at.
pub(crate) fn unread(record: InRecord, ticket: Ticket, now_ns: u64) -> InFlightRecord {
    InFlightRecord::whole(position(&record), keep(ticket), record.payload, now_ns)
}

/// Decides whether a record comes in. `may_wait` says whether one that does not may wait at all.
pub(crate) fn judge(entrance: &Entrance, record: &InFlightRecord, may_wait: bool, now_ns: u64) -> Judgement {
    match entrance.check(&record.payload) {
        Ok(admitted) => Judgement::Admitted(admitted),
        Err(why) => {
            let may_wait = may_wait
                && LateKeys::takes_since(record.since_ns(), now_ns)
                && LateKeys::can_come(&why, entrance.highest_key());
            Judgement::Refused { why, may_wait }
        }
    }
}

/// Why a record that makes the consumer panic is archived. I12: what would have been refused is archived as that, since a
/// replay of the others grants them.
pub(crate) fn why_quarantined(entrance: &Entrance, topic: &str, record: &InRecord) -> (Rejection, String) {
    let mut detail = format!("record {topic}/{}/{} made a consumer panic", record.partition, record.offset);
    // The check itself may be what panics.
    let checked = catch_unwind(AssertUnwindSafe(|| entrance.check(&record.payload).err()));
    let rejection = match checked {
        Ok(None) => Rejection::Quarantined,
        Ok(Some(refused)) => {
            detail.push_str(&format!(", and is refused: {refused}"));
            Rejection::Unverified
        }
        Err(_) => {
            detail.push_str(" when its signature was verified");
            Rejection::Unverified
        }
    };
    (rejection, detail)
}

/// Keeps the ticket until its record is settled.
#[cfg(not(feature = "sabotage"))]
fn keep(ticket: Ticket) -> Option<Ticket> {
    Some(ticket)
}

/// Keeps the ticket until its record is settled, unless the promise is to be broken.
#[cfg(feature = "sabotage")]
fn keep(ticket: Ticket) -> Option<Ticket> {
    if crate::sabotage::is_early_mark() {
        ticket.finish();
        return None;
    }
    Some(ticket)
}
