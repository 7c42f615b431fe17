//! Limits how many values a body may have, before it is parsed into messages: `{},` is three bytes in a body and some
//! 250 in memory (I9).

/// The number of values and fields of a body at most: 1,000 events with a dozen fields each have a quarter of it.
const PARTS_MAX: usize = 1 << 16;
/// A gRPC message begins with a flag and its length.
const GRPC_PREFIX_BYTES: usize = 5;

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const GROUP_BEGIN: u64 = 3;
const GROUP_END: u64 = 4;
const FIXED_32: u64 = 5;
/// The number of `extension`, in requests and in events: all that repeats without end below the top of our messages.
const EXTENSION: u64 = 9;

/// Why a body does not become a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadShape {
    #[error("the body holds more than {} values", PARTS_MAX)]
    TooManyParts,
    #[error("the body is not one whole message")]
    NotOneMessage,
    #[error("the message is malformed")]
    Malformed,
}

/// Limits the parts of JSON.
pub(super) fn check_json(body: &[u8]) -> Result<(), BadShape> {
    check_count(count_json(body))
}

/// Limits the fields of a gRPC body's only message. Whatever its parser would take must be counted, so what cannot be
/// walked through to the end is refused.
pub(super) fn check_grpc(body: &[u8]) -> Result<(), BadShape> {
    check_count(count_grpc(body)?)
}

/// Counts the parts of JSON. Text that is no JSON is left to the parser.
pub(crate) fn count_json(body: &[u8]) -> usize {
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
    parts
}

/// Counts the fields of a gRPC body's only message.
pub(crate) fn count_grpc(body: &[u8]) -> Result<usize, BadShape> {
    // That there is no message is for its parser to say.
    if body.is_empty() {
        return Ok(0);
    }
    count_fields(only_message(body)?)
}

fn check_count(parts: usize) -> Result<(), BadShape> {
    if parts <= PARTS_MAX { Ok(()) } else { Err(BadShape::TooManyParts) }
}

/// tonic parses every message of a body, and keeps the first; and it sets aside whatever length the prefix says.
fn only_message(body: &[u8]) -> Result<&[u8], BadShape> {
    let Some((&[_flag, length @ ..], message)) = body.split_first_chunk::<GRPC_PREFIX_BYTES>() else {
        return Err(BadShape::NotOneMessage);
    };
    match usize::try_from(u32::from_be_bytes(length)) {
        Ok(length) if length == message.len() => Ok(message),
        _ => Err(BadShape::NotOneMessage),
    }
}

/// The fields at the top of a message, and the entries of `extension` in each of them.
fn count_fields(message: &[u8]) -> Result<usize, BadShape> {
    let (mut rest, mut fields) = (message, 0);
    while !rest.is_empty() {
        let key = key(rest).ok_or(BadShape::Malformed)?;
        // No message of ours has groups, and a parser skips them, with fields in them, and groups. An entry of another
        // type is read as an entry, or skipped for what it says it is: that depends on the message.
        let is_group = matches!(key.wire_type, GROUP_BEGIN | GROUP_END);
        if is_group || (key.number == EXTENSION && key.wire_type != LENGTH_DELIMITED) {
            return Err(BadShape::Malformed);
        }
        let (content, after) = value(key.wire_type, key.rest).ok_or(BadShape::Malformed)?;
        fields += 1 + count_extension(content);
        rest = after;
    }
    Ok(fields)
}

/// Entries of `extension` in what may be an event, and may be a text: it goes as far as the parser of an event goes,
/// and refuses nothing.
fn count_extension(content: &[u8]) -> usize {
    let (mut rest, mut entries, mut groups) = (content, 0, 0_usize);
    while let Some(key) = key(rest) {
        // A parser skips what is in groups, and outside of them does not look at the wire type of a map's entry.
        let is_entry = groups == 0 && key.number == EXTENSION;
        let wire_type = if is_entry { LENGTH_DELIMITED } else { key.wire_type };
        let Some((_, after)) = value(wire_type, key.rest) else { break };
        entries += usize::from(is_entry);
        match wire_type {
            GROUP_BEGIN => groups += 1,
            GROUP_END => groups = groups.saturating_sub(1),
            _ => {}
        }
        rest = after;
    }
    entries
}

/// The beginning of a field: its number and wire type.
struct Key<'a> {
    number: u64,
    wire_type: u64,
    rest: &'a [u8],
}

/// None at a message's end, and where its parser stops.
fn key(message: &[u8]) -> Option<Key<'_>> {
    let (key, rest) = varint(message)?;
    let (number, wire_type) = (key >> 3, key & 7);
    let is_key = number != 0 && wire_type <= FIXED_32 && u32::try_from(key).is_ok();
    is_key.then_some(Key { number, wire_type, rest })
}

/// The content of a length-delimited field, and the bytes after a field of this type. Each end of a group is a field.
fn value(wire_type: u64, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let none: &[u8] = &[];
    match wire_type {
        VARINT => Some((none, varint(bytes)?.1)),
        FIXED_64 => Some((none, bytes.get(8..)?)),
        LENGTH_DELIMITED => {
            let (length, bytes) = varint(bytes)?;
            bytes.split_at_checked(usize::try_from(length).ok()?)
        }
        GROUP_BEGIN | GROUP_END => Some((none, bytes)),
        FIXED_32 => Some((none, bytes.get(4..)?)),
        _ => None,
    }
}

/// Up to ten bytes, the last of which has one bit of the 64.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().enumerate().take(10) {
        if at == 9 && byte > 1 {
            return None;
        }
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

    /// Field 15, which no message of ours has.
    const FOREIGN_GROUP: [u8; 2] = [0x7b, 0x7c];

    /// Field 1, length-delimited: requests of a batch, the event of a grant.
    const FIRST: u8 = 0x0a;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[0][..], &length[..], message].concat()
    }

    fn check(message: &impl Message) -> Result<(), BadShape> {
        check_grpc(&framed(&message.encode_to_vec()))
    }

    fn request(extension: usize) -> v1::SendBonusRequest {
        let extension = (0..extension).map(|nth| (format!("key {nth}"), "value".to_owned())).collect();
        v1::SendBonusRequest { award_time_ms: i64::MAX, extension, ..Default::default() }
    }

    #[test]
    fn json_is_counted_outside_of_texts() {
        let array = |count: usize| format!("[{}", "{},".repeat(count));
        assert_eq!(check_json(array(PARTS_MAX / 2 - 1).as_bytes()), Ok(()));
        assert_eq!(check_json(array(PARTS_MAX / 2 + 1).as_bytes()), Err(BadShape::TooManyParts));
        let text = format!(r#"{{"a": "\"{}\\", "b": 1}}"#, ",[{".repeat(PARTS_MAX));
        assert_eq!(check_json(text.as_bytes()), Ok(()), "a text is one part, however it looks");
    }

    #[test]
    fn fields_of_a_message_are_counted() {
        let batch = |count: usize| v1::SendBonusBatchRequest { requests: vec![request(0); count] };
        assert_eq!(check(&batch(PARTS_MAX)), Ok(()));
        assert_eq!(check(&batch(PARTS_MAX + 1)), Err(BadShape::TooManyParts));
    }

    #[test]
    fn entries_of_maps_are_counted_wherever_they_stand() {
        assert_eq!(check(&request(PARTS_MAX - 1)), Ok(()));
        assert_eq!(check(&request(PARTS_MAX)), Err(BadShape::TooManyParts));
        let batch = |requests| v1::SendBonusBatchRequest { requests };
        assert_eq!(check(&batch(vec![request(PARTS_MAX - 1)])), Ok(()));
        assert_eq!(check(&batch(vec![request(PARTS_MAX)])), Err(BadShape::TooManyParts));
        let together = batch(vec![request(PARTS_MAX / 2); 2]);
        assert_eq!(check(&together), Err(BadShape::TooManyParts), "all of them have one limit");
        let extension = request(PARTS_MAX).extension;
        let event = v1::BonusEvent { extension, ..Default::default() };
        let single = v1::GrantRequest { event: Some(event.clone()) };
        assert_eq!(check(&single), Err(BadShape::TooManyParts));
        assert_eq!(check(&v1::GrantAsyncRequest { events: vec![event] }), Err(BadShape::TooManyParts));
    }

    #[test]
    fn groups_hide_nothing() {
        let many = v1::SendBonusBatchRequest { requests: vec![request(0); PARTS_MAX + 1] }.encode_to_vec();
        let at_the_top = [&FOREIGN_GROUP[..], &many].concat();
        assert!(v1::SendBonusBatchRequest::decode(&at_the_top[..]).is_ok(), "its parser skips them");
        assert_eq!(check_grpc(&framed(&at_the_top)), Err(BadShape::Malformed));

        let inner = [&FOREIGN_GROUP[..], &request(PARTS_MAX).encode_to_vec()].concat();
        let mut below = vec![FIRST];
        prost::encode_length_delimiter(inner.len(), &mut below).unwrap();
        below.extend(inner);
        let parsed = v1::SendBonusBatchRequest::decode(&below[..]).unwrap();
        assert_eq!(parsed.requests[0].extension.len(), PARTS_MAX);
        assert_eq!(check_grpc(&framed(&below)), Err(BadShape::TooManyParts));
    }

    #[test]
    fn an_entry_of_another_wire_type_is_an_entry() {
        // Its parser reads it like any other, and others might skip eight bytes.
        let entry = |nth| [b"\x49\x06\x0a\x04".to_vec(), format!("{nth:04x}").into_bytes()].concat();
        let event: Vec<u8> = (0..PARTS_MAX).flat_map(entry).collect();
        assert_eq!(check_grpc(&framed(&event)), Err(BadShape::Malformed), "at the top");
        let mut grant = vec![FIRST];
        prost::encode_length_delimiter(event.len(), &mut grant).unwrap();
        grant.extend(event);
        let parsed = v1::GrantRequest::decode(&grant[..]).unwrap().event.unwrap();
        assert_eq!(parsed.extension.len(), PARTS_MAX);
        assert_eq!(check_grpc(&framed(&grant)), Err(BadShape::TooManyParts));
    }

    #[test]
    fn a_body_is_one_whole_message() {
        let message = v1::SendBonusBatchRequest { requests: vec![request(1)] }.encode_to_vec();
        let one = framed(&message);
        assert_eq!(check_grpc(&one), Ok(()));
        assert_eq!(check_grpc(&framed(b"")), Ok(()));
        assert_eq!(check_grpc(b""), Ok(()), "the parser's own error");
        let (empty, mut endless) = (framed(b""), framed(&message));
        endless[1..GRPC_PREFIX_BYTES].fill(0xff);
        let cases: [&[u8]; 8] = [
            &[&empty[..], &one].concat(),
            &[&one[..], &empty].concat(),
            &[&one[..], b"\0"].concat(),
            &one[..one.len() - 1],
            &one[..GRPC_PREFIX_BYTES],
            &one[..GRPC_PREFIX_BYTES - 1],
            &one[..1],
            &endless,
        ];
        for body in cases {
            assert_eq!(check_grpc(body), Err(BadShape::NotOneMessage), "{} bytes", body.len());
        }
    }

    #[test]
    fn what_cannot_be_walked_through_is_refused() {
        let cases: [(&str, &[u8]); 12] = [
            ("a key that breaks off", b"\x8a"),
            ("a varint that breaks off", b"\x08\x80"),
            ("four bytes of eight", b"\x09\0\0\0\0"),
            ("three bytes of four", b"\x0d\0\0\0"),
            ("a length that overruns", b"\x0a\x02\0"),
            ("a length of all bits", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
            ("a varint of eleven bytes", b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\0"),
            ("a varint of 65 bits", b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02"),
            ("a key of 33 bits", b"\x80\x80\x80\x80\x10\0"),
            ("field number 0", b"\x02\0"),
            ("wire type 6", b"\x0e\0"),
            ("wire type 7", b"\x0f\0"),
        ];
        for (what, bytes) in cases {
            let after_a_good_one = [&b"\x0a\0"[..], bytes].concat();
            assert_eq!(check_grpc(&framed(&after_a_good_one)), Err(BadShape::Malformed), "{what}");
        }
    }

    #[test]
    fn the_largest_calls_that_services_take_pass() {
        let requests = vec![request(16); 512];
        assert_eq!(check(&v1::SendBonusBatchRequest { requests }), Ok(()));
        let event = v1::BonusEvent {
            trade_no: "4".repeat(128),
            user: Some(v1::User { user_id: 42, device_id: "J".repeat(128), app_id: "J".repeat(64) }),
            bonus: Some(v1::Bonus { description: "J".repeat(512), ..Default::default() }),
            trace_id: vec![0x4a; 32],
            extension: request(16).extension,
            ..Default::default()
        };
        let events = vec![event; 1_000];
        assert_eq!(check(&v1::GrantBatchRequest { events: events.clone() }), Ok(()));
        assert_eq!(check(&v1::GrantAsyncRequest { events }), Ok(()));
        // `J` is the key of `extension`, and `[` begins a group.
        for text in ["J".repeat(1_024), "[".repeat(1_024), "o".repeat(1_024)] {
            assert_eq!(check(&v1::VerifyTokensRequest { tokens: vec![text; 512] }), Ok(()));
        }
    }

    /// xorshift.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, sides: u8) -> u8 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            u8::try_from((self.0 >> 32) % u64::from(sides)).unwrap()
        }
    }

    fn event(dice: &mut Dice) -> Vec<u8> {
        let mut bytes = Vec::new();
        for nth in 0..dice.roll(20) {
            match dice.roll(10) {
                0..3 => bytes.extend([0x4a, 5, 0x0a, 1, nth, 0x12, 0]),
                // A key may be longer than it needs to be.
                3 => bytes.extend([0xca, 0, 3, 0x0a, 1, nth]),
                // An entry of any wire type.
                8 => bytes.extend([0x48 + dice.roll(6), 3, 0x0a, 1, nth]),
                4 => bytes.extend([FOREIGN_GROUP[0], 0x10, nth, FOREIGN_GROUP[1]]),
                // What would be an entry outside of the group.
                9 => bytes.extend([FOREIGN_GROUP[0], 0x48, nth, 0x4d, 0, 0, 0, 0, FOREIGN_GROUP[1]]),
                5 => bytes.extend([0x30, nth]),
                6 => bytes.extend([0x79, 0, 1, 2, 3, 4, 5, 6, 7]),
                _ => bytes.extend([0x7d, 0, 1, 2, 3]),
            }
        }
        bytes
    }

    #[test]
    fn no_more_is_parsed_than_was_counted() {
        let seed = u64::from(getrandom::u32().unwrap()) | 1;
        let (mut dice, mut compared) = (Dice(seed), 0);
        for _ in 0..20_000 {
            let mut message = Vec::new();
            for _ in 0..=dice.roll(3) {
                let event = event(&mut dice);
                message.push(FIRST);
                prost::encode_length_delimiter(event.len(), &mut message).unwrap();
                message.extend(event);
            }
            let is_broken = dice.roll(2) == 0;
            if is_broken {
                let at = usize::from(dice.roll(255)) % message.len();
                message[at] = dice.roll(255);
            }
            // What had been parsed when it failed was in memory as well.
            let mut grant = v1::GrantRequest::default();
            let parsed = grant.merge(&message[..]).is_ok();
            let entries = grant.event.map_or(0, |event| event.extension.len());
            match count_fields(&message) {
                Ok(fields) => {
                    compared += usize::from(entries > 0);
                    assert!(fields > entries, "seed {seed}: {message:x?}");
                    assert!(parsed || is_broken, "seed {seed}: {message:x?}");
                }
                Err(_) => assert!(is_broken, "seed {seed}: {message:x?}"),
            }
        }
        assert!(compared > 5_000, "seed {seed}: {compared}");
    }
}
