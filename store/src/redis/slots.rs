//! The slot of a key, and the node that has the slot.

use redis::Value;
use std::ops::RangeInclusive;

/// The number of slots of a Redis Cluster.
pub(super) const SLOTS: usize = 16_384;

/// The slot of a key without braces: CRC16/XMODEM modulo 16384, as the cluster specification of Redis has it.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let crc = key.iter().fold(0_u16, |crc, byte| {
        let [high, low] = crc.to_be_bytes();
        (u16::from(low) << 8) ^ TABLE[usize::from(high ^ byte)]
    });
    crc % 16_384
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    // The index as the loop's own number: a conversion is not const.
    let mut value: u16 = 0;
    while at < table.len() {
        let mut crc = value << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
        value += 1;
    }
    table
};

/// A range of slots and the address of its master.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) slots: RangeInclusive<u16>,
    pub(super) host: String,
    pub(super) port: u16,
}

/// Reads the answer to `CLUSTER SLOTS` of `asked`; `None` where it is no such answer.
pub(super) fn parse(answer: &Value, asked: &str) -> Option<Vec<Owned>> {
    let Value::Array(ranges) = answer else { return None };
    ranges.iter().map(|range| parse_range(range, asked)).collect()
}

fn parse_range(range: &Value, asked: &str) -> Option<Owned> {
    let Value::Array(parts) = range else { return None };
    let [first, last, Value::Array(master), ..] = parts.as_slice() else { return None };
    let [host, port, ..] = master.as_slice() else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let host = match host {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        Value::SimpleString(host) => host.clone(),
        Value::Nil => String::new(),
        _ => return None,
    };
    // A node that does not know its own name is where it was asked.
    let host = if host.is_empty() || host == "?" { asked.to_owned() } else { host };
    Some(Owned { slots: number(first)?..=number(last)?, host, port: number(port)? })
}

/// Reads the address in `MOVED 3999 host:port` and `ASK 3999 host:port`, of which `details` is what follows the word.
pub(super) fn redirect(details: Option<&str>, asked: &str) -> Option<(String, u16)> {
    let (_, address) = details?.split_once(' ')?;
    let (host, port) = address.trim().rsplit_once(':')?;
    let host = if host.is_empty() { asked } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // The check value of CRC16/XMODEM is 0x31C3.
        assert_eq!(slot_of(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b""), 0);
    }

    #[test]
    fn a_slots_answer_is_read_and_nonsense_is_not() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let node = |host: Value| Value::Array(vec![host, Value::Int(7000), bulk("id")]);
        let range =
            |host| Value::Array(vec![Value::Int(0), Value::Int(9), node(host), node(bulk("replica"))]);
        let owned = |host: &str| Owned { slots: 0..=9, host: host.into(), port: 7000 };
        let answer = Value::Array(vec![range(bulk("a")), range(Value::Nil), range(bulk(""))]);
        assert_eq!(parse(&answer, "me"), Some(vec![owned("a"), owned("me"), owned("me")]));
        assert_eq!(parse(&Value::Okay, "me"), None);
        assert_eq!(parse(&Value::Array(vec![Value::Int(3)]), "me"), None);
    }

    #[test]
    fn redirects_are_read() {
        assert_eq!(redirect(Some("3999 10.0.0.1:6381"), "me"), Some(("10.0.0.1".into(), 6381)));
        assert_eq!(redirect(Some("3999 :6381"), "me"), Some(("me".into(), 6381)));
        assert_eq!(redirect(Some("3999 ::1:6381"), "me"), Some(("::1".into(), 6381)));
        assert_eq!(redirect(Some("nonsense"), "me"), None);
        assert_eq!(redirect(None, "me"), None);
    }
}
