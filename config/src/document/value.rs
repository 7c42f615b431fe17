//! The values of a document's keys: fields that may be faulty, numbers in a range, names of some form.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use toml::Spanned;

use crate::bounds::{NAME_MAX_BYTES, TRADE_NO_MAX_BYTES, TYPE_MAX_BYTES, WHY_MAX_BYTES};

/// A key that may be left out. What is wrong with its value has been noted by the reader, so a fault ends nothing.
#[derive(Default)]
pub(super) enum Field<T> {
    #[default]
    Missing,
    Faulty,
    Is(Spanned<T>),
}

impl<T> Field<T> {
    pub(super) fn get(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value.get_ref()),
            Self::Missing | Self::Faulty => None,
        }
    }

    /// The byte where its value stands.
    pub(super) fn at(&self) -> Option<usize> {
        match self {
            Self::Is(value) => Some(value.span().start),
            Self::Missing | Self::Faulty => None,
        }
    }

    /// Whether the document has the key, with a good value or a faulty one.
    pub(super) fn is_given(&self) -> bool {
        !matches!(self, Self::Missing)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = Option::<Needed<T>>::deserialize(deserializer)?;
        Ok(given.map_or(Self::Missing, |Needed(field)| field))
    }
}

/// A key that must be there; the reader notes where it is missing.
pub(super) struct Needed<T>(Field<T>);

impl<T> Deref for Needed<T> {
    type Target = Field<T>;

    fn deref(&self) -> &Field<T> {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Needed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Spanned::deserialize(deserializer).map_or(Field::Faulty, Field::Is)))
    }
}

/// The text that says which values a key may have, for whoever has to correct it.
pub(super) trait Described {
    fn describe() -> String;
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy)]
pub(crate) struct Number<T, const MIN: u64, const MAX: u64>(pub(super) T);

impl<T, const MIN: u64, const MAX: u64> Described for Number<T, MIN, MAX> {
    fn describe() -> String {
        format!("a whole number from {MIN} to {MAX}")
    }
}

impl<'de, T: TryFrom<u64>, const MIN: u64, const MAX: u64> Deserialize<'de> for Number<T, MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InRange<T, const MIN: u64, const MAX: u64>(PhantomData<T>);
        impl<T: TryFrom<u64>, const MIN: u64, const MAX: u64> Visitor<'_> for InRange<T, MIN, MAX> {
            type Value = Number<T, MIN, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&Self::Value::describe())
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
                let fitting = (MIN..=MAX).contains(&number).then(|| T::try_from(number).ok()).flatten();
                fitting.map(Number).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
                Err(E::invalid_value(Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_u64(InRange(PhantomData))
    }
}

/// Declares texts of some form: what is allowed, and whether a text fits.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident: $allowed:expr, $fits:expr;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name(String);

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl Described for $name {
            fn describe() -> String {
                $allowed.to_owned()
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(OfForm { allowed: $allowed, fits: $fits }).map(Self)
            }
        }
    )*};
}

struct OfForm {
    allowed: &'static str,
    fits: fn(&str) -> bool,
}

impl Visitor<'_> for OfForm {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.allowed)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        if (self.fits)(text) {
            Ok(text.to_owned())
        } else {
            Err(E::invalid_value(Unexpected::Str(text), &self))
        }
    }
}

pub(super) const TYPE_NAME: &str = "1 to 32 of a-z, 0-9, _, - and .";
pub(super) const PLACE_NAME: &str = "1 to 64 of A-Z, a-z, 0-9, _, - and ., the first a letter or digit";

texts! {
    BrokerName: "a broker's name: 1 to 64 of A-Z, a-z, 0-9, _, - and ., the first a letter or digit", is_place_name;
    /// A reference, which is looked up.
    TopicName: "a topic's name", |_| true;
    /// A reference, which is looked up.
    QueueName: "a queue's name", |_| true;
    /// A reference, which is looked up.
    TypeOrAny: "a bonus type or `*`", |_| true;
    SceneName: "1 to 64 visible ASCII characters", is_scene_name;
    SceneOrAny: "a name of 1 to 64 visible ASCII characters, or `*`", is_scene_name;
    /// A budget is of one activity: `*` would look like all, and be a name.
    Campaign: "1 to 64 visible ASCII characters but not `*`, for a budget is of one activity",
        |name| is_scene_name(name) && name != "*";
    TradeNo: "1 to 128 visible ASCII characters",
        |text| (1..=TRADE_NO_MAX_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    Why: "1 to 256 bytes without control characters",
        |text| (1..=WHY_MAX_BYTES).contains(&text.len()) && !text.contains(|c: char| c.is_control());
}

pub(super) fn is_type_name(name: &str) -> bool {
    (1..=TYPE_MAX_BYTES).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.".contains(&b))
}

/// A name that every broker takes for a topic, and that is safe as a file's.
pub(super) fn is_place_name(name: &str) -> bool {
    name.len() <= NAME_MAX_BYTES
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

fn is_scene_name(name: &str) -> bool {
    (1..=NAME_MAX_BYTES).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
}
