//! A borrowed view of one event.
//!
//! Decoding a `BonusEvent` into owned strings costs seven allocations; at a million events per second that is the
//! largest single cost. A view costs a walk over the bytes. Same format, checked against prost in the tests.

use crate::wire::{self, Malformed, Reader, Value};
use bytes::BufMut;

/// Bytes of one event at most, as the SDK and the services take it.
pub const EVENT_BYTES_MAX: u32 = 11 << 10;

const FIRST_SENT_MS: u64 = 7;
const NOT_BEFORE_MS: u32 = 10;

/// One event, borrowed from its bytes. Strings are empty and numbers 0 where the event has no such field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventRef<'a> {
    /// The order number.
    pub trade_no: &'a str,
    /// The user who gets it.
    pub user_id: i64,
    /// The user's device.
    pub device_id: &'a str,
    /// The app, which is the tenant.
    pub app_id: &'a str,
    /// The campaign.
    pub activity: &'a str,
    /// The scene within the campaign.
    pub scene: &'a str,
    /// The bonus type.
    pub bonus_type: &'a str,
    /// The amount in the smallest unit.
    pub amount: i64,
    /// The description that the user reads.
    pub description: &'a str,
    /// When it was won, in Unix milliseconds.
    pub award_time_ms: i64,
    /// When the SDK took it, in Unix milliseconds.
    pub first_sent_ms: i64,
    /// Trace id, 16 bytes or none.
    pub trace_id: &'a [u8],
}

impl<'a> EventRef<'a> {
    /// Reads an event. Fields that this version does not know are passed over; the last of a repeated field
    /// wins, as protobuf says.
    ///
    /// # Errors
    /// The bytes are no protobuf message, or a known field has another wire type.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut event = Self::default();
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            let at = reader.position();
            let (field, value) = reader.field()?;
            match field {
                1 => event.trade_no = wire::text(value, at)?,
                2 => event.parse_user(wire::blob(value, at)?)?,
                3 => event.activity = wire::text(value, at)?,
                4 => event.scene = wire::text(value, at)?,
                5 => event.parse_bonus(wire::blob(value, at)?)?,
                6 => event.award_time_ms = wire::int64(value, at)?,
                7 => event.first_sent_ms = wire::int64(value, at)?,
                8 => event.trace_id = wire::blob(value, at)?,
                _ => {}
            }
        }
        Ok(event)
    }

    fn parse_user(&mut self, bytes: &'a [u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            let at = reader.position();
            match reader.field()? {
                (1, value) => self.user_id = wire::int64(value, at)?,
                (2, value) => self.device_id = wire::text(value, at)?,
                (3, value) => self.app_id = wire::text(value, at)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn parse_bonus(&mut self, bytes: &'a [u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            let at = reader.position();
            match reader.field()? {
                (1, value) => self.bonus_type = wire::text(value, at)?,
                (2, value) => self.amount = wire::int64(value, at)?,
                (3, value) => self.description = wire::text(value, at)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Appends the event's bytes, with `extension` as its map.
    pub fn encode<'e>(&self, extension: impl IntoIterator<Item = (&'e str, &'e str)>, out: &mut impl BufMut) {
        wire::put_bytes(out, 1, self.trade_no.as_bytes());
        wire::put_varint(out, 2 << 3 | wire::LEN);
        let user = wire::u64_field_len(self.user_id.cast_unsigned())
            + wire::bytes_field_len(self.device_id.len())
            + wire::bytes_field_len(self.app_id.len());
        wire::put_varint(out, user as u64);
        wire::put_i64(out, 1, self.user_id);
        wire::put_bytes(out, 2, self.device_id.as_bytes());
        wire::put_bytes(out, 3, self.app_id.as_bytes());
        wire::put_bytes(out, 3, self.activity.as_bytes());
        wire::put_bytes(out, 4, self.scene.as_bytes());
        wire::put_varint(out, 5 << 3 | wire::LEN);
        let bonus = wire::bytes_field_len(self.bonus_type.len())
            + wire::u64_field_len(self.amount.cast_unsigned())
            + wire::bytes_field_len(self.description.len());
        wire::put_varint(out, bonus as u64);
        wire::put_bytes(out, 1, self.bonus_type.as_bytes());
        wire::put_i64(out, 2, self.amount);
        wire::put_bytes(out, 3, self.description.as_bytes());
        wire::put_i64(out, 6, self.award_time_ms);
        wire::put_i64(out, 7, self.first_sent_ms);
        wire::put_bytes(out, 8, self.trace_id);
        for (key, value) in extension {
            wire::put_varint(out, 9 << 3 | wire::LEN);
            let entry = wire::bytes_field_len(key.len()) + wire::bytes_field_len(value.len());
            wire::put_varint(out, entry as u64);
            wire::put_bytes(out, 1, key.as_bytes());
            wire::put_bytes(out, 2, value.as_bytes());
        }
    }
}

/// The order number of an event, without reading the rest of it where it comes first (as our writer puts it).
///
/// # Errors
/// The bytes are no protobuf message.
pub fn trade_no(bytes: &[u8]) -> Result<&str, Malformed> {
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        let at = reader.position();
        match reader.field()? {
            (1, value @ Value::Len(_)) => return wire::text(value, at),
            _ => continue,
        }
    }
    Ok("")
}

/// Appends the time before which an event is not to be granted, in Unix milliseconds; nothing for 0. It follows what
/// [`EventRef::encode`] writes.
pub fn put_not_before(out: &mut impl BufMut, not_before_ms: i64) {
    wire::put_i64(out, NOT_BEFORE_MS, not_before_ms);
}

/// The time before which the sender of an event does not want it to be granted, in Unix milliseconds; 0 where it has
/// none.
///
/// # Errors
/// The bytes are no protobuf message, or the field has another wire type.
pub fn not_before_ms(bytes: &[u8]) -> Result<i64, Malformed> {
    let mut found = 0;
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        let at = reader.position();
        let (field, value) = reader.field()?;
        if field == u64::from(NOT_BEFORE_MS) {
            found = wire::int64(value, at)?;
        }
    }
    Ok(found)
}

/// From when on an event is meant to be credited, in Unix milliseconds: when the SDK took it, or the time before which its
/// sender does not want it to be granted, whichever is later; 0 where it says neither.
///
/// # Errors
/// The bytes are no protobuf message, or one of the two fields has another wire type.
pub fn creditable_from_ms(bytes: &[u8]) -> Result<i64, Malformed> {
    let (mut first_sent_ms, mut not_before_ms) = (0, 0);
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        let at = reader.position();
        let (field, value) = reader.field()?;
        if field == FIRST_SENT_MS {
            first_sent_ms = wire::int64(value, at)?;
        } else if field == u64::from(NOT_BEFORE_MS) {
            not_before_ms = wire::int64(value, at)?;
        }
    }
    Ok(first_sent_ms.max(not_before_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;
    use proptest::prelude::*;
    use prost::Message;

    proptest! {
        #[test]
        fn reads_and_writes_as_prost_does(
            (trade_no, device_id, app_id, activity) in (".{0,40}", ".{0,20}", ".{0,8}", ".{0,20}"),
            (scene, bonus_type, description) in (".{0,20}", ".{0,20}", ".{0,200}"),
            (user_id, amount, award_time_ms, first_sent_ms, not_before_ms) in any::<(i64, i64, i64, i64, i64)>(),
            trace_id in prop_oneof![Just(vec![]), proptest::collection::vec(any::<u8>(), 16)],
            extension in proptest::collection::hash_map(".{0,9}", ".{0,9}", 0..2),
        ) {
            let owned = v1::BonusEvent {
                trade_no: trade_no.clone(),
                user: Some(v1::User { user_id, device_id: device_id.clone(), app_id: app_id.clone() }),
                activity: activity.clone(),
                scene: scene.clone(),
                bonus: Some(v1::Bonus { r#type: bonus_type.clone(), amount, description: description.clone() }),
                award_time_ms,
                first_sent_ms,
                trace_id: trace_id.clone(),
                extension: extension.clone(),
                not_before_ms,
            };
            let bytes = owned.encode_to_vec();
            let view = EventRef::parse(&bytes).unwrap();
            let expected = EventRef {
                trade_no: &trade_no, user_id, device_id: &device_id, app_id: &app_id, activity: &activity,
                scene: &scene, bonus_type: &bonus_type, amount, description: &description, award_time_ms,
                first_sent_ms, trace_id: &trace_id,
            };
            prop_assert_eq!(view, expected);
            prop_assert_eq!(super::trade_no(&bytes).unwrap(), trade_no.as_str());
            prop_assert_eq!(super::not_before_ms(&bytes).unwrap(), not_before_ms);
            prop_assert_eq!(creditable_from_ms(&bytes).unwrap(), first_sent_ms.max(not_before_ms));
            let mut again = Vec::new();
            view.encode(extension.iter().map(|(k, v)| (k.as_str(), v.as_str())), &mut again);
            put_not_before(&mut again, not_before_ms);
            prop_assert_eq!(again, bytes);
        }

        #[test]
        fn any_bytes_end_without_panic(bytes: Vec<u8>) {
            let read = EventRef::parse(&bytes).is_ok();
            let decoded = v1::BonusEvent::decode(bytes.as_slice()).is_ok();
            // Whatever prost takes we take; prost checks the map's entries, which the view passes over.
            prop_assert!(read || !decoded);
        }
    }
}
