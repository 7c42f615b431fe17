//! Verifies presented tokens. // I7

use crate::options::OPENED_AT_A_TIME;
use crate::stats::{Cause, Verified};
use crate::verifier::{Failed, KeyRingVerifier, Keys, is_revoked, key_of, open};
use windfall_contract::rules::Revocations;
use windfall_contract::tokens::{TokenKey, name};
use windfall_contract::verifier::{TEXTS_MAX, Verdict, VerifyError};
use windfall_proto::v1::BonusToken;
use windfall_token::{Reason, StoreAnswer, Verdict as Compared};

/// The name that is read in place of an illegal text's. No token can have it.
const NO_ORDER: &str = "\u{1}no order has such a name";

impl KeyRingVerifier {
    /// Verifies texts that a user presents: one verdict for each text, in order. The store is asked once, for all
    /// of them; where it cannot say, what opens is `Unavailable`.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub async fn verify<T: AsRef<str> + Sync>(
        &self,
        tenant: &str,
        user_id: i64,
        texts: &[T],
    ) -> Result<Vec<Verdict>, VerifyError> {
        if texts.len() > TEXTS_MAX {
            return Err(VerifyError::TooMany { texts: texts.len() });
        }
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        // One ring and one list of revocations for the whole call.
        let (keys, rules) = (self.keys(), self.rules());
        let judge = Judge { keys: &keys, revocations: &rules.revocations, tenant, user_id };
        let mut opened = Vec::with_capacity(texts.len());
        let mut wanted = Vec::with_capacity(2 * texts.len());
        for (nth, text) in texts.iter().enumerate() {
            let_others_run(nth).await;
            let mut answer = judge.open(text.as_ref());
            // Its own name, then that under which a process of an older version has kept it. The order number moves into the
            // key and back: one copy per text less.
            let names: [Box<str>; 2] = match &mut answer {
                Ok(token) => {
                    let own = name(&token.activity, &token.trade_no);
                    [own, std::mem::take(&mut token.trade_no).into_boxed_str()]
                }
                Err(_) => [NO_ORDER.into(), NO_ORDER.into()],
            };
            wanted.extend(names.map(|name| TokenKey { user_id, name }));
            opened.push(answer);
        }
        let held = self.ask(self.store().get(&wanted)).await.ok();
        // An answer that does not fit the question is none.
        let held = held.filter(|held| held.len() == wanted.len());
        let mut counts = Verified::default();
        let mut verdicts = Vec::with_capacity(texts.len());
        // The keys of one text each, its own name first.
        let older_names = wanted.into_iter().skip(1).step_by(2);
        for (nth, ((answer, key), text)) in opened.into_iter().zip(older_names).zip(texts).enumerate() {
            let_others_run(nth).await;
            let text = text.as_ref();
            let verdict = match answer {
                Err(cause) => Err(cause),
                Ok(mut token) => {
                    token.trade_no = key.name.into_string();
                    let stored = match &held {
                        None => StoreAnswer::Unavailable,
                        Some(held) => judge.stored(&token, text, held.get(2 * nth..2 * nth + 2)),
                    };
                    judge.compare(token, text, stored)
                }
            };
            verdicts.push(counts.count(verdict));
        }
        self.counters().verified(&counts);
        Ok(verdicts)
    }
}

/// The state with which the texts of one call are judged.
struct Judge<'a> {
    keys: &'a Keys,
    revocations: &'a Revocations,
    tenant: &'a str,
    user_id: i64,
}

impl Judge<'_> {
    /// Opens a text; one that fails before its signature was checked costs a decoy.
    fn open(&self, text: &str) -> Result<BonusToken, Cause> {
        open(&self.keys.ring, self.revocations, text, self.tenant, self.user_id).map_err(|failed| {
            let whole_way = matches!(
                failed,
                Failed::Revoked | Failed::Opening(Reason::Signature | Reason::Content | Reason::Owner(_))
            );
            if !whole_way {
                self.keys.decoy.open();
            }
            Cause::from(&failed)
        })
    }

    /// What the store has of a token: under its own name, else under that of an older version, where the token of another
    /// activity with the same order number may lie.
    fn stored<'h>(
        &self,
        token: &BonusToken,
        text: &str,
        held: Option<&'h [Option<Box<str>>]>,
    ) -> StoreAnswer<'h> {
        let is_own = |held: &str| {
            held == text
                || match self.keys.ring.diagnose(held.as_bytes(), self.tenant, Some(self.user_id)) {
                    Ok(other) => other.activity == token.activity,
                    // Nobody knows whose it is.
                    Err(_) => true,
                }
        };
        match held {
            Some([Some(own), _]) => StoreAnswer::Held(own),
            Some([None, Some(older)]) if is_own(older) => StoreAnswer::Held(older),
            _ => StoreAnswer::Absent,
        }
    }

    /// The last step, for a text that has been opened.
    fn compare(&self, token: BonusToken, text: &str, stored: StoreAnswer<'_>) -> Result<Verdict, Cause> {
        if let StoreAnswer::Held(held) = stored {
            // The very text that has just opened, with the same ring: it says the same. Most are.
            if held == text {
                return Ok(Verdict::Valid(token));
            }
            // A key in other hands may have written to the store as well.
            if !self.revocations.is_empty()
                && key_of(held).is_some_and(|key| self.revocations.of_key(key).is_some())
            {
                return Err(Cause::Revoked);
            }
        }
        match self.keys.ring.verify_against(token, stored, self.tenant, self.user_id) {
            Compared::Illegal => Err(Cause::Differs),
            // The stored one may have been awarded before this one: a repeated send does not outlive a revocation
            // of its activity that holds for the first.
            Compared::Valid(token) if is_revoked(self.revocations, &token, text) => Err(Cause::Revoked),
            Compared::Valid(token) => Ok(Verdict::Valid(token)),
            Compared::Unknown => Ok(Verdict::Unknown),
            Compared::Unavailable => Ok(Verdict::Unavailable),
        }
    }
}

impl Verified {
    fn count(&mut self, verdict: Result<Verdict, Cause>) -> Verdict {
        match &verdict {
            Ok(Verdict::Valid(_)) => self.valid += 1,
            Ok(Verdict::Unknown) => self.unknown += 1,
            Ok(Verdict::Unavailable) => self.unavailable += 1,
            Ok(Verdict::Illegal) => {}
            Err(cause) => self.illegal[*cause as usize] += 1,
        }
        verdict.unwrap_or(Verdict::Illegal)
    }
}

async fn let_others_run(nth: usize) {
    if nth > 0 && nth.is_multiple_of(OPENED_AT_A_TIME) {
        tokio::task::yield_now().await;
    }
}
