//! Lists a user's tokens, page by page.

use crate::options::{OPENED_AT_A_TIME, READS_MAX, SCAN};
use crate::stats::Cause;
use crate::verifier::{KeyRingVerifier, open};
use windfall_contract::tokens::{StoredToken, Unavailable, is_name_of};
use windfall_contract::verifier::{HeldToken, ListError, PAGE_MAX, Page, TokenPage};

impl KeyRingVerifier {
    /// A page of the tokens that the store holds for a user, of one activity where one is given. What does not open
    /// for this tenant and user, or is revoked, is left out and counted.
    ///
    /// A call reads the store at most four times, and 2,000 tokens: with an activity a page may be short, even empty,
    /// and yet have a next one.
    ///
    /// # Errors
    /// [`ListError`].
    pub async fn list(
        &self,
        tenant: &str,
        user_id: i64,
        activity: Option<&str>,
        page: Page<'_>,
    ) -> Result<TokenPage, ListError> {
        if !(1..=PAGE_MAX).contains(&page.size) {
            return Err(ListError::Size { size: page.size });
        }
        let filled = self.ask(self.fill(tenant, user_id, activity, page)).await?;
        self.counters().listed(filled.tokens.len());
        Ok(filled)
    }

    async fn fill(
        &self,
        tenant: &str,
        user_id: i64,
        activity: Option<&str>,
        page: Page<'_>,
    ) -> Result<TokenPage, Unavailable> {
        let (keys, rules) = (self.keys(), self.rules());
        let mut tokens = Vec::with_capacity(page.size);
        let mut after: Option<Box<str>> = page.after.map(Into::into);
        for _ in 0..READS_MAX {
            let room = page.size - tokens.len();
            let look = if activity.is_some() { SCAN } else { room };
            // One more than is looked at says whether there is a next page.
            let read = self.store().list(user_id, after.as_deref(), look + 1).await?;
            let more = read.len() > look;
            for (nth, StoredToken { name, token: text }) in read.into_iter().take(look).enumerate() {
                if tokens.len() == page.size {
                    return Ok(TokenPage { tokens, next: after });
                }
                if nth > 0 && nth.is_multiple_of(OPENED_AT_A_TIME) {
                    tokio::task::yield_now().await;
                }
                match open(&keys.ring, &rules.revocations, &text, tenant, user_id) {
                    // What lies under another order's name is another's place.
                    Ok(content) if !is_name_of(&name, &content.activity, &content.trade_no) => {
                        self.counters().left_out(Cause::Differs)
                    }
                    Ok(content) if activity.is_some_and(|wanted| wanted != content.activity) => {}
                    Ok(content) => tokens.push(HeldToken { text, content }),
                    Err(failed) => self.counters().left_out(Cause::from(&failed)),
                }
                after = Some(name);
            }
            if !more {
                return Ok(TokenPage { tokens, next: None });
            }
            if tokens.len() == page.size {
                break;
            }
        }
        Ok(TokenPage { tokens, next: after })
    }
}
