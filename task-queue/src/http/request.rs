//! A request's path and query, read as what they have to be.

use std::borrow::Cow;
use windfall_contract::task_queue::TTL_DEFAULT_S;

/// The pairs of a query, in their order.
pub(super) struct Query<'q>(Vec<(Cow<'q, str>, Cow<'q, str>)>);

impl<'q> Query<'q> {
    pub(super) fn parse(query: Option<&'q str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let read = |pair: &'q str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name, true), decode(value, true))
        };
        Self(pairs.map(read).collect())
    }

    /// The first value of this name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_ref())
    }

    /// A number, or what holds where there is none.
    fn number<N: std::str::FromStr>(&self, name: &str, default: N) -> Option<N> {
        match self.get(name) {
            None => Some(default),
            // A sign is no digit.
            Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
            Some(_) => None,
        }
    }
}

/// How jobs are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PublishTerms {
    pub(super) delay_s: u32,
    pub(super) ttl_s: u32,
    pub(super) tries: u16,
}

impl PublishTerms {
    pub(super) fn of(query: &Query<'_>) -> Result<Self, &'static str> {
        let delay_s = query.number("delay", 0).ok_or("invalid delay")?;
        let ttl_s = query.number("ttl", TTL_DEFAULT_S).ok_or("invalid ttl")?;
        // A ttl of 0 is for ever.
        if ttl_s > 0 && ttl_s < delay_s {
            return Err("ttl is shorter than delay");
        }
        match query.number("tries", 1).ok_or("invalid tries")? {
            0 => Err("tries shouldn't be zero"),
            tries => Ok(Self { delay_s, ttl_s, tries }),
        }
    }
}

/// How jobs are consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConsumeTerms {
    pub(super) ttr_s: u32,
    pub(super) timeout_s: u32,
    pub(super) count: usize,
}

impl ConsumeTerms {
    pub(super) fn of(query: &Query<'_>, count_max: u64) -> Result<Self, &'static str> {
        let ttr_s = query.number("ttr", 120).ok_or("invalid ttr")?;
        let timeout_s = query.number("timeout", 0).ok_or("invalid timeout")?;
        let count = query.number("count", 1).filter(|count| (1..=count_max).contains(count));
        let count = count.and_then(|count| usize::try_from(count).ok()).ok_or("invalid count")?;
        Ok(Self { ttr_s, timeout_s, count })
    }
}

/// How many dead jobs are meant.
pub(super) fn dead_limit(query: &Query<'_>) -> Result<u64, &'static str> {
    query.number("limit", 1).filter(|limit| *limit > 0).ok_or("invalid limit")
}

/// The ttl of jobs that are brought back.
pub(super) fn respawn_ttl_s(query: &Query<'_>) -> Result<u32, &'static str> {
    query.number("ttl", TTL_DEFAULT_S).ok_or("invalid ttl")
}

/// Pool and token of `[pool:]token`; where nothing is before the colon, it is the default pool, too.
pub(super) fn split_token(text: &str) -> (&str, &str) {
    match text.split_once(':') {
        Some(("", token)) => ("default", token),
        Some(both) => both,
        None => ("default", text),
    }
}

/// Reads `%41` as `A`; in a query also `+` as a blank.
pub(super) fn decode(text: &str, is_query: bool) -> Cow<'_, str> {
    let is_coded = |sign: char| sign == '%' || is_query && sign == '+';
    if !text.contains(is_coded) {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let (mut read, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let pair = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        let coded = pair.filter(|pair| pair.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match (byte, coded.and_then(|pair| u8::from_str_radix(pair, 16).ok())) {
            (b'%', Some(own)) => {
                read.push(own);
                at += 3;
            }
            (b'+', _) if is_query => {
                read.push(b' ');
                at += 1;
            }
            (other, _) => {
                read.push(other);
                at += 1;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&read).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query<'_> {
        Query::parse(Some(text))
    }

    #[test]
    fn a_query_is_read_as_forms_write_it() {
        let read = query("description=two+words%21&token=a%3Ab&empty&token=later");
        assert_eq!(read.get("description"), Some("two words!"));
        assert_eq!((read.get("token"), read.get("empty"), read.get("none")), (Some("a:b"), Some(""), None));
        assert_eq!(decode("q1%2Cq2+", false), "q1,q2+");
        assert_eq!(decode("50%", true), "50%");
    }

    #[test]
    fn publish_terms_are_checked_in_their_order() {
        let terms = |text: &str| PublishTerms::of(&query(text));
        assert_eq!(terms(""), Ok(PublishTerms { delay_s: 0, ttl_s: 86_400, tries: 1 }));
        assert_eq!(terms("delay=5&ttl=0&tries=65535").map(|terms| terms.tries), Ok(65_535));
        for (text, why) in [
            ("delay=-1", "invalid delay"),
            ("delay=+1", "invalid delay"),
            ("delay=", "invalid delay"),
            ("delay=4294967296", "invalid delay"),
            ("ttl=x", "invalid ttl"),
            ("delay=10&ttl=9", "ttl is shorter than delay"),
            ("tries=65536", "invalid tries"),
            ("tries=0", "tries shouldn't be zero"),
        ] {
            assert_eq!(terms(text), Err(why), "{text}");
        }
    }

    #[test]
    fn consume_terms_have_bounds() {
        let terms = |text: &str| ConsumeTerms::of(&query(text), 100);
        assert_eq!(terms(""), Ok(ConsumeTerms { ttr_s: 120, timeout_s: 0, count: 1 }));
        for (text, why) in [
            ("ttr=x", "invalid ttr"),
            ("timeout=1.5", "invalid timeout"),
            ("count=0", "invalid count"),
            ("count=101", "invalid count"),
        ] {
            assert_eq!(terms(text), Err(why), "{text}");
        }
        assert_eq!(dead_limit(&query("limit=0")), Err("invalid limit"));
        assert_eq!((dead_limit(&query("")), respawn_ttl_s(&query("ttl=7"))), (Ok(1), Ok(7)));
        let split = ["p:t", "t", ":t"].map(split_token);
        assert_eq!(split, [("p", "t"), ("default", "t"), ("default", "t")]);
    }
}
