//! The answers of both sides: `{"code":200,"msg":…}` with a value as `content` (2.x) or `data` (3.x).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub(super) const OK: i32 = 200;
pub(super) const FAIL: i32 = 500;

/// The bytes of an executor's message that are kept.
const MESSAGE_MAX_BYTES: usize = 2_000;

/// What an executor answered.
#[derive(Debug, Deserialize)]
pub(super) struct Answer<T> {
    pub(super) code: i32,
    #[serde(default)]
    msg: Option<String>,
    // An alias would refuse an answer that has both.
    #[serde(default = "nothing")]
    content: Option<T>,
    #[serde(default = "nothing")]
    data: Option<T>,
}

/// What we answer.
#[derive(Serialize)]
struct Ours<'a> {
    code: i32,
    msg: &'a str,
}

impl<T> Answer<T> {
    /// The start of what the executor said.
    pub(super) fn message(self) -> String {
        let mut message = self.msg.unwrap_or_default();
        message.truncate(message.floor_char_boundary(MESSAGE_MAX_BYTES));
        message
    }

    pub(super) fn value(self) -> Option<T> {
        self.content.or(self.data)
    }
}

fn nothing<T>() -> Option<T> {
    None
}

pub(super) fn ok() -> Bytes {
    Bytes::from_static(br#"{"code":200}"#)
}

pub(super) fn fail(msg: &str) -> Bytes {
    let text = serde_json::to_vec(&Ours { code: FAIL, msg });
    text.map_or(Bytes::from_static(br#"{"code":500}"#), Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xxl::LogLines;
    use serde::de::IgnoredAny;

    #[test]
    fn answers_of_both_generations_are_read() {
        let two =
            r#"{"code":200,"content":{"fromLineNum":1,"toLineNum":2,"logContent":"a\nb\n","isEnd":false}}"#;
        let three = two
            .replace("content\":{", "data\":{")
            .replace("200,", "200,\"msg\":\"Success\",\"content\":null,");
        for text in [two, three.as_str()] {
            let read: Answer<LogLines> = serde_json::from_str(text).unwrap();
            assert_eq!(read.code, OK);
            let lines = read.value().unwrap();
            assert_eq!((lines.to_line, lines.text.as_str(), lines.is_end), (2, "a\nb\n", false));
        }
        let failed: Answer<IgnoredAny> =
            serde_json::from_str(r#"{"code":500,"msg":"no","data":[{}]}"#).unwrap();
        assert_eq!((failed.code, failed.message().as_str()), (FAIL, "no"));
        for bad in ["", "{}", "[]", "200", "<html>", r#"{"code":"200"}"#, r#"{"msg":"no code"}"#] {
            assert!(serde_json::from_str::<Answer<IgnoredAny>>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_message_is_cut_at_a_character() {
        let text = format!(r#"{{"code":500,"msg":"{}"}}"#, "：".repeat(MESSAGE_MAX_BYTES));
        let read: Answer<IgnoredAny> = serde_json::from_str(&text).unwrap();
        let message = read.message();
        assert!(message.len() <= MESSAGE_MAX_BYTES && message.chars().all(|sign| sign == '：'));
    }

    #[test]
    fn ours_can_be_read_by_executors() {
        assert_eq!(ok(), r#"{"code":200}"#);
        assert_eq!(fail("a \"b\"\n"), r#"{"code":500,"msg":"a \"b\"\n"}"#);
    }
}
