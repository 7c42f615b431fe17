//! A reward that is sent again: both tokens that the user got are worth the same. // I7

use crate::stage::{Stage, one_queue, rules, wait_until};
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::verifier::Verdict;
use windfall_sdk::{Prize, RedPacketRain, SdkOptions, User};
use windfall_token_service::{KeyRingVerifier, TokenOptions, TokenParts};

fn book(stage: &Stage) -> KeyRingVerifier {
    let rules = windfall_config::parse_rules(&one_queue(), None).unwrap();
    let parts = TokenParts {
        keys: stage.ring.clone(),
        store: Arc::clone(&stage.tokens) as _,
        rules: windfall_config::LiveRules::fixed(rules),
    };
    KeyRingVerifier::open(TokenOptions::default(), parts).unwrap()
}

fn verdicts(book: &KeyRingVerifier, app_id: &str, texts: &[&str]) -> Vec<Verdict> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(book.verify(app_id, 42, texts)).unwrap()
}

#[test]
fn both_tokens_of_a_repeated_send_are_valid_whichever_the_store_holds() {
    let stage = Stage::open(SdkOptions::default(), &rules(1, &[("q", 100)], &[("*", "q")]));
    let rain = RedPacketRain::new(&stage.sdk, "spring-2027", "cash").unwrap();
    let prize = Prize { amount: 888, description: "red packet" };
    let send = |prize| rain.send(1, User::id(42), 0, prize).unwrap().token;
    let first = send(prize);
    // Another millisecond, another award time.
    std::thread::sleep(Duration::from_millis(5));
    let second = send(prize);
    wait_until("both tokens are written", || stage.sdk.stats().tokens_written == 2);

    let book = book(&stage);
    let app_id = stage.sdk.app_id();
    let key = (42, format!("{} spring-2027", rain.trade_no(1, 42, 0)));
    // The last put wins; which of two threads' puts is the last, nobody knows.
    for held in [&second, &first] {
        stage.tokens.held.lock().insert(key.clone(), held.clone());
        let found = verdicts(&book, app_id, &[&first, &second]);
        assert!(found.iter().all(|one| matches!(one, Verdict::Valid(_))), "{found:?}");
    }

    // What is another reward under the same number is not the same token.
    let more = send(Prize { amount: 889, ..prize });
    wait_until("it is written", || stage.sdk.stats().tokens_written == 3);
    let found = verdicts(&book, app_id, &[&first, &second, &more]);
    assert_eq!(found[..2], [Verdict::Illegal, Verdict::Illegal]);
    stage.end();
}
