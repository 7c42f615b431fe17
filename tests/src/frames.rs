//! HTTP/2 by hand, so that a test can say what no client would.

/// What an HTTP/2 connection begins with.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A flag of HEADERS and DATA: nothing follows on this stream.
pub const END_STREAM: u8 = 1;
/// A flag of HEADERS and CONTINUATION: the block of headers is whole.
pub const END_HEADERS: u8 = 4;
/// The payload of a frame at most, as long as the server has not allowed more.
pub const PAYLOAD_MAX: usize = 16 << 10;

/// The setting of the window that each stream begins with.
const INITIAL_WINDOW: [u8; 2] = [0, 4];

/// A frame of any kind.
///
/// # Panics
/// If the payload is longer than a frame can say.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a length").to_be_bytes();
    assert_eq!(length[0], 0, "too long for a frame");
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The preface, and settings with this window for the answer of each stream.
pub fn greeting(window_bytes: u32) -> Vec<u8> {
    let setting = [&INITIAL_WINDOW[..], &window_bytes.to_be_bytes()].concat();
    [PREFACE, &frame(4, 0, 0, &setting)].concat()
}

/// DATA.
pub fn data(stream: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    frame(0, flags, stream, payload)
}

/// HEADERS.
pub fn headers(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    frame(1, flags, stream, block)
}

/// RST_STREAM: the caller does not want the answer any more.
pub fn reset(stream: u32) -> Vec<u8> {
    frame(3, 0, stream, &8_u32.to_be_bytes())
}

/// PING.
pub fn ping() -> Vec<u8> {
    frame(6, 0, 0, b"12345678")
}

/// CONTINUATION.
pub fn continuation(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    frame(9, flags, stream, block)
}

/// The block of a POST without a key, in a few bytes.
pub fn post_block(path: &str) -> Vec<u8> {
    // POST and http by their numbers in the static table; `:path` and `:authority` by the numbers of their names.
    [&[0x83, 0x86, 0x04][..], &text(path), &[0x01], &text("h")].concat()
}

/// One header of a block, spelled out and not kept.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0][..], &text(name), &text(value)].concat()
}

/// A text without compression: its length, in seven bits or more, and its bytes.
fn text(text: &str) -> Vec<u8> {
    let mut rest = text.len();
    let mut bytes = Vec::new();
    if rest < 127 {
        bytes.push(seven_bits(rest));
    } else {
        bytes.push(127);
        rest -= 127;
        while rest >= 128 {
            bytes.push(seven_bits(rest % 128) | 0x80);
            rest /= 128;
        }
        bytes.push(seven_bits(rest));
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn seven_bits(number: usize) -> u8 {
    u8::try_from(number).expect("seven bits")
}
