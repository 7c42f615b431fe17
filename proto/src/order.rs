//! Checked types: what has passed one of these need not be checked again.

use std::fmt;

/// Bytes of an order number: 1 to 128.
pub const TRADE_NO_MAX_BYTES: usize = 128;
/// The largest amount: 2^53 − 1, so that every JSON reader keeps it exact.
pub const AMOUNT_MAX: i64 = (1 << 53) - 1;
/// Bytes of an activity's or a scene's name: 1 to 64.
pub const NAME_MAX_BYTES: usize = 64;

/// Why an argument was refused. The message names what was wrong; the caller adds the field's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Nothing there.
    #[error("is empty")]
    Empty,
    /// Longer than allowed.
    #[error("is {len} bytes long; at most {max} are allowed")]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A control character or white space at this byte.
    #[error("has a character at byte {at} that is not allowed ({allowed})")]
    Character {
        /// Offset of the character.
        at: usize,
        /// What may stand there.
        allowed: &'static str,
    },
    /// Zero, negative or above [`AMOUNT_MAX`].
    #[error("is {value}; it must be between 1 and {max}")]
    Range {
        /// The value.
        value: i64,
        /// The largest that is allowed.
        max: i64,
    },
}

/// Checks an order number: 1 to 128 visible ASCII characters.
///
/// # Errors
/// [`Invalid`] says what is wrong with it.
#[inline]
pub fn check_trade_no(text: &str) -> Result<TradeNo<'_>, Invalid> {
    check_visible(text, TRADE_NO_MAX_BYTES).map(TradeNo)
}

/// Checks an amount.
///
/// # Errors
/// [`Invalid::Range`].
#[inline]
pub const fn check_amount(value: i64) -> Result<Amount, Invalid> {
    if value >= 1 && value <= AMOUNT_MAX {
        Ok(Amount(value))
    } else {
        Err(Invalid::Range { value, max: AMOUNT_MAX })
    }
}

/// Checks a bonus type's name: 1 to 32 of `a-z 0-9 _ - .`.
///
/// # Errors
/// [`Invalid`] says what is wrong with it.
#[inline]
pub fn check_bonus_type(text: &str) -> Result<&str, Invalid> {
    check_length(text, crate::record::TYPE_MAX_BYTES)?;
    let fits = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(byte);
    match text.as_bytes().iter().position(|byte| !fits(byte)) {
        Some(at) => Err(Invalid::Character { at, allowed: "a-z, 0-9, _, - and ." }),
        None => Ok(text),
    }
}

/// Checks an activity's or a scene's name: 1 to 64 visible ASCII characters.
///
/// # Errors
/// [`Invalid`] says what is wrong with it.
#[inline]
pub fn check_name(text: &str) -> Result<&str, Invalid> {
    check_visible(text, NAME_MAX_BYTES)
}

/// Checks free text that a user may read: no control characters, at most `max` bytes; may be empty.
///
/// # Errors
/// [`Invalid`] says what is wrong with it.
#[inline]
pub fn check_text(text: &str, max: usize) -> Result<&str, Invalid> {
    if text.len() > max {
        return Err(Invalid::TooLong { len: text.len(), max });
    }
    match text.bytes().position(|byte| byte < 0x20 || byte == 0x7f) {
        Some(at) => Err(Invalid::Character { at, allowed: "no control characters" }),
        None => Ok(text),
    }
}

#[inline]
fn check_length(text: &str, max: usize) -> Result<(), Invalid> {
    match text.len() {
        0 => Err(Invalid::Empty),
        len if len > max => Err(Invalid::TooLong { len, max }),
        _ => Ok(()),
    }
}

#[inline]
fn check_visible(text: &str, max: usize) -> Result<&str, Invalid> {
    check_length(text, max)?;
    match text.bytes().position(|byte| !byte.is_ascii_graphic()) {
        Some(at) => Err(Invalid::Character { at, allowed: "visible ASCII" }),
        None => Ok(text),
    }
}

/// A checked order number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TradeNo<'a>(&'a str);

impl<'a> TradeNo<'a> {
    /// The text.
    pub const fn as_str(self) -> &'a str {
        self.0
    }
}

impl fmt::Display for TradeNo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A checked amount in the smallest unit: 1 to [`AMOUNT_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i64);

impl Amount {
    /// The number.
    pub const fn get(self) -> i64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_numbers() {
        assert!(check_trade_no("spring-2027:rain:1:42").is_ok());
        assert_eq!(check_trade_no(""), Err(Invalid::Empty));
        assert_eq!(check_trade_no(&"x".repeat(2048)), Err(Invalid::TooLong { len: 2048, max: 128 }));
        assert!(matches!(check_trade_no("a\nb"), Err(Invalid::Character { at: 1, .. })));
        assert!(matches!(check_trade_no("红包"), Err(Invalid::Character { at: 0, .. })));
    }

    #[test]
    fn amounts() {
        assert_eq!(check_amount(1).map(Amount::get), Ok(1));
        for bad in [0, -1, i64::MIN, i64::MAX, AMOUNT_MAX + 1] {
            assert!(check_amount(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn types_and_texts() {
        assert!(check_bonus_type("coupon_tea-1.0").is_ok());
        assert!(check_bonus_type("Cash").is_err());
        assert!(check_text("压岁钱 8.88", 64).is_ok());
        assert!(check_text("a\u{7f}", 64).is_err());
    }
}
