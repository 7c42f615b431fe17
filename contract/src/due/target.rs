//! Where due tasks go.

use super::{TaskId, TaskKey};
use async_trait::async_trait;
use bytes::Bytes;
use prost::encoding::{WireType, bytes as wire_bytes, encode_key, encode_varint, uint32, uint64};
use std::sync::Arc;
use windfall_proto::v1::FiredTimer;

/// A task whose time has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    /// The id under which its caller knows it: the same in every attempt, and after a move.
    pub id: TaskId,
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// The caller's own key.
    pub key: Option<TaskKey>,
    /// The due time that the caller asked for, in Unix milliseconds.
    pub due_ms: u64,
    /// 1 at the first attempt.
    pub attempt: u32,
    /// What the target gets.
    pub payload: Bytes,
}

impl Firing {
    /// As targets outside of the process get it. A key that is no UTF-8 text has the replacement character in its place.
    pub fn to_wire(&self) -> FiredTimer {
        let key =
            self.key.as_ref().map_or(String::new(), |key| String::from_utf8_lossy(key.as_bytes()).into());
        FiredTimer {
            id: self.id.to_string(),
            tenant: (*self.tenant).into(),
            key,
            due_ms: self.due_ms,
            attempt: self.attempt,
            payload: self.payload.to_vec(),
        }
    }

    /// Adds the bytes of [`to_wire`](Self::to_wire) to a buffer: the same ones, without a copy of each field before.
    pub fn encode_to(&self, buffer: &mut Vec<u8>) {
        encode_text(1, self.id.text().as_bytes(), buffer);
        encode_text(2, self.tenant.as_bytes(), buffer);
        if let Some(key) = &self.key {
            encode_text(3, String::from_utf8_lossy(key.as_bytes()).as_bytes(), buffer);
        }
        if self.due_ms != 0 {
            uint64::encode(4, &self.due_ms, buffer);
        }
        if self.attempt != 0 {
            uint32::encode(5, &self.attempt, buffer);
        }
        if !self.payload.is_empty() {
            wire_bytes::encode(6, &self.payload, buffer);
        }
    }
}

/// A field of text. The empty one is left out, as protobuf's rules ask.
fn encode_text(field: u32, text: &[u8], buffer: &mut Vec<u8>) {
    if !text.is_empty() {
        encode_key(field, WireType::LengthDelimited, buffer);
        encode_varint(u64::try_from(text.len()).unwrap_or(u64::MAX), buffer);
        buffer.extend_from_slice(text);
    }
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fired {
    /// The target has it.
    Done,
    /// The target does not have it: it is tried again, as often as its retries allow.
    Failed(String),
    /// Nobody knows whether the target has it, because the call has ended without an answer: it is tried again, as often as its
    /// retries allow, unless it may be handed over only once.
    Unknown(String),
    /// The target will never take it: it is given up at once.
    Refused(String),
    /// The target takes nothing just now. It is tried again, and the attempt does not count, unless the target took
    /// other tasks in the same call, or since this task's last attempt.
    Away(String),
    /// There is no room for it just now, whatever it is: it was not handed over, and the attempt never counts.
    Busy(String),
}

/// Takes due tasks. Any number of calls may run side by side.
#[async_trait]
pub trait Target: Send + Sync {
    /// Hands tasks over: one answer for each, in order. Answers in its own time-out, whatever the other side does. A
    /// call that is dropped may have handed over any of them.
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::due::{Shard, SlotMinute};
    use prost::Message;

    #[test]
    fn the_short_way_writes_the_same_bytes() {
        let id = TaskId { shard: Shard(0x3ff), slot: SlotMinute(u32::MAX), index: 0x8000_0001 };
        let full = Firing {
            id,
            tenant: "shop".into(),
            key: TaskKey::new("call-7 \u{7ea2}".as_bytes()).ok(),
            due_ms: u64::MAX,
            attempt: 300,
            payload: vec![7; 300].into(),
        };
        let no_text = Firing { key: TaskKey::new(&[0xff, b'a', 0x80]).ok(), ..full.clone() };
        let least = Firing {
            tenant: "".into(),
            key: None,
            due_ms: 0,
            attempt: 0,
            payload: Bytes::new(),
            ..full.clone()
        };
        for firing in [full, no_text, least] {
            let mut buffer = vec![1, 2];
            firing.encode_to(&mut buffer);
            assert_eq!(buffer[2..], firing.to_wire().encode_to_vec(), "{firing:?}");
            assert_eq!(FiredTimer::decode(&buffer[2..]), Ok(firing.to_wire()));
        }
    }
}
