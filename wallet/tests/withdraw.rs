//! Paid once for each id, whatever breaks on the way.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bank;

use bank::{ALICE, At, Desk, asked, busy};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use windfall_contract::accounts::WithdrawalOutcome;
use windfall_wallet::{User, WalletOptions, WithdrawError};

fn paid(credited_tokens: u32, balance: i64) -> windfall_wallet::Receipt {
    windfall_wallet::Receipt { outcome: WithdrawalOutcome::Paid, credited_tokens, balance }
}

fn short(balance: i64) -> windfall_wallet::Receipt {
    windfall_wallet::Receipt { outcome: WithdrawalOutcome::Short { balance }, credited_tokens: 0, balance }
}

fn conflict() -> windfall_wallet::Receipt {
    windfall_wallet::Receipt { outcome: WithdrawalOutcome::Conflict, credited_tokens: 0, balance: 0 }
}

#[tokio::test]
async fn a_balance_that_is_enough_needs_no_token() {
    let desk = Desk::new();
    desk.world.arrive("arrived", 1_000);
    desk.hold("coming", 200);
    // The token store may be away. // I8
    *desk.world.store_down.lock() = true;
    assert_eq!(desk.withdraw(ALICE, &asked("w1", 900, &[])).await, Ok(paid(0, 100)));
    assert_eq!(desk.world.books.lock().granted, ["arrived"]);
    desk.world.books.lock().check();
}

#[tokio::test]
async fn what_is_lacking_is_credited_and_no_more() {
    let desk = Desk::new();
    desk.world.arrive("arrived", 100);
    let texts = [("small", 10), ("large", 300), ("middle", 50)].map(|(name, amount)| desk.hold(name, amount));
    desk.hold_of("coins", "coin", 10_000);
    let texts = texts.each_ref().map(String::as_str);
    assert_eq!(desk.withdraw(ALICE, &asked("w1", 350, &texts)).await, Ok(paid(1, 50)));
    assert_eq!(desk.world.books.lock().granted, ["arrived", "large"], "the largest first");
    // The rest still comes, or is credited when it is needed.
    assert_eq!(desk.withdraw(ALICE, &asked("w2", 110, &[])).await, Ok(paid(2, 0)));
    desk.world.books.lock().check();
}

#[tokio::test]
async fn unknown_illegal_and_others_tokens_are_never_forced() {
    let desk = Desk::new();
    let unknown = desk.mint(ALICE.user_id, "unknown", "cash", 1_000);
    let bobs = desk.mint(43, "bobs", "cash", 1_000);
    desk.world.tokens.lock().insert((43, "bobs".into()), bobs.clone());
    let other_amount = desk.mint(ALICE.user_id, "order", "cash", 1_000);
    desk.hold("order", 1);
    let mut altered = other_amount.clone();
    altered.replace_range(90..91, if &altered[90..91] == "A" { "B" } else { "A" });
    let texts = [unknown.as_str(), &bobs, &other_amount, &altered, "", &"A".repeat(10 << 20)];
    let refused = desk.withdraw(ALICE, &asked("w1", 500, &texts)).await;
    assert_eq!(refused, Ok(short(0)));
    // Of another app, too.
    let rival = User { tenant: "rival", ..ALICE };
    desk.hold("rich", 1_000);
    let refused = desk.withdraw(rival, &asked("w1", 500, &[])).await;
    assert_eq!(refused, Ok(short(0)));
    assert!(desk.world.books.lock().granted.is_empty());
    // Nothing was kept; the id may be used again.
    assert_eq!(desk.withdraw(ALICE, &asked("w1", 1_000, &[])).await, Ok(paid(1, 0)));
}

#[tokio::test]
async fn too_little_with_all_that_is_coming_forces_nothing() {
    let desk = Desk::new();
    desk.world.arrive("arrived", 100);
    desk.hold("coming", 200);
    let refused = desk.withdraw(ALICE, &asked("w1", 301, &[])).await;
    assert_eq!(refused, Ok(short(100)));
    assert_eq!(desk.world.books.lock().granted, ["arrived"]);
}

#[tokio::test]
async fn a_replay_is_paid_once_and_a_changed_one_not_at_all() {
    let desk = Desk::new();
    desk.hold("coming", 1_000);
    assert_eq!(desk.withdraw(ALICE, &asked("w1", 400, &[])).await, Ok(paid(1, 600)));
    let again = desk.withdraw(ALICE, &asked("w1", 400, &[])).await.unwrap();
    assert_eq!((again.outcome, again.balance), (WithdrawalOutcome::AlreadyPaid, 600));

    desk.hold("more", 5_000);
    let bob = User { user_id: 43, ..ALICE };
    let mut coins = asked("w1", 400, &[]);
    coins.withdrawal.bonus_type = "coin".into();
    for (user, changed) in [(ALICE, asked("w1", 401, &[])), (ALICE, coins), (bob, asked("w1", 400, &[]))] {
        assert_eq!(desk.withdraw(user, &changed).await, Ok(conflict()), "{changed:?}");
    }
    let books = desk.world.books.lock();
    assert_eq!(books.granted, ["coming"], "nothing was forced for a replay");
    books.check();
}

#[tokio::test]
async fn a_grant_that_says_retry_makes_no_too_little() {
    let desk = Desk::new();
    desk.world.arrive("arrived", 100);
    desk.hold("late", 500);
    desk.hold("fine", 60);
    desk.world.books.lock().grants.insert("late".into(), busy());
    // Enough without it: it goes on with what is credited.
    assert_eq!(desk.withdraw(ALICE, &asked("w1", 150, &[])).await, Ok(paid(1, 10)));
    let unanswered = desk.withdraw(ALICE, &asked("w2", 300, &[])).await.unwrap_err();
    assert!(matches!(unanswered, WithdrawError::Unanswered { after_ms: 70, .. }), "{unanswered}");
    desk.world.books.lock().grants.clear();
    assert_eq!(desk.withdraw(ALICE, &asked("w2", 300, &[])).await, Ok(paid(1, 210)));
    // A rejection is final: too little, then.
    desk.hold("never", 500);
    desk.world.books.lock().grants.insert("never".into(), bank::rejected().0);
    let refused = desk.withdraw(ALICE, &asked("w3", 300, &[])).await;
    assert_eq!(refused, Ok(short(210)));
    desk.world.books.lock().check();
}

#[tokio::test]
async fn a_store_that_is_away_makes_no_too_little_either() {
    let desk = Desk::new();
    let text = desk.hold("coming", 500);
    *desk.world.store_down.lock() = true;
    let unanswered = desk.withdraw(ALICE, &asked("w1", 300, &[&text])).await;
    assert!(matches!(unanswered, Err(WithdrawError::Unanswered { .. })), "{unanswered:?}");
    assert!(desk.world.books.lock().granted.is_empty(), "client tokens alone prove nothing");
}

#[tokio::test]
async fn more_tokens_than_are_read_at_once_take_more_calls() {
    let desk = Desk::new();
    for nth in 0..2_100 {
        desk.hold(&format!("order-{nth:04}"), 1);
    }
    let asked = asked("w1", 2_100, &[]);
    let first = desk.withdraw(ALICE, &asked).await;
    assert!(matches!(first, Err(WithdrawError::Unanswered { .. })), "{first:?}");
    // As the reward service's observer does.
    let credited: Vec<String> = desk.world.books.lock().orders.keys().cloned().collect();
    assert_eq!(credited.len(), 2_000);
    desk.world.tokens.lock().retain(|(_, trade_no), _| !credited.contains(trade_no));
    assert_eq!(desk.withdraw(ALICE, &asked).await, Ok(paid(100, 0)));
    desk.world.books.lock().check();
}

#[tokio::test]
async fn payouts_that_wait_or_refuse() {
    let desk = Desk::new();
    desk.world.arrive("arrived", 1_000);
    desk.world.books.lock().payout = Some(WithdrawalOutcome::Pending { after_ms: 30 });
    let pending = desk.withdraw(ALICE, &asked("w1", 400, &[])).await.unwrap();
    assert_eq!((pending.outcome, pending.balance), (WithdrawalOutcome::Pending { after_ms: 30 }, 600));
    desk.world.books.lock().payout = Some(WithdrawalOutcome::Refused("account closed".into()));
    let refused = desk.withdraw(ALICE, &asked("w2", 400, &[])).await.unwrap();
    assert_eq!(
        (refused.outcome, refused.balance),
        (WithdrawalOutcome::Refused("account closed".into()), 600)
    );
}

#[tokio::test]
async fn wrong_arguments_touch_nothing() {
    let desk = Desk::new();
    desk.world.arrive("arrived", 1_000);
    let text = desk.hold("coming", 1);
    let many = vec![text.as_str(); 513];
    let mut no_type = asked("w1", 1, &[]);
    no_type.withdrawal.bonus_type = "Cash!".into();
    let wrong = [
        asked("", 1, &[]),
        asked("a b", 1, &[]),
        asked(&"w".repeat(129), 1, &[]),
        asked("w1", 0, &[]),
        asked("w1", -1, &[]),
        asked("w1", i64::MAX, &[]),
        no_type,
    ];
    for asked in wrong {
        let refused = desk.withdraw(ALICE, &asked).await;
        assert!(matches!(refused, Err(WithdrawError::Invalid { .. })), "{asked:?}: {refused:?}");
    }
    let refused = desk.withdraw(ALICE, &asked("w1", 1, &many)).await;
    assert!(matches!(refused, Err(WithdrawError::Tokens(_))), "{refused:?}");
    assert_eq!(desk.world.steps.load(SeqCst), 0);
    assert_eq!(desk.wallet.stats().invalid, 8);
}

/// What a withdrawal of the tests below finds: some money, and more of it on its way.
fn purse() -> (Desk, Vec<String>) {
    let hour = 60_000;
    let desk = Desk::with(WalletOptions {
        ledger_timeout_ms: hour,
        grant_timeout_ms: hour,
        payout_timeout_ms: hour,
    });
    desk.world.arrive("arrived", 100);
    let texts = ["a", "b", "c"].map(|name| desk.hold(name, 100)).to_vec();
    (desk, texts)
}

/// The call dies at each step, before or after what the step does; another one with the same id settles it.
#[tokio::test(start_paused = true)]
async fn it_may_die_on_any_line() {
    let mut step = 0;
    loop {
        let (desk, texts) = purse();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let asked = asked("w1", 350, &texts);
        desk.world.at(step, At::Hang);
        // Before any time limit: the future is dropped where it is.
        let died = tokio::time::timeout(Duration::from_millis(1), desk.withdraw(ALICE, &asked)).await;
        if let Ok(receipt) = died {
            assert_eq!(receipt, Ok(paid(3, 50)));
            assert!(step >= 12, "it ran through all steps: {step}");
            return;
        }
        desk.world.books.lock().check();
        desk.world.rewind();
        let receipt = desk.withdraw(ALICE, &asked).await.unwrap();
        assert!(
            matches!(receipt.outcome, WithdrawalOutcome::Paid | WithdrawalOutcome::AlreadyPaid),
            "step {step}: {receipt:?}"
        );
        assert_eq!(receipt.balance, 50, "step {step}");
        let books = desk.world.books.lock();
        assert_eq!(books.payouts["w1"], [350], "step {step}");
        books.check();
        drop(books);
        step += 1;
    }
}

/// An answer is lost at each step: time limits make of it what it is, and asking again settles it.
#[tokio::test(start_paused = true)]
async fn any_answer_may_be_lost() {
    for step in 0..24 {
        let (desk, texts) = purse();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let asked = asked("w1", 350, &texts);
        desk.world.at(step, At::Hang);
        let first = desk.withdraw(ALICE, &asked).await;
        match &first {
            Ok(receipt) => {
                assert_eq!((&receipt.outcome, receipt.balance), (&WithdrawalOutcome::Paid, 50), "step {step}")
            }
            Err(error) => assert!(matches!(error, WithdrawError::Unanswered { .. }), "step {step}: {error}"),
        }
        desk.world.rewind();
        let second = desk.withdraw(ALICE, &asked).await.unwrap();
        let expected = if first.is_ok() {
            [WithdrawalOutcome::AlreadyPaid; 1].to_vec()
        } else {
            vec![WithdrawalOutcome::Paid, WithdrawalOutcome::AlreadyPaid]
        };
        assert!(expected.contains(&second.outcome), "step {step}: {second:?}");
        let books = desk.world.books.lock();
        assert_eq!(books.payouts["w1"], [350], "step {step}");
        books.check();
    }
}

/// The consumer brings one of the same events at each step.
#[tokio::test]
async fn the_consumer_may_bring_the_same_events_at_any_moment() {
    for step in 0..24 {
        let (desk, texts) = purse();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        desk.world.at(
            step,
            At::Do(Box::new(|world| ["a", "c"].map(|name| world.arrive(name, 100)).into_iter().collect())),
        );
        let receipt = desk.withdraw(ALICE, &asked("w1", 400, &texts)).await.unwrap();
        assert_eq!((receipt.outcome, receipt.balance), (WithdrawalOutcome::Paid, 0), "step {step}");
        let books = desk.world.books.lock();
        assert_eq!(books.payouts["w1"], [400], "step {step}");
        books.check();
    }
}

/// Two calls with one id, two with another, and the consumer, all at once, interleaved at every step.
#[tokio::test]
async fn calls_at_once_pay_once_an_id() {
    for offset in 0..24 {
        let (desk, texts) = purse();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        desk.world.at(offset, At::Do(Box::new(|world| world.arrive("b", 100))));
        let (one, two) = (asked("w1", 250, &texts), asked("w2", 250, &texts));
        let answers = tokio::join!(
            desk.withdraw(ALICE, &one),
            desk.withdraw(ALICE, &two),
            desk.withdraw(ALICE, &one),
            desk.withdraw(ALICE, &two),
        );
        let paid_by = |answers: [&Result<windfall_wallet::Receipt, WithdrawError>; 2]| {
            answers
                .into_iter()
                .filter(|answer| matches!(answer, Ok(receipt) if receipt.outcome == WithdrawalOutcome::Paid))
                .count()
        };
        let paid = paid_by([&answers.0, &answers.2]) + paid_by([&answers.1, &answers.3]);
        assert_eq!(paid, 1, "400 pay 250 once: {answers:?}");
        let books = desk.world.books.lock();
        assert_eq!(books.payouts.len(), 1, "offset {offset}");
        books.check();
        drop(books);
        assert_eq!(desk.world.balance(), if desk.world.books.lock().orders.len() == 4 { 150 } else { 50 });
    }
}
