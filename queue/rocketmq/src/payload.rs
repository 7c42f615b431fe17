//! A record as a message: bytes as they are, the partition key as a user property (keys proper would be indexed).

use bytes::Bytes;
use windfall_contract::broker::OutRecord;
use windfall_rocketmq_wire::{InMessage, OutMessage};

/// The partition key, where it is printable ASCII.
const KEY: &str = "partition-key";
/// The partition key in hex, where it is not.
const KEY_HEX: &str = "partition-key-hex";
/// The payload is empty: the proxy takes no empty body, so it has one byte that does not count.
const EMPTY: &str = "empty-payload";
/// The proxy takes 16 KiB of properties.
pub(super) const MAX_KEY_BYTES: usize = 4096;

pub(super) fn to_message(record: OutRecord<'_>) -> OutMessage {
    let mut message = OutMessage::new(Bytes::copy_from_slice(record.payload));
    if record.payload.is_empty() {
        message.body = Bytes::from_static(&[0]);
        message.properties.insert(EMPTY.into(), "true".into());
    }
    if !record.key.is_empty() {
        let (name, value) = match std::str::from_utf8(record.key) {
            Ok(key) if key.bytes().all(|byte| byte.is_ascii_graphic()) => (KEY, key.to_owned()),
            _ => (KEY_HEX, record.key.iter().map(|byte| format!("{byte:02x}")).collect()),
        };
        message.properties.insert(name.into(), value);
    }
    message
}

/// Key and payload. What others wrote has no key, and any payload.
pub(super) fn from_message(mut message: InMessage) -> (Bytes, Bytes) {
    let hex = message.properties.get(KEY_HEX).and_then(|text| unhex(text));
    let plain = || message.properties.remove(KEY).map(Bytes::from);
    let key = hex.or_else(plain).unwrap_or_default();
    let empty = message.properties.contains_key(EMPTY);
    (key, if empty { Bytes::new() } else { message.body.into_bytes() })
}

fn unhex(text: &str) -> Option<Bytes> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes = text.as_bytes().chunks_exact(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_rocketmq_wire::Body;

    fn there_and_back(key: &[u8], payload: &[u8]) -> (Bytes, Bytes) {
        let out = to_message(OutRecord { key, payload });
        assert!(!out.body.is_empty());
        from_message(InMessage {
            id: String::new(),
            handle: String::new(),
            properties: out.properties,
            body: Body::Plain(out.body),
            attempt: 1,
        })
    }

    #[test]
    fn records_come_back() {
        let keys = [&b""[..], b"order-17", b"with space", b"\xff\x00\x01", "中".as_bytes(), &[7; 300]];
        for key in keys {
            for payload in [&b""[..], b"\0", b"a pack", &[255; 1000]] {
                let (key_back, payload_back) = there_and_back(key, payload);
                assert_eq!((&key_back[..], &payload_back[..]), (key, payload));
            }
        }
    }

    #[test]
    fn what_others_wrote_is_a_record() {
        for hex in ["", "0", "zz", "+1"] {
            let properties = [(KEY_HEX.to_owned(), hex.to_owned())].into();
            let body = Body::Compressed(Bytes::from_static(b"garbage"));
            let message = InMessage { id: "1".into(), handle: "h".into(), properties, body, attempt: 3 };
            assert_eq!(from_message(message), (Bytes::new(), Bytes::from_static(b"garbage")));
        }
    }
}
