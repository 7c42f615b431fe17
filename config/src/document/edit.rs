//! Small changes to a document's text, which leave the rest of it as it is, comments too.

use std::fmt;

use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value};
use windfall_contract::rules::Fuse;

use crate::nearest::{listed, nearest};

/// One change to a document of rules. It says what shall hold afterwards, so making it twice is making it once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RulesEdit {
    /// Sets a token bucket.
    Limit {
        /// The bucket.
        bucket: Bucket,
        /// Events per second, 0 to 100,000,000; 0 admits nothing.
        rate_per_s: u64,
        /// Events that pass at once after an idle time, 1 to 10,000,000. Without it the bucket's burst stays.
        burst: Option<u64>,
    },
    /// Sets the fuse of a bonus type.
    Fuse {
        /// The bonus type.
        bonus_type: String,
        /// Its fuse from now on.
        fuse: Fuse,
    },
    /// Sets the share of a queue's users whose events go to its master topic.
    Ratio {
        /// The queue.
        queue: String,
        /// Per cent of the users, 0 to 100.
        percent: u8,
    },
}

/// A token bucket of the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bucket {
    /// The bucket over all types.
    Global,
    /// The bucket of each type without one of its own.
    Default,
    /// The bucket of a bonus type, which gets one of its own if it has none.
    Type(String),
}

/// A change that cannot be made to this document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The document is not valid TOML, or has another shape; `windfall rules check` says more.
    #[error(
        "the document cannot be changed: {0}; `windfall rules check` says everything that is wrong with it"
    )]
    Document(String),
    /// The document has no such bonus type or queue.
    #[error("the rules have no {what} `{name}`{meant}; they have {known}")]
    Unknown {
        /// The kind of name.
        what: &'static str,
        /// The name that was given.
        name: String,
        /// The name that was meant perhaps, as a part of the sentence.
        meant: String,
        /// The names that there are.
        known: String,
    },
    /// The bucket has no burst yet.
    #[error("{0} has no limit of its own yet: give its burst, too")]
    NeedsBurst(Bucket),
}

impl RulesEdit {
    /// The document with this change. Whether it is valid is for [`crate::parse_rules`] to say.
    ///
    /// # Errors
    /// [`EditError`].
    pub fn apply(&self, text: &str) -> Result<String, EditError> {
        let mut document: DocumentMut = text
            .parse()
            .map_err(|error: toml_edit::TomlError| EditError::Document(error.message().to_owned()))?;
        match self {
            Self::Limit { bucket, rate_per_s, burst } => limit(&mut document, bucket, *rate_per_s, *burst)?,
            Self::Fuse { bonus_type, fuse } => {
                is_type(&document, bonus_type)?;
                let own = table(table(table(document.as_table_mut(), "limits")?, "types")?, bonus_type)?;
                put(own, "fuse", fuse.to_string());
            }
            Self::Ratio { queue, percent } => {
                let queues = table(document.as_table_mut(), "queues")?;
                let known: Vec<&str> = queues.iter().map(|(name, _)| name).collect();
                is_known("queue", queue, &known)?;
                put(table(queues, queue)?, "ratio", i64::from(*percent));
            }
        }
        Ok(document.to_string())
    }
}

fn limit(
    document: &mut DocumentMut,
    bucket: &Bucket,
    rate_per_s: u64,
    burst: Option<u64>,
) -> Result<(), EditError> {
    if let Bucket::Type(name) = bucket {
        is_type(document, name)?;
    }
    let limits = table(document.as_table_mut(), "limits")?;
    let own = match bucket {
        Bucket::Global => table(limits, "global")?,
        Bucket::Default => table(limits, "default")?,
        Bucket::Type(name) => table(table(limits, "types")?, name)?,
    };
    if burst.is_none() && !own.contains_key("burst") {
        return Err(EditError::NeedsBurst(bucket.clone()));
    }
    // What exceeds the range of TOML is out of the limits' range too, and is refused with the document.
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    put(own, "rate_per_s", number(rate_per_s));
    if let Some(burst) = burst {
        put(own, "burst", number(burst));
    }
    Ok(())
}

/// The table of this name, which is made where there is none.
pub(super) fn table<'t>(
    parent: &'t mut dyn TableLike,
    name: &str,
) -> Result<&'t mut dyn TableLike, EditError> {
    let item = parent.entry(name).or_insert_with(|| {
        let mut made = Table::new();
        // Its head is written only where it has keys of its own.
        made.set_implicit(true);
        Item::Table(made)
    });
    item.as_table_like_mut().ok_or_else(|| EditError::Document(format!("`{name}` is not a table")))
}

/// Sets a value. What stands behind it in its line stays.
pub(super) fn put(table: &mut dyn TableLike, key: &str, value: impl Into<Value>) {
    let mut value = value.into();
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(present) => {
            *value.decor_mut() = present.decor().clone();
            *present = value;
        }
        None => {
            table.insert(key, Item::Value(value));
        }
    }
}

fn is_type(document: &DocumentMut, name: &str) -> Result<(), EditError> {
    let types = document.get("types").and_then(Item::as_array);
    let known: Vec<&str> = types.into_iter().flat_map(Array::iter).filter_map(Value::as_str).collect();
    is_known("bonus type", name, &known)
}

fn is_known(what: &'static str, name: &str, known: &[&str]) -> Result<(), EditError> {
    if known.contains(&name) {
        return Ok(());
    }
    let meant = nearest(name, known.iter().copied());
    Err(EditError::Unknown {
        what,
        name: name.to_owned(),
        meant: meant.map_or_else(String::new, |meant| format!(" (did you mean `{meant}`?)")),
        known: if known.is_empty() { "none".into() } else { listed(known.iter().copied()) },
    })
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Global => f.write_str("the bucket over all types"),
            Self::Default => f.write_str("the bucket of types without one of their own"),
            Self::Type(name) => write!(f, "the bonus type `{name}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::parse_rules;

    const SAMPLE: &str = include_str!("../../samples/rules.toml");

    fn limit(bucket: Bucket, rate_per_s: u64, burst: Option<u64>) -> RulesEdit {
        RulesEdit::Limit { bucket, rate_per_s, burst }
    }

    fn fuse(bonus_type: &str, fuse: Fuse) -> RulesEdit {
        RulesEdit::Fuse { bonus_type: bonus_type.into(), fuse }
    }

    /// The lines that differ.
    fn lines(before: &str, after: &str) -> Vec<(String, String)> {
        assert_eq!(before.lines().count(), after.lines().count());
        let pairs = before.lines().zip(after.lines()).filter(|(before, after)| before != after);
        pairs.map(|(before, after)| (before.to_owned(), after.to_owned())).collect()
    }

    #[test]
    fn a_change_touches_its_own_line_alone() {
        let after = limit(Bucket::Type("cash".into()), 250_000, None).apply(SAMPLE).unwrap();
        assert_eq!(lines(SAMPLE, &after), [("rate_per_s = 300000".into(), "rate_per_s = 250000".into())]);
        assert_eq!(parse_rules(&after, None).unwrap().limits.types["cash"].limit.rate_per_s, 250_000);
        let after = fuse("cash", Fuse::Pause).apply(SAMPLE).unwrap();
        let [(before, after)] = &lines(SAMPLE, &after)[..] else { panic!("{after}") };
        assert_eq!(*after, before.replace("\"closed\"", "\"pause\""));
        let after = RulesEdit::Ratio { queue: "gifts".into(), percent: 0 }.apply(SAMPLE).unwrap();
        assert_eq!(lines(SAMPLE, &after), [("ratio = 50".into(), "ratio = 0".into())]);
    }

    #[test]
    fn what_holds_already_is_not_touched() {
        for edit in [
            limit(Bucket::Global, 300_000, Some(30_000)),
            limit(Bucket::Default, 100_000, None),
            fuse("cash", Fuse::Closed),
            RulesEdit::Ratio { queue: "cash".into(), percent: 100 },
        ] {
            assert_eq!(edit.apply(SAMPLE).unwrap(), SAMPLE, "{edit:?}");
        }
    }

    /// Also where the document has no table for it, the end stays the end.
    #[test]
    fn a_type_gets_a_limit_or_a_fuse_of_its_own() {
        let edit = limit(Bucket::Type("coin".into()), 40, Some(4));
        assert_eq!(
            limit(Bucket::Type("coin".into()), 40, None).apply(SAMPLE),
            Err(EditError::NeedsBurst(Bucket::Type("coin".into())))
        );
        let without = SAMPLE.replace("[limits.types.cash]", "[limits.types.badge]").replacen(
            "[limits.types.badge]\nrate_per_s = 2000\nburst = 200\npriority = 2\n",
            "",
            1,
        );
        let inline = "version = 1\ntypes = [\"coin\"]\nlimits = { global = { rate_per_s = 1, burst = 1 }, default = { \
            rate_per_s = 1, burst = 1 } }\n[topics.a]\nbroker = \"a\"\npartitions = 1\n[topics.b]\nbroker = \"b\"\n\
            partitions = 1\n[queues.q]\nmaster = \"a\"\nbackup = \"b\"\n[[routes]]\ntype = \"*\"\nqueue = \"q\"\n[end]\n";
        for text in [SAMPLE, &without, inline] {
            let after = parse_rules(&edit.apply(text).unwrap(), None).unwrap();
            let limit = after.limits.types["coin"].limit;
            assert_eq!((limit.rate_per_s, limit.burst), (40, 4));
            let text = fuse("coin", Fuse::Divert).apply(text).unwrap();
            assert_eq!(parse_rules(&text, None).unwrap().limits.types["coin"].fuse, Fuse::Divert, "{text}");
        }
    }

    #[test]
    fn names_that_are_not_there_are_refused_with_those_that_are() {
        let refused = fuse("cahs", Fuse::Pause).apply(SAMPLE).unwrap_err().to_string();
        assert!(refused.contains("did you mean `cash`?") && refused.contains("`badge`"), "{refused}");
        let refused =
            RulesEdit::Ratio { queue: "q".into(), percent: 1 }.apply(SAMPLE).unwrap_err().to_string();
        assert!(refused.contains("no queue `q`"), "{refused}");
        let refused = fuse("cash", Fuse::Pause).apply("types = [").unwrap_err();
        assert!(matches!(refused, EditError::Document(_)), "{refused}");
        let refused = fuse("cash", Fuse::Pause).apply("types = [\"cash\"]\nlimits = 1").unwrap_err();
        assert!(matches!(refused, EditError::Document(_)), "{refused}");
    }
}
