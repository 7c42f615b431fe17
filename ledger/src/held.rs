//! The withdrawals of all users that are held, in the order of time, page by page.
//!
//! Only of those that are held: an index has them, and a page reads and sorts what it has. Nothing but their users' statements
//! leads to those that were paid or refused ([`LedgerReader::withdrawals_of`](crate::LedgerReader::withdrawals_of)).

use crate::error::LedgerError;
use crate::key::{WithdrawalId, is_number};
use crate::withdrawal::StoredWithdrawal;
use std::fmt;
use std::str::FromStr;

/// The most withdrawals in a page.
pub(crate) const PAGE_MAX: u32 = 10_000;

/// Which held withdrawals a page has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldByTime {
    /// Only those that were held at this time or later, in Unix milliseconds.
    pub from_ms: i64,
    /// Only those that were held before this time.
    pub to_ms: i64,
    /// Whether the one that was held last comes first.
    pub newest_first: bool,
    /// Behind the page that returned this cursor; `None`: from the first on.
    pub after: Option<HeldCursor>,
    /// 1 to 10,000 of them.
    pub limit: u32,
}

impl HeldByTime {
    /// The time and the key behind which the page begins.
    pub(crate) fn place(&self) -> (i64, &str) {
        match &self.after {
            Some(cursor) => (cursor.time_ms, cursor.key.as_str()),
            None if self.newest_first => (i64::MAX, ""),
            None => (i64::MIN, ""),
        }
    }
}

/// A page of held withdrawals of all users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldPage {
    /// In the order of the times at which they were held, and of one time in the order of their keys.
    pub withdrawals: Vec<StoredWithdrawal>,
    /// Where the next page begins, which may be empty; `None`: there is none.
    pub next: Option<HeldCursor>,
}

/// Where a page of held withdrawals ends. As text it is the time, the user and the id with `/` between. It is a place and no
/// right: whoever makes one up sees what follows that place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldCursor {
    time_ms: i64,
    key: String,
}

impl HeldCursor {
    pub(crate) fn at(withdrawal: &StoredWithdrawal) -> Self {
        Self { time_ms: withdrawal.created_ms, key: withdrawal.key.clone() }
    }
}

impl fmt::Display for HeldCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What was held before version 6 has its id alone as its key.
        let (id, user) = self.key.split_once(' ').unwrap_or((self.key.as_str(), ""));
        write!(f, "{}/{user}/{id}", self.time_ms)
    }
}

impl FromStr for HeldCursor {
    type Err = LedgerError;

    fn from_str(text: &str) -> Result<Self, LedgerError> {
        let parse = || {
            // An id may have a `/` itself.
            let mut parts = text.splitn(3, '/');
            let time_ms = parts.next()?.parse().ok()?;
            let (user, id) = (parts.next()?, parts.next()?);
            let key = match user {
                "" => id.to_owned(),
                user => WithdrawalId { user_id: user.parse().ok()?, id }.key(),
            };
            is_number(id).then_some(Self { time_ms, key })
        };
        parse().ok_or_else(|| LedgerError::Invalid(format!("{text:?} is no cursor that a page has returned")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        for key in ["w 42", "a/b 42", "old", "old/1", "//7/ 1"] {
            let cursor = HeldCursor { time_ms: 1_800_000_000_000, key: key.into() };
            assert_eq!(cursor.to_string().parse::<HeldCursor>().unwrap(), cursor);
        }
        for text in ["", "1", "1/2", "1/2/", "a/2/w", "1/b/w", "1/2/w 3", "1:2:3", "1//"] {
            assert!(matches!(text.parse::<HeldCursor>(), Err(LedgerError::Invalid(_))), "{text}");
        }
    }
}
