//! The events of a request: checks their app, and writes them as the bytes that a queue would carry.

use crate::decode::{self, NoOrder};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::ops::Range;
use tonic::Status;
use windfall_proto::event::{EVENT_BYTES_MAX, EventRef};
use windfall_proto::order::check_bonus_type;
use windfall_proto::v1::{Bonus, BonusEvent, User};

/// The most events in a call.
pub(super) const EVENTS_MAX: usize = 1_000;

/// The events of one bonus type: their indices in the request, and their bytes.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub at: Vec<usize>,
    pub events: Vec<Bytes>,
}

/// The events of a call, by bonus type.
#[derive(Debug)]
pub(super) struct Events {
    pub count: usize,
    pub groups: BTreeMap<String, Group>,
    /// The events whose type is invalid, with the reason.
    pub malformed: Vec<(usize, Bytes, NoOrder)>,
}

/// Checks that the events are the caller's app's, and writes them as a queue would carry them.
///
/// # Errors
/// The call as a whole is refused: too many, or one of another app.
pub(super) fn read(events: &[BonusEvent], tenant: &str) -> Result<Events, Status> {
    if events.len() > EVENTS_MAX {
        return Err(Status::invalid_argument(format!(
            "events has {} entries; at most {EVENTS_MAX} are allowed",
            events.len()
        )));
    }
    let foreign = |event: &&BonusEvent| {
        event.user.as_ref().is_some_and(|user| !user.app_id.is_empty() && user.app_id != tenant)
    };
    if events.iter().any(|event| foreign(&event)) {
        return Err(Status::permission_denied("user.app_id is not the caller's app; nothing was granted"));
    }
    // One allocation for all of them.
    let mut bytes = BytesMut::with_capacity(events.len() * 160);
    let ends: Vec<Range<usize>> = events
        .iter()
        .map(|event| {
            let start = bytes.len();
            encode(event, tenant, &mut bytes);
            start..bytes.len()
        })
        .collect();
    if let Some((at, range)) =
        ends.iter().enumerate().find(|(_, range)| range.len() > EVENT_BYTES_MAX as usize)
    {
        let len = range.len();
        return Err(Status::invalid_argument(format!(
            "events[{at}] is {len} bytes; at most {EVENT_BYTES_MAX} are allowed; nothing was granted"
        )));
    }
    let bytes = bytes.freeze();
    let mut read = Events { count: events.len(), groups: BTreeMap::new(), malformed: Vec::new() };
    for (at, (event, range)) in events.iter().zip(ends).enumerate() {
        let bonus_type = event.bonus.as_ref().map_or("", |bonus| bonus.r#type.as_str());
        let bytes = bytes.slice(range);
        if check_bonus_type(bonus_type).is_err() {
            let why = decode::order(&bytes, None, 0).err().unwrap_or_else(|| NoOrder::of("bonus type"));
            read.malformed.push((at, bytes, why));
            continue;
        }
        if !read.groups.contains_key(bonus_type) {
            read.groups.insert(bonus_type.to_owned(), Group::default());
        }
        if let Some(group) = read.groups.get_mut(bonus_type) {
            group.at.push(at);
            group.events.push(bytes);
        }
    }
    Ok(read)
}

/// Writes the same bytes for the same event, whatever client sent it: the fields in order, the map sorted by its keys.
fn encode(event: &BonusEvent, tenant: &str, out: &mut BytesMut) {
    let BonusEvent { trade_no, user, activity, scene, bonus, .. } = event;
    let (nobody, nothing) = (User::default(), Bonus::default());
    let (user, bonus) = (user.as_ref().unwrap_or(&nobody), bonus.as_ref().unwrap_or(&nothing));
    let own = EventRef {
        trade_no,
        user_id: user.user_id,
        device_id: &user.device_id,
        app_id: if user.app_id.is_empty() { tenant } else { &user.app_id },
        activity,
        scene,
        bonus_type: &bonus.r#type,
        amount: bonus.amount,
        description: &bonus.description,
        award_time_ms: event.award_time_ms,
        first_sent_ms: event.first_sent_ms,
        trace_id: &event.trace_id,
    };
    let mut extension: Vec<(&str, &str)> =
        event.extension.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    extension.sort_unstable();
    own.encode(extension, out);
}
