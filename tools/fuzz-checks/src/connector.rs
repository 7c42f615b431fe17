//! What a downstream system answers, and what it is asked by.

use http::{HeaderMap, HeaderName, HeaderValue};
use windfall_connectors::fuzzing;
use windfall_connectors::signature::{SKEW_MS, Signed, SigningKey, verify, verify_v2};
use windfall_contract::connector::PayAnswer;

const TRADE_NO: &str = "rain-1-42";
const NOW_MS: i64 = 1_800_000_000_000;
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// An answer's status (two bytes), its headers (a byte of flags) and its body: an order is paid only if the answer says so
/// in our own words, of this very order.
pub fn answer(data: &[u8]) {
    let [high, low, flags, body @ ..] = data else { return };
    let status = u16::from_be_bytes([*high, *low]) % 1_000;
    let mut headers = HeaderMap::new();
    let fields = [
        ("content-type", "application/json"),
        ("retry-after", "7"),
        ("content-encoding", "gzip"),
        ("content-type", "text/html"),
        ("retry-after", "99999999999999999999"),
    ];
    for (nth, (name, value)) in fields.into_iter().enumerate() {
        if flags >> nth & 1 == 1 {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
    }
    let Some(answer) = fuzzing::answer(status, &headers, body, TRADE_NO) else { return };
    if matches!(answer, PayAnswer::Paid | PayAnswer::AlreadyPaid) {
        assert!(matches!(status, 200 | 201 | 409), "paid by a status {status}");
        assert!(flags & 0b1101 == 1, "paid by what is not plain JSON");
    }
    if let PayAnswer::Busy { after_ms } | PayAnswer::Retry { after_ms } = answer {
        assert!(after_ms <= 600_000, "it waits for {after_ms} ms");
    }
}

/// The value of a signature's header: nobody without the key makes one that verifies.
pub fn signature(data: &[u8]) {
    let Ok(key) = SigningKey::new("k", SECRET) else { return };
    let Some((mode, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let request = |body: &'static [u8]| Signed {
        method: "POST",
        host: "pay.example.com",
        path_and_query: "/pay",
        idempotency_key: TRADE_NO,
        body,
    };
    let keys = [key];
    let (v1, v2) =
        (keys[0].sign("POST", "/pay", NOW_MS, b"body"), keys[0].sign_v2(&request(b"body"), NOW_MS));
    if mode & 1 == 0 {
        // A header from outside. The honest ones are no secret, and may be played again.
        let of_v1 = verify(&keys, text, "POST", "/pay", b"body", NOW_MS, SKEW_MS);
        assert!(of_v1.is_err() || text == v1, "{text}");
        let of_v2 = verify_v2(&keys, text, &request(b"body"), NOW_MS, SKEW_MS);
        assert!(of_v2.is_err() || text == v2, "{text}");
        return;
    }
    // Parts from outside under an honest header: what is refused is all that differs.
    let mut parts = text.splitn(4, '|');
    let mut next = || parts.next().unwrap_or_default();
    let other = Signed {
        method: "POST",
        host: next(),
        path_and_query: next(),
        idempotency_key: next(),
        body: next().as_bytes(),
    };
    let is_same = Signed { host: &other.host.to_ascii_lowercase(), ..other } == request(b"body");
    assert_eq!(verify_v2(&keys, &v2, &other, NOW_MS, SKEW_MS).is_ok(), is_same, "{other:?}");
}
