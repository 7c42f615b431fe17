//! Reads a downstream's answer. The table of meanings is in the crate's documentation.

use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use serde::{Deserialize, Serialize};
use windfall_contract::connector::{PayAnswer, PayOrder};
use windfall_proto::v1::{PayOutcome, PayReply};

/// The least wait where the downstream asks for none, in ms.
const RETRY_DEFAULT_MS: u64 = 100;
/// The longest wait that a downstream may ask for: 10 minutes.
const RETRY_MAX_MS: u64 = 600_000;
/// The bytes of a reason that are kept at most.
const REASON_MAX_BYTES: usize = 512;

/// Why an outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// There was no answer in time.
    Timeout,
    /// The connection broke, or what came is not of the protocol.
    Broken,
    /// An answer came that says nothing certain.
    Nonsense,
}

/// An order, as JSON. 64-bit numbers are texts: many readers of JSON keep 53 bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OrderJson<'a> {
    #[serde(borrow)]
    pub trade_no: std::borrow::Cow<'a, str>,
    pub user_id: std::borrow::Cow<'a, str>,
    pub activity: std::borrow::Cow<'a, str>,
    pub scene: std::borrow::Cow<'a, str>,
    pub bonus_type: std::borrow::Cow<'a, str>,
    pub amount: std::borrow::Cow<'a, str>,
}

impl<'a> From<&PayOrder<'a>> for OrderJson<'a> {
    fn from(order: &PayOrder<'a>) -> Self {
        Self {
            trade_no: order.trade_no.into(),
            user_id: order.user_id.to_string().into(),
            activity: order.activity.into(),
            scene: order.scene.into(),
            bonus_type: order.bonus_type.into(),
            amount: order.amount.to_string().into(),
        }
    }
}

/// The outcome that a downstream reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Paid,
    AlreadyPaid,
    Busy,
    Retry,
    Refused,
}

/// An answer, as JSON. Unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AnswerJson {
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trade_no: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// Reads an HTTP answer.
pub(crate) fn of_http(
    status: u16,
    headers: &HeaderMap,
    body: &[u8],
    trade_no: &str,
) -> Result<PayAnswer, Doubt> {
    let answer = if is_plain_json(headers) { serde_json::from_slice::<AnswerJson>(body).ok() } else { None };
    let asked_ms = seconds_to_wait(headers).map(|seconds| seconds.saturating_mul(1_000));
    let Some(answer) = answer else {
        // Of a proxy or a rate limiter in front: it says when to come again, and the order stays reserved.
        return match (status, asked_ms) {
            (429 | 503, Some(after_ms)) => Ok(PayAnswer::Busy { after_ms: after_ms.min(RETRY_MAX_MS) }),
            _ => Err(Doubt::Nonsense),
        };
    };
    // An answer that was mixed up, or came out of a cache, says nothing about our order.
    if answer.trade_no.is_some_and(|of| of != trade_no) {
        return Err(Doubt::Nonsense);
    }
    let after_ms = answer.retry_after_ms.or(asked_ms).unwrap_or(RETRY_DEFAULT_MS).min(RETRY_MAX_MS);
    match (status, answer.outcome) {
        (200 | 201, Outcome::Paid) => Ok(PayAnswer::Paid),
        (200 | 201 | 409, Outcome::AlreadyPaid) | (409, Outcome::Paid) => Ok(PayAnswer::AlreadyPaid),
        (200 | 201 | 400..=599, Outcome::Busy) => Ok(PayAnswer::Busy { after_ms }),
        (200 | 201 | 400..=599, Outcome::Retry) => Ok(PayAnswer::Retry { after_ms }),
        (200 | 201 | 400..=499, Outcome::Refused) => refused(&answer.reason.unwrap_or_default()),
        _ => Err(Doubt::Nonsense),
    }
}

/// Reads a gRPC answer.
pub(crate) fn of_grpc(reply: &PayReply) -> Result<PayAnswer, Doubt> {
    let asked_ms = if reply.retry_after_ms == 0 { RETRY_DEFAULT_MS } else { reply.retry_after_ms };
    let after_ms = asked_ms.min(RETRY_MAX_MS);
    match PayOutcome::try_from(reply.outcome) {
        Ok(PayOutcome::Paid) => Ok(PayAnswer::Paid),
        Ok(PayOutcome::AlreadyPaid) => Ok(PayAnswer::AlreadyPaid),
        Ok(PayOutcome::Busy) => Ok(PayAnswer::Busy { after_ms }),
        Ok(PayOutcome::Retry) => Ok(PayAnswer::Retry { after_ms }),
        Ok(PayOutcome::Refused) => refused(&reply.reason),
        Ok(PayOutcome::Unspecified) | Err(_) => Err(Doubt::Nonsense),
    }
}

/// A refusal ends an order and frees its budget, so it must say why: an empty one may be a default of some library.
fn refused(reason: &str) -> Result<PayAnswer, Doubt> {
    let mut kept = String::new();
    for one in reason.trim().chars() {
        if kept.len() + one.len_utf8() > REASON_MAX_BYTES {
            break;
        }
        kept.push(if one.is_control() { ' ' } else { one });
    }
    if kept.is_empty() { Err(Doubt::Nonsense) } else { Ok(PayAnswer::Refused(kept)) }
}

/// JSON that is not compressed: we ask for none that is, so nothing can unpack to more than it weighs.
fn is_plain_json(headers: &HeaderMap) -> bool {
    let of = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let json = of(CONTENT_TYPE).is_some_and(|value| {
        let kind = value.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/json")
    });
    json && of(CONTENT_ENCODING).is_none_or(|value| value.eq_ignore_ascii_case("identity"))
        && (!headers.contains_key(CONTENT_ENCODING) || of(CONTENT_ENCODING).is_some())
}

/// `retry-after` in seconds. A date, its other form, is read as the default wait.
fn seconds_to_wait(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    Some(value.parse().unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    const JSON: &[(&str, &str)] = &[("content-type", "application/json; charset=utf-8")];

    fn read(status: u16, headers: &[(&'static str, &str)], body: &str) -> Result<PayAnswer, Doubt> {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        of_http(status, &all, body.as_bytes(), "a-1")
    }

    #[test]
    fn what_is_certain() {
        let busy = |after_ms| Ok(PayAnswer::Busy { after_ms });
        let retry = |after_ms| Ok(PayAnswer::Retry { after_ms });
        let (paid, already) = (Ok(PayAnswer::Paid), Ok(PayAnswer::AlreadyPaid));
        let refused = Ok(PayAnswer::Refused("no such badge".into()));
        for (status, body, answer) in [
            (200, r#"{"outcome":"paid"}"#, &paid),
            (201, r#"{"outcome":"paid","trade_no":"a-1","more":{"x":[1]}}"#, &paid),
            (200, r#"{"outcome":"already_paid"}"#, &already),
            (409, r#"{"outcome":"already_paid"}"#, &already),
            (409, r#"{"outcome":"paid"}"#, &already),
            (429, r#"{"outcome":"busy","retry_after_ms":250}"#, &busy(250)),
            (200, r#"{"outcome":"busy"}"#, &busy(100)),
            (503, r#"{"outcome":"retry","retry_after_ms":9}"#, &retry(9)),
            (500, r#"{"outcome":"retry","retry_after_ms":18446744073709551615}"#, &retry(600_000)),
            (422, r#"{"outcome":"refused","reason":"no such\nbadge"}"#, &refused),
            (200, r#"{"outcome":"refused","reason":" no such badge "}"#, &refused),
        ] {
            assert_eq!(&read(status, JSON, body), answer, "{status} {body}");
        }
        let later = [("retry-after", "3"), ("content-type", "text/html")];
        assert_eq!(read(429, &later, "slow down"), busy(3_000));
        assert_eq!(read(503, &later, "<html>"), busy(3_000));
        assert_eq!(read(503, &[("retry-after", "Fri, 31 Dec 2027 23:59:59 GMT")], ""), busy(1_000));
        assert_eq!(read(429, &[("retry-after", "99999999999")], ""), busy(600_000));
        let both = [JSON[0], ("retry-after", "2")];
        assert_eq!(read(429, &both, r#"{"outcome":"busy"}"#), busy(2_000));
        let long = format!(r#"{{"outcome":"refused","reason":"{}"}}"#, "é".repeat(600));
        assert_eq!(read(422, JSON, &long), Ok(PayAnswer::Refused("é".repeat(256))));
    }

    #[test]
    fn everything_else_is_unknown() {
        for status in
            [100, 200, 201, 202, 204, 206, 301, 302, 304, 307, 400, 401, 403, 404, 409, 500, 502, 504]
        {
            for body in ["", "ok", "{}", "null", "[]", r#"{"outcome":"PAID"}"#, r#"{"outcome":0}"#] {
                assert_eq!(read(status, JSON, body), Err(Doubt::Nonsense), "{status} {body}");
            }
        }
        for (status, body) in [
            // Contradictions.
            (500, r#"{"outcome":"paid"}"#),
            (500, r#"{"outcome":"already_paid"}"#),
            (404, r#"{"outcome":"paid"}"#),
            (202, r#"{"outcome":"paid"}"#),
            (302, r#"{"outcome":"paid"}"#),
            (503, r#"{"outcome":"refused","reason":"x"}"#),
            (302, r#"{"outcome":"refused","reason":"x"}"#),
            // No reason.
            (422, r#"{"outcome":"refused"}"#),
            (422, r#"{"outcome":"refused","reason":" \n "}"#),
            // Another order's.
            (200, r#"{"outcome":"paid","trade_no":"a-2"}"#),
            (422, r#"{"outcome":"refused","reason":"x","trade_no":""}"#),
            // Twice, cut off, with more behind.
            (200, r#"{"outcome":"refused","outcome":"paid"}"#),
            (200, r#"{"outcome":"paid""#),
            (200, r#"{"outcome":"paid"}{"outcome":"refused"}"#),
            (429, "slow down"),
        ] {
            assert_eq!(read(status, JSON, body), Err(Doubt::Nonsense), "{status} {body}");
        }
        let paid = r#"{"outcome":"paid"}"#;
        for headers in [
            &[][..],
            &[("content-type", "text/plain")],
            &[("content-type", "application/jsonx")],
            &[JSON[0], ("content-encoding", "gzip")],
            &[JSON[0], ("content-encoding", "\u{e9}")],
        ] {
            assert_eq!(read(200, headers, paid), Err(Doubt::Nonsense), "{headers:?}");
        }
    }

    #[test]
    fn grpc_says_the_same() {
        let reply = |outcome: i32, reason: &str, retry_after_ms| {
            of_grpc(&PayReply { outcome, reason: reason.into(), retry_after_ms })
        };
        assert_eq!(reply(1, "", 0), Ok(PayAnswer::Paid));
        assert_eq!(reply(2, "", 0), Ok(PayAnswer::AlreadyPaid));
        assert_eq!(reply(3, "", 7), Ok(PayAnswer::Busy { after_ms: 7 }));
        assert_eq!(reply(3, "", u64::MAX), Ok(PayAnswer::Busy { after_ms: 600_000 }));
        assert_eq!(reply(4, "", 0), Ok(PayAnswer::Retry { after_ms: 100 }));
        assert_eq!(reply(5, "no", 0), Ok(PayAnswer::Refused("no".into())));
        for (outcome, reason) in [(0, "x"), (6, "x"), (-1, "x"), (5, "")] {
            assert_eq!(reply(outcome, reason, 0), Err(Doubt::Nonsense));
        }
    }

    #[test]
    fn an_order_is_written_with_texts_for_numbers() {
        let order = PayOrder {
            trade_no: "a\"1",
            user_id: i64::MAX,
            activity: "a",
            scene: "s",
            bonus_type: "badge",
            amount: 9_007_199_254_740_993,
        };
        let text = serde_json::to_string(&OrderJson::from(&order)).unwrap();
        let expected = r#"{"trade_no":"a\"1","user_id":"9223372036854775807","activity":"a","scene":"s","#;
        assert_eq!(text, format!(r#"{expected}"bonus_type":"badge","amount":"9007199254740993"}}"#));
        let read: OrderJson<'_> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, OrderJson::from(&order));
    }
}
