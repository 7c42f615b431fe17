//! Revoked tokens: they count no more although they open, by `[[revoke]]` in the rules document.

use std::collections::{BTreeMap, HashMap};

/// Which tokens are revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    /// Every token of this key, because its secrets have leaked.
    Key(u32),
    /// Every token of this activity that was awarded before this moment.
    Activity {
        /// The campaign.
        activity: String,
        /// Unix milliseconds, compared with the token's `award_time_ms`; this very millisecond still counts.
        before_ms: i64,
    },
    /// The tokens of this order number.
    TradeNo(String),
}

/// One entry of the rules document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// The tokens that it revokes.
    pub what: Revoked,
    /// The reason, for operators; it is never told to whoever presents such a token.
    pub why: String,
}

/// All revocations, in the document's order and indexed by what they name: a look-up costs the same however many
/// there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations {
    list: Vec<Revocation>,
    keys: BTreeMap<u32, usize>,
    activities: HashMap<String, (i64, usize)>,
    trade_nos: HashMap<String, usize>,
}

impl Revocations {
    /// The revocations in the document's order.
    pub fn iter(&self) -> impl Iterator<Item = &Revocation> {
        self.list.iter()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The entry that revokes tokens of a key.
    #[inline]
    pub fn of_key(&self, key: u32) -> Option<&Revocation> {
        self.keys.get(&key).and_then(|at| self.list.get(*at))
    }

    /// The entry that revokes a token, whichever of the three names it.
    #[inline]
    pub fn of_token(
        &self,
        key: u32,
        activity: &str,
        award_time_ms: i64,
        trade_no: &str,
    ) -> Option<&Revocation> {
        if self.list.is_empty() {
            return None;
        }
        let by_activity = || {
            let (before_ms, at) = self.activities.get(activity)?;
            if award_time_ms < *before_ms { self.list.get(*at) } else { None }
        };
        self.of_key(key)
            .or_else(by_activity)
            .or_else(|| self.trade_nos.get(trade_no).and_then(|at| self.list.get(*at)))
    }
}

impl FromIterator<Revocation> for Revocations {
    /// A document names nothing twice; where a list does, the strictest holds.
    fn from_iter<I: IntoIterator<Item = Revocation>>(entries: I) -> Self {
        let mut all = Self { list: entries.into_iter().collect(), ..Self::default() };
        for (at, entry) in all.list.iter().enumerate() {
            match &entry.what {
                Revoked::Key(key) => {
                    all.keys.entry(*key).or_insert(at);
                }
                Revoked::Activity { activity, before_ms } => {
                    let held = all.activities.entry(activity.clone()).or_insert((*before_ms, at));
                    if held.0 < *before_ms {
                        *held = (*before_ms, at);
                    }
                }
                Revoked::TradeNo(trade_no) => {
                    all.trade_nos.entry(trade_no.clone()).or_insert(at);
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revoked(what: Revoked) -> Revocation {
        Revocation { what, why: "a test".into() }
    }

    fn activity(before_ms: i64) -> Revoked {
        Revoked::Activity { activity: "spring".into(), before_ms }
    }

    #[test]
    fn each_of_the_three_finds_its_tokens_and_no_others() {
        let all: Revocations = [Revoked::Key(7), activity(1_000), Revoked::TradeNo("lost-1".into())]
            .map(revoked)
            .into_iter()
            .collect();
        let what = |key, activity, time_ms, trade_no| {
            all.of_token(key, activity, time_ms, trade_no).map(|found| found.what.clone())
        };
        assert_eq!(what(7, "autumn", 5_000, "x"), Some(Revoked::Key(7)));
        assert_eq!(what(1, "spring", 999, "x"), Some(activity(1_000)));
        assert_eq!(what(1, "spring", 1_000, "x"), None);
        assert_eq!(what(1, "autumn", 0, "x"), None);
        assert_eq!(what(1, "autumn", 0, "lost-1"), Some(Revoked::TradeNo("lost-1".into())));
        assert!(all.of_key(7).is_some() && all.of_key(8).is_none());
        assert_eq!(Revocations::default().of_token(7, "spring", 0, "lost-1"), None);
    }

    #[test]
    fn of_two_moments_the_later_one_holds() {
        for moments in [[1_000, 2_000], [2_000, 1_000]] {
            let all: Revocations = moments.map(|ms| revoked(activity(ms))).into_iter().collect();
            assert_eq!(
                all.of_token(1, "spring", 1_999, "x").map(|found| found.what.clone()),
                Some(activity(2_000))
            );
        }
    }
}
