//! How many things a body holds, counted before it becomes messages: `{},` is three bytes here and some 250 there (I9).

/// Values and fields of a body at most: 1,000 events with a dozen fields each have a quarter of it.
pub(super) const PARTS_MAX: usize = 1 << 16;
/// A gRPC message begins with a flag and its length.
const GRPC_PREFIX_BYTES: usize = 5;

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;

/// Whether JSON has few enough parts. What is no JSON is for its parser to say.
pub(super) fn is_small_json(body: &[u8]) -> bool {
    let (mut parts, mut in_text, mut is_escaped) = (0_usize, false, false);
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'{' | b'[' if !in_text => parts += 1,
            _ => {}
        }
    }
    parts <= PARTS_MAX
}

/// Whether a gRPC body has few enough fields. All that repeats without end in our messages repeats at their top.
pub(super) fn is_small_grpc(body: &[u8]) -> bool {
    let mut rest = body.get(GRPC_PREFIX_BYTES..).unwrap_or_default();
    for _ in 0..=PARTS_MAX {
        match after_field(rest) {
            Some(after) => rest = after,
            // The end, or what its parser will refuse.
            None => return true,
        }
    }
    false
}

/// What follows the first field of a message.
fn after_field(bytes: &[u8]) -> Option<&[u8]> {
    let (key, bytes) = varint(bytes)?;
    match key & 7 {
        VARINT => varint(bytes).map(|(_, rest)| rest),
        FIXED_64 => bytes.get(8..),
        LENGTH_DELIMITED => {
            let (length, bytes) = varint(bytes)?;
            bytes.get(usize::try_from(length).ok()?..)
        }
        FIXED_32 => bytes.get(4..),
        _ => None,
    }
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(at + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use windfall_proto::v1;

    #[test]
    fn json_is_counted_outside_of_texts() {
        let array = |count: usize| format!("[{}", "{},".repeat(count));
        assert!(is_small_json(array(PARTS_MAX / 2 - 1).as_bytes()));
        assert!(!is_small_json(array(PARTS_MAX / 2 + 1).as_bytes()));
        let text = format!(r#"{{"a": "\"{}\\", "b": 1}}"#, ",[{".repeat(PARTS_MAX));
        assert!(is_small_json(text.as_bytes()), "a text is one part, however it looks");
    }

    #[test]
    fn fields_of_a_message_are_counted() {
        let framed = |count: usize| {
            let requests =
                vec![v1::SendBonusRequest { award_time_ms: i64::MAX, ..Default::default() }; count];
            [vec![0; GRPC_PREFIX_BYTES], v1::SendBonusBatchRequest { requests }.encode_to_vec()].concat()
        };
        assert!(is_small_grpc(&framed(PARTS_MAX)));
        assert!(!is_small_grpc(&framed(PARTS_MAX + 1)));
        for broken in [&b""[..], b"\0\0\0\0\0", b"\0\0\0\0\x09\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"] {
            assert!(is_small_grpc(broken), "its parser refuses it");
        }
    }
}
