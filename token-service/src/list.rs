//! A user's tokens, page by page.

use crate::book::{TokenBook, open};
use crate::options::{OPENED_AT_A_TIME, PAGE_DEFAULT, PAGE_MAX, READS_MAX, SCAN};
use crate::stats::Cause;
use windfall_contract::tokens::{StoredToken, Unavailable};
use windfall_proto::v1::BonusToken;

/// Where a page begins, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page<'a> {
    /// [`TokenPage::next`] of the page before; `None` from the first.
    pub after: Option<&'a str>,
    /// 1 to [`PAGE_MAX`].
    pub size: usize,
}

impl Default for Page<'_> {
    /// The first page, of 100.
    fn default() -> Self {
        Self { after: None, size: PAGE_DEFAULT }
    }
}

/// A token of the store that opens for its user.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldToken {
    /// The text, as the user holds it.
    pub text: Box<str>,
    /// What it says.
    pub content: BonusToken,
}

/// A page.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenPage {
    /// In the order of their order numbers.
    pub tokens: Vec<HeldToken>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<Box<str>>,
}

/// There is no page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// Ask for 1 to [`PAGE_MAX`] tokens.
    #[error("a page of {size} tokens; 1 to {PAGE_MAX} are allowed")]
    Size {
        /// What was asked for.
        size: usize,
    },
    /// The store cannot answer. Ask again.
    #[error(transparent)]
    Store(#[from] Unavailable),
}

impl TokenBook {
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
            for (nth, StoredToken { trade_no, token: text }) in read.into_iter().take(look).enumerate() {
                if tokens.len() == page.size {
                    return Ok(TokenPage { tokens, next: after });
                }
                if nth > 0 && nth.is_multiple_of(OPENED_AT_A_TIME) {
                    tokio::task::yield_now().await;
                }
                match open(&keys.ring, &rules.revocations, &text, tenant, user_id) {
                    // What lies under another order number is another's place.
                    Ok(content) if *content.trade_no != *trade_no => self.counters().left_out(Cause::Differs),
                    Ok(content) if activity.is_some_and(|wanted| wanted != content.activity) => {}
                    Ok(content) => tokens.push(HeldToken { text, content }),
                    Err(failed) => self.counters().left_out(Cause::from(&failed)),
                }
                after = Some(trade_no);
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
