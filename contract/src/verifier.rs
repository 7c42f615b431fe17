//! What wallets ask the token service for: to list the tokens that a user holds, and to verify presented ones. // I7

use crate::tokens::Unavailable;
use async_trait::async_trait;
use windfall_proto::v1::BonusToken;

/// The number of texts in one verification at most. The store is asked for all of them at once.
pub const TEXTS_MAX: usize = 512;
/// The number of tokens in a page at most: as many as a user may have in one activity.
pub const PAGE_MAX: usize = 500;
/// The number of tokens in a page where the caller names none.
pub const PAGE_DEFAULT: usize = 100;

/// The verdict on a presented token. Only [`Verdict::Valid`] may force a credit.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It is proved: it opens, belongs to the user, is not revoked, and equals the stored token in every field but the
    /// award time, of which it carries the earlier one.
    Valid(BonusToken),
    /// It opens, and the store does not hold it: it was credited, has expired, or never arrived there.
    Unknown,
    /// It does not count. The cause is for operators alone, so every cause looks the same here.
    Illegal,
    /// The store cannot say. This is neither Unknown nor Valid.
    Unavailable,
}

/// Where a page begins, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page<'a> {
    /// [`TokenPage::next`] of the page before; `None` for the first page.
    pub after: Option<&'a str>,
    /// The number of tokens, 1 to [`PAGE_MAX`].
    pub size: usize,
}

impl Default for Page<'_> {
    /// The first page, of [`PAGE_DEFAULT`] tokens.
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

/// A page of a user's tokens.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenPage {
    /// The tokens, sorted by their order numbers.
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

/// Nothing was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// Present fewer at a time.
    #[error("{texts} tokens; at most {TEXTS_MAX} a call")]
    TooMany {
        /// The number of texts that there were.
        texts: usize,
    },
}

/// Lists and verifies the tokens of users.
#[async_trait]
pub trait TokenVerifier: Send + Sync {
    /// A page of the tokens that the store holds for a user, of one activity where one is given. What does not open
    /// for this tenant and user, or is revoked, is left out. With an activity a page may be short, even empty, and
    /// yet have a next one.
    ///
    /// # Errors
    /// [`ListError`].
    async fn list(
        &self,
        tenant: &str,
        user_id: i64,
        activity: Option<&str>,
        page: Page<'_>,
    ) -> Result<TokenPage, ListError>;

    /// Verifies texts that a user presents: one verdict for each text, in order. Where the store cannot say,
    /// what opens is [`Verdict::Unavailable`].
    ///
    /// # Errors
    /// [`VerifyError`].
    async fn verify(&self, tenant: &str, user_id: i64, texts: &[String])
    -> Result<Vec<Verdict>, VerifyError>;
}
