//! From local times to instants: what happens when clocks change.

use super::calendar::Calendar;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

/// The first instant at `from_s` or later whose local time matches. Between two changes of the clock, local and real time
/// run alike, so each such stretch is searched by itself.
pub(super) fn first_by_elapsed_time(calendar: &Calendar, zone: &TimeZone, from_s: i64) -> Option<i64> {
    let mut from = Timestamp::from_second(from_s).ok()?;
    loop {
        let offset = zone.to_offset(from);
        let local = calendar.at_or_after(offset.to_datetime(from))?;
        let due = offset.to_timestamp(local).ok()?;
        match zone.following(from).next() {
            Some(change) if change.timestamp() <= due => from = change.timestamp(),
            _ => return Some(due.as_second()),
        }
    }
}

/// The first instant at `from_s` or later at which a local time that matches is due: a local time that does not exist is
/// due when the gap ends, one that happens twice is due the first time.
pub(super) fn first_by_local_time(calendar: &Calendar, zone: &TimeZone, from_s: i64) -> Option<i64> {
    let from = Timestamp::from_second(from_s).ok()?;
    // What is later than the second before `from` may lie in a gap that ends at `from`.
    let before = Timestamp::from_second(from_s - 1).ok()?;
    let mut local = next_second(zone.to_datetime(before))?;
    loop {
        local = calendar.at_or_after(local)?;
        let (due, resume) = resolve(zone, local)?;
        if due >= from {
            return Some(due.as_second());
        }
        local = resume;
    }
}

/// When a local time is due, and from which local time on to search if that is too early.
fn resolve(zone: &TimeZone, local: DateTime) -> Option<(Timestamp, DateTime)> {
    match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } => {
            Some((offset.to_timestamp(local).ok()?, next_second(local)?))
        }
        AmbiguousOffset::Gap { before: _, after } => {
            // Read with the later offset, a time within the gap lies before the change.
            let end_of_gap = next_change_to(zone, after.to_timestamp(local).ok()?, after)?;
            Some((end_of_gap, after.to_datetime(end_of_gap)))
        }
        AmbiguousOffset::Fold { before, after } => {
            let due = before.to_timestamp(local).ok()?;
            // If this is too early, the search starts in the second pass, and nothing of that pass is due.
            let change = next_change_to(zone, due, after)?;
            Some((due, before.to_datetime(change)))
        }
    }
}

fn next_change_to(zone: &TimeZone, after: Timestamp, offset: Offset) -> Option<Timestamp> {
    zone.following(after).find(|change| change.offset() == offset).map(|change| change.timestamp())
}

fn next_second(local: DateTime) -> Option<DateTime> {
    local.checked_add(SignedDuration::from_secs(1)).ok()
}
