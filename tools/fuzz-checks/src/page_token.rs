//! Page tokens of the list of a user's tokens, which clients hand back.

use crate::edits::edited;
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Runtime;
use tonic::Request;
use windfall_config::LiveRules;
use windfall_contract::tokens::{StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};
use windfall_edge::{Call, Caller, Role};
use windfall_proto::order::{NAME_MAX_BYTES, TRADE_NO_MAX_BYTES, check_text};
use windfall_proto::v1::ListTokensRequest;
use windfall_proto::v1::tokens_server::Tokens as _;
use windfall_token::KeyRing;
use windfall_token_service::{KeyRingVerifier, TokenOptions, TokenParts, TokenService};

/// An order number, a space and an activity.
const NAME_BYTES_MAX: usize = TRADE_NO_MAX_BYTES + 1 + NAME_MAX_BYTES;

/// Lists that must not open each other's page tokens.
const LISTS: [List; 5] = [
    List { tenant: "acme", user_id: 42, activity: "" },
    List { tenant: "acme", user_id: 42, activity: "spring" },
    List { tenant: "acme", user_id: 43, activity: "" },
    List { tenant: "acm", user_id: 42, activity: "" },
    List { tenant: "acme", user_id: 42, activity: "spring2" },
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct List {
    tenant: &'static str,
    user_id: i64,
    activity: &'static str,
}

/// What the store was asked, and what it answers: always this name, and never that it was the last.
#[derive(Default)]
struct Shelf(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    after: Option<String>,
    is_asked: bool,
    name: Option<String>,
}

struct Known {
    shelf: Arc<Shelf>,
    service: TokenService,
    runtime: Runtime,
}

thread_local! {
    static KNOWN: Option<Known> = make();
}

/// `None` where the machine has no randomness.
fn make() -> Option<Known> {
    let shelf = Arc::new(Shelf::default());
    let rules =
        windfall_config::parse_rules(include_str!("../../../config/samples/rules.toml"), None).ok()?;
    let parts = TokenParts {
        keys: KeyRing::ephemeral().ok()?,
        store: Arc::clone(&shelf) as Arc<dyn TokenStore>,
        rules: LiveRules::fixed(rules),
    };
    let verifier = KeyRingVerifier::open(TokenOptions::default(), parts).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
    Some(Known { shelf, service: TokenService::new(verifier), runtime })
}

/// A text from outside, a page token of one list at another one, or edits of a page token: it opens where it was made
/// for the list and the place that it says, and nowhere else.
pub fn page_token(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else { return };
    KNOWN.with(|known| {
        let Some(known) = known else { return };
        match mode % 3 {
            0 => known.outside(LISTS[0], &String::from_utf8_lossy(rest)),
            1 => {
                let [own, other, name @ ..] = rest else { return };
                let [own, other] = [own, other].map(|nth| LISTS[usize::from(*nth) % LISTS.len()]);
                known.elsewhere(own, other, &String::from_utf8_lossy(name));
            }
            _ => {
                let honest = LISTS[1].page_token("rain:1:42 spring");
                let text = edited(honest.as_bytes(), rest);
                known.outside(LISTS[1], &String::from_utf8_lossy(&text));
            }
        }
    });
}

impl List {
    /// As the service documents it.
    fn page_token(self, name: &str) -> String {
        let user = self.user_id.to_be_bytes();
        let covered =
            [self.tenant.as_bytes(), b"\0", &user, self.activity.as_bytes(), b"\0", name.as_bytes()].concat();
        B64.encode([&[1][..], &crc32c::crc32c(&covered).to_be_bytes(), name.as_bytes()].concat())
    }
}

impl Known {
    fn outside(&self, list: List, text: &str) {
        match self.opens(list, text) {
            Some(Some(after)) => assert!(text == list.page_token(&after) && is_name(&after), "{text}"),
            Some(None) => assert_eq!(text, "", "it begins a list"),
            None => {}
        }
    }

    fn elsewhere(&self, own: List, other: List, name: &str) {
        let text = own.page_token(name);
        let expected = (own == other && is_name(name)).then(|| Some(name.to_owned()));
        assert_eq!(self.opens(other, &text), expected, "{name:?} of {own:?} at {other:?}");
        if own.activity.is_empty() && is_name(name) {
            self.shelf.lock().name = Some(name.to_owned());
            let next = self.list(own, "");
            self.shelf.lock().name = None;
            assert_eq!(next, Some(text), "of {name:?}");
        }
    }

    /// The name behind which the store was asked for tokens; `None` where it was not asked.
    fn opens(&self, list: List, text: &str) -> Option<Option<String>> {
        *self.shelf.lock() = Seen::default();
        let is_read = self.list(list, text).is_some();
        let seen = std::mem::take(&mut *self.shelf.lock());
        assert_eq!(is_read, seen.is_asked);
        seen.is_asked.then_some(seen.after)
    }

    /// The page token of the next page; `None` where the call is refused.
    fn list(&self, list: List, page_token: &str) -> Option<String> {
        let caller = Caller {
            name: "front".into(),
            tenant: list.tenant.into(),
            roles: [Role::Verify].into(),
            timers_of: Arc::default(),
        };
        let mut request = Request::new(ListTokensRequest {
            activity: list.activity.to_owned(),
            page_size: 1,
            page_token: page_token.to_owned(),
        });
        request.extensions_mut().insert(Call { caller, user_id: Some(list.user_id), trace_id: None });
        let reply = self.runtime.block_on(self.service.list_tokens(request)).ok()?;
        Some(reply.into_inner().next_page_token)
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && check_text(name, NAME_BYTES_MAX).is_ok()
}

impl Shelf {
    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl TokenStore for Shelf {
    async fn put(&self, _batch: &[TokenPut]) -> Result<(), Unavailable> {
        Ok(())
    }

    async fn remove(&self, _batch: &[TokenKey]) -> Result<(), Unavailable> {
        Ok(())
    }

    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        Ok(vec![None; keys.len()])
    }

    async fn list(
        &self,
        _user_id: i64,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredToken>, Unavailable> {
        let mut seen = self.lock();
        if !std::mem::replace(&mut seen.is_asked, true) {
            seen.after = after.map(str::to_owned);
        }
        let Some(name) = seen.name.as_deref() else { return Ok(Vec::new()) };
        Ok(vec![StoredToken { name: name.into(), token: "no token".into() }; limit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_check_compares_with_is_there() {
        assert!(KNOWN.with(Option::is_some));
    }
}
