//! Messages, as callers see them.

use crate::identity;
use crate::proto;
use bytes::Bytes;
use std::collections::HashMap;
use std::io::Read as _;

/// The size of an inflated body at most; a larger one is handed over compressed, as it came.
pub const MAX_INFLATED_BYTES: u64 = 16 << 20;

/// A message to send.
#[derive(Debug, Clone, Default)]
pub struct OutMessage {
    /// The body, which must not be empty: RocketMQ's proxy refuses empty bodies.
    pub body: Bytes,
    /// The user properties, which are not indexed, unlike keys.
    pub properties: HashMap<String, String>,
}

impl OutMessage {
    /// A message without properties.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), properties: HashMap::new() }
    }

    pub(crate) fn into_wire(self, topic: proto::Resource, kind: proto::MessageType) -> proto::Message {
        let system = proto::SystemProperties {
            message_id: identity::message_id(),
            body_encoding: proto::Encoding::Identity.into(),
            message_type: kind.into(),
            born_timestamp: Some(std::time::SystemTime::now().into()),
            ..Default::default()
        };
        proto::Message {
            topic: Some(topic),
            user_properties: self.properties,
            system_properties: Some(system),
            body: self.body,
        }
    }
}

/// A received message, hidden from others until its invisible duration is over.
#[derive(Debug, Clone)]
pub struct InMessage {
    /// The sender's id of it.
    pub id: String,
    /// The handle that names this delivery; it changes with each delivery and each extension.
    pub handle: String,
    /// User properties.
    pub properties: HashMap<String, String>,
    /// The bytes.
    pub body: Body,
    /// How often it has been delivered, this time included.
    pub attempt: i32,
}

/// The bytes of a received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// As they were sent, unpacked if the sender had compressed them.
    Plain(Bytes),
    /// The bytes as they came: they are marked as compressed, but are not, or would be too large.
    Compressed(Bytes),
}

impl Body {
    /// The bytes, whatever they are.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Plain(bytes) | Self::Compressed(bytes) => bytes,
        }
    }
}

impl InMessage {
    pub(crate) fn from_wire(message: proto::Message) -> Self {
        let system = message.system_properties.unwrap_or_default();
        let compressed = system.body_encoding == i32::from(proto::Encoding::Gzip);
        Self {
            id: system.message_id,
            handle: system.receipt_handle.unwrap_or_default(),
            properties: message.user_properties,
            body: if compressed { inflate(message.body) } else { Body::Plain(message.body) },
            attempt: system.delivery_attempt.unwrap_or(1),
        }
    }
}

/// The protocol says GZIP; the older clients behind the same topic write zlib. Their first bytes differ.
fn inflate(packed: Bytes) -> Body {
    let mut plain = Vec::new();
    let limit = MAX_INFLATED_BYTES + 1;
    let read = match packed.first_chunk::<2>() {
        Some([0x1f, 0x8b]) => flate2::read::GzDecoder::new(&*packed).take(limit).read_to_end(&mut plain),
        Some([first, _]) if first & 0x0f == 8 => {
            flate2::read::ZlibDecoder::new(&*packed).take(limit).read_to_end(&mut plain)
        }
        _ => return Body::Compressed(packed),
    };
    match read {
        Ok(bytes) if (bytes as u64) < limit => Body::Plain(plain.into()),
        _ => Body::Compressed(packed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use std::io::Write as _;

    #[test]
    fn both_packings_are_unpacked() {
        let text = b"a pack of events ".repeat(100);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&text).unwrap();
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(&text).unwrap();
        for packed in [gzip.finish().unwrap(), zlib.finish().unwrap()] {
            assert_eq!(inflate(packed.into()), Body::Plain(text.clone().into()));
        }
    }

    #[test]
    fn what_is_not_packed_comes_as_it_is() {
        for bytes in [&b""[..], b"x", b"garbage", b"\x1f\x8bgarbage", b"\x78\x9cgarbage"] {
            let bytes = Bytes::copy_from_slice(bytes);
            assert_eq!(inflate(bytes.clone()), Body::Compressed(bytes));
        }
    }

    #[test]
    fn a_bomb_stays_packed() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), Compression::best());
        let zeros = vec![0; 1 << 20];
        for _ in 0..17 {
            gzip.write_all(&zeros).unwrap();
        }
        let bomb = Bytes::from(gzip.finish().unwrap());
        assert_eq!(inflate(bomb.clone()), Body::Compressed(bomb));
    }

    #[test]
    fn a_message_without_anything_is_a_message() {
        let message = InMessage::from_wire(proto::Message::default());
        assert_eq!((message.attempt, message.body), (1, Body::Plain(Bytes::new())));
    }
}
