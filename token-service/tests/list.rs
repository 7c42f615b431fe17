//! A user's tokens, page by page, in process and over the service.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod desk;

use desk::{Desk, Mood, TENANT, USER, fields};
use tonic::{Code, Request};
use windfall_contract::rules::Revoked;
use windfall_contract::verifier::{ListError, Page, TokenPage};
use windfall_edge::{Call, Caller, Role};
use windfall_proto::v1::tokens_server::Tokens as _;
use windfall_proto::v1::{ListTokensReply, ListTokensRequest};
use windfall_token::TokenFields;
use windfall_token_service::{Cause, KeyRingVerifier, TokenService};

fn asking<T>(message: T, user_id: Option<i64>) -> Request<T> {
    let caller = Caller {
        name: "front".into(),
        tenant: TENANT.into(),
        roles: [Role::Verify].into(),
        timers_of: Default::default(),
    };
    let mut request = Request::new(message);
    request.extensions_mut().insert(Call { caller, user_id, trace_id: None });
    request
}

async fn page(
    verifier: &KeyRingVerifier,
    activity: Option<&str>,
    after: Option<&str>,
    size: usize,
) -> TokenPage {
    verifier.list(TENANT, USER, activity, Page { after, size }).await.unwrap()
}

/// All pages: the order numbers, and how many pages there were.
async fn all(verifier: &KeyRingVerifier, activity: Option<&str>, size: usize) -> (Vec<String>, usize) {
    let (mut names, mut pages, mut after) = (Vec::new(), 0, None);
    loop {
        let page = page(verifier, activity, after.as_deref(), size).await;
        assert!(page.tokens.len() <= size);
        names.extend(page.tokens.into_iter().map(|held| held.content.trade_no));
        pages += 1;
        match page.next {
            Some(next) => after = Some(next),
            None => return (names, pages),
        }
    }
}

#[tokio::test]
async fn five_hundred_tokens_in_pages_of_any_size() {
    let desk = Desk::new();
    let names: Vec<String> = (0..500).map(|n| format!("order-{n:03}")).collect();
    for name in &names {
        desk.hold(&fields(name));
        desk.hold(&TokenFields { user_id: USER + 1, ..fields(name) });
    }
    for (size, pages) in [(500, 1), (499, 2), (250, 2), (100, 5), (1, 500)] {
        assert_eq!(all(&desk.verifier, None, size).await, (names.clone(), pages), "pages of {size}");
        assert_eq!(
            all(&desk.verifier, Some("spring-2027"), size).await,
            (names.clone(), pages),
            "pages of {size}"
        );
    }
    assert_eq!(all(&desk.verifier, Some("autumn"), 100).await, (vec![], 1));
    for size in [0, 501] {
        let refused = desk.verifier.list(TENANT, USER, None, Page { after: None, size }).await;
        assert_eq!(refused, Err(ListError::Size { size }));
    }
}

#[tokio::test]
async fn a_needle_in_a_haystack_takes_more_pages_not_more_work_a_call() {
    let desk = Desk::new();
    for n in 0..5_000 {
        desk.hold(&TokenFields { activity: "hay", ..fields(&format!("hay-{n:04}")) });
    }
    desk.hold(&TokenFields { activity: "needle", ..fields("needle") });
    let first = page(&desk.verifier, Some("needle"), None, 100).await;
    assert!(first.tokens.is_empty() && first.next.is_some());
    assert_eq!(desk.reads(), 4);
    assert_eq!(all(&desk.verifier, Some("needle"), 100).await, (vec!["needle".into()], 3));
}

#[tokio::test]
async fn what_does_not_count_is_left_out_and_counted() {
    let mut desk = Desk::new();
    desk.hold(&fields("a"));
    let others = desk.mint(&TokenFields { user_id: USER + 1, ..fields("b") });
    desk.store.put_text(USER, "b", &others);
    desk.store.put_text(USER, "c", "no token at all");
    desk.store.put_text(USER, "d", &desk.mint(&fields("another order")));
    desk.hold(&fields("e"));
    desk.hold(&fields("f"));
    desk.revoke([Revoked::TradeNo("e".into())]);
    assert_eq!(all(&desk.verifier, None, 500).await.0, ["a", "f"]);
    let stats = desk.verifier.stats();
    for cause in [Cause::Owner, Cause::Base64, Cause::Differs, Cause::Revoked] {
        assert_eq!(stats.left_out_by(cause), 1, "{cause:?}");
    }
    assert_eq!(stats.listed, 2);
    // Pages of one skip them, and end.
    assert_eq!(all(&desk.verifier, None, 1).await.0, ["a", "f"]);
    assert_eq!(desk.verifier.list("rival", USER, None, Page::default()).await.unwrap(), TokenPage::default());
}

#[tokio::test(start_paused = true)]
async fn over_the_service() {
    let desk = Desk::new();
    for n in 0..250 {
        desk.hold(&fields(&format!("order-{n:03}")));
    }
    let service = TokenService::new(desk.verifier.clone());
    let list = async |ask: ListTokensRequest, user_id| service.list_tokens(asking(ask, user_id)).await;
    let mut ask = ListTokensRequest { activity: "spring-2027".into(), ..Default::default() };
    let mut got = 0;
    for expected in [100, 100, 50] {
        let ListTokensReply { tokens, next_page_token } =
            list(ask.clone(), Some(USER)).await.unwrap().into_inner();
        assert_eq!(tokens.len(), expected);
        assert_eq!(tokens[0].content.as_ref().unwrap().trade_no, format!("order-{got:03}"));
        got += tokens.len();
        ask.page_token = next_page_token;
    }
    assert_eq!(ask.page_token, "");

    let first = list(ListTokensRequest::default(), Some(USER)).await.unwrap().into_inner();
    let wrong = |edit: fn(&mut ListTokensRequest)| {
        let mut ask = ListTokensRequest { page_token: first.next_page_token.clone(), ..Default::default() };
        edit(&mut ask);
        ask
    };
    let refusals = [
        (wrong(|ask| ask.page_size = 501), Some(USER), Code::InvalidArgument),
        (wrong(|ask| ask.page_size = u32::MAX), Some(USER), Code::InvalidArgument),
        (wrong(|ask| ask.activity = "spring-2027".into()), Some(USER), Code::InvalidArgument),
        (wrong(|ask| ask.activity = "a b".into()), Some(USER), Code::InvalidArgument),
        (wrong(|ask| ask.page_token.push('=')), Some(USER), Code::InvalidArgument),
        (wrong(|ask| ask.page_token = "order-099".into()), Some(USER), Code::InvalidArgument),
        (wrong(|_| {}), Some(USER + 1), Code::InvalidArgument),
        (wrong(|_| {}), None, Code::Unauthenticated),
    ];
    for (ask, user_id, code) in refusals {
        let refused = list(ask.clone(), user_id).await.unwrap_err();
        assert_eq!(refused.code(), code, "{ask:?}: {refused}");
    }
    for mood in [Mood::Refuses, Mood::Hangs] {
        desk.mood(mood);
        assert_eq!(list(wrong(|_| {}), Some(USER)).await.unwrap_err().code(), Code::Unavailable);
    }
    let unmounted = service.list_tokens(Request::new(ListTokensRequest::default())).await;
    assert_eq!(unmounted.unwrap_err().code(), Code::Internal);
}
